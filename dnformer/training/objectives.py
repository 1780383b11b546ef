"""What is minimised and what is reported for each kind of target, one class a kind.

S nodes, K outputs. The loss of a node is the mean over its K entries, of which an unknown one
counts 0; that of a step is the weighted sum over its seeds over their total weight, known before
sampling. A node of which nothing is known weighs 0 and is in no metric.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from torch import Tensor

from dnformer.data.table import Target
from dnformer.errors import ConfigError
from dnformer.training.scores import f1_each, known_nodes, mean_r2, mean_roc_auc


class Metric(NamedTuple):
    """How a metric is read."""

    lower_is_better: bool
    percent: bool


_SHARE = Metric(lower_is_better=False, percent=True)
_ERROR = Metric(lower_is_better=True, percent=False)
# where a kind has several, its main one comes first
METRICS = {
    "accuracy": _SHARE,
    # before f1, which may stay 0 for many epochs where labels are rare
    "auc": _SHARE,
    "f1": _SHARE,
    "f1_macro": _SHARE,
    "mae": _ERROR,
    "rmse": _ERROR,
    "r2": Metric(lower_is_better=False, percent=False),
    "loss": _ERROR,
}
_OF_KIND = {
    "class": ("accuracy", "f1_macro", "loss"),
    "multilabel": ("auc", "f1", "f1_macro", "loss"),
    "regression": ("mae", "rmse", "r2", "loss"),
}
# outputs that are looked at at a time
_ENTRIES = 1 << 20


def metrics_of(target: Target) -> tuple[str, ...]:
    """Names of all metrics of a kind of target, the main one first."""
    names = _OF_KIND[target.kind]
    return (*names, "auc") if target.kind == "class" and target.num_outputs == 2 else names


def monitor_for(target: Target, asked: str | None) -> str:
    """What the best checkpoint is best at: `asked`, or the main metric of the target.

    Raises:
        ConfigError: such targets have no such metric.
    """
    allowed = [f"val/{name}" for name in metrics_of(target)]
    if asked is None:
        return allowed[0]
    if asked not in allowed:
        raise ConfigError(
            f"train.monitor {asked} is not measured for a label of kind {target.kind} with "
            f"{target.num_outputs} outputs; choose one of {', '.join(allowed)}"
        )
    return asked


def better(monitor: str, value: float, best: float | None) -> bool:
    """Whether `value` of "val/<metric>" beats `best`; one that is not finite never does."""
    if not math.isfinite(value):
        return False
    if best is None or not math.isfinite(best):
        return True
    lower = METRICS[monitor.removeprefix("val/")].lower_is_better
    return value < best if lower else value > best


def main_metric(names: Collection[str]) -> str:
    """The one of a kind's metrics that stands for the result."""
    return next(name for name in METRICS if name in names)


def shown(name: str, value: float) -> str:
    """A metric's value as a person reads it."""
    return f"{100 * value:.2f} %" if METRICS[name].percent else f"{value:.4g}"


