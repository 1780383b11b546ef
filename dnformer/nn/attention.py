"""Differential local attention as a layer: projections, lambda and the operator.

N source nodes, M destination nodes, E edges, A attributes of an edge, H heads, D head width,
C = H·D, R width of the lambda hidden layer.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dnformer.errors import ConfigError
from dnformer.nn.lam import LambdaMode, LambdaSettings, make_lambda, reparam_init
from dnformer.nn.options import check_choice, check_share
from dnformer.nn.topology import add_self_loops, check_edge_attr, to_edges
from dnformer.ops import (
    QK,
    Dropout,
    EdgeWeights,
    Lambda,
    Topology,
    diff_attention,
    edge_logits,
    edge_weights,
)

# width of q and k in multiples of D
_WIDTHS = {"diff": 2, "single": 1, "single_wide": 2}


class Projected(NamedTuple):
    """A layer's projections: of M destination nodes (q, u) and of N source nodes (k, v, w).

    W is 2D or D, as `attention` says; R is 0 where lambda does not depend on the nodes.
    """

    q: Float[Tensor, "M H W"]
    u: Float[Tensor, "M R"]
    k: Float[Tensor, "N H W"]
    v: Float[Tensor, "N H D"]
    w: Float[Tensor, "N R"]


class DiffAttention(nn.Module):
    """Differential attention over the edges of a graph, drop-in beside PyG's `TransformerConv`.

    Args:
        channels: C, of input and output; a multiple of `heads`.
        heads: H.
        attention: "diff", or one softmax without subtraction: "single" (q and k of width D),
            "single_wide" (of width 2D, like "diff").
        lam: "edge", "head" (learned), "fixed", or "reparam" (Differential Transformer's, with its
            head-wise norm and scale).
        lambda_width: R for "edge"; D where None.
        lambda_init: lambda at the start; for "fixed", lambda.
        lambda_bound: "softplus" (no upper bound) or "sigmoid", for "edge" and "head".
        dropout: share of attention weights set to zero in training, after the subtraction.
        head_norm: RMSNorm over D of each head's output, one weight for all heads.
        depth: the layer's place in the model, from 1, for "reparam".
        add_self_loops: adds a loop to each node that has none.
        edge_channels: A; above 0, a linear map of an edge's attributes is added to its logits, one
            number for each head, the same in both branches; an added loop has a number of its
            own. All are 0 at first, so the layer starts as one without attributes.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(  # noqa: PLR0913 - the model section of the config, one argument a setting
        self,
        channels: int,
        heads: int,
        *,
        attention: str = "diff",
        lam: str = "edge",
        lambda_width: int | None = None,
        lambda_init: float = 0.2,
        lambda_bound: str = "softplus",
        dropout: float = 0.0,
        head_norm: bool = False,
        depth: int = 1,
        add_self_loops: bool = False,
        edge_channels: int = 0,
    ) -> None:
        super().__init__()
        check_choice("attention", attention, _WIDTHS)
        check_share("dropout", dropout)
        if channels < 1 or heads < 1 or channels % heads:
            raise ConfigError(f"channels = {channels} must be a multiple of heads = {heads}")
        if depth < 1:
            raise ConfigError(f"depth = {depth} must be at least 1: layers are counted from 1")
        self.channels, self.heads = channels, heads
        self.head_width = channels // heads
        self.dropout, self.self_loops = dropout, add_self_loops
        self.edge_channels = edge_channels
        width = channels * _WIDTHS[attention]
        self.query = nn.Linear(channels, width, bias=False)
        self.key = nn.Linear(channels, width, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.out = nn.Linear(channels, channels, bias=False)
        self.edge: nn.Linear | None = None
        if edge_channels:
            # an added loop is one more attribute; a constant for all edges would change nothing
            self.edge = nn.Linear(edge_channels + add_self_loops, heads, bias=False)
        settings = LambdaSettings(lam, lambda_width, lambda_init, lambda_bound)
        self.lam: LambdaMode | None = None
        if attention == "diff":
            self.lam = make_lambda(channels, heads, settings, depth=depth)
        else:
            settings.warn_ignored(frozenset(), because=f"attention = {attention!r}")
        reparam = attention == "diff" and lam == "reparam"
        self.scale = 1 - reparam_init(depth) if reparam else 1.0
        self.norm = nn.RMSNorm(self.head_width, eps=1e-5) if head_norm or reparam else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for linear in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(linear.weight)
        if self.edge is not None:
            nn.init.zeros_(self.edge.weight)
        if self.lam is not None:
            self.lam.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()

    def forward(
        self,
        x: Float[Tensor, "N C"],
        edge_index: Int[Tensor, "2 E"],
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> Float[Tensor, "N C"]:
        """Attention of each node over its in-neighbours.

        Args:
            x: node features.
            edge_index: PyG's (source, destination); already grouped by destination, as in a
                col-sorted `EdgeIndex`, it costs no sort.
            edge_attr: of each edge, in the order of `edge_index`.

        Raises:
            DataError: an index is out of range, or `edge_attr` does not fit the layer.
        """
        check_edge_attr(edge_attr, self.edge_channels, edge_index.shape[1])
        edges = to_edges(edge_index, edge_attr, num_dst=x.shape[0], num_src=x.shape[0])
        if self.self_loops:
            edges = add_self_loops(edges)
        return self.attend(self.project(x), *edges)

    def project(self, x: Float[Tensor, "N C"], num_dst: int | None = None) -> Projected:
        """All that `attend` needs of the nodes; the first `num_dst`, or all, are destinations."""
        x = _narrowed(x)
        q, u = self._project_destinations(x[:num_dst])
        return Projected(
            q=q,
            u=u,
            k=self.key(x).unflatten(-1, (self.heads, -1)),
            v=self.value(x).unflatten(-1, (self.heads, -1)),
            w=x.new_empty(x.shape[0], 0) if self.lam is None else self.lam.hidden_src(x),
        )

    def with_destinations(self, projected: Projected, x: Float[Tensor, "M C"]) -> Projected:
        """Other destinations, with features `x`, beside the same sources."""
        q, u = self._project_destinations(_narrowed(x))
        return projected._replace(q=q, u=u)

    def _project_destinations(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u = x.new_empty(x.shape[0], 0) if self.lam is None else self.lam.hidden_dst(x)
        return self.query(x).unflatten(-1, (self.heads, -1)), u

    def attend(
        self,
        projected: Projected,
        topology: Topology,
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> Float[Tensor, "M C"]:
        """Attention of `topology`'s M destinations, those of `projected`, over its N sources.

        `edge_attr` is of the topology's edges, with the column of added loops if there are any.
        """
        dropout = None
        if self.training and self.dropout > 0:
            dropout = Dropout(self.dropout, _draw_seed(projected.v.device))
        out = diff_attention(
            topology,
            QK(projected.q, projected.k),
            projected.v,
            self._lambda(projected),
            bias=self._bias(edge_attr, topology),
            dropout=dropout,
        )  # [M, H, D]
        if self.norm is not None:
            # under autocast the weight is wider than the operator's output
            out = self.norm(out.to(self.norm.weight.dtype)) * self.scale
        mixed: Tensor = self.out(out.flatten(1))
        return mixed

    def edge_weights(
        self,
        projected: Projected,
        topology: Topology,
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> EdgeWeights:
        """The attention maps and lambda on the edges, without dropout."""
        qk, lam = QK(projected.q, projected.k), self._lambda(projected)
        return edge_weights(topology, qk, lam, bias=self._bias(edge_attr, topology))

    def edge_logits(
        self,
        projected: Projected,
        topology: Topology,
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> Float[Tensor, "E H B"]:
        """What the B softmaxes, two or one, are taken of, edge bias included."""
        return edge_logits(
            topology,
            QK(projected.q, projected.k),
            num_branches=1 if self.lam is None else 2,
            bias=self._bias(edge_attr, topology),
        )

    def _bias(self, edge_attr: Tensor | None, topology: Topology) -> Tensor | None:
        channels = 0 if self.edge is None else self.edge.in_features
        check_edge_attr(edge_attr, channels, topology.num_edges)
        return None if self.edge is None else self.edge(edge_attr)  # [E, H]

    def _lambda(self, projected: Projected) -> Lambda | None:
        return None if self.lam is None else self.lam.combine(projected.u, projected.w)

    def extra_repr(self) -> str:
        """What the children don't show."""
        return f"{self.channels}, heads={self.heads}, dropout={self.dropout}"


def _narrowed(x: Tensor) -> Tensor:
    """`x` as autocast gives it to linear maps: cast and kept once, not by each of the five."""
    kind = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x


def _draw_seed(device: torch.device) -> Tensor:
    # on the CPU, so that a seed gives the same mask on any device
    return torch.randint(2**63 - 1, ()).to(device, non_blocking=True)
