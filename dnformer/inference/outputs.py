"""Exact outputs of any model: DNFormer's layer by layer, others' by one pass of the whole graph."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor
from torch_geometric.data import Data

from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference.exact import evaluating, exact_embeddings
from dnformer.loader import FullLoader, decode
from dnformer.loader.source import DenseSource
from dnformer.nn import DNFormer
from dnformer.nn.node_model import NodeModel


@final
class ExactOutputs:
    """Scores of nodes in eval mode, every neighbour taken; the model is as it is at each call.

    A model other than DNFormer computes all nodes at once, on rank 0, which keeps the graph's
    features and edges in memory from the first call on.

    Args:
        model: any; its mode is put back as it was.
        graph: an open graph.
        group: this worker and the others, who call at the same points.
        source: of dense features for DNFormer; None: the store.
    """

    def __init__(
        self, model: NodeModel, graph: Graph, group: Group, source: DenseSource | None = None
    ) -> None:
        self._model, self._graph, self._group, self._source = model, graph, group, source
        self._batch: Data | None = None

    @torch.no_grad()
    def __call__(self, nodes: Sequence[Tensor]) -> list[Tensor]:
        """The scores `[S, K]` of each of some sets of nodes, on the CPU, equal on all ranks."""
        with evaluating(self._model):
            if isinstance(self._model, DNFormer):
                found = exact_embeddings(
                    self._model, self._graph, self._group, nodes, source=self._source
                )
                return [self._model.classify(h).cpu() for h in found]
            logits = self._all(self._model).cpu()
            return [logits[each] for each in nodes]

    def _all(self, model: NodeModel) -> Tensor:
        """`[N, K]`; rank 0's, as the last bits of another machine may be others."""
        weight = next(model.parameters())
        if self._group.rank != 0:
            return self._group.sum_(
                weight.new_zeros(self._graph.num_nodes, self._graph.num_classes)
            )
        if self._batch is None:
            everyone = torch.arange(self._graph.num_nodes)
            loader = FullLoader(self._graph, everyone, sparse=model.sparse_input)
            self._batch = next(iter(loader)).to(weight.device)
        x = decode(self._batch, weight.dtype)
        return self._group.sum_(model(x, self._batch.edge_index))
