"""Parallel coordinates of a search as lines: an axis a setting, a line a trial."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dnformer.config import Entry
from dnformer.report.charts import colour, label
from dnformer.report.page import Column, Figure, Plotly, Table, count, number
from dnformer.report.settings import written
from dnformer.tuning.trials import Trial

# of the trials, those that are drawn as good ones
_GOOD = 0.2


class _Axis(NamedTuple):
    """An axis from 0 to 1.

    Attributes:
        name: of the setting.
        ticks: (height, word) of its ends, or of each choice.
        place: the height of a value.
    """

    name: str
    ticks: list[tuple[float, str]]
    place: Callable[[Any], float]


def parallel(
    space: Mapping[str, Entry],
    told: Sequence[tuple[Trial, float]],
    *,
    metric: str,
    shown: Callable[[Any], str],
    higher: bool,
) -> Figure:
    """The trials of a search.

    Args:
        space: of the search.
        told: trials with their values, which are finite.
        metric: what the values are.
        shown: how they are written.
        higher: whether a higher one is better.
    """
    values = [value for _, value in told]
    axes = [_of_entry(path, entry) for path, entry in space.items()]
    result = _of_numbers(metric, min(values), max(values), shown, log=False)
    order = sorted(told, key=lambda item: item[1], reverse=not higher)  # the best ones on top
    good = {trial.number for trial, _ in order[-max(1, round(_GOOD * len(order))) :]}
    rows = [
        [trial.number, *(_written(trial, path) for path in space), value]
        for trial, value in reversed(order)
    ]
    columns = [Column("trial", count), *(Column(path) for path in space), Column(metric, shown)]
    return Figure(
        title="Settings of each trial",
        says=f"A line a trial, from its settings to its {metric}; the best {len(good)} of "
        f"{len(told)} stand out. The best one: "
        + ", ".join(f"{path} {text}" for path, text in zip(space, rows[0][1:-1], strict=True))
        + ".",
        traces=[*_lines(axes, result, order, good, shown), _words([*axes, result])],
        layout={
            "xaxis": {
                "tickvals": list(range(len(axes) + 1)),
                "ticktext": [label(axis.name) for axis in [*axes, result]],
                "range": [-0.15, len(axes) + 0.45],
                "fixedrange": True,
            },
            "yaxis": {"visible": False, "range": [-0.06, 1.06], "fixedrange": True},
            "showlegend": True,
        },
        table=Table("parallel", f"Settings and {metric} of each trial", columns, rows, best=0),
        height=440,
    )


def _written(trial: Trial, path: str) -> str | None:
    return written(trial.params[path]) if path in trial.params else None


def _of_entry(path: str, entry: Entry) -> _Axis:
    if entry.choice is not None:
        words = [written(value) for value in entry.choice]
        last = max(len(words) - 1, 1)
        ticks = [(place / last, word) for place, word in enumerate(words)]
        return _Axis(path, ticks, lambda value: words.index(written(value)) / last)
    bounds = entry.bounds
    assert bounds is not None
    return _of_numbers(path, *bounds, number, log=entry.kind.startswith("log"))


def _of_numbers(
    name: str, low: float, high: float, shown: Callable[[Any], str], *, log: bool
) -> _Axis:
    if low == high:
        return _Axis(name, [(0.5, shown(low))], lambda value: 0.5)
    if log:
        span = math.log(high / low)
        return _Axis(
            name, [(0, shown(low)), (1, shown(high))], lambda value: math.log(value / low) / span
        )
    ticks = [(0.0, shown(low)), (1.0, shown(high))]
    return _Axis(name, ticks, lambda value: (value - low) / (high - low))


def _lines(
    axes: Sequence[_Axis],
    result: _Axis,
    order: Sequence[tuple[Trial, float]],
    good: set[int],
    shown: Callable[[Any], str],
) -> list[Plotly]:
    traces: list[Plotly] = []
    met = set()
    for trial, value in order:
        is_good = trial.number in good
        heights = [
            axis.place(trial.params[axis.name]) if axis.name in trial.params else None
            for axis in axes
        ]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "best trials" if is_good else "other trials",
                "legendgroup": str(is_good),
                "showlegend": is_good not in met,
                "x": list(range(len(axes) + 1)),
                "y": [*heights, result.place(value)],
                "line": {"color": colour(1 if is_good else 0), "width": 2.5 if is_good else 1},
                "opacity": 1.0 if is_good else 0.5,
                "hoverinfo": "text",
                "text": f"trial {trial.number}: {shown(value)}",
            }
        )
        met.add(is_good)
    return traces


def _words(axes: Sequence[_Axis]) -> Plotly:
    """The values along the axes."""
    ticks = [(x, y, word) for x, axis in enumerate(axes) for y, word in axis.ticks]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x for x, _, _ in ticks],
        "y": [y for _, y, _ in ticks],
        "text": [label(word, 14) for _, _, word in ticks],
        "textposition": "middle right",
        "marker": {"color": "$rule", "size": 7, "symbol": "line-ew-open"},
        "showlegend": False,
        "hoverinfo": "skip",
    }
