"""STAGNN (Huang et al., 2023): attention to the nodes of a subtree, hop by hop, in linear time.

N nodes, E edges, H heads, D head width, K classes, T the depth of the subtrees, `layers`.
"""

from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from dnformer.config.zoo import STAGNNOptions
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.neighbours import Neighbours, neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel

_EPS = 1e-5


def subtree_attention(
    q: Tensor, k: Tensor, v: Tensor, graph: Neighbours, depth: int, *, transition: str = "column"
) -> list[Tensor]:
    """STA_t of the paper for t = 1..depth, by message passing: `[N, H, K]` each.

    STA_t(i) = sum_j (P^t)_ij <q_i, k_j> v_j / sum_j (P^t)_ij <q_i, k_j>: attention with a linear
    kernel to the nodes that a walk of t steps ends in. Time O(depth · E · H · D · K), memory
    O(N · H · D · K) a step.

    Args:
        q: positive features of the queries `[N, H, D]`.
        k: of the keys `[N, H, D]`.
        v: values `[N, H, K]`.
        graph: its neighbours.
        depth: T.
        transition: P; "column": A D^-1, "row": D^-1 A.
    """
    step = graph.walk if transition == "column" else graph.mean
    # keys and their products with the values travel together
    carried = k.unsqueeze(-1) * functional.pad(v, (1, 0), value=1.0).unsqueeze(2)  # [N, H, D, K+1]
    shape, found = carried.shape, []
    for _ in range(depth):
        carried = step(carried.flatten(1)).view(shape)
        met = torch.matmul(q.unsqueeze(2), carried).squeeze(2)  # [N, H, K+1]
        found.append(met[..., 1:] / (met[..., :1] + _EPS))
    return found


def global_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same to all N nodes, each as much: `[N, H, K]`."""
    both = torch.einsum("nhd,nhc->hdc", k, functional.pad(v, (1, 0), value=1.0))
    met = torch.einsum("nhd,hdc->nhc", q, both)
    return met[..., 1:] / (met[..., :1] + _EPS)


@final
class STAGNN(ZooModel):
    """Hop-weighted sums of subtree attention (MSTA, with GPR weights), values in class space.

    The heads' sum over t = 0..T of hop_weight_t · gate_t · STA_t with STA_0 = v, where the gates of
    a hop are a softmax over the heads. `layers` are the depth T, so a sampled batch has as many
    hops. The global term attends to all nodes of the graph, in a sampled batch to those of the
    batch.

    Args:
        shared: settings of all models.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True
    uses_degrees: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: STAGNNOptions) -> None:
        super().__init__(shared)
        self.depth, self.transition = shared.layers, options.transition
        heads, classes = shared.heads, shared.out_channels
        self.heads = heads
        self.projection = InputProjection(shared.in_channels, shared.hidden)
        self.after = shared.after()
        self.query = nn.Linear(shared.hidden, shared.hidden)
        self.key = nn.Linear(shared.hidden, shared.hidden)
        self.value = nn.Linear(shared.hidden, heads * classes)
        self.hop_weight = nn.Parameter(torch.ones(self.depth + 1))
        self.hop_gate = nn.Parameter(torch.zeros(self.depth, heads)) if options.hop_gates else None
        self.teleport = nn.Parameter(torch.ones(1)) if options.global_term else None
        self.out = nn.Linear(heads * classes, classes) if options.combine == "concat" else None

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        h = self.after(self.projection(x))
        q, k, v = (linear(h).view(len(h), self.heads, -1)
                   for linear in (self.query, self.key, self.value))  # fmt: skip
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        graph = neighbours(edge_index, x.shape[0], degree)
        hops = subtree_attention(q, k, v, graph, self.depth, transition=self.transition)
        out = self.hop_weight[0] * v
        for hop, attended in enumerate(hops):
            if self.hop_gate is not None:
                attended = self.hop_gate[hop].softmax(0).unsqueeze(1) * attended
            out = out + self.hop_weight[hop + 1] * attended
        if self.teleport is not None:
            out = out + self.teleport * global_attention(q, k, v)
        scores: Tensor = out.sum(1) if self.out is None else self.out(out.flatten(1))
        return scores
