"""GraphSAGE (Hamilton et al., NeurIPS 2017) with the mean, in the tuned form of `Stack`.

N nodes, C channels.
"""

from typing import ClassVar, final

from torch import Tensor, nn

from dnformer.config.zoo import SAGEOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.neighbours import Neighbours, neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel
from dnformer.nn.zoo.stack import Stack


@final
class SAGEConv(nn.Module):
    """mean(h W) + h W' + b, the mean over the neighbours and the node itself, as in tunedGNN."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.neighbours = InputProjection(in_channels, channels, bias=False)
        self.itself = InputProjection(in_channels, channels)

    def forward(self, h: Tensor, graph: Neighbours) -> Tensor:
        """The layer's output `[N, C]`."""
        out: Tensor = graph.mean_with_itself(self.neighbours(h)) + self.itself(h)
        return out


@final
class SAGE(ZooModel):
    """L layers of `SAGEConv` in a `Stack`.

    Args:
        shared: settings of all models.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: SAGEOptions) -> None:
        super().__init__(shared)
        self.stack = Stack(SAGEConv, shared, options)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        scores: Tensor = self.stack(x, neighbours(edge_index, x.shape[0], degree))
        return scores
