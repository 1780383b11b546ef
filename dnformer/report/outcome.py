"""What a trained model says of the nodes of a split, and what holds for every kind of target.

S nodes, K outputs.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.data.table import Target
from dnformer.prediction.ids import Ids
from dnformer.report.charts import axis, line, named_axis
from dnformer.report.page import Column, Figure, Table, count, number, share

Array = npt.NDArray[Any]

WORST = 20
_Z = 1.959963984540054


class Outcome(NamedTuple):
    """Outputs of the nodes of a split of which something is known.

    Attributes:
        graph: the dataset.
        split: "test" or "val".
        nodes: their indices `[S]`, ascending.
        out: the model's outputs `[S, K]`, float64.
        y: what is known, as `table.TargetColumn` has it.
        degree: in-neighbours of each `[S]`.
        units: of numbers, mean and scale of each.
    """

    graph: Graph
    split: str
    nodes: Array
    out: Tensor
    y: Tensor
    degree: Array
    units: dict[str, list[float]]

    @property
    def target(self) -> Target:
        """What is learnt."""
        return self.graph.target

    @property
    def of(self) -> str:
        """The nodes in words."""
        return f"{len(self.nodes):,} {'test' if self.split == 'test' else 'validation'} nodes"

    @property
    def names(self) -> list[str]:
        """Of the K outputs."""
        return self.target.classes or [str(k) for k in range(self.target.num_outputs)]

    def ids(self, places: Array) -> list[Any]:
        """Original ids of the nodes at `places`, in their order."""
        order = np.argsort(places)
        found = Ids(self.graph.uri, self.graph.manifest).of(self.nodes[places[order]]).to_pylist()
        ids: list[Any] = [None] * len(places)
        for place, each in zip(order, found, strict=True):
            ids[place] = each
        return ids


def degree_bins(degree: Array) -> list[tuple[str, Array]]:
    """(degrees in words, which nodes have them): 0, 1, 2, 3-4, 5-8, .., those that there are."""
    found = []
    low, high = 0, 0
    while low <= degree.max(initial=0):
        inside = (degree >= low) & (degree <= high)
        if inside.any():
            found.append((f"{low:,}" if low == high else f"{low:,}–{high:,}", inside))
        low, high = high + 1, max(1, 2 * high)
    return found


def by_degree(outcome: Outcome, values: Array, name: str, *, percent: bool) -> Figure:
    """The mean of `values` `[S]` over the nodes of similar degree, with 95 % intervals.

    Args:
        outcome: of the nodes.
        values: 0 or 1 (`percent`), or an error each.
        name: what the mean is.
        percent: whether it is a share.
    """
    bins = degree_bins(outcome.degree)
    rows = []
    for words, inside in bins:
        some = values[inside]
        low, high = wilson(some) if percent else normal(some)
        rows.append([words, float(some.mean()), low, high, int(inside.sum())])
    names, means, lows, highs, _ = (list(column) for column in zip(*rows, strict=True))
    trace = line(name, range(len(names)), means, number=0, points=True)
    trace["error_y"] = {
        "type": "data",
        "symmetric": False,
        "array": [high - mean for high, mean in zip(highs, means, strict=True)],
        "arrayminus": [mean - low for low, mean in zip(lows, means, strict=True)],
        "color": "$s6",
        "thickness": 1.5,
    }
    shown = share if percent else number
    columns = [Column("neighbours"), Column(name, shown), Column("low", shown),
               Column("high", shown), Column("nodes", count)]  # fmt: skip
    first, last = rows[0], rows[-1]
    return Figure(
        title=f"{name} by degree".capitalize(),
        says=f"At degree {first[0]} it is {shown(first[1])} ({first[4]:,} nodes), at degree "
        f"{last[0]} {shown(last[1])} ({last[4]:,} nodes). Bars are 95 % intervals.",
        traces=[trace],
        layout={
            "xaxis": named_axis(names, "in-neighbours of a node"),
            "yaxis": axis(name, percent=percent),
        },
        table=Table("degree", f"{name} of {outcome.of} by in-degree".capitalize(), columns, rows),
    )


def wilson(hits: Array) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson, 1927)."""
    n, p = len(hits), float(hits.mean())
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def normal(values: Array) -> tuple[float, float]:
    """The 95 % interval of a mean, by its standard error."""
    mean = float(values.mean())
    half = _Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return mean - half, mean + half


class Reliability(NamedTuple):
    """What a model is sure of, and how often it is right.

    Attributes:
        rows: of each bin that has any: low end, high end, mean confidence, share that is right,
            how many.
        error: expected calibration error, the mean of |confidence - right| (Guo et al., 2017).
    """

    rows: list[list[Any]]
    error: float


def reliability(confidence: Array, right: Array, bins: int = 15) -> Reliability:
    """Confidence against truth in `bins` of equal width; both `[n]`."""
    place = np.clip((confidence * bins).astype(np.int64), 0, bins - 1)
    rows, error = [], 0.0
    for each in np.unique(place):
        inside = place == each
        sure, true = float(confidence[inside].mean()), float(right[inside].mean())
        rows.append([each / bins, (each + 1) / bins, sure, true, int(inside.sum())])
        error += inside.mean() * abs(sure - true)
    return Reliability(rows, float(error))


def calibration(found: Reliability, of: str, *, right: str) -> Figure:
    """The reliability diagram.

    Args:
        found: its bins.
        of: what was counted, in words.
        right: what the share on the upright axis is.
    """
    sure, true = ([row[at] for row in found.rows] for at in (2, 3))
    diagonal = line("perfectly calibrated", [0, 1], [0, 1], number=5, dash=1) | {"mode": "lines"}
    measured = line(right, sure, true, number=0, points=True)
    columns = [Column("from", share), Column("to", share), Column("mean confidence", share),
               Column(right, share), Column("how many", count)]  # fmt: skip
    return Figure(
        title="Calibration",
        says=f"The expected calibration error is {share(found.error)}, of {of} in bins of "
        "confidence. Below the dashed line the model is too sure of itself.",
        traces=[diagonal, measured],
        layout={
            "xaxis": axis("confidence", percent=True, range=[0, 1.02]),
            "yaxis": axis(right, percent=True, range=[0, 1.02]),
            "showlegend": True,
        },
        table=Table("calibration", f"Calibration, of {of}", columns, found.rows),
    )


def worst(outcome: Outcome, badness: Array, columns: Sequence[Column], cells: Any) -> Table:
    """The nodes that the model is most wrong about.

    Args:
        outcome: of the nodes.
        badness: of each `[S]`; the greatest come first.
        columns: beside id, degree and badness (the loss).
        cells: of a place the values of `columns`.
    """
    places = np.argsort(-badness, kind="stable")[:WORST]
    rows = [
        [each, *cells(place), int(outcome.degree[place]), float(badness[place])]
        for each, place in zip(outcome.ids(places), places.tolist(), strict=True)
    ]
    named = [Column("node"), *columns, Column("neighbours", count), Column("loss", number)]
    return Table("worst", f"The {len(rows)} worst of {outcome.of}, by loss", named, rows)
