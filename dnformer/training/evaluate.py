"""Loss and metrics of a model on the nodes of a split, exact or sampled, over the workers."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dnformer.config import LoaderConfig
from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import evaluating
from dnformer.inference.outputs import ExactOutputs
from dnformer.loader import Cached, NeighborLoader
from dnformer.nn.node_model import NodeModel
from dnformer.training.loop import seed_logits
from dnformer.training.loss_weights import target_of
from dnformer.training.objectives import Objective

Metrics = dict[str, dict[str, float]]


@final
class Evaluator:
    """Evaluates one model on one graph; every rank calls it at the same points.

    The model computes in the dtype of its weights, whatever precision it is trained in.

    Args:
        model: evaluated as it is at each call.
        graph: with its splits.
        group: this worker and the others.
        objective: what is measured.
        loader: fan-out of each hop and batch size of sampled evaluation; None: every neighbour.
        seed: of the draws, which are the same at each call.
        features: where dense features come from.

    Attributes:
        objective: as given.
    """

    def __init__(
        self,
        model: NodeModel,
        graph: Graph,
        group: Group,
        *,
        objective: Objective,
        loader: LoaderConfig | None = None,
        seed: int = 0,
        features: Cached | None = None,
    ) -> None:
        self._model, self._graph, self._group = model, graph, group
        self.objective, self._loader, self._seed = objective, loader, seed
        self._features = features
        source = features.source if features else None
        self._outputs = ExactOutputs(model, graph, group, source)

    @torch.no_grad()
    def __call__(self, splits: Sequence[str]) -> Metrics:
        """{split: {metric: value}}, "loss" among them, equal on all ranks."""
        nodes = {name: self._graph.split(name) for name in splits}
        device = self._group.device.type
        with evaluating(self._model), torch.autocast(device, enabled=False):
            if self._loader is None:
                return self._exact(nodes)
            return {name: self._sampled(of, self._loader) for name, of in nodes.items()}

    def _exact(self, nodes: dict[str, Tensor]) -> Metrics:
        outputs = self._outputs(list(nodes.values()))
        return {
            name: self.objective.evaluate(logits, target_of(self._graph, of))
            for (name, of), logits in zip(nodes.items(), outputs, strict=True)
        }

    def _sampled(self, nodes: Tensor, options: LoaderConfig) -> dict[str, float]:
        loader = NeighborLoader(
            self._graph, nodes, num_neighbors=options.num_neighbors,
            batch_size=options.batch_size, seed=self._seed, shuffle=False, stream="val",
            sampler=options.sampler, sampling=options.sampling, replace=options.replace,
            temporal=options.temporal, sparse=self._model.sparse_input,
            raw=self._group.device.type == "cuda", threads=options.threads,
            prefetch=options.prefetch, degrees=self._model.uses_degrees, features=self._features,
            device=self._group.device,
        )  # fmt: skip
        dtype, y = next(self._model.parameters()).dtype, target_of(self._graph, nodes)
        nothing = self.objective.kept(
            torch.zeros(0, self.objective.num_outputs, dtype=dtype), y[:0]
        )
        # each rank fills in its own batches, so the sum over the ranks is exact
        kept = nothing.new_zeros(len(nodes), nothing.shape[1], device=self._group.device)
        for batch in loader.draws(range(self._group.rank, len(loader), self._group.world_size)):
            batch = batch.to(self._group.device)
            logits = seed_logits(self._model, batch, dtype)
            kept[batch.input_id] = self.objective.kept(logits, batch.y[batch.seed_rows])
        return self.objective.metrics(self._group.sum_(kept).cpu(), y)
