"""How well a model tells numbers: truth against prediction, residuals, worst nodes.

S nodes, K numbers; an entry may be unknown. Shown are the numbers' own units.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer.report.charts import axis, bars, colour, label, line
from dnformer.report.outcome import Outcome, by_degree, worst
from dnformer.report.page import Block, Column, Figure, Table, count, number

Array = npt.NDArray[Any]

_POINTS, _BINS, _FIGURES = 2000, 40, 4


def blocks(outcome: Outcome) -> list[Block]:
    """All that is shown of numbers."""
    mean, scale = (np.array(outcome.units[key]) for key in ("mean", "scale"))
    predicted = outcome.out.numpy() * scale + mean
    y = outcome.y.double().numpy()
    residual = predicted - y
    # in units of the training nodes' deviation, so that all numbers count alike
    error = residual / scale
    loss = np.nanmean(error**2, axis=1)
    found: list[Block] = [_summary(outcome, y, residual)]
    for k in range(min(y.shape[1], _FIGURES)):
        known = ~np.isnan(y[:, k])
        if known.any():
            found.append(_scatter(outcome, k, y[known, k], predicted[known, k]))
            found.append(_residuals(outcome, k, residual[known, k]))
    distance = np.nanmean(np.abs(residual if y.shape[1] == 1 else error), axis=1)
    return [
        *found,
        by_degree(outcome, distance, "mean absolute error", percent=False),
        _worst(outcome, y, predicted, loss),
    ]


def _summary(outcome: Outcome, y: Array, residual: Array) -> Table:
    rows = []
    for k, name in enumerate(outcome.names):
        known = ~np.isnan(y[:, k])
        some, truth = residual[known, k], y[known, k]
        spread = float(((truth - truth.mean()) ** 2).sum()) if len(truth) else 0.0
        measured: list[float | None] = [None] * 4
        if len(some):
            r2 = 1 - float((some**2).sum()) / spread if spread else None
            measured = [np.abs(some).mean(), np.sqrt((some**2).mean()), some.mean(), r2]
        rows.append([name, int(known.sum()), *measured])
    measures = [Column(name, number) for name in ("MAE", "RMSE", "mean residual", "R²")]
    columns = [Column("number"), Column("known", count), *measures]
    return Table("errors", f"Errors of {outcome.of}, in the numbers' units", columns, rows)


def _scatter(outcome: Outcome, k: int, truth: Array, predicted: Array) -> Figure:
    some = np.random.default_rng(0).permutation(len(truth))[:_POINTS]
    some.sort()
    low, high = (float(edge) for edge in (truth.min(), truth.max()))
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "nodes",
        "x": truth[some].tolist(),
        "y": predicted[some].tolist(),
        "marker": {"color": colour(0), "size": 5, "opacity": 0.5},
    }
    right = line("predicted rightly", [low, high], [low, high], number=5, dash=1)
    name = outcome.names[k]
    said = f"{len(some):,} of {len(truth):,} nodes, drawn at random"
    return Figure(
        title=f"Truth and prediction{_which(outcome, k)}",
        says=f"The nearer to the dashed line, the better. {said}.",
        traces=[points, right | {"mode": "lines"}],
        layout={
            "xaxis": axis(f"true {label(name)}"),
            "yaxis": axis(f"predicted {label(name)}"),
            "showlegend": True,
        },
        table=Table(
            f"truth-{k}", f"Truth and prediction{_which(outcome, k)}: {said}",
            [Column("true", number), Column("predicted", number)],
            np.stack([truth[some], predicted[some]], axis=1).tolist(),
        ),
    )  # fmt: skip


def _residuals(outcome: Outcome, k: int, residual: Array) -> Figure:
    counts, ends = np.histogram(residual, _BINS)
    middle = (ends[1:] + ends[:-1]) / 2
    return Figure(
        title=f"Residuals{_which(outcome, k)}",
        says=f"Prediction minus truth: {residual.mean():.4g} in the mean, between "
        f"{residual.min():.4g} and {residual.max():.4g}.",
        traces=[bars("nodes", middle.tolist(), counts.tolist())],
        layout={
            "xaxis": axis("prediction minus truth"),
            "yaxis": axis("nodes"),
            "bargap": 0,
        },
        table=Table(
            f"residuals-{k}", f"Residuals{_which(outcome, k)}",
            [Column("from", number), Column("to", number), Column("nodes", count)],
            list(zip(ends[:-1].tolist(), ends[1:].tolist(), counts.tolist(), strict=True)),
        ),
        height=300,
    )  # fmt: skip


def _which(outcome: Outcome, k: int) -> str:
    return f" of {outcome.names[k]}" if len(outcome.names) > 1 else ""


def _worst(outcome: Outcome, y: Array, predicted: Array, loss: Array) -> Table:
    def cells(place: int) -> list[Any]:
        k = int(np.nanargmax(np.abs(predicted[place] - y[place])))
        return [outcome.names[k], float(y[place, k]), float(predicted[place, k])]

    columns = [Column("number"), Column("truth", number), Column("prediction", number)]
    return worst(outcome, loss, columns, cells)
