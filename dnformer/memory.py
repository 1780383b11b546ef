"""Memory of this process: what it may use, used at most, and whether the kernel killed for it."""

import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dnformer.cgroup import MEMBERSHIP, ROOT, content, folders

if TYPE_CHECKING:
    import torch

_STATUS = Path("/proc/self/status")
# what takes less memory
MEND = (
    "lower loader.batch_size, loader.num_neighbors or cache.hot_bytes, or use fewer workers a host"
)


def memory_limit(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Bytes; the least limit of this process's cgroup (v1 or v2) and of those around it.

    Args:
        root: where cgroups are mounted.
        membership: which ones the process is in, as the kernel writes it.
    """
    limits = [int(psutil.virtual_memory().total)]
    for text in _read(root, membership, v1="memory.limit_in_bytes", v2="memory.max"):
        if text.strip().isdigit():  # v2 says "max" where there is none
            limits.append(int(text))
    return min(limits)


def oom_kills(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """How many processes of this process's cgroup the kernel has killed for memory so far.

    v2 counts those of the cgroups below it, too; v1 does not.

    Args:
        root: see `memory_limit`.
        membership: likewise.

    Returns:
        None where the kernel does not say.
    """
    for text in _read(root, membership, v1="memory.oom_control", v2="memory.events"):
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        if found:
            return int(found[1])
    return None


def oom_report(before: int | None, after: int | None) -> str | None:
    """A sentence on what the kernel killed between two counts of `oom_kills`, None for nothing."""
    if before is None or after is None or after <= before:
        return None
    killed = after - before
    return (
        f"the kernel killed {killed} process{'es' if killed > 1 else ''} for memory, of which this "
        f"cgroup may use {memory_limit() / 2**30:.1f} GiB: {MEND}"
    )


def peak_rss_bytes(status: Path = _STATUS) -> int:
    """The most memory that this process has had resident.

    Args:
        status: what the kernel writes of the process.
    """
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text("ascii"), re.MULTILINE)
    except OSError:
        found = None
    if found:
        return int(found[1]) << 10
    # not the first choice: it begins with the peak of the parent, which exec passes on
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def peak_gpu_bytes(device: "torch.device") -> int | None:
    """The most memory that this process's tensors have taken on a GPU; None on other devices."""
    if device.type != "cuda":
        return None
    import torch  # here: ingest looks at memory, too, and does without torch

    return torch.cuda.max_memory_allocated(device)


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Bytes that may be taken once this process is gone: on this machine, and by its cgroups."""
    left = int(psutil.virtual_memory().available)
    for folder in folders("memory", root, membership):
        limit = content(folder / "memory.limit_in_bytes") or content(folder / "memory.max")
        used = content(folder / "memory.usage_in_bytes") or content(folder / "memory.current")
        if limit.isdigit() and used.isdigit():
            left = min(left, int(limit) - int(used) + _reclaimable(folder))
    own = int(psutil.Process().memory_full_info().uss)
    return max(0, min(left + own, memory_limit(root, membership)))


def _reclaimable(folder: Path) -> int:
    """Bytes of files that the kernel drops before it kills."""
    stat = dict(line.split() for line in content(folder / "memory.stat").splitlines())
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _read(root: Path, membership: Path, *, v1: str, v2: str) -> Iterator[str]:
    """Content of a file of this process's cgroup and of those around it, the nearest first."""
    for folder in folders("memory", root, membership):
        found = content(folder / v1) or content(folder / v2)
        if found:
            yield found
