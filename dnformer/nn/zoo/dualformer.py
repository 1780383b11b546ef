"""DUALFormer: global attention between features, then local convolutions on the graph.

N nodes, E edges, H heads, C channels (the width of each head, too), F input features, K classes.
"""

from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from dnformer.config.zoo import DUALFormerOptions
from dnformer.nn.block import ACTIVATIONS
from dnformer.nn.dropout import Dropout
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.gcn import GCNConv
from dnformer.nn.zoo.neighbours import Neighbours, neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel


@final
class DUALFormer(ZooModel):
    """DUALFormer (Zhuo et al., ICLR 2025).

    h = drop(act(LN(x W + b))), per attention layer h = drop(act(LN(alpha · attention(h) +
    (1 - alpha) h))), then `layers` of a graph convolution, dropout and a linear head. The nodes of
    a sampled batch attend among themselves.

    Unlike in the released code, the weights of conv "gcn" are trained.

    Args:
        shared: settings of all models; `layers` are the graph convolution's.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: DUALFormerOptions) -> None:
        super().__init__(shared)
        channels, layers = shared.hidden, range(options.attention_layers)
        self.alpha = options.alpha
        self.projection = InputProjection(shared.in_channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.after = nn.Sequential(
            ACTIVATIONS[shared.activation](), Dropout(options.attention_dropout)
        )
        self.attention = nn.ModuleList(FeatureAttention(channels, shared.heads) for _ in layers)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in layers)
        self.conv: nn.Module
        if options.conv == "gcn":
            self.conv = Convolutions(channels, shared.layers)
        else:
            teleport = options.teleport if options.conv == "appnp" else 0.0
            self.conv = Propagation(shared.layers, teleport)
        self.dropout = Dropout(shared.dropout)
        self.head = nn.Linear(channels, shared.out_channels)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        h = self.after(self.norm(self.projection(x)))
        for attention, norm in zip(self.attention, self.norms, strict=True):
            h = self.after(norm(self.alpha * attention(h) + (1 - self.alpha) * h))
        h = self.conv(h, neighbours(edge_index, x.shape[0], degree))
        scores: Tensor = self.head(self.dropout(h))
        return scores


@final
class FeatureAttention(nn.Module):
    """q softmax(kᵀ v / √N), the mean of H heads: a map [C, C] of what all nodes have in common.

    The softmax is over the features of k, which q is multiplied with.

    Args:
        channels: C.
        heads: H.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(channels, heads * channels) for _ in range(3))

    def forward(self, h: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """Of each node, in time linear in N."""
        q, k, v = (
            linear(h).unflatten(1, (self.heads, -1)).transpose(0, 1)
            for linear in (self.query, self.key, self.value)
        )  # [H, N, C]
        maps = (k.transpose(1, 2) @ v * h.shape[0] ** -0.5).softmax(1)
        out: Tensor = (q @ maps).mean(0)
        return out


@final
class Propagation(nn.Module):
    """L times h <- (1 - teleport) Â h + teleport h0; SGC's with a teleport of 0, else APPNP's."""

    def __init__(self, layers: int, teleport: float) -> None:
        super().__init__()
        self.layers, self.teleport = layers, teleport

    def forward(self, h: Tensor, graph: Neighbours) -> Tensor:
        """[N, C]."""
        start = h
        for _ in range(self.layers):
            h = (1 - self.teleport) * graph.gcn(h) + self.teleport * start
        return h


@final
class Convolutions(nn.Module):
    """L graph convolutions with weights, nothing between them."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(channels, channels) for _ in range(layers))

    def forward(self, h: Tensor, graph: Neighbours) -> Tensor:
        """[N, C]."""
        for conv in self.convs:
            h = conv(h, graph)
        return h
