"""SGC (Wu et al., ICML 2019): a linear classifier of propagated features.

N nodes, F input features, K classes.
"""

from typing import ClassVar, final

import torch
from torch import Tensor, nn

from dnformer.config.zoo import SGCOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.neighbours import neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel


@final
class SGC(ZooModel):
    """S^layers x W + b, S the normalised adjacency of GCN.

    The linear map comes first, which gives the same: then K columns are propagated, not F, and no
    features need to be kept.

    Args:
        shared: settings of all models.
        options: none.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: SGCOptions) -> None:
        super().__init__(shared)
        self.steps = shared.layers
        self.linear = InputProjection(shared.in_channels, shared.out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(shared.out_channels))

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        graph = neighbours(edge_index, x.shape[0], degree)
        h: Tensor = self.linear(x)
        for _ in range(self.steps):
            h = graph.gcn(h)
        return h + self.bias
