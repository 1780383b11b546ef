# mypy: allow-untyped-defs, allow-untyped-decorators
"""The transposed index: the edges of a batch by source, in linear time.

N source nodes, M destination nodes, E edges.
"""

from typing import Any

import numba
import numpy as np
import torch

from dnformer.ops.types import Topology, Transposed


def transpose(topology: Topology, num_src: int) -> Transposed:
    """The edges by source, ids ascending within a source; on the topology's device.

    Indices must be in range: this is not checked.
    """
    most = max(topology.num_edges, topology.num_dst)
    dtype = torch.int32 if most < 2**31 else torch.int64
    if topology.row.device.type == "cpu":
        shapes = (num_src + 1, topology.num_edges, topology.num_edges)
        found = Transposed(*(torch.empty(shape, dtype=dtype) for shape in shapes))
        _by_source(topology.colptr.numpy(), topology.row.numpy(), *(t.numpy() for t in found))
        return found
    ordered, edge = topology.row.sort(stable=True)
    sources = torch.arange(num_src + 1, device=ordered.device)
    rowptr = torch.searchsorted(ordered, sources)
    return Transposed(rowptr.to(dtype), edge.to(dtype), topology.dst()[edge].to(dtype))


@numba.njit(nogil=True, cache=True)
def _by_source(colptr: Any, row: Any, rowptr: Any, edge: Any, col: Any) -> None:
    rowptr[:] = 0
    for p in range(len(row)):
        rowptr[row[p] + 1] += 1
    place = np.empty(len(rowptr) - 1, rowptr.dtype)
    for j in range(len(place)):
        place[j] = rowptr[j]
        rowptr[j + 1] += rowptr[j]
    for i in range(len(colptr) - 1):
        for p in range(colptr[i], colptr[i + 1]):
            at = place[row[p]]
            edge[at], col[at] = p, i
            place[row[p]] = at + 1
