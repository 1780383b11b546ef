"""How much memory this process may use: the machine's, or less where a cgroup says so."""

from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def memory_limit(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
    """Bytes; the least limit of this process's cgroup (v1 or v2) and of those around it.

    Args:
        root: where cgroups are mounted.
        membership: which ones the process is in, as the kernel writes it.
    """
    limits = [int(psutil.virtual_memory().total)]
    for file in _limit_files(root, membership):
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # v2 says "max" where there is none
            limits.append(int(text))
    return min(limits)


def _limit_files(root: Path, membership: Path) -> Iterator[Path]:
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            mount, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        # inside a container the path may be the host's; its own limit then stands at the mount
        path = Path(group.lstrip("/"))
        for folder in (path, *path.parents):
            yield mount / folder / name
