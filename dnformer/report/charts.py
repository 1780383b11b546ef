"""Figures as plotly.js takes them: lines, bars, heat maps; colours are names of the page's own.

Text that comes from users (ids, class names) goes through `label`: plotly.js reads some HTML.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from dnformer.report.page import Plotly

# colours that stay apart for the colour-blind, on light and dark; the page's style has their values
COLOURS = tuple(f"$s{number}" for number in range(1, 9))
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_LONGEST_LABEL = 24


def label(text: Any, longest: int = _LONGEST_LABEL) -> str:
    """A user's text as a label of a figure: short, and read as text."""
    plain = " ".join(str(text).split())
    cut = plain if len(plain) <= longest else f"{plain[: longest - 1]}…"
    return escape(cut, quote=False)


def colour(number: int) -> str:
    """The colour of series `number`, from 0."""
    return COLOURS[number % len(COLOURS)]


def line(
    name: str,
    x: Sequence[Any],
    y: Sequence[Any],
    *,
    number: int,
    dash: int = 0,
    points: bool = False,
) -> Plotly:
    """A line, told apart by its colour `number` and its `dash`."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if points or len(x) < 3 else "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour(number), "dash": _DASHES[dash % len(_DASHES)], "width": 2},
        "marker": {"color": colour(number), "size": 6},
    }


def area(name: str, x: Sequence[Any], y: Sequence[Any], *, number: int) -> Plotly:
    """A layer of a stack of areas."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "stackgroup": "one",
        "line": {"color": colour(number), "width": 0.5},
        "fillcolor": colour(number),
    }


def bars(name: str, x: Sequence[Any], y: Sequence[Any], *, number: int = 0) -> Plotly:
    """Upright bars."""
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"color": colour(number)},
    }


def rows_of_bars(names: Sequence[str], values: Sequence[Any], *, number: int = 0) -> Plotly:
    """Bars that lie, one for each name, the first on top."""
    return {
        "type": "bar",
        "orientation": "h",
        "x": list(values),
        "y": list(range(len(names))),
        "marker": {"color": colour(number)},
        "hovertext": list(names),
        "hovertemplate": "%{hovertext}: %{x}<extra></extra>",
    }


def heat(
    x: Sequence[str],
    y: Sequence[str],
    values: Sequence[Sequence[Any]],
    *,
    of: str,
    percent: bool,
    written: bool,
) -> Plotly:
    """A heat map of `values` [y][x], which are `of` something.

    Args:
        x: names of the columns.
        y: names of the rows.
        values: None where there is none.
        of: what they are.
        percent: they are shares.
        written: they stand in the map, too, where there is room.
    """
    number = ".0%" if percent else ".3~g"
    found: Plotly = {
        "type": "heatmap",
        "x": list(range(len(x))),
        "y": list(range(len(y))),
        "z": [list(row) for row in values],
        "colorscale": "$heat",
        "colorbar": {
            "title": {"text": of}, "thickness": 12, "outlinewidth": 0, "tickformat": number,
        },
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": f"%{{y}}, %{{x}}: %{{z:{number}}}<extra></extra>",
    }  # fmt: skip
    return found | ({"texttemplate": f"%{{z:{number}}}"} if written else {})


def named_axis(names: Sequence[str], title: str, *, downwards: bool = False) -> Plotly:
    """An axis of places 0, 1, .. with names: two that are equal, or numbers, stay what they are."""
    axis: Plotly = {
        "title": {"text": title},
        "tickvals": list(range(len(names))),
        "ticktext": list(names),
        "showgrid": False,
        "zeroline": False,
    }
    return axis | ({"autorange": "reversed"} if downwards else {})


def axis(title: str, *, percent: bool = False, log: bool = False, **more: Any) -> Plotly:
    """An axis of numbers."""
    found: Plotly = {"title": {"text": title}}
    found |= {"tickformat": ".0%"} if percent else {}
    found |= {"type": "log"} if log else {}
    return found | more


def upright(x: float, text: str, *, dash: str = "dash", number: int | None = None) -> Plotly:
    """A vertical line with a word at its top: a shape and its annotation, for `marked`."""
    return {
        "x": x,
        "text": text,
        "dash": dash,
        "color": "$text" if number is None else colour(number),
    }


def marked(layout: Plotly, marks: Sequence[Plotly]) -> Plotly:
    """A layout with the vertical lines of `upright`."""
    shapes = [
        {
            "type": "line", "x0": mark["x"], "x1": mark["x"], "y0": 0, "y1": 1, "yref": "paper",
            "line": {"color": mark["color"], "width": 1.5, "dash": mark["dash"]},
        }
        for mark in marks
    ]  # fmt: skip
    annotations = [
        {
            "x": mark["x"], "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
            "text": mark["text"], "font": {"size": 11},
        }
        for mark in marks
        if mark["text"]
    ]  # fmt: skip
    return layout | {"shapes": shapes, "annotations": annotations}
