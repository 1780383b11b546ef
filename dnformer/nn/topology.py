"""From PyG's edge lists to the operator's grouping by destination, and self-loops.

N source nodes, M destination nodes, E edges.
"""

import torch
from jaxtyping import Int
from torch import Tensor
from torch_geometric import EdgeIndex

from dnformer.errors import DataError
from dnformer.ops import Topology


def to_topology(edge_index: Int[Tensor, "2 E"], *, num_dst: int, num_src: int) -> Topology:
    """Groups edges (source, destination) by destination, in O(E) where they are grouped already.

    So a col-sorted `EdgeIndex` costs no sort. The edges of a destination keep their order.

    Raises:
        DataError: an index is out of range.
    """
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    row, col = edge_index.long()
    if row.numel():
        ordered = (col[1:] >= col[:-1]).all().long()
        # one wait for the GPU, not five
        stats = torch.stack([row.min(), row.max(), col.min(), col.max(), ordered]).tolist()
        _check_range("source", stats[0], stats[1], num_src)
        _check_range("destination", stats[2], stats[3], num_dst)
        if not stats[4]:
            col, order = col.sort(stable=True)
            row = row[order]
    return Topology(_offsets(col.bincount(minlength=num_dst)), row.contiguous())


def _check_range(what: str, low: int, high: int, num_nodes: int) -> None:
    if low < 0 or high >= num_nodes:
        found = low if low < 0 else high
        raise DataError(
            f"edge_index has {what} {found}, but there are {num_nodes} {what} nodes: "
            f"indices go from 0 to {num_nodes - 1}"
        )


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def add_self_loops(topology: Topology, *, first_dst: int = 0) -> Topology:
    """The graph with one loop at the end of each group that has none, in O(M + E).

    Args:
        topology: destination i is the source node `first_dst + i`.
        first_dst: above 0 where the destinations are a range in the middle of the sources.
    """
    dst = topology.dst()  # [E]
    missing = torch.ones(topology.num_dst, dtype=torch.bool, device=dst.device)
    missing[dst[topology.row == dst + first_dst]] = False
    added = _offsets(missing.long())  # [M+1], loops before each group
    colptr = topology.colptr + added
    row = topology.row.new_empty(topology.num_edges + int(added[-1]))
    position = torch.arange(topology.num_edges, device=dst.device) + added[dst]
    row[position] = topology.row
    looped = missing.nonzero().squeeze(1)
    row[colptr[looped + 1] - 1] = looped + first_dst
    return Topology(colptr, row)
