"""What is minimised and what is reported for each kind of target, one class a kind.

S nodes, K outputs. The loss of a node is the mean over its K entries, of which an unknown one
counts 0; that of a step is the sum over its seeds over their number, known before sampling.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.errors import ConfigError, DataError


class Metric(NamedTuple):
    """How a metric is read."""

    lower_is_better: bool
    percent: bool


# where a kind has several, its main one comes first
METRICS = {
    "accuracy": Metric(lower_is_better=False, percent=True),
    # before f1, which may stay 0 for many epochs where labels are rare
    "auc": Metric(lower_is_better=False, percent=True),
    "f1": Metric(lower_is_better=False, percent=True),
    "mae": Metric(lower_is_better=True, percent=False),
    "rmse": Metric(lower_is_better=True, percent=False),
    "loss": Metric(lower_is_better=True, percent=False),
}
_OF_KIND = {
    "class": ("accuracy", "loss"),
    "multilabel": ("auc", "f1", "loss"),
    "regression": ("mae", "rmse", "loss"),
}


def monitor_for(kind: str, asked: str | None) -> str:
    """What the best checkpoint is best at: `asked`, or the main metric of `kind`.

    Raises:
        ConfigError: targets of `kind` have no such metric.
    """
    allowed = [f"val/{name}" for name in _OF_KIND[kind]]
    if asked is None:
        return allowed[0]
    if asked not in allowed:
        raise ConfigError(
            f"train.monitor {asked} is not measured for a label of kind {kind}; "
            f"choose one of {', '.join(allowed)}"
        )
    return asked


def main_metric(names: Collection[str]) -> str:
    """The one of a kind's metrics that stands for the result."""
    return next(name for name in METRICS if name in names)


def shown(name: str, value: float) -> str:
    """A metric's value as a person reads it."""
    return f"{100 * value:.2f} %" if METRICS[name].percent else f"{value:.4g}"


