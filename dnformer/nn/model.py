"""DNFormer: an input projection, blocks of differential attention, and a linear head.

N nodes, M destination nodes, E edges, A attributes of an edge, C channels, F input features,
K classes, S seeds, L layers.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dnformer.errors import ConfigError, DataError
from dnformer.nn.attention import DiffAttention
from dnformer.nn.block import ACTIVATIONS, Block
from dnformer.nn.dropout import Dropout
from dnformer.nn.inputs import Inputs
from dnformer.nn.node_model import NodeModel
from dnformer.nn.options import check_choice, check_share
from dnformer.nn.projection import InputProjection
from dnformer.nn.topology import Edges, add_self_loops, check_edge_attr, to_edges
from dnformer.ops import Topology, transpose


class DNFormer(NodeModel):
    """A graph transformer with differential local attention, for node classification.

    h0 = drop(act(x W + b)) with x as `Inputs` gives it, then L blocks, (LayerNorm if pre-LN,) and a
    linear head.

    Args:
        in_channels: F.
        hidden_channels: C, a multiple of `heads`.
        out_channels: K.
        num_layers: L.
        heads: H.
        dropout: share set to zero in training, after the projection and inside the blocks.
        attention_dropout: share of attention weights set to zero in training.
        attention: "diff", "single" or "single_wide", as in `DiffAttention`.
        lam: "edge", "head", "fixed" or "reparam", as in `DiffAttention`.
        lambda_width: width of the lambda hidden layer; C / H where None.
        lambda_init: lambda at the start.
        lambda_bound: "softplus" or "sigmoid".
        norm: "post", or "pre" for more than 3 layers.
        ffn_expansion: hidden width of the feed-forward network in multiples of C.
        activation: "relu" or "gelu".
        head_norm: RMSNorm of each head's output.
        self_loops: adds a loop to each node that has none.
        edge_channels: A; above 0, each layer learns a bias of its attention from edge attributes,
            as in `DiffAttention`.
        input_dropout: share of the features set to zero in training.
        input_norm: "row": each node's features over their sum; "none".
        activation_checkpointing: keeps only each block's input in training, and computes the block
            again in the backward pass, to the same bits. May be set later, too.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """

    # the trainer may give x as torch.sparse_csr
    sparse_input: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - the model section of the config, one argument a setting
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        heads: int,
        *,
        dropout: float = 0.5,
        attention_dropout: float = 0.1,
        attention: str = "diff",
        lam: str = "edge",
        lambda_width: int | None = None,
        lambda_init: float = 0.2,
        lambda_bound: str = "softplus",
        norm: str = "post",
        ffn_expansion: float = 2.0,
        activation: str = "relu",
        head_norm: bool = False,
        self_loops: bool = True,
        edge_channels: int = 0,
        input_dropout: float = 0.0,
        input_norm: str = "none",
        activation_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, ACTIVATIONS)
        check_share("dropout", dropout)
        if num_layers < 1:
            raise ConfigError(f"num_layers = {num_layers} must be at least 1")
        self.hidden_channels, self.self_loops = hidden_channels, self_loops
        self.edge_channels = edge_channels
        self.activation_checkpointing = activation_checkpointing
        self.inputs = Inputs(input_norm, input_dropout)
        self.projection = InputProjection(in_channels, hidden_channels)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout)
        blocks = nn.ModuleList(
            Block(
                DiffAttention(
                    hidden_channels,
                    heads,
                    attention=attention,
                    lam=lam,
                    lambda_width=lambda_width,
                    lambda_init=lambda_init,
                    lambda_bound=lambda_bound,
                    dropout=attention_dropout,
                    head_norm=head_norm,
                    depth=depth,
                    # the model adds the loops, once for all layers, as one more attribute
                    edge_channels=edge_channels + self_loops if edge_channels else 0,
                ),
                norm=norm,
                ffn_expansion=ffn_expansion,
                activation=activation,
                dropout=dropout,
            )
            for depth in range(1, num_layers + 1)
        )
        # a ModuleList does not tell mypy what it holds
        self.blocks = cast(Sequence[Block], blocks)
        self.norm = nn.LayerNorm(hidden_channels) if norm == "pre" else None
        self.head = nn.Linear(hidden_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew: Xavier's uniform for matrices, 0 for biases, lambda's own."""
        self.projection.reset_parameters()
        for block in self.blocks:
            block.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Has torch.compile compile each block at its first call, in place.

        Names of modules and parameters stay, and dropout draws what it draws without. Sizes are
        symbols: batches of other sizes compile nothing, and all blocks share two compilations, of
        layers that use all of a batch's edges and of those that use the first ones. Index work,
        which numba does, the input projection (dense or sparse) and the head stay as they are.

        Args:
            backend: torch.compile's.
        """
        options: dict[str, Any] | None = (
            {"fallback_random": True} if backend == "inductor" else None
        )
        for block in self.blocks:
            block.compile(dynamic=True, fullgraph=True, backend=backend, options=options)

    def forward(
        self,
        x: Float[Tensor, "N F"],
        edge_index: Int[Tensor, "2 E"],
        num_sampled_nodes: list[int] | None = None,
        num_sampled_edges: list[int] | None = None,
        edge_attr: Float[Tensor, "E A"] | None = None,
    ) -> Float[Tensor, "S K"]:
        """Scores of each class: of all nodes, or of a sampled batch's seeds.

        Args:
            x: node features, dense or `torch.sparse_csr`.
            edge_index: PyG's (source, destination); grouped by destination it costs no sort.
            num_sampled_nodes: of a sampled batch, `[S, n1, .., nL]`, nodes found in each hop, in
                order of discovery. A layer then computes only what the seeds depend on.
            num_sampled_edges: `[e1, .., eL]`, edges of each hop; those of hop l end in the nodes
                of hop l - 1.
            edge_attr: of each edge, in the order of `edge_index`.

        Raises:
            ConfigError: the batch has another number of hops than the model has layers.
            DataError: an index is out of range, the counts do not fit the batch, or `edge_attr`
                does not fit the model.
        """
        check_edge_attr(edge_attr, self.edge_channels, edge_index.shape[1])
        if num_sampled_nodes is None and num_sampled_edges is None:
            edges = to_edges(edge_index, edge_attr, num_dst=x.shape[0], num_src=x.shape[0])
            edges = _with_transposed(self.with_self_loops(edges), x.shape[0])
            of_layers = [edges] * len(self.blocks)
        else:
            nodes, counts = num_sampled_nodes or [], num_sampled_edges or []
            self._check_counts(nodes, counts, num_nodes=x.shape[0], num_edges=edge_index.shape[1])
            of_layers = self._trimmed(edge_index, edge_attr, nodes, counts)
        h = self.embed(x)
        again = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        for block, edges in zip(self.blocks, of_layers, strict=True):
            # its dropout draws from torch's generators only, which checkpoint rewinds
            h = checkpoint(block, h, *edges, use_reentrant=False) if again else block(h, *edges)
        return self.classify(h)

    def embed(self, x: Float[Tensor, "N F"]) -> Float[Tensor, "N C"]:
        """The first block's input, in the parameters' dtype also under autocast."""
        h: Tensor = self.dropout(self.activation(self.projection(self.inputs(x))))
        return h.to(self.head.weight.dtype)

    def classify(self, h: Float[Tensor, "N C"]) -> Float[Tensor, "N K"]:
        """Scores of each class from the last block's output, in the parameters' dtype."""
        scores: Tensor = self.head(h if self.norm is None else self.norm(h))
        # on the CPU autocast would leave the loss's softmax in 16 bits
        return scores.to(self.head.weight.dtype)

    def with_self_loops(self, edges: Edges, nodes: Tensor | None = None) -> Edges:
        """The edges as the blocks take them: with loops, where the model has them.

        Destination i is the source node `nodes[i]`, or i.
        """
        return add_self_loops(edges, nodes) if self.self_loops else edges

    def _check_counts(
        self, nodes: list[int], edges: list[int], *, num_nodes: int, num_edges: int
    ) -> None:
        num_layers = len(self.blocks)
        if len(nodes) != num_layers + 1 or len(edges) != num_layers:
            raise ConfigError(
                f"num_sampled_nodes has {len(nodes)} counts and num_sampled_edges {len(edges)}, "
                f"but {num_layers} layers take {num_layers + 1} and {num_layers}: sample as many "
                "hops as the model has layers"
            )
        if sum(nodes) != num_nodes or sum(edges) != num_edges:
            raise DataError(
                f"num_sampled_nodes add up to {sum(nodes)} and num_sampled_edges to {sum(edges)}, "
                f"the batch has {num_nodes} nodes and {num_edges} edges"
            )

    def _trimmed(
        self, edge_index: Tensor, edge_attr: Tensor | None, nodes: list[int], counts: list[int]
    ) -> list[Edges]:
        """Layer l of L has as destinations the nodes of hops 0..L-l, a prefix of the batch."""
        num_dst = list(accumulate(nodes[:-1]))  # destinations of hops 0..h, for h = 0..L-1
        edges = to_edges(edge_index, edge_attr, num_dst=num_dst[-1], num_src=sum(nodes))
        last = torch.tensor(num_dst, device=edges.topology.colptr.device)
        if edges.topology.colptr[last].tolist() != list(accumulate(counts)):
            raise DataError(
                "num_sampled_edges do not fit edge_index: the edges of hop l must end in the "
                "nodes of hop l - 1, in order of discovery"
            )
        topology, attr = _with_transposed(self.with_self_loops(edges), sum(nodes))
        ends = topology.colptr[last].tolist()
        return [
            Edges(
                Topology(topology.colptr[: dst + 1], topology.row[:end], topology.transposed),
                None if attr is None else attr[:end],
            )
            for dst, end in zip(reversed(num_dst), reversed(ends), strict=True)
        ]


def _with_transposed(edges: Edges, num_src: int) -> Edges:
    """With the index of the backward pass, which all layers then share."""
    if not torch.is_grad_enabled():
        return edges
    transposed = transpose(edges.topology, num_src)
    return edges._replace(topology=edges.topology._replace(transposed=transposed))
