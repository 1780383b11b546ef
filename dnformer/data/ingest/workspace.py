"""What an ingest may use: a share of the memory, and a folder for what does not fit."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from dnformer.cgroup import cores
from dnformer.errors import ConfigError
from dnformer.memory import memory_limit
from dnformer.temporary import temporary_folder

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DEFAULT_SHARE = 0.5
# below, the libraries' own buffers would be more than the data's
_LEAST = 64 << 20
# what DuckDB's and numba's code and Arrow's pool will take beside the data
_LIBRARIES = 128 << 20


class Workspace(NamedTuple):
    """What one ingest may use.

    Attributes:
        folder: for temporary files, on local disk; gone with the ingest.
        memory: bytes that data may take, beyond what the process takes already.
        threads: that may work at once.
    """

    folder: Path
    memory: int
    threads: int


def parse_bytes(text: str | int) -> int:
    """`4GiB`, `512M`, `1.5g` or a number of bytes; units are powers of 1024, as memory has them.

    Raises:
        ConfigError: it is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(text).strip().lower())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"{text!r} is no size; expected bytes, or as in 512MiB or 4GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def memory_budget(limit: str | int | None) -> int:
    """Bytes that data may take, of a `limit` for the whole process; None: half of what it may have.

    Raises:
        ConfigError: the process takes too much of it already.
    """
    given = int(memory_limit() * _DEFAULT_SHARE) if limit is None else parse_bytes(limit)
    used = psutil.Process().memory_info().rss
    left = given - used - _LIBRARIES
    if left < _LEAST:
        least = -(-(used + _LIBRARIES + _LEAST) // (1 << 20))
        raise ConfigError(
            f"memory limit {given >> 20} MiB: the program itself takes {used >> 20} MiB; give at "
            f"least {least} MiB"
        )
    return left


@contextmanager
def workspace(
    temp_dir: str | None, memory_limit: str | int | None, threads: int | None = None
) -> Iterator[Workspace]:
    """A workspace while the block runs; what killed ingests left behind goes first.

    Args:
        temp_dir: local folder for all temporary files; None: the system's.
        memory_limit: see `memory_budget`.
        threads: that may work at once; None: one a CPU.
    """
    parent = Path(temp_dir or tempfile.gettempdir())
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"temp_dir {parent}: {error.strerror}; give a local folder") from None
    with temporary_folder(parent) as folder:
        yield Workspace(folder, memory_budget(memory_limit), threads or cores())
