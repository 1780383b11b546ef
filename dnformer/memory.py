"""Memory of this process: what it may use, used at most, and whether the kernel killed for it."""

import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_STATUS = Path("/proc/self/status")
# what takes less memory
MEND = (
    "lower loader.batch_size, loader.num_neighbors or cache.hot_bytes, or use fewer workers a host"
)


def memory_limit(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
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


def oom_kills(root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int | None:
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


def _read(root: Path, membership: Path, *, v1: str, v2: str) -> Iterator[str]:
    """Content of a file of this process's cgroup and of those around it, the nearest first."""
    for path in _files(root, membership, v1, v2):
        try:
            yield path.read_text("ascii")
        except OSError:
            continue


def _files(root: Path, membership: Path, v1: str, v2: str) -> Iterator[Path]:
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            mount, name = root, v2
        elif "memory" in controllers.split(","):
            mount, name = root / "memory", v1
        else:
            continue
        # inside a container the path may be the host's; its own limit then stands at the mount
        path = Path(group.lstrip("/"))
        for folder in (path, *path.parents):
            yield mount / folder / name
