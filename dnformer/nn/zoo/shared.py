"""What all models of the zoo have in common.

N nodes, E edges, F input features, K classes.
"""

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from dnformer.nn.block import ACTIVATIONS
from dnformer.nn.dropout import Dropout
from dnformer.nn.inputs import Inputs
from dnformer.nn.node_model import NodeModel


class Shared(NamedTuple):
    """The settings of section `model` that a model reads where they mean something to it.

    Attributes:
        in_channels: F.
        out_channels: K.
        hidden: width C.
        layers: L, or steps of propagation.
        heads: H.
        dropout: share set to zero in training.
        activation: "relu" or "gelu".
        input_dropout: share of the features set to zero in training.
        input_norm: "row" or "none", as in `Inputs`.
    """

    in_channels: int
    out_channels: int
    hidden: int = 64
    layers: int = 2
    heads: int = 2
    dropout: float = 0.5
    activation: str = "relu"
    input_dropout: float = 0.0
    input_norm: str = "none"

    def after(self) -> nn.Sequential:
        """Activation and dropout."""
        return nn.Sequential(ACTIVATIONS[self.activation](), Dropout(self.dropout))


class ZooModel(NodeModel):
    """Base of the zoo: a subclass says what the scores are.

    Args:
        shared: the shared settings.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.inputs = Inputs(shared.input_norm, shared.input_dropout)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        num_sampled_nodes: list[int] | None = None,
        num_sampled_edges: list[int] | None = None,
        edge_attr: Tensor | None = None,
        degree: Tensor | None = None,
    ) -> Tensor:
        """Scores `[N, K]` of all nodes of the graph or batch.

        Args:
            x: features `[N, F]`, dense or, with `sparse_input`, `torch.sparse_csr`.
            edge_index: PyG's (source, destination) `[2, E]`.
            num_sampled_nodes: of no use: all nodes of a batch are computed.
            num_sampled_edges: likewise.
            edge_attr: None: the zoo takes none.
            degree: of a sampled batch, neighbours of each node in the whole graph `[N]`, itself not
                counted; only models that say `uses_degrees` read it. None: as in the batch.
        """
        return self.scores(self.inputs(x), edge_index, degree)

    @abstractmethod
    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`; `x` is normalised and dropped out already. See `forward`."""
