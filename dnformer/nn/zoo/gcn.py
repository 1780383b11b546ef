"""GCN (Kipf and Welling, ICLR 2017), in the tuned form of `Stack`.

N nodes, C channels.
"""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from dnformer.config.zoo import GCNOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.neighbours import Neighbours, neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel
from dnformer.nn.zoo.stack import Stack


@final
class GCNConv(nn.Module):
    """(D + I)^-1/2 (A + I) (D + I)^-1/2 h W + b, from h dense or sparse."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.linear = InputProjection(in_channels, channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, h: Tensor, graph: Neighbours) -> Tensor:
        """The layer's output `[N, C]`."""
        return graph.gcn(self.linear(h)) + self.bias


@final
class GCN(ZooModel):
    """L layers of `GCNConv` in a `Stack`.

    Args:
        shared: settings of all models.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: GCNOptions) -> None:
        super().__init__(shared)
        self.stack = Stack(GCNConv, shared, options)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`; a loop of the graph is the loop that each node has anyway."""
        scores: Tensor = self.stack(x, neighbours(edge_index, x.shape[0], degree))
        return scores
