"""Loss and accuracy of a model on the nodes of a split, exact or sampled, over the workers."""

from collections.abc import Sequence
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from dnformer.config import EvalConfig, LoaderConfig
from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import exact_logits
from dnformer.loader import Cached, NeighborLoader
from dnformer.nn import DNFormer
from dnformer.train.loop import seed_logits

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
        self._exact, self._loader, self._seed = config.mode == "exact", loader, seed

    def __call__(self, splits: Sequence[str]) -> Metrics:
        """{split: {"loss": mean cross-entropy, "accuracy": share}}, equal on all ranks."""
        if self._exact:
            source = self._features.source if self._features else None
            logits = exact_logits(self._model, self._graph, self._group, source=source)
            return {name: _metrics(self._exact_sums(logits, name)) for name in splits}
        return {name: _metrics(self._sampled_sums(name)) for name in splits}

    def _exact_sums(self, logits: Tensor, split: str) -> Tensor:
        nodes = self._graph.split(split)
        target = torch.from_numpy(self._graph.y[nodes.numpy()])
        return _sums(logits[nodes], target)

    @torch.no_grad()
    def _sampled_sums(self, split: str) -> Tensor:
        fan_out = self._loader.fan_out(len(self._model.blocks))
        loader = NeighborLoader(
            self._graph, self._graph.split(split), num_neighbors=fan_out,
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
        sums = torch.zeros(3, dtype=torch.float64, device=self._group.device)
        for batch in loader.draws(range(self._group.rank, len(loader), self._group.world_size)):
            batch = batch.to(self._group.device)
            logits = seed_logits(self._model, batch, dtype)
            sums += _sums(logits, batch.y[batch.seed_rows])
        self._model.train(training)
        return self._group.sum_(sums).cpu()


def _sums(logits: Tensor, target: Tensor) -> Tensor:
    """[sum of losses, correct, count], float64."""
    loss = F.cross_entropy(logits.double(), target, reduction="sum")
    correct = (logits.argmax(dim=1) == target).sum()
    return torch.stack([loss, correct.double(), loss.new_tensor(len(target))])


def _metrics(sums: Tensor) -> dict[str, float]:
    loss, correct, count = sums.tolist()
    return {"loss": loss / count, "accuracy": correct / count}
