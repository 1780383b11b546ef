"""What the cgroups of this process (v1 or v2) allow it beside memory's limit, and what is used."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from dnformer.memory import memory_limit

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def cores(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
    """Cores that this process may keep busy: by its affinity, and by the quota of its cgroups."""
    allowed = float(len(os.sched_getaffinity(0)))
    for folder in _folders(root, membership, "cpu"):
        quota, period = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if not quota:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" or -1: none
            allowed = min(allowed, int(quota) / int(period))
    return max(1, math.floor(allowed))


def memory_left(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
    """Bytes that may be taken once this process is gone: on this machine, and by its cgroups."""
    left = int(psutil.virtual_memory().available)
    for folder in _folders(root, membership, "memory"):
        limit = _text(folder / "memory.limit_in_bytes") or _text(folder / "memory.max")
        used = _text(folder / "memory.usage_in_bytes") or _text(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            left = min(left, int(limit) - int(used) + _reclaimable(folder))
    own = int(psutil.Process().memory_full_info().uss)
    return max(0, min(left + own, memory_limit(root, membership)))


def _reclaimable(folder: Path) -> int:
    """Bytes of files that the kernel drops before it kills."""
    stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""


def _folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Those of this process's cgroup and of the ones around it, the nearest first."""
    for line in _text(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            mount = root
        elif controller in controllers.split(","):
            mount = root / controller
        else:
            continue
        # inside a container the path may be the host's; its own limits then stand at the mount
        path = Path(group.lstrip("/"))
        for folder in (path, *path.parents):
            yield mount / folder
