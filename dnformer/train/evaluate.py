"""Loss and metrics of a model on the nodes of a split, exact or sampled, over the workers."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dnformer.config import EvalConfig, LoaderConfig
from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import exact_logits
from dnformer.loader import Cached, NeighborLoader
from dnformer.nn import DNFormer
from dnformer.train.loop import seed_logits
from dnformer.train.objectives import objective_for, target_of

Metrics = dict[str, dict[str, float]]


@final
class Evaluator:
    """Evaluates one model on one graph; every rank calls it at the same points.

    Args:
        model: evaluated as it is at each call.
        graph: with its splits.
        group: this worker and the others.
        config: exact or sampled.
        loader: fan-out and batch size of sampled evaluation.
        seed: of its draws, which are the same at each call.
        features: where dense features come from.

    Attributes:
        objective: of the graph's target.

    Raises:
        DataError: a metric is undefined on a split.
    """

    def __init__(
        self,
        model: DNFormer,
        graph: Graph,
        group: Group,
        *,
        config: EvalConfig,
        loader: LoaderConfig,
        seed: int,
        features: Cached | None = None,
    ) -> None:
        self._features = features
        self._model, self._graph, self._group = model, graph, group
        self.objective = objective_for(graph)
        self._exact, self._loader, self._seed = config.mode == "exact", loader, seed

    def __call__(self, splits: Sequence[str]) -> Metrics:
        """{split: {metric: value}}, "loss" among them, equal on all ranks."""
        nodes = {name: self._graph.split(name) for name in splits}
        if self._exact:
            source = self._features.source if self._features else None
            logits = exact_logits(self._model, self._graph, self._group, source=source)
            outputs = {name: logits[nodes[name]] for name in splits}
        else:
            outputs = {name: self._sampled(nodes[name]) for name in splits}
        return {
            name: self.objective.evaluate(outputs[name], target_of(self._graph, nodes[name]))
            for name in splits
        }

    @torch.no_grad()
    def _sampled(self, nodes: Tensor) -> Tensor:
        """The model's outputs for `nodes` from drawn neighbourhoods, `[len(nodes), K]`."""
        fan_out = self._loader.fan_out(len(self._model.blocks))
        loader = NeighborLoader(
            self._graph, nodes, num_neighbors=fan_out,
            batch_size=self._loader.batch_size, seed=self._seed, shuffle=False, stream="val",
            sampler=self._loader.sampler, sampling=self._loader.sampling,
            replace=self._loader.replace, temporal=self._loader.temporal,
            sparse=self._model.sparse_input,
            raw=self._group.device.type == "cuda", threads=self._loader.threads,
            prefetch=self._loader.prefetch, features=self._features, device=self._group.device,
        )  # fmt: skip
        dtype = next(self._model.parameters()).dtype
        training = self._model.training
        self._model.eval()
        # each rank fills in its own batches, so the sum over the ranks is exact
        outputs = torch.zeros(
            len(nodes), self._graph.num_classes, dtype=dtype, device=self._group.device
        )
        for batch in loader.draws(range(self._group.rank, len(loader), self._group.world_size)):
            batch = batch.to(self._group.device)
            outputs[batch.input_id] = seed_logits(self._model, batch, dtype)
        self._model.train(training)
        return self._group.sum_(outputs).cpu()