class Objective(ABC):
    """The loss and the metrics of a kind of target; `y` is `table.TargetColumn`'s, of S nodes.

    Attributes:
        num_outputs: K.
        num_counts: sums over nodes that `running` needs.
    """

    num_outputs: int
    num_counts: int

    @abstractmethod
    def weight(self, y: Tensor) -> Tensor:
        """How much each node counts in the training loss, float64 `[S]`; 0 without a target."""

    @abstractmethod
    def loss(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """The sum of the nodes' training losses times their `weight` `[S]`, in float32 at least.

        The weight is `weight(y)` times anything of the caller's. Where all are 0, so are the loss
        and its gradient; what the sum is divided by is the caller's matter.
        """

    @abstractmethod
    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Sums over the known nodes, `[num_counts]`, in the dtype of `out`, float32 at least."""

    @abstractmethod
    def running(self, sums: Tensor) -> dict[str, float]:
        """The metrics that follow from `count`'s sums, float64 on the CPU; empty of no node."""

    @abstractmethod
    def kept(self, out: Tensor, y: Tensor) -> Tensor:
        """All that `metrics` needs of each node's output, `[S, R]`, on its device."""

    @abstractmethod
    def values(self) -> dict[str, list[float]]:
        """What turns outputs into the target's units: `mean` and `scale` of each, or nothing."""

    @abstractmethod
    def _sums(self, kept: Tensor, y: Tensor) -> Tensor:
        """Of known nodes, the plain losses' sum, then `count`'s: float64 `[1 + num_counts]`."""

    @abstractmethod
    def _whole(self, kept: Tensor, y: Tensor) -> dict[str, float]:
        """The metrics that need all known nodes at once, where they are defined."""

    def metrics(self, kept: Tensor, y: Tensor) -> dict[str, float]:
        """Loss and metrics of the known nodes, in float64; empty where there is none.

        The loss is their plain mean, without smoothing and weights. Metrics that are undefined on
        these nodes are left out. Where the loss is not finite, all are NaN: a comparison of
        outputs that are no numbers says nothing.

        Args:
            kept: `kept(out, y)`, on the CPU.
            y: of the same nodes.
        """
        known = known_nodes(y)
        if not known.all():
            kept, y = kept[known], y[known]
        if not len(y):
            return {}
        sums = torch.zeros(1 + self.num_counts, dtype=torch.float64)
        for rows in _ranges(len(y), kept.shape[1]):
            sums += self._sums(kept[rows].double(), y[rows])
        loss = float(sums[0]) / len(y)
        found = {"loss": loss, **self.running(sums[1:]), **self._whole(kept, y)}
        return found if math.isfinite(loss) else dict.fromkeys(found, math.nan)

    def evaluate(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """`metrics` of outputs that are all there, `[S, K]`."""
        ranges = _ranges(len(y), self.num_outputs)
        kept = [self.kept(out[rows], y[rows]).cpu() for rows in ranges]
        return self.metrics(torch.cat(kept), y.cpu()) if kept else {}

    def defined(self, y: Tensor) -> list[str]:
        """Names of the metrics that can be measured on nodes with targets `y`."""
        return list(self.evaluate(torch.zeros(1, 1).expand(len(y), self.num_outputs), y))


def _ranges(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _ENTRIES // max(width, 1))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def _wide(out: Tensor) -> Tensor:
    """In float32 at least."""
    return out.to(torch.promote_types(out.dtype, torch.float32))


@final
class ClassObjective(Objective):
    """One of K classes a node: cross-entropy; accuracy, macro-F1, and ROC-AUC where K is 2.

    With class weights and label smoothing the loss is that of torch's `cross_entropy`, whose
    weighted mean is the sum over the total weight, too. Macro-F1 is the mean over the classes that
    a node has or is predicted to have, as in torchmetrics.

    Args:
        num_classes: K.
        label_smoothing: share of the target that is spread over all classes.
        class_weights: above 0, float64 `[K]`; None: 1 each.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        label_smoothing: float = 0,
        class_weights: Tensor | None = None,
    ) -> None:
        self.num_outputs, self.num_counts = num_classes, 3 * num_classes
        self._smoothing, self._class_weights = label_smoothing, class_weights

    def weight(self, y: Tensor) -> Tensor:
        """That of its class."""
        known = known_nodes(y).double()
        if self._class_weights is None:
            return known
        return known * self._class_weights.to(y.device)[y.clamp(min=0)]

    def loss(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Cross-entropy."""
        out = _wide(out)
        weights = None if self._class_weights is None else self._class_weights.to(out)
        each = F.cross_entropy(
            out, y, weights, ignore_index=-1, reduction="none", label_smoothing=self._smoothing
        )
        weight = weight.to(out)
        if weights is not None:  # they are in `each` already, for smoothing class by class
            weight = weight / weights[y.clamp(min=0)]
        return (each * weight).sum()

    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Of each class: nodes predicted rightly, predicted so, and that are."""
        return self._tally(out.argmax(dim=1), y, _wide(out[:0]).dtype)

    def _tally(self, predicted: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        known, label = (y >= 0).to(dtype), y.clamp(min=0)
        sums = torch.zeros(3, self.num_outputs, dtype=dtype, device=y.device)
        sums[0].index_add_(0, predicted, (predicted == y).to(dtype))
        sums[1].index_add_(0, predicted, known)
        sums[2].index_add_(0, label, known)
        return sums.flatten()

    def running(self, sums: Tensor) -> dict[str, float]:
        """Accuracy and macro-F1."""
        hits, predicted, actual = sums.view(3, -1)
        if not actual.any():
            return {}
        met = predicted + actual > 0
        return {
            "accuracy": float(hits.sum() / actual.sum()),
            "f1_macro": float(f1_each(hits, predicted, actual)[met].mean()),
        }

    def kept(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss, the predicted class and, of two, by how much the second leads."""
        out = out.double()
        loss = F.cross_entropy(out, y, ignore_index=-1, reduction="none")
        columns = [loss, out.argmax(dim=1).double()]
        if self.num_outputs == 2:
            columns.append(out[:, 1] - out[:, 0])
        return torch.stack(columns, dim=1)

    def values(self) -> dict[str, list[float]]:
        """Nothing."""
        return {}

    def _sums(self, kept: Tensor, y: Tensor) -> Tensor:
        return torch.cat(
            [kept[:, 0].sum(0, keepdim=True), self._tally(kept[:, 1].long(), y, kept.dtype)]
        )

    def _whole(self, kept: Tensor, y: Tensor) -> dict[str, float]:
        # no column, and so nothing, where K is not 2
        return mean_roc_auc(kept[:, 2:], y[:, None].expand(-1, kept.shape[1] - 2))


@final
class MultilabelObjective(Objective):
    """K labels a node, each 0, 1 or unknown: binary cross-entropy, F1 at 0.5, mean ROC-AUC.

    All are over known entries. As for OGB's proteins, the mean is over the labels that have
    both a positive and a negative node in the split. Macro-F1 is the mean over all labels, 0 for
    one that is neither met nor predicted, as in torchmetrics.

    Args:
        num_labels: K.
    """

    def __init__(self, num_labels: int) -> None:
        self.num_outputs, self.num_counts = num_labels, 3 * num_labels

    def weight(self, y: Tensor) -> Tensor:
        """1."""
        return known_nodes(y).double()

    def loss(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Binary cross-entropy of the known entries, over K."""
        out = _wide(out)
        each = weight.to(out)[:, None] * (y >= 0) / self.num_outputs
        target = y.clamp(min=0).to(out)
        return F.binary_cross_entropy_with_logits(out, target, weight=each, reduction="sum")

    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Of each label: entries predicted rightly as 1, predicted so, and that are."""
        known = y >= 0
        predicted, actual = (out > 0) & known, y == 1
        sums = torch.stack([predicted & actual, predicted, actual]).sum(dim=1)
        return sums.flatten().to(_wide(out[:0]).dtype)

    def running(self, sums: Tensor) -> dict[str, float]:
        """Micro-F1 and macro-F1; 0 where nothing is positive, nor predicted so."""
        parts = sums.view(3, -1)
        return {
            "f1": float(f1_each(*parts.sum(dim=1))),
            "f1_macro": float(f1_each(*parts).mean()),
        }

    def kept(self, out: Tensor, y: Tensor) -> Tensor:
        """The outputs."""
        return out

    def values(self) -> dict[str, list[float]]:
        """Nothing."""
        return {}

    def _sums(self, kept: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(kept, y, kept.new_ones(len(y)))
        return torch.cat([loss[None], self.count(kept, y)])

    def _whole(self, kept: Tensor, y: Tensor) -> dict[str, float]:
        return mean_roc_auc(kept, y)


@final
class RegressionObjective(Objective):
    """K numbers a node, each may be unknown: mean squared error; MAE, RMSE and R² of known entries.

    The model's output is in units of the training nodes' standard deviation from their mean, for
    each of the K, so that neither the learning rate nor a large K-th number depends on units. The
    loss is in these units too, MAE and RMSE in the target's own. R² is the mean over the numbers
    that vary.

    Args:
        y: of the training nodes.
        weight: of each of them, float64 `[S]`; one of 0 is left out of mean and deviation.
    """

    def __init__(self, y: Tensor, weight: Tensor) -> None:
        self.num_outputs, self.num_counts = y.shape[1], 3 * y.shape[1]
        known, values = weight[:, None] * ~y.isnan(), y.double().nan_to_num()
        total = known.sum(dim=0)
        total = torch.where(total > 0, total, 1)
        self._mean = (known * values).sum(dim=0) / total
        spread = (known * (values - self._mean).square()).sum(dim=0) / total
        self._scale = torch.where(spread > 0, spread.sqrt(), 1)

    def weight(self, y: Tensor) -> Tensor:
        """1."""
        return known_nodes(y).double()

    def _target(self, y: Tensor, out: Tensor) -> Tensor:
        """In units of the output; 0 where unknown."""
        mean, scale = (t.to(out) for t in (self._mean, self._scale))
        return torch.where(y.isnan(), 0, (y.to(out).nan_to_num() - mean) / scale)

    def loss(self, out: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Squared error of the known entries, over K."""
        out = _wide(out)
        error = torch.where(y.isnan(), 0, out - self._target(y, out))
        return (weight.to(out)[:, None] * error.square()).sum() / self.num_outputs

    def count(self, out: Tensor, y: Tensor) -> Tensor:
        """Of each number: known entries, their |error| and error², in the output's units."""
        out = _wide(out.detach())
        error = torch.where(y.isnan(), 0, out - self._target(y, out))
        sums = [(~y.isnan()).to(out), error.abs(), error.square()]
        return torch.stack([each.sum(dim=0) for each in sums]).flatten()

    def running(self, sums: Tensor) -> dict[str, float]:
        """MAE and RMSE."""
        known, absolute, squared = sums.view(3, -1)
        total = float(known.sum())
        if not total:
            return {}
        return {
            "mae": float(absolute @ self._scale) / total,
            "rmse": math.sqrt(float(squared @ self._scale.square()) / total),
        }

    def kept(self, out: Tensor, y: Tensor) -> Tensor:
        """The outputs."""
        return out

    def values(self) -> dict[str, list[float]]:
        """A number is its output times `scale` plus `mean`."""
        return {"mean": self._mean.tolist(), "scale": self._scale.tolist()}

    def _sums(self, kept: Tensor, y: Tensor) -> Tensor:
        loss = self.loss(kept, y, kept.new_ones(len(y)))
        return torch.cat([loss[None], self.count(kept, y)])

    def _whole(self, kept: Tensor, y: Tensor) -> dict[str, float]:
        return mean_r2(kept.double() * self._scale + self._mean, y.double())
