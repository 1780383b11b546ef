"""Feature rows of a batch, gathered from the memory-mapped store into a reused buffer."""

import math
import warnings
import weakref
from typing import Any, final

import numba
import numpy as np
import numpy.typing as npt
import torch

from dnformer.data.store import Store

Array = npt.NDArray[Any]

with warnings.catch_warnings():
    # torch says once a process that CSR tensors are in beta; here, where no thread runs yet
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1))


@final
class BufferPool:
    """Memory for batches; a buffer comes back only when no tensor refers to it any more.

    Buffers are torch's, aligned to 64 bytes: the BLAS library's last bits depend on alignment,
    and numpy's varies from one allocation to the next.
    """

    def __init__(self, keep: int) -> None:
        self._free: list[Array] = []
        self._keep = keep

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array. Give it to `torch.from_numpy`; a view of it holds nothing."""
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(0, np.uint8)
        if len(buffer) < size:
            buffer = torch.empty(size + size // 4, dtype=torch.uint8).numpy()
        array: Array = buffer[:size].view(dtype).reshape(shape)
        weakref.finalize(array, self._give_back, buffer).atexit = False
        return array

    def _give_back(self, buffer: Array) -> None:
        if len(self._free) < self._keep:
            self._free.append(buffer)


@numba.njit(nogil=True, cache=True)
def _gather_dense(x, ids, out):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        out[i] = x[ids[i]]


@numba.njit(nogil=True, cache=True)
def _gather_indptr(indptr, ids, out):  # type: ignore[no-untyped-def]
    out[0] = 0
    for i in range(ids.shape[0]):
        out[i + 1] = out[i] + indptr[ids[i] + 1] - indptr[ids[i]]


@numba.njit(nogil=True, cache=True)
def _gather_csr(store, ids, indptr, indices, values):  # type: ignore[no-untyped-def]
    all_indptr, all_indices, all_values = store
    for i in range(ids.shape[0]):
        begin, p = all_indptr[ids[i]], indptr[i]
        for offset in range(indptr[i + 1] - p):
            indices[p + offset] = all_indices[begin + offset]
            values[p + offset] = all_values[begin + offset]


@numba.njit(nogil=True, cache=True)
def _gather_to_dense(store, ids, out):  # type: ignore[no-untyped-def]
    all_indptr, all_indices, all_values = store
    for i in range(ids.shape[0]):
        out[i] = 0
        for p in range(all_indptr[ids[i]], all_indptr[ids[i] + 1]):
            out[i, all_indices[p]] = all_values[p]


@final
class FeatureGather:
    """Rows of the features by node id.

    Args:
        store: an open store with features.
        num_features: F.
        sparse: give sparse features as `torch.sparse_csr`; False: all features dense.
        keep: buffers kept for reuse.
    """

    def __init__(self, store: Store, num_features: int, *, sparse: bool, keep: int = 8) -> None:
        self._store, self._num_features, self._sparse = store, num_features, sparse
        self._pool = BufferPool(keep)

    def rows(self, ids: Array) -> torch.Tensor:
        """Features of the nodes `ids`, float32 `[len(ids), F]`, dense or CSR."""
        shape = (len(ids), self._num_features)
        if self._store.x is not None:
            out = self._pool.empty(shape, np.float32)
            _gather_dense(self._store.x, ids, out)
            return torch.from_numpy(out)
        csr = (self._store.x_indptr, self._store.x_indices, self._store.x_values)
        if not self._sparse:
            out = self._pool.empty(shape, np.float32)
            _gather_to_dense(csr, ids, out)
            return torch.from_numpy(out)
        indptr = np.empty(len(ids) + 1, np.int32)
        _gather_indptr(self._store.x_indptr, ids, indptr)
        indices = self._pool.empty((int(indptr[-1]),), np.int32)
        values = self._pool.empty((int(indptr[-1]),), np.float32)
        _gather_csr(csr, ids, indptr, indices, values)
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr),
            torch.from_numpy(indices),
            torch.from_numpy(values),
            size=shape,
            check_invariants=False,
        )
