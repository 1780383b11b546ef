"""APPNP (Gasteiger et al., ICLR 2019): predict each node, then propagate the predictions.

N nodes, K classes.
"""

from itertools import pairwise
from typing import ClassVar, final

from torch import Tensor, nn

from dnformer.config.zoo import APPNPOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.neighbours import neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel


@final
class APPNP(ZooModel):
    """z <- (1 - alpha) S z + alpha MLP(x), `layers` times, S the normalised adjacency of GCN.

    So `layers` are hops, and a sampled batch has as many: nothing that a seed sees is cut off.

    Args:
        shared: settings of all models.
        options: alpha, and how many linear maps the MLP has.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: APPNPOptions) -> None:
        super().__init__(shared)
        self.steps, self.alpha = shared.layers, options.alpha
        widths = [shared.hidden] * (options.mlp_layers - 1) + [shared.out_channels]
        maps: list[nn.Module] = [InputProjection(shared.in_channels, widths[0])]
        for before, after in pairwise(widths):
            maps += [shared.after(), nn.Linear(before, after)]
        self.mlp = nn.Sequential(*maps)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        graph = neighbours(edge_index, x.shape[0], degree)
        predicted: Tensor = self.mlp(x)
        z = predicted
        for _ in range(self.steps):
            z = (1 - self.alpha) * graph.gcn(z) + self.alpha * predicted
        return z
