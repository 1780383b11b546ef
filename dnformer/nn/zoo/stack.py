"""The tuned form of graph convolutions: 'Classic GNNs are strong baselines' (Luo et al., 2024).

N nodes, C channels, F input features, K classes, L layers.
"""

from collections.abc import Callable
from typing import Any, final

from torch import Tensor, nn

from dnformer.config.zoo import ConvOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.shared import Shared

_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda channels: nn.Identity(),
    "layer": nn.LayerNorm,
    "batch": nn.BatchNorm1d,
}


@final
class Stack(nn.Module):
    """L times h <- drop(act(norm(conv(h) [+ h W + b]))), then a linear head.

    Args:
        conv: makes a layer from the widths of its input and output; it is called with h and with
            what `forward` is given of the graph.
        shared: settings of all models.
        options: residual and norm.
    """

    def __init__(
        self, conv: Callable[[int, int], nn.Module], shared: Shared, options: ConvOptions
    ) -> None:
        super().__init__()
        widths = [shared.in_channels] + [shared.hidden] * (shared.layers - 1)
        self.convs = nn.ModuleList(conv(width, shared.hidden) for width in widths)
        self.residuals = nn.ModuleList(
            InputProjection(width, shared.hidden) for width in widths if options.residual
        )
        self.norms = nn.ModuleList(_NORMS[options.norm](shared.hidden) for _ in widths)
        self.after = shared.after()
        self.head = nn.Linear(shared.hidden, shared.out_channels)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Scores `[N, K]` from features `[N, F]`, dense or sparse."""
        h = x
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            out = conv(h, graph)
            if self.residuals:
                out = out + self.residuals[layer](h)
            h = self.after(norm(out))
        scores: Tensor = self.head(h)
        return scores