class Objective(ABC):
    """The loss and the metrics of a kind of target; `y` is `table.TargetColumn`'s, of S nodes.

    Attributes:
        counts: names of the sums over nodes that `running` needs.
    """

    counts: ClassVar[tuple[str, ...]]

    @abstractmethod
    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """The sum of the nodes' losses."""

    @abstractmethod
    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """The sums named by `counts`, in the dtype of `out`."""

    @abstractmethod
    def running(self, sums: dict[str, float]) -> dict[str, float]:
        """The metrics that follow from sums over nodes."""

    @abstractmethod
    def ranked(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """The metrics that need a whole split's outputs at once."""

    @abstractmethod
    def check(self, y: Tensor, split: str) -> None:
        """Raises where a metric is undefined on a split.

        Raises:
            DataError: it is.
        """

    def evaluate(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """Mean loss and all metrics of a whole split, in float64."""
        out = out.double()
        sums = dict(zip(self.counts, self.count(out, y).tolist(), strict=True))
        loss = float(self.loss(out, y)) / len(y)
        return {"loss": loss, **self.running(sums), **self.ranked(out, y)}


@final
class ClassObjective(Objective):
    """One of K classes a node: cross-entropy, and the share that the highest score gets right."""

    counts = ("correct", "nodes")

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(out, y, reduction="sum")

    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Nodes whose highest score is right, and all."""
        correct = (out.argmax(dim=1) == y).sum()
        return torch.stack([correct, correct.new_tensor(len(y))]).to(out.dtype)

    def running(self, sums: dict[str, float]) -> dict[str, float]:
        """The accuracy."""
        return {"accuracy": sums["correct"] / sums["nodes"]}

    def ranked(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """None."""
        return {}

    def check(self, y: Tensor, split: str) -> None:
        """All are defined on any node."""


@final
class MultilabelObjective(Objective):
    """K labels a node, each 0, 1 or unknown: binary cross-entropy, micro-F1 at 0.5, mean ROC-AUC.

    All three are over known entries. As for OGB's proteins, the mean is over the labels that have
    both a positive and a negative node in the split.
    """

    counts = ("true_positive", "false_positive", "false_negative")

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy of the known entries, over K."""
        known = (y >= 0).to(out.dtype)
        target = y.clamp(min=0).to(out.dtype)
        total = F.binary_cross_entropy_with_logits(out, target, weight=known, reduction="sum")
        return total / out.shape[1]

    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Entries predicted rightly as positive, wrongly so, and wrongly as negative."""
        predicted = out > 0
        pairs = (predicted & (y == 1), predicted & (y == 0), ~predicted & (y == 1))
        return torch.stack([found.sum() for found in pairs]).to(out.dtype)

    def running(self, sums: dict[str, float]) -> dict[str, float]:
        """Micro-F1; 0 where nothing is positive, nor predicted so."""
        hits = 2 * sums["true_positive"]
        total = hits + sums["false_positive"] + sums["false_negative"]
        return {"f1": hits / total if total else 0.0}

    def ranked(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """Mean ROC-AUC."""
        values = [
            roc_auc(score[label >= 0], label[label >= 0] == 1)
            for score, label in zip(out.T, y.T, strict=True)
            if (label == 0).any() and (label == 1).any()
        ]
        return {"auc": sum(values) / len(values)}

    def check(self, y: Tensor, split: str) -> None:
        """ROC-AUC needs a label with both values."""
        if not ((y == 0).any(dim=0) & (y == 1).any(dim=0)).any():
            raise DataError(
                f"split {split!r}: no label has both a positive and a negative node, so there is "
                "no ROC-AUC; choose another data.split"
            )


def roc_auc(score: Tensor, positive: Tensor) -> float:
    """The share of (positive, negative) pairs in the right order, a tie counting one half.

    Args:
        score: `[S]`.
        positive: which of them are, bool `[S]`: some, not all.
    """
    _, value, count = torch.unique(score, return_inverse=True, return_counts=True)
    middle = count.cumsum(0) - (count - 1).double() / 2  # mean rank of each value, from 1
    num_positive = int(positive.sum())
    rank_sum = float(middle[value][positive].sum())
    pairs = num_positive * (len(score) - num_positive)
    return (rank_sum - num_positive * (num_positive + 1) / 2) / pairs


@final
class RegressionObjective(Objective):
    """K numbers a node, each may be unknown: mean squared error; MAE and RMSE over known entries.

    The model's output is in units of the training nodes' standard deviation from their mean, for
    each of the K, so that neither the learning rate nor a large K-th number depends on units. The
    loss is in these units too, MAE and RMSE in the target's own.

    Args:
        y: of the training nodes.
    """

    counts = ("absolute", "squared", "known")

    def __init__(self, y: Tensor) -> None:
        known = ~y.isnan()
        values, num_known = y.double().nan_to_num(), known.sum(dim=0).clamp(min=1)
        self._mean = values.sum(dim=0) / num_known
        spread = torch.where(known, values - self._mean, 0).square().sum(dim=0) / num_known
        self._scale = torch.where(spread > 0, spread.sqrt(), 1)

    def _error(self, out: Tensor, y: Tensor) -> Tensor:
        """In units of the output; 0 where unknown."""
        mean, scale = (t.to(out) for t in (self._mean, self._scale))
        return torch.where(y.isnan(), 0, out - (y.to(out.dtype).nan_to_num() - mean) / scale)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Squared error, over K."""
        return self._error(out, y).square().sum() / out.shape[1]

    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Sums of the absolute and of the squared error, and the number of known entries."""
        error = self._error(out.detach(), y) * self._scale.to(out)
        known = (~y.isnan()).sum().to(out.dtype)
        return torch.stack([error.abs().sum(), error.square().sum(), known])

    def running(self, sums: dict[str, float]) -> dict[str, float]:
        """MAE and RMSE."""
        known = sums["known"]
        return {"mae": sums["absolute"] / known, "rmse": math.sqrt(sums["squared"] / known)}

    def ranked(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """None."""
        return {}

    def check(self, y: Tensor, split: str) -> None:
        """All are defined on any node that has a number."""


_KINDS: dict[str, Callable[[Tensor], Objective]] = {
    "class": lambda y: ClassObjective(),
    "multilabel": lambda y: MultilabelObjective(),
    "regression": RegressionObjective,
}


def target_of(graph: Graph, nodes: Tensor) -> Tensor:
    """The target's values of `nodes`, in memory."""
    values: Tensor = torch.from_numpy(np.asarray(graph.y[nodes.numpy()]))
    return values


def objective_for(graph: Graph) -> Objective:
    """The objective of a graph's target, checked on the splits it is measured on.

    Raises:
        DataError: a metric is undefined on one.
    """
    objective = _KINDS[graph.target.kind](target_of(graph, graph.split("train")))
    for split in ("val", "test"):
        objective.check(target_of(graph, graph.split(split)), split)
    return objective
