"""What trainer, evaluation and prediction ask of a model, DNFormer or one of the zoo.

N nodes, E edges, A attributes of an edge, F input features, K classes.
"""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn


class NodeModel(nn.Module):
    """A model that scores the classes of nodes.

    Attributes:
        sparse_input: it takes `x` also as `torch.sparse_csr`.
        whole_graph: it is defined on the whole graph only.
        uses_degrees: it weights edges by the nodes' degrees, so a sampled batch has to bring them.
        edge_channels: A of the edge attributes that it takes; 0: it takes none.
        extra_loss: what the last forward pass in training adds to the mean loss of a seed, 0-d;
            None: nothing.
    """

    sparse_input: ClassVar[bool] = False
    whole_graph: ClassVar[bool] = False
    uses_degrees: ClassVar[bool] = False
    edge_channels: int = 0
    extra_loss: Tensor | None = None

    def set_epoch(self, epoch: int) -> None:
        """Training says which epoch begins, from 0; it is the same to most models.

        Parameters that an epoch does not train may stop to require gradients: the optimizer then
        passes over them, weight decay included.
        """

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        num_sampled_nodes: list[int] | None = None,
        num_sampled_edges: list[int] | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Scores of each class, of all nodes `[N, K]` or of a batch's first nodes.

        Args:
            x: features `[N, F]`.
            edge_index: PyG's (source, destination) `[2, E]`.
            num_sampled_nodes: of a sampled batch, nodes found in each hop; None: whole graph.
            num_sampled_edges: likewise, edges of each hop.
            edge_attr: `[E, A]`, where the model has `edge_channels`.
        """
