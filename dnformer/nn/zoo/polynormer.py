"""Polynormer: local attention whose layers multiply, then linear global attention.

N nodes, H heads, D head width, C = H·D, F input features, K classes.
"""

from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnformer.config.zoo import PolynormerOptions
from dnformer.nn.block import ACTIVATIONS
from dnformer.nn.dropout import Dropout
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.gat import GATConv, Loops, with_loops
from dnformer.nn.zoo.shared import Shared, ZooModel


@final
class Polynormer(ZooModel):
    """Polynormer (Deng et al., ICLR 2024), the authors' model for graphs of medium size.

    The sum of the outputs of L local layers goes to a linear head in the first `local_epochs`
    epochs, and from then on, through LayerNorm and the global layers, to another. The weights of
    the part not in use are not trained: they get no weight decay either. Unlike in the released
    code, the global epochs begin with the weights of the last local epoch, not with those of the
    best. The nodes of a sampled batch attend among themselves.

    Args:
        shared: settings of all models; `layers` are the local ones.
        options: its own.

    Attributes:
        epoch: the one that runs, kept in checkpoints, so that weights say which part they are of.
    """

    sparse_input: ClassVar[bool] = True
    epoch: Tensor

    def __init__(self, shared: Shared, options: PolynormerOptions) -> None:
        super().__init__(shared)
        channels = shared.hidden
        self.local_epochs = options.local_epochs
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self.projection = InputProjection(shared.in_channels, channels)
        self.dropout = Dropout(shared.dropout)
        self.layers = nn.ModuleList(LocalLayer(shared) for _ in range(shared.layers))
        self.local_head = nn.Linear(channels, shared.out_channels)
        self.global_part = GlobalPart(shared, options.global_layers)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch begins, from 0."""
        self.epoch.fill_(epoch)
        self.local_head.requires_grad_(epoch < self.local_epochs)
        self.global_part.requires_grad_(epoch >= self.local_epochs)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        graph = with_loops(edge_index, x.shape[0])
        h = self.dropout(self.projection(x))
        total = torch.zeros_like(h)
        for layer in self.layers:
            h = layer(h, graph)
            total = total + h
        head = self.local_head if self.epoch < self.local_epochs else self.global_part
        scores: Tensor = head(total)
        return scores


@final
class LocalLayer(nn.Module):
    """(1 - b) LN(act(W h) * g) + b g, with g = drop(act(GAT(h) + V h)) and b = sigmoid(beta).

    So L layers are a polynomial of degree 2^L in the features.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        channels = shared.hidden
        self.factor = nn.Linear(channels, channels)
        # without a bias, as `linear` has one
        self.attention = GATConv(channels, channels, heads=shared.heads, bias=False)
        self.linear = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.beta = nn.Parameter(torch.empty(1, channels))
        nn.init.xavier_normal_(self.beta)
        self.activation = ACTIVATIONS[shared.activation]()
        self.after = shared.after()

    def forward(self, h: Float[Tensor, "N C"], graph: Loops) -> Float[Tensor, "N C"]:
        """The layer's output."""
        local = self.after(self.attention(h, graph) + self.linear(h))
        product = self.norm(self.activation(self.factor(h)) * local)
        beta = self.beta.sigmoid()
        out: Tensor = (1 - beta) * product + beta * local
        return out


@final
class GlobalPart(nn.Module):
    """LayerNorm, layers of attention over all nodes with one linear map after each, and a head.

    The linear map is the same for all layers, as in the released code.
    """

    def __init__(self, shared: Shared, layers: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shared.hidden)
        self.layers = nn.ModuleList(GlobalLayer(shared.hidden, shared.heads) for _ in range(layers))
        self.linear = nn.Linear(shared.hidden, shared.hidden)
        self.after = shared.after()
        self.head = nn.Linear(shared.hidden, shared.out_channels)

    def forward(self, h: Float[Tensor, "N C"]) -> Float[Tensor, "N K"]:
        """Scores."""
        h = self.norm(h)
        for layer in self.layers:
            h = self.after(self.linear(layer(h)))
        scores: Tensor = self.head(h)
        return scores


@final
class GlobalLayer(nn.Module):
    """LN(o) * (W h + sigmoid(beta)), with o_i = sum_j <q_i, q_j> v_j / sum_j <q_i, q_j> by heads.

    q = sigmoid(Q h) is both query and key, v = V h. Time is linear in N.
    """

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.factor, self.query, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.norm = nn.LayerNorm(channels)
        self.beta = nn.Parameter(torch.empty(1, channels))
        nn.init.xavier_normal_(self.beta)

    def forward(self, h: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """The layer's output."""
        q, v = (
            x.unflatten(1, (self.heads, -1)).transpose(0, 1)
            for x in (self.query(h).sigmoid(), self.value(h))
        )  # [H, N, D]
        total = q @ q.sum(1).unsqueeze(2)  # [H, N, 1]
        out = q @ (q.transpose(1, 2) @ v) / total
        out = self.norm(out.transpose(0, 1).flatten(1))
        gated: Tensor = out * (self.factor(h) + self.beta.sigmoid())
        return gated
