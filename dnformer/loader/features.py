"""What a batch takes of each of its nodes and edges, gathered into reused buffers."""

import warnings
from typing import Any, final

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data

from dnformer.data.store import Store
from dnformer.loader import row_kernels as kernels
from dnformer.loader.buffers import BufferPool
from dnformer.loader.row_kernels import COPY, Rows
from dnformer.loader.source import Access, DenseSource

Array = npt.NDArray[Any]

with warnings.catch_warnings():
    # torch says once a process that CSR tensors are in beta; here, where no thread runs yet
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0, 0], [], [], size=(1, 1))


def decode(batch: Data, dtype: torch.dtype) -> Tensor:
    """The features of a batch, also of a `raw` one, as numbers of `dtype` on its device."""
    x: Tensor = batch.x
    if x.dtype in (torch.float16, torch.int8):
        x = x.to(torch.float32)
    if "x_scale" in batch:
        x = x * batch.x_scale
    return x.to(dtype)


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
class ColumnGather:
    """Rows of a mapped array, one or more numbers each, as they are stored."""

    def __init__(self, column: Array, pool: BufferPool) -> None:
        self._shape, self._dtype, self._pool = column.shape[1:], column.dtype, pool
        self._table = kernels.table(column)
        width = int(np.prod(self._shape))
        self._rows = Rows(COPY, width * column.dtype.itemsize, width)

    def rows(self, ids: Array) -> Tensor:
        """The rows `ids`, int64."""
        to = self._pool.empty((len(ids), *self._shape), self._dtype)
        kernels.gather(self._rows, self._table, ids, np.ones(0, np.float32), kernels.out(to, COPY))
        return torch.from_numpy(to)


@final
class FeatureGather:
    """Rows of the features by node id.

    Args:
        store: an open store with features.
        num_features: F.
        sparse: give sparse features as `torch.sparse_csr`; False: all features dense.
        raw: give dense features as they are stored, float16 or int8, for `decode`.
        pool: where batches lie.
        source: of dense features; None: a new one without hot rows.
    """

    def __init__(
        self,
        store: Store,
        num_features: int,
        *,
        sparse: bool = False,
        raw: bool = False,
        pool: BufferPool | None = None,
        source: DenseSource | None = None,
    ) -> None:
        self._store, self._num_features, self._sparse = store, num_features, sparse
        self._pool = pool or BufferPool(keep=2)
        if source is None and store.x is not None:
            source = DenseSource(store.x, store.x_scale)
        self._source = source
        self._dtype = source.dtype if raw and source is not None else np.dtype(np.float32)

    @property
    def scale(self) -> Tensor | None:
        """What `raw` features are multiplied with, float32 `[F]`, or None."""
        if self._dtype != np.int8 or self._store.x_scale is None:
            return None
        return torch.from_numpy(self._store.x_scale)

    def rows(self, ids: Array) -> Tensor:
        """Features of the nodes `ids`, `[len(ids), F]`, dense or CSR."""
        return self.take(ids)[0]

    def take(self, ids: Array) -> tuple[Tensor, Access]:
        """The same, and what it took.

        Raises:
            DataError: a row cannot be read; the message names the file.
        """
        if self._source is not None:
            out = self._pool.empty((len(ids), self._num_features), self._dtype)
            access = self._source.fill(ids, out)
            return torch.from_numpy(out), access
        indptr = np.empty(len(ids) + 1, np.int32)
        _gather_indptr(self._store.x_indptr, ids, indptr)
        return self._from_csr(ids, indptr), Access(len(ids), 0, 8 * int(indptr[-1]))

    def _from_csr(self, ids: Array, indptr: Array) -> Tensor:
        shape = (len(ids), self._num_features)
        csr = (self._store.x_indptr, self._store.x_indices, self._store.x_values)
        if not self._sparse:
            out = self._pool.empty(shape, np.float32)
            _gather_to_dense(csr, ids, out)
            return torch.from_numpy(out)
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
