"""The floor of reading: kernels that only sum the rows which the operator must read for each edge.

Forward these are k, v and lambda's row of each edge's source; backward v and k again, then, edges
by source, q and the output's gradient. What is read or written once for each node is not counted.
Serial `nogil` kernels on as many threads as torch has.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda hidden
layer.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

# parts a thread, so that one which is held up leaves the rest to the others; each part has a cost
_PARTS = 2


class Pass(NamedTuple):
    """One walk over the edges: which rows of which tables it reads.

    Attributes:
        row: the row that each edge needs, int `[E]`.
        tables: floats `[rows, width]` each.
    """

    row: Array
    tables: tuple[Array, ...]


@numba.njit(inline="always")
def _four(x, i, j, k, l):  # type: ignore[no-untyped-def]  # noqa: E741
    """The sum of four rows; one row at a time waits for its own sum."""
    total = x.dtype.type(0)
    for c in range(x.shape[1]):
        total += (x[i, c] + x[j, c]) + (x[k, c] + x[l, c])
    return total


@numba.njit(nogil=True, fastmath=True, cache=True)
def _sum_rows(index, x, begin, end):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    whole = begin + (end - begin) // 4 * 4
    for p in range(begin, whole, 4):
        total += _four(x, index[p], index[p + 1], index[p + 2], index[p + 3])
    for p in range(whole, end):
        for c in range(x.shape[1]):
            total += x[index[p], c]
    return total


@numba.njit(nogil=True, fastmath=True, cache=True)
def _sum_edges(index, x, y, z, begin, end):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    whole = begin + (end - begin) // 4 * 4
    for p in range(begin, whole, 4):
        i, j, k, l = index[p], index[p + 1], index[p + 2], index[p + 3]  # noqa: E741
        total += _four(x, i, j, k, l) + _four(y, i, j, k, l) + _four(z, i, j, k, l)
    for p in range(whole, end):
        j = index[p]
        for c in range(x.shape[1]):
            total += x[j, c]
        for c in range(y.shape[1]):
            total += y[j, c]
        for c in range(z.shape[1]):
            total += z[j, c]
    return total


def by_table(passes: Sequence[Pass]) -> Callable[[], float]:
    """A step that reads one table after the other: each has the cache to itself.

    For N = 20,000, E = 400,000, H = 4, D = 64 this takes two thirds of what `by_edge` does, so it
    is the floor that others are compared with.
    """
    walks = [(_sum_rows, walk.row, (table,)) for walk in passes for table in walk.tables]
    return _step(walks)


def by_edge(passes: Sequence[Pass]) -> Callable[[], float]:
    """A step that reads all rows of an edge, at most three, before it goes to the next."""
    walks = []
    for row, tables in passes:
        none = np.empty((tables[0].shape[0], 0), tables[0].dtype)
        walks.append((_sum_edges, row, (*tables, none, none)[:3]))
    return _step(walks)


def _step(walks: Sequence[tuple[Any, Array, tuple[Array, ...]]]) -> Callable[[], float]:
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads)

    def step() -> float:
        total = 0.0
        for kernel, row, tables in walks:
            cuts = np.linspace(0, len(row), threads * _PARTS + 1).astype(np.int64)
            parts = [
                pool.submit(partial(kernel, row, *tables), begin, end)
                for begin, end in pairwise(cuts)
            ]
            total += sum(float(part.result()) for part in parts)
        return total

    return step


def forward_reads(row: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Pass:
    """What the forward pass reads of sources: k `[N, H, W]`, v `[N, H, D]`, w `[N, R]`."""
    return Pass(row.numpy(), _tables(k, v, w))


def backward_reads(row: Tensor, k: Tensor, v: Tensor) -> Pass:
    """What the backward pass reads of sources, edges by destination."""
    return Pass(row.numpy(), _tables(v, k))


def source_reads(col: Tensor, q: Tensor, grad_out: Tensor) -> Pass:
    """What the backward pass reads of destinations, edges by source: their ends are `col`."""
    return Pass(col.numpy(), _tables(q, grad_out))


def _tables(*tensors: Tensor) -> tuple[Array, ...]:
    return tuple(t.detach().flatten(1).numpy() for t in tensors if t.shape[-1])
