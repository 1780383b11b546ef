"""GAT (Veličković et al., ICLR 2018), in the tuned form of `Stack`.

N nodes, E edges with loops, H heads, D head width, C = H · D channels.
"""

from functools import partial
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dnformer.config.zoo import GATOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.topology import add_self_loops, to_edges
from dnformer.nn.zoo.shared import Shared, ZooModel
from dnformer.nn.zoo.stack import Stack
from dnformer.ops import QK, Topology, diff_attention, transpose

_SLOPE = 0.2


class Loops(NamedTuple):
    """A batch's edges with a loop for each node, and the destination of each."""

    topology: Topology
    dst: Tensor


def with_loops(edge_index: Tensor, num_nodes: int) -> Loops:
    """Of a batch of so many nodes.

    Raises:
        DataError: an index is out of range.
    """
    edges = to_edges(edge_index, num_dst=num_nodes, num_src=num_nodes)
    topology = add_self_loops(edges).topology
    dst = topology.dst()
    if torch.is_grad_enabled():
        topology = topology._replace(transposed=transpose(topology, num_nodes))
    return Loops(topology, dst)


@final
class GATConv(nn.Module):
    """Heads of softmax over j of leaky_relu(a_dst · z_i + a_src · z_j), z = h W, side by side."""

    def __init__(self, in_channels: int, channels: int, *, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = InputProjection(in_channels, channels, bias=False)
        # as destination and as source
        self.attention = nn.Parameter(torch.empty(2, heads, channels // heads))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        nn.init.xavier_uniform_(self.attention)

    def forward(self, h: Tensor, graph: Loops) -> Tensor:
        """The layer's output `[N, C]`."""
        z = self.linear(h)
        z = z.view(len(z), *self.attention.shape[1:])  # [N, H, D]
        of_dst, of_src = (z * self.attention.unsqueeze(1)).sum(-1)  # [N, H]
        logits = of_dst.index_select(0, graph.dst) + of_src.index_select(0, graph.topology.row)
        # the operator's own logits are 0
        nothing = z.new_zeros(*z.shape[:2], 1)
        bias = functional.leaky_relu(logits, _SLOPE)
        out = diff_attention(graph.topology, QK(nothing, nothing), z, None, bias=bias).flatten(1)
        return out if self.bias is None else out + self.bias


@final
class GAT(ZooModel):
    """L layers of `GATConv` in a `Stack`; each node attends to itself, too.

    Args:
        shared: settings of all models.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: GATOptions) -> None:
        super().__init__(shared)
        self.stack = Stack(partial(GATConv, heads=shared.heads), shared, options)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        scores: Tensor = self.stack(x, with_loops(edge_index, x.shape[0]))
        return scores
