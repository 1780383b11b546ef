"""Memory for batches, used again once nothing refers to a batch any more."""

import math
import weakref
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]


@final
class BufferPool:
    """Memory for batches; a buffer comes back only when no tensor refers to it any more.

    Buffers are torch's, aligned to 64 bytes: the BLAS library's last bits depend on alignment,
    and numpy's varies from one allocation to the next.

    Args:
        keep: buffers kept for reuse.
        pinned: page-locked memory, from which a GPU copies by itself.
    """

    def __init__(self, keep: int, *, pinned: bool = False) -> None:
        self._free: list[Array] = []
        self._keep, self._pinned = keep, pinned

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array. Give it to `torch.from_numpy`; a view of it holds nothing."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        if len(buffer) < size:
            fresh = torch.empty(size + size // 4, dtype=torch.uint8, pin_memory=self._pinned)
            buffer = fresh.numpy()
        array: Array = buffer[:size].view(dtype).reshape(shape)
        weakref.finalize(array, self._give_back, buffer).atexit = False
        return array

    def _give_back(self, buffer: Array) -> None:
        if len(self._free) < self._keep:
            self._free.append(buffer)
