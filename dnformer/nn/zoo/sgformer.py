"""SGFormer: one simple attention over all nodes beside a GCN.

N nodes, E edges, H heads, C channels (the width of each head, too), F input features, K classes.
"""

from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor, nn

from dnformer.config.zoo import SGFormerOptions
from dnformer.nn.block import ACTIVATIONS
from dnformer.nn.dropout import Dropout
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.gcn import GCNConv
from dnformer.nn.zoo.neighbours import Neighbours, neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel


@final
class SGFormer(ZooModel):
    """SGFormer (Wu et al., NeurIPS 2023), the authors' model for graphs of medium size.

    A linear head on graph_weight · GCN(x) + (1 - graph_weight) · attention(x). The nodes of a
    sampled batch attend among themselves.

    Args:
        shared: settings of all models; `layers` are the GCN's.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: SGFormerOptions) -> None:
        super().__init__(shared)
        self.graph_weight = options.graph_weight
        self.attention = AttentionBranch(shared, options)
        self.graph = GraphBranch(shared, norms=options.norms)
        self.head = nn.Linear(shared.hidden, shared.out_channels)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        of_graph = self.graph(x, neighbours(edge_index, x.shape[0], degree))
        h = self.graph_weight * of_graph + (1 - self.graph_weight) * self.attention(x)
        scores: Tensor = self.head(h)
        return scores


@final
class GraphBranch(nn.Module):
    """L graph convolutions; all but the last with BatchNorm (if `norms`), activation, dropout."""

    def __init__(self, shared: Shared, *, norms: bool) -> None:
        super().__init__()
        widths = [shared.in_channels] + [shared.hidden] * (shared.layers - 1)
        self.convs = nn.ModuleList(GCNConv(width, shared.hidden) for width in widths)
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(shared.hidden) if norms else nn.Identity() for _ in widths[1:]
        )
        self.after = shared.after()

    def forward(self, x: Tensor, graph: Neighbours) -> Tensor:
        """[N, C] from features, dense or sparse."""
        *convs, last = self.convs
        for conv, norm in zip(convs, self.norms, strict=True):
            x = self.after(norm(conv(x, graph)))
        out: Tensor = last(x, graph)
        return out


@final
class AttentionBranch(nn.Module):
    """h = drop(act(norm(x W + b))), then h = drop(norm(alpha · attention(h) + (1 - alpha) h)).

    The norms are LayerNorm, if `options.norms`.
    """

    def __init__(self, shared: Shared, options: SGFormerOptions) -> None:
        super().__init__()
        layers = range(options.attention_layers)
        self.alpha = options.alpha
        self.projection = InputProjection(shared.in_channels, shared.hidden)
        self.activation = ACTIVATIONS[shared.activation]()
        self.dropout = Dropout(options.attention_dropout)
        self.layers = nn.ModuleList(
            SimpleAttention(shared.hidden, shared.heads, value_map=options.value_map)
            for _ in layers
        )
        self.norm, *norms = (
            nn.LayerNorm(shared.hidden) if options.norms else nn.Identity() for _ in [0, *layers]
        )
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C] from features, dense or sparse."""
        h: Tensor = self.dropout(self.activation(self.norm(self.projection(x))))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = self.dropout(norm(self.alpha * layer(h) + (1 - self.alpha) * h))
        return h


@final
class SimpleAttention(nn.Module):
    """(N v_i + sum_j <q_i, k_j> v_j) / (N + sum_j <q_i, k_j>), the mean of H heads.

    Queries and keys are over their Frobenius norm, one number for all nodes and heads. So with
    many nodes the attention is a small change of v_i.

    Args:
        channels: C.
        heads: H.
        value_map: v is a linear map of h, for each head; otherwise h itself.
    """

    def __init__(self, channels: int, heads: int, *, value_map: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, heads * channels)
        self.key = nn.Linear(channels, heads * channels)
        self.value = nn.Linear(channels, heads * channels) if value_map else None

    def forward(self, h: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """Of each node, over all; in time linear in N."""
        num_nodes = h.shape[0]
        q, k = (self._heads(linear(h)) for linear in (self.query, self.key))
        q, k = q / q.norm(), k / k.norm()
        v = h.unsqueeze(0) if self.value is None else self._heads(self.value(h))
        total = num_nodes + q @ k.sum(1).unsqueeze(2)  # [H, N, 1]
        out: Tensor = (num_nodes * v + q @ (k.transpose(1, 2) @ v)) / total
        return out.mean(0)

    def _heads(self, x: Tensor) -> Tensor:
        """[H, N, C]."""
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)
