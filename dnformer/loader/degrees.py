"""How many neighbours nodes have in the whole graph."""

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def degrees_of(ids: Array, colptr: Array, row: Array) -> npt.NDArray[np.int64]:
    """In-degrees of the nodes `ids`, loops not counted, `[len(ids)]`.

    Args:
        ids: node indices.
        colptr: of the graph, where each node's edges begin.
        row: the neighbour of each edge, ascending within a node.
    """
    out = np.empty(len(ids), np.int64)
    _count(ids, colptr, row, out)
    return out


@numba.njit(nogil=True, cache=True)
def _count(ids, colptr, row, out):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        node, begin, end = ids[i], colptr[ids[i]], colptr[ids[i] + 1]
        neighbours = row[begin:end]
        loops = np.searchsorted(neighbours, node, "right") - np.searchsorted(neighbours, node)
        out[i] = end - begin - loops
