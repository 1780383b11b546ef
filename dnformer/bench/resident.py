"""What the kernel counts of this process's memory; without torch, which would count itself."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def countable() -> bool:
    """Whether this system says so (Linux)."""
    return _STATUS.exists()


def status_bytes(name: str) -> int:
    """`VmRSS`, the resident bytes of now, or `VmHWM`, the most there ever were.

    Unlike `getrusage`, which begins with what the parent took where that process was forked.
    """
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise AssertionError(f"{_STATUS} has no {name}")
