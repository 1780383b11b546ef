"""What a config asks for on a graph: the objective, and how much each node counts in its loss."""

import io

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer import storage
from dnformer.config import LossConfig
from dnformer.data.graph import Graph
from dnformer.errors import ConfigError, DataError
from dnformer.training.objectives import (
    ClassObjective,
    MultilabelObjective,
    Objective,
    RegressionObjective,
    monitor_for,
)
from dnformer.training.scores import known_nodes

# what numpy raises for bytes that are no array of plain values
_UNREADABLE = (ValueError, TypeError, SyntaxError, EOFError, MemoryError, OverflowError)
# a weight is multiplied with losses, which may be float32
_LARGEST = float(np.finfo(np.float32).max)
_UNDEFINED = {
    "auc": "no label has both a positive and a negative node",
    "r2": "no number of the label has two different values",
}


def read_mask(uri: str, num_nodes: int) -> npt.NDArray[np.float64]:
    """The weight of each node's loss, `[N]`, from a .npy of booleans or numbers.

    Raises:
        DataError: there is no such file, it holds something else, or a value is below 0 or not
            finite; it is named with its row.
    """
    values = _read(storage.absolute(uri))
    allowed = f"a mask has {num_nodes} booleans, or numbers of 0 or more, one for each node"
    if values.dtype.kind not in "biuf" or values.shape != (num_nodes,):
        raise DataError(f"{uri}: found {values.dtype} of shape {list(values.shape)}; {allowed}")
    with np.errstate(over="ignore"):
        weights = values.astype(np.float64)
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= _LARGEST)))
    if len(wrong):
        raise DataError(f"{uri}: row {wrong[0]}: {values[wrong[0]]} is no weight; {allowed}")
    return weights


def _read(uri: str) -> npt.NDArray[np.generic]:
    content = io.BytesIO(storage.read_bytes(uri))
    try:
        values: npt.NDArray[np.generic] = np.lib.format.read_array(content, allow_pickle=False)
    except _UNREADABLE as error:
        found = f"{uri}: no .npy file of plain values ({type(error).__name__}: {error})"
        raise DataError(f"{found}; write it with numpy.save") from None
    return values


def balanced(y: Tensor, weight: Tensor, num_classes: int) -> Tensor:
    """Weights by which each class has the same share of the loss, float64 `[K]`.

    That is the total weight over K times the class's; 1 for a class that has none.

    Args:
        y: class of each training node, -1 for none, `[S]`.
        weight: of each node, float64 `[S]`.
        num_classes: K.
    """
    known = y >= 0
    total = torch.bincount(y[known], weight[known], minlength=num_classes)
    return torch.where(total > 0, total.sum() / (num_classes * total), 1)


def listed(values: list[float], num_classes: int) -> Tensor:
    """`loss.class_weights` as float64 `[K]`.

    Raises:
        ConfigError: they are not one a class.
    """
    if len(values) != num_classes:
        raise ConfigError(
            f"loss.class_weights has {len(values)} values, but the label has {num_classes} "
            f"classes; give {num_classes}, in the order of the classes, or balanced"
        )
    return torch.tensor(values, dtype=torch.float64)


def target_of(graph: Graph, nodes: Tensor) -> Tensor:
    """The target's values of `nodes`, in memory."""
    values: Tensor = torch.from_numpy(np.asarray(graph.y[nodes.numpy()]))
    return values


def _asked_weight(graph: Graph, y: Tensor, nodes: Tensor, loss: LossConfig) -> Tensor:
    """`loss.mask` of training nodes, 0 where nothing is known, float64 `[S]`."""
    weight = known_nodes(y).double()
    if loss.mask is None:
        return weight
    weight *= torch.from_numpy(read_mask(loss.mask, graph.num_nodes)[nodes.numpy()])
    if not weight.any():
        raise DataError(
            f"{loss.mask}: all {len(nodes)} training nodes weigh 0, so there is nothing to learn; "
            "change loss.mask or data.split"
        )
    return weight


def _class_objective(y: Tensor, weight: Tensor, num_classes: int, loss: LossConfig) -> Objective:
    asked = loss.class_weights
    if asked is None:
        weights = None
    elif asked == "balanced":
        weights = balanced(y, weight, num_classes)
    else:
        weights = listed(asked, num_classes)
    return ClassObjective(num_classes, label_smoothing=loss.label_smoothing, class_weights=weights)


def _refuse_class_settings(kind: str, loss: LossConfig) -> None:
    asked = {
        "label_smoothing": loss.label_smoothing != 0,
        "class_weights": loss.class_weights is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise ConfigError(
                f"loss.{name} is for labels of kind class, and this one is of kind {kind}; leave "
                f"loss.{name} out, or learn another label (data.label)"
            )


def objective_for(graph: Graph, loss: LossConfig, monitor: str | None = None) -> Objective:
    """The objective of a graph's target, checked on the splits it is measured on.

    Args:
        graph: with its splits.
        loss: what a node's loss is.
        monitor: what the best checkpoint is best at; None: the main metric.

    Raises:
        ConfigError: a setting of `loss` does not fit the target.
        DataError: `loss.mask` is not what it must be, or the main metric, or that of `monitor`, is
            undefined on a split.
    """
    target, nodes = graph.target, graph.split("train")
    y = target_of(graph, nodes)
    weight = _asked_weight(graph, y, nodes, loss)
    objective: Objective
    if target.kind == "class":
        objective = _class_objective(y, weight, target.num_outputs, loss)
    else:
        _refuse_class_settings(target.kind, loss)
        multilabel = target.kind == "multilabel"
        objective = (
            MultilabelObjective(target.num_outputs)
            if multilabel
            else RegressionObjective(y, weight)
        )
    main = monitor_for(target, None).removeprefix("val/")
    needed = monitor_for(target, monitor).removeprefix("val/")
    _refuse_undefined(objective, graph, "val", {main, needed})
    _refuse_undefined(objective, graph, "test", {main})
    return objective


def _refuse_undefined(objective: Objective, graph: Graph, split: str, names: set[str]) -> None:
    defined = objective.defined(target_of(graph, graph.split(split)))
    for name in sorted(names.difference(defined)):
        reason = _UNDEFINED.get(name, "no node has a known label")
        raise DataError(
            f"split {split!r}: {reason}, so there is no {name}; choose another data.split"
        )


def training_weights(graph: Graph, objective: Objective, loss: LossConfig) -> Tensor:
    """How much each training node counts in the loss, float64 `[n]`, in `graph.split`'s order.

    Those of 0 cost a step their share of the work and change nothing.

    Raises:
        DataError: `loss.mask` is not what it must be.
    """
    nodes = graph.split("train")
    y = target_of(graph, nodes)
    return objective.weight(y) * _asked_weight(graph, y, nodes, loss)
