"""The page of an analysis: what holds of the claims, and each section's numbers as figures."""

from collections.abc import Iterator, Sequence
from typing import Any

from dnformer.analysis.compare import Estimate, Row
from dnformer.analysis.contrast import Lambdas
from dnformer.analysis.run import Analysis
from dnformer.analysis.tables import TITLES, Shown, introduction, is_percent, section_table, tables
from dnformer.report.charts import axis, bars, colour, label, named_axis
from dnformer.report.page import (
    Block,
    Column,
    Figure,
    Page,
    Plotly,
    Section,
    Table,
    Words,
    count,
    number,
    share,
)

# of those measures that have a figure of their own; the others are read better as a table
_DRAWN = ("attention", "quantised", "noise at test", "noise at training", "distractors")


def analysis_page(analysis: Analysis) -> Page:
    """The page of an analysis."""
    claims, *_ = tables(analysis)
    sections = [Section("claims", claims.title, [Words(introduction(analysis)), _table(claims)])]
    for name in dict.fromkeys(row.key.section for row in analysis.rows):
        rows = [row for row in analysis.rows if row.key.section == name]
        blocks: list[Block] = []
        if name == "lambda":
            blocks += [_histogram(each) for each in analysis.lambdas]
        if name in _DRAWN:
            blocks += _figures(analysis, rows)
        shown = section_table(analysis, name)
        sections.append(Section(shown.id, TITLES[name], [*blocks, _table(shown)]))
    sources = [analysis.run.uri, *(twin.uri for twin in analysis.twins)]
    return Page("analysis", f"Analysis of {analysis.run.label}", sources, sections)


def _table(shown: Shown) -> Table:
    return Table(shown.id, shown.title, [Column(name) for name in shown.header], shown.rows)


def _figures(analysis: Analysis, rows: Sequence[Row]) -> Iterator[Figure]:
    """A figure a measure: a point for each place and run, with its interval."""
    labels = [analysis.run.label, *(twin.label for twin in analysis.twins)]
    for name in dict.fromkeys(row.key.name for row in rows):
        own = [row for row in rows if row.key.name == name]
        percent = is_percent(own[0].key, analysis)
        places = [row.key.place for row in own]
        found = [_of_run(own, at) for at in range(len(labels))]
        traces = [
            _points(text, estimates, number=at)
            for at, (text, estimates) in enumerate(zip(labels, found, strict=True))
        ]
        shown = share if percent else number
        columns = [Column("at"), *(Column(text, shown) for text in labels)]
        values = [[None if e is None else e.mean for e in of_run] for of_run in found]
        yield Figure(
            title=name,
            says=_says(name, labels, found, places),
            traces=traces,
            layout={
                "xaxis": named_axis(list(map(label, places)), ""),
                "yaxis": axis("", percent=percent),
            },
            table=Table(
                f"{own[0].key.section}-{name}".replace(" ", "-"),
                name,
                columns,
                [[place, *of_place] for place, *of_place in zip(places, *values, strict=True)],
            ),
        )


def _of_run(rows: Sequence[Row], at: int) -> list[Estimate | None]:
    """What a run, or a twin from 1 on, has at each place."""
    if at == 0:
        return [row.run for row in rows]
    besides = [row.against[at - 1] for row in rows]
    return [None if beside is None else beside.twin for beside in besides]


def _says(
    name: str, labels: Sequence[str], found: Sequence[list[Estimate | None]], places: Sequence[str]
) -> str:
    last = [
        f"{text} {estimates[-1].mean:.4g}"
        for text, estimates in zip(labels, found, strict=True)
        if estimates[-1] is not None
    ]
    return f"At {places[-1]}: {', '.join(last)}. The mean over repeats with its 95 % interval."


def _points(name: str, estimates: Sequence[Estimate | None], *, number: int) -> Plotly:
    means = [None if e is None else e.mean for e in estimates]
    above, below = (
        [0 if e is None or end is None else abs(end - e.mean) for e, end in ends]
        for ends in (
            [(e, None if e is None else e.high) for e in estimates],
            [(e, None if e is None else e.low) for e in estimates],
        )
    )
    error: dict[str, Any] = {"type": "data", "array": above, "arrayminus": below}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(name),
        "x": [place + 0.12 * number for place in range(len(means))],
        "y": means,
        "error_y": error | {"symmetric": False, "color": colour(number)},
        "marker": {"color": colour(number), "size": 8},
    }


def _histogram(found: Lambdas) -> Figure:
    """How lambda is spread over the edges of a layer, in the first repeat."""
    last = max((at for at, edges in enumerate(found.edges) if edges), default=0)
    step = max(1, -(-(last + 1) // 60))
    merged = [int(found.edges[at : at + step].sum()) for at in range(0, last + 1, step)]
    middle = [(at + 0.5) * step * found.width for at in range(len(merged))]
    total = sum(merged) + found.above
    return Figure(
        title=f"Lambda on the edges of layer {found.layer}",
        says=f"Of {total:,} edges and heads, in the first repeat; {found.above:,} are above.",
        traces=[bars("edges and heads", middle, merged)],
        layout={"xaxis": axis("lambda"), "yaxis": axis("edges and heads"), "bargap": 0},
        table=Table(
            f"lambda-layer-{found.layer}",
            f"Lambda in layer {found.layer}",
            [Column("middle of the bin", number), Column("edges and heads", count)],
            list(zip(middle, merged, strict=True)),
        ),
    )
