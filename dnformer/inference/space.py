"""Where the rows of layers lie: in memory, or on a disk where they take more than is allowed.

What is read and written in order is mapped from files whose pages leave this process as soon as
they are done with; what is read at random stays in memory as long as it fits.
"""

import math
import mmap
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, final
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]


class Space(ABC):
    """Gives room for rows; what it gives is freed with the tensor."""

    @abstractmethod
    def rows(self, num_rows: int, like: Tensor) -> Tensor:
        """Zeros `[num_rows, *like.shape[1:]]` in the dtype of `like`, to go through in order."""

    @abstractmethod
    def tables(self, num_rows: int, likes: Sequence[Tensor]) -> list[Tensor]:
        """One for each of `likes`, to be read at random, not set yet; of one layer at a time."""

    @abstractmethod
    def done(self) -> None:
        """Call now and then: what was read or written so far is not needed soon."""


@final
class Memory(Space):
    """All in memory, on the device of what it is like."""

    def rows(self, num_rows: int, like: Tensor) -> Tensor:
        """Zeros."""
        return like.new_zeros(num_rows, *like.shape[1:])

    def tables(self, num_rows: int, likes: Sequence[Tensor]) -> list[Tensor]:
        """One for each."""
        return [_table(num_rows, like) for like in likes]

    def done(self) -> None:
        """Nothing to do."""


@final
class Mapped(Space):
    """Rows in files, and tables in memory as long as a layer's fit; for the CPU.

    Args:
        folder: local, for the files, which have no names and so outlive nobody.
        budget: bytes of memory for the tables of a layer; more lie in files, too.
        arrays: mapped arrays of others that are gone through in order as well.
    """

    def __init__(self, folder: Path, budget: int, arrays: Iterable[Array | None] = ()) -> None:
        self._folder, self._budget = folder, budget
        self._streams: WeakSet[mmap.mmap] = WeakSet()
        for array in arrays:
            found = _mapping(array)
            if found is not None:
                self._streams.add(found)

    def rows(self, num_rows: int, like: Tensor) -> Tensor:
        """Zeros, in a file.

        Raises:
            OSError: the disk is full; it names the folder.
        """
        return self._map(num_rows, like, in_order=True)

    def tables(self, num_rows: int, likes: Sequence[Tensor]) -> list[Tensor]:
        """One for each; in files where all together are more than the budget."""
        if self.holds(num_rows, likes):
            return [_table(num_rows, like) for like in likes]
        return [self._map(num_rows, like, in_order=False) for like in likes]

    def holds(self, num_rows: int, likes: Sequence[Tensor]) -> bool:
        """Whether tables like these stay in memory."""
        return sum(_num_bytes(num_rows, like) for like in likes) <= self._budget

    def done(self) -> None:
        """Takes what was gone through out of this process's memory; it stays in its files."""
        for mapping in list(self._streams):
            mapping.madvise(mmap.MADV_DONTNEED)

    def _map(self, num_rows: int, like: Tensor, *, in_order: bool) -> Tensor:
        shape, size = (num_rows, *like.shape[1:]), _num_bytes(num_rows, like)
        if size == 0:
            return like.new_empty(shape)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                _reserve(file.fileno(), size)
                mapping = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} ({size >> 20:,} MiB for a layer); give "
                          "--temp-dir with more room", str(self._folder)) from None  # fmt: skip
        if in_order:
            self._streams.add(mapping)
        return torch.frombuffer(mapping, dtype=like.dtype).view(shape)


def _reserve(descriptor: int, size: int) -> None:
    """Room on the disk now: where it ran out later, writing to the mapping would be fatal."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.truncate(descriptor, size)


def _num_bytes(num_rows: int, like: Tensor) -> int:
    return num_rows * math.prod(like.shape[1:]) * like.element_size()


def _table(num_rows: int, like: Tensor) -> Tensor:
    shape = (num_rows, *like.shape[1:])
    if like.device.type != "cpu":
        return like.new_empty(shape)
    # numpy's large blocks lie in huge pages, torch's do not (bench/LOG.md)
    return torch.from_numpy(np.empty(shape, torch.empty(0, dtype=like.dtype).numpy().dtype))


def _mapping(array: Array | None) -> mmap.mmap | None:
    """What `array` is mapped from; None for plain memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
