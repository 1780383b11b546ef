"""How well a model tells classes apart: confusion, F1 of each, calibration, worst nodes.

S nodes, K classes.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F

from dnformer.report.charts import axis, heat, label, named_axis, rows_of_bars
from dnformer.report.outcome import Outcome, by_degree, calibration, reliability, worst
from dnformer.report.page import Block, Column, Figure, Table, count, number, share

Array = npt.NDArray[Any]

# of more classes, a matrix says nothing to the eye
_MATRIX, _WRITTEN, _BARS, _PAIRS = 60, 12, 40, 40


def blocks(outcome: Outcome) -> list[Block]:
    """All that is shown of classes."""
    probabilities = F.softmax(outcome.out, dim=1)
    sure, predicted = (each.numpy() for each in probabilities.max(dim=1))
    y = outcome.y.numpy()
    k = outcome.target.num_outputs
    matrix = np.bincount(y * k + predicted, minlength=k * k).reshape(k, k)
    right = (predicted == y).astype(np.float64)
    return [
        _confusion(outcome, matrix),
        _f1(outcome, matrix),
        calibration(reliability(sure, right), outcome.of, right="accuracy"),
        by_degree(outcome, right, "accuracy", percent=True),
        _worst(outcome, probabilities.numpy(), predicted),
    ]


def _confusion(outcome: Outcome, matrix: Array) -> Block:
    names, k = outcome.names, len(matrix)
    wrong = matrix - np.diag(np.diag(matrix))
    if k > _MATRIX:
        return _pairs(outcome, wrong)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    true, guess = np.unravel_index(int(wrong.argmax()), wrong.shape)
    says = f"Of {outcome.of}, {int(np.diag(matrix).sum()):,} are on the diagonal."
    if wrong.any():
        says += (
            f" The most frequent mistake: {int(wrong[true, guess]):,} of class {names[true]} "
            f"taken for {names[guess]}."
        )
    longest = 24 if k <= 20 else 12
    labels = [label(name, longest) for name in names]
    return Figure(
        title="Confusion matrix",
        says=says,
        traces=[
            heat(labels, labels, shares, of="of the class", percent=True, written=k <= _WRITTEN)
        ],
        layout={
            "xaxis": named_axis(labels, "predicted"),
            "yaxis": named_axis(labels, "true class", downwards=True),
        },
        table=Table(
            "confusion", "Nodes by true class (rows) and predicted class (columns)",
            [Column("true class"), *(Column(name, count) for name in names)],
            [[name, *row] for name, row in zip(names, matrix.tolist(), strict=True)],
        ),
        height=min(800, 260 + 28 * k),
    )  # fmt: skip


def _pairs(outcome: Outcome, wrong: Array) -> Table:
    """The classes that are taken for one another most."""
    order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    rows = [
        [outcome.names[true], outcome.names[guess], int(wrong[true, guess])]
        for true, guess in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, guess]
    ]
    columns = [Column("true class"), Column("predicted"), Column("nodes", count)]
    return Table("confusion", "The most frequent mistakes", columns, rows)


def _f1(outcome: Outcome, matrix: Array) -> Figure:
    hits, predicted, actual = np.diag(matrix), matrix.sum(axis=0), matrix.sum(axis=1)
    precision = np.divide(hits, predicted, out=np.zeros(len(hits)), where=predicted > 0)
    recall = np.divide(hits, actual, out=np.zeros(len(hits)), where=actual > 0)
    f1 = 2 * hits / np.maximum(predicted + actual, 1)
    rows = [
        [outcome.names[k], int(actual[k]), precision[k], recall[k], f1[k]]
        for k in np.lexsort((np.arange(len(f1)), f1))
        if predicted[k] + actual[k]
    ]
    drawn = rows[:_BARS]
    title = "F1 of each class" if len(drawn) == len(rows) else f"F1 of the {_BARS} worst classes"
    labels = [f"{label(row[0])} ({row[1]:,})" for row in drawn]
    columns = [Column("class"), Column("support", count), Column("precision", share),
               Column("recall", share), Column("F1", share)]  # fmt: skip
    return Figure(
        title=title,
        says=f"From {rows[0][0]} ({share(rows[0][4])}, {rows[0][1]:,} nodes) to {rows[-1][0]} "
        f"({share(rows[-1][4])}, {rows[-1][1]:,} nodes). In brackets, how many nodes are of it.",
        traces=[rows_of_bars(labels, [row[4] for row in drawn])],
        layout={
            "xaxis": axis("F1", percent=True, range=[0, 1.02]),
            "yaxis": named_axis(labels, "", downwards=True),
        },
        table=Table("f1", f"Classes of {outcome.of}, the worst first", columns, rows),
        height=130 + 26 * len(drawn),
    )


def _worst(outcome: Outcome, probabilities: Array, predicted: Array) -> Table:
    names, y = outcome.names, outcome.y.numpy()
    # from the outputs: a probability may be 0
    loss = F.cross_entropy(outcome.out, outcome.y, reduction="none").numpy()

    def cells(place: int) -> list[Any]:
        true, guess = y[place], predicted[place]
        return [names[true], names[guess], probabilities[place, guess], probabilities[place, true]]

    columns = [Column("label"), Column("prediction"), Column("sure of it", share),
               Column("probability of the label", number)]  # fmt: skip
    return worst(outcome, loss, columns, cells)
