"""The Differential Transformer on the nodes of a batch: dense attention over all, no edges.

N nodes, F input features, K classes.
"""

from typing import ClassVar, final

from torch import Tensor, nn

from dnformer.config.zoo import DiffTransformerOptions
from dnformer.errors import ConfigError
from dnformer.nn.dropout import Dropout
from dnformer.nn.projection import InputProjection
from dnformer.nn.zoo.differential import DifferentialAttention, SequenceBlock
from dnformer.nn.zoo.shared import Shared, ZooModel


@final
class DiffTransformer(ZooModel):
    """Blocks of differential attention (arXiv 2410.05258) over all nodes of a batch.

    The nodes are a set: there are neither positions nor causality. Edges say one thing only, which
    nodes are in a sampled batch. Time grows with N², memory with N.

    Args:
        shared: settings of all models.
        options: its own.

    Raises:
        ConfigError: the width does not fit the heads.
    """

    sparse_input: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: DiffTransformerOptions) -> None:
        super().__init__(shared)
        channels = shared.hidden
        self.max_nodes = options.max_nodes
        self.projection = InputProjection(shared.in_channels, channels)
        self.dropout = Dropout(shared.dropout)
        self.blocks = nn.Sequential(
            *(
                SequenceBlock(
                    DifferentialAttention(channels, shared.heads, lam=options.lam, depth=depth),
                    channels,
                    dropout=shared.dropout,
                )
                for depth in range(1, shared.layers + 1)
            )
        )
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.head = nn.Linear(channels, shared.out_channels)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`.

        Raises:
            ConfigError: there are more nodes than `max_nodes`.
        """
        if x.shape[0] > self.max_nodes:
            raise ConfigError(
                f"difftransformer would attend over {x.shape[0]:,} nodes at once, of "
                f"{self.max_nodes:,} allowed: make loader.batch_size or loader.num_neighbors "
                "smaller, with eval.mode: sampled, or raise model.options.max_nodes"
            )
        # in the parameters' dtype also under autocast
        h = self.dropout(self.projection(x)).to(self.norm.weight.dtype)
        h = self.blocks(h.unsqueeze(0)).squeeze(0)
        scores: Tensor = self.head(self.norm(h))
        return scores
