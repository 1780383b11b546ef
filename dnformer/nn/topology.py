"""From PyG's edge lists to the operator's grouping by destination, and self-loops.

N source nodes, M destination nodes, E edges, A attributes of an edge.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch_geometric import EdgeIndex

from dnformer.errors import DataError
from dnformer.ops import Topology


class Edges(NamedTuple):
    """Edges grouped by destination, and their attributes where there are any, edge by edge."""

    topology: Topology
    attr: Float[Tensor, "E A"] | None = None


def to_edges(
    edge_index: Int[Tensor, "2 E"],
    edge_attr: Float[Tensor, "E A"] | None = None,
    *,
    num_dst: int,
    num_src: int,
) -> Edges:
    """Groups edges (source, destination) by destination, in O(E) where they are grouped already.

    So a col-sorted `EdgeIndex` costs no sort. The edges of a destination keep their order, and the
    attributes go with their edges.

    Raises:
        DataError: an index is out of range.
    """
    if isinstance(edge_index, EdgeIndex):
        edge_index = edge_index.as_tensor()
    row, col = edge_index.long()
    if torch.compiler.is_exporting():  # a program looks at no value to decide what it does
        col, order = col.sort(stable=True)
        row, edge_attr = row[order], None if edge_attr is None else edge_attr[order]
    elif row.numel():
        ordered = (col[1:] >= col[:-1]).all().long()
        # one wait for the GPU, not five
        stats = torch.stack([row.min(), row.max(), col.min(), col.max(), ordered]).tolist()
        _check_range("source", stats[0], stats[1], num_src)
        _check_range("destination", stats[2], stats[3], num_dst)
        if not stats[4]:
            col, order = col.sort(stable=True)
            row = row[order]
            edge_attr = None if edge_attr is None else edge_attr[order]
    topology = Topology(_offsets(_counts(col, num_dst)), row.contiguous())
    return Edges(topology, edge_attr)


def check_edge_attr(edge_attr: Tensor | None, channels: int, num_edges: int) -> None:
    """Raises where a layer of `edge_channels = channels` cannot take `edge_attr`.

    Raises:
        DataError: it is missing, not expected, or of another shape.
    """
    if edge_attr is None and channels:
        raise DataError(
            f"edge_attr is missing: the layer was made with edge_channels = {channels}, so it "
            f"takes edge_attr [{num_edges}, {channels}]"
        )
    if edge_attr is None:
        return
    if not channels:
        raise DataError(
            f"edge_attr {list(edge_attr.shape)} given to a layer without edge attributes: make it "
            "with edge_channels, or leave edge_attr out"
        )
    if list(edge_attr.shape) != [num_edges, channels]:
        raise DataError(f"edge_attr must be [{num_edges}, {channels}], found "
                        f"{list(edge_attr.shape)}")  # fmt: skip


def _check_range(what: str, low: int, high: int, num_nodes: int) -> None:
    if low < 0 or high >= num_nodes:
        found = low if low < 0 else high
        raise DataError(
            f"edge_index has {what} {found}, but there are {num_nodes} {what} nodes: "
            f"indices go from 0 to {num_nodes - 1}"
        )


def _counts(col: Tensor, num_dst: int) -> Tensor:
    # bincount is faster, but how long its result is follows from values
    if torch.compiler.is_exporting():
        return col.new_zeros(num_dst).index_add(0, col, torch.ones_like(col))
    return col.bincount(minlength=num_dst)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def add_self_loops(edges: Edges, nodes: Int[Tensor, " M"] | None = None) -> Edges:
    """The graph with one loop at the end of each group that has none, in O(M + E).

    Attributes get one more column: 1 for an added loop, whose others are 0, and 0 for the graph's
    own edges, loops among them.

    Args:
        edges: of M destinations.
        nodes: the source node that each of them is; None: the first M, in order.
    """
    topology, attr = edges
    dst = topology.dst()  # [E]
    missing = torch.ones(topology.num_dst, dtype=torch.bool, device=dst.device)
    if nodes is None:
        nodes = torch.arange(topology.num_dst, device=dst.device)
    missing[dst[topology.row == nodes[dst]]] = False
    added = _offsets(missing.long())  # [M+1], loops before each group
    colptr = topology.colptr + added
    looped = missing.nonzero().squeeze(1)
    row = topology.row.new_empty(topology.num_edges + looped.numel())
    position = torch.arange(topology.num_edges, device=dst.device) + added[dst]
    row[position] = topology.row
    loop_position = colptr[looped + 1] - 1
    row[loop_position] = nodes[looped]
    if attr is not None:
        widened = attr.new_zeros(row.numel(), attr.shape[1] + 1)
        widened[position, :-1] = attr
        widened[loop_position, -1] = 1
        attr = widened
    return Edges(Topology(colptr, row), attr)
