"""A transformer block: attention and a feed-forward network, each with residual and LayerNorm.

N source nodes, M destination nodes (the first M of the N, or a range of them), C channels, E edges,
A attributes of an edge (with the column of added loops, if there are any).
"""

from jaxtyping import Float
from torch import Tensor, nn

from dnformer.errors import ConfigError
from dnformer.nn.attention import DiffAttention, Projected
from dnformer.nn.dropout import Dropout
from dnformer.nn.options import check_choice, check_share
from dnformer.ops import Topology

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class FeedForward(nn.Module):
    """Two linear maps with an activation and dropout between them.

    Args:
        channels: C, of input and output.
        expansion: the hidden width in multiples of C.
        activation: "relu" or "gelu".
        dropout: share of hidden units set to zero in training.
    """

    def __init__(self, channels: int, *, expansion: float, activation: str, dropout: float) -> None:
        super().__init__()
        check_choice("activation", activation, ACTIVATIONS)
        if expansion <= 0:
            raise ConfigError(f"ffn_expansion = {expansion} must be above 0")
        width = max(1, round(expansion * channels))
        self.expand = nn.Linear(channels, width)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(width, channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for linear in (self.expand, self.contract):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, h: Float[Tensor, "M C"]) -> Float[Tensor, "M C"]:
        """The network on each row."""
        out: Tensor = self.contract(self.dropout(self.activation(self.expand(h))))
        return out


class Block(nn.Module):
    """Post-LN: h' = LN(h + drop(attention h)), h'' = LN(h' + drop(FFN h')).

    Pre-LN: h' = h + drop(attention LN h), h'' = h' + drop(FFN LN h').

    Args:
        attention: the block's attention; its own self-loops are not used here.
        norm: "post" or "pre".
        ffn_expansion: hidden width of the feed-forward network in multiples of C.
        activation: "relu" or "gelu".
        dropout: share set to zero in training, in the network and on both residual branches.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    def __init__(
        self,
        attention: DiffAttention,
        *,
        norm: str = "post",
        ffn_expansion: float = 2.0,
        activation: str = "relu",
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("post", "pre"))
        check_share("dropout", dropout)
        channels = attention.channels
        self.attention = attention
        self.ffn = FeedForward(
            channels, expansion=ffn_expansion, activation=activation, dropout=dropout
        )
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.dropout = Dropout(dropout)
        self.pre = norm == "pre"

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        self.attention.reset_parameters()
        self.ffn.reset_parameters()
        self.norm1.reset_parameters()
        self.norm2.reset_parameters()

    def forward(
        self,
        h: Float[Tensor, "N C"],
        topology: Topology,
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> Float[Tensor, "M C"]:
        """The block on the first M nodes, the topology's destinations, with all N as neighbours."""
        num_dst = topology.num_dst
        return self._of_destinations(h[:num_dst], self.project(h, num_dst), topology, edge_attr)

    def project(self, h: Float[Tensor, "N C"], num_dst: int | None = None) -> Projected:
        """All that attention needs of the nodes; the first `num_dst`, or all, are destinations."""
        return self.attention.project(self._into_attention(h), num_dst)

    def attend_some(
        self,
        h: Float[Tensor, "M C"],
        projected: Projected,
        topology: Topology,
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> Float[Tensor, "M C"]:
        """The block on some of the nodes, so that a large graph can go part by part.

        Args:
            h: the block's input, of these nodes.
            projected: of all nodes as sources, `project(h, 0)`.
            topology: the edges that end in these nodes, destinations counted from 0.
            edge_attr: of the topology's edges.
        """
        return self._of_destinations(h, self.with_destinations(projected, h), topology, edge_attr)

    def with_destinations(self, projected: Projected, h: Float[Tensor, "M C"]) -> Projected:
        """Other destinations, with inputs `h` of the block, beside the same sources."""
        return self.attention.with_destinations(projected, self._into_attention(h))

    def _into_attention(self, h: Tensor) -> Tensor:
        return self.norm1(h) if self.pre else h

    def _of_destinations(
        self, h: Tensor, projected: Projected, topology: Topology, edge_attr: Tensor | None
    ) -> Tensor:
        attended = self.attention.attend(projected, topology, edge_attr)
        h = h + self.dropout(attended)
        if self.pre:
            out: Tensor = h + self.dropout(self.ffn(self.norm2(h)))
            return out
        h = self.norm1(h)
        out = self.norm2(h + self.dropout(self.ffn(h)))
        return out
