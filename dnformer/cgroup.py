"""What the cgroups of this process (v1 or v2) say, and the cores that they allow it."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def cores(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Cores that this process may keep busy: by its affinity, and by the quota of its cgroups.

    Args:
        root: where cgroups are mounted.
        membership: which ones the process is in, as the kernel writes it.
    """
    allowed = float(affinity())
    for folder in folders("cpu", root, membership):
        quota, period = (content(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if not quota:
            quota, _, period = content(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):  # "max" or -1: none
            allowed = min(allowed, int(quota) / int(period))
    return max(1, math.floor(allowed))


def affinity() -> int:
    """Cores that this process may run on."""
    # not on macOS
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """Those of this process's cgroup and of the ones around it, the nearest first."""
    for line in content(membership).splitlines():
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


def content(path: Path) -> str:
    """What a file of the kernel's says; nothing where there is none."""
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
