"""An analysis in words: a table a section, and one of the papers' claims."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from dnformer.analysis.compare import Estimate, Judged, Row
from dnformer.analysis.contrast import FEWEST
from dnformer.analysis.findings import Key
from dnformer.analysis.run import Analysis
from dnformer.tuning.results import Paired

TITLES = {
    "attention": "Attention",
    "lambda": "Lambda",
    "outliers": "Outliers",
    "quantised": "Attention logits of few bits",
    "noise at test": "Noise edges at test time",
    "noise at training": "Noise edges at training and test time",
    "distractors": "Distractors: neighbours of other classes, attached to each node",
}


class Shown(NamedTuple):
    """A table in words.

    Attributes:
        id: unique in the analysis.
        title: its heading.
        header: names of its columns; the first two are left-aligned.
        rows: likewise.
    """

    id: str
    title: str
    header: list[str]
    rows: list[list[str]]


def is_percent(key: Key, analysis: Analysis) -> bool:
    """Whether a number is a share that is read in per cent."""
    scored = key.name in (analysis.metric, "cost")
    return key.name == "share of attention" or (scored and analysis.percent)


def introduction(analysis: Analysis) -> str:
    """What was measured, in a sentence or two."""
    looked_at = f"all {analysis.num_nodes:,} nodes"
    if analysis.nodes < analysis.num_nodes:
        looked_at = f"{analysis.nodes:,} of {analysis.num_nodes:,} nodes, drawn evenly"
    repeats = len(analysis.repeats)
    said = (
        f"{analysis.run.label}: attention of {looked_at}; means over those with {FEWEST} or more "
        "neighbours, self-loops included, then over heads. "
    )
    if repeats == 1:
        return said + "One run: there are no intervals."
    return said + (
        f"Means over {repeats} repeats with 95 % bootstrap intervals, differences paired by repeat."
    )


def tables(analysis: Analysis) -> list[Shown]:
    """The claims, then a table a section."""
    sections = dict.fromkeys(row.key.section for row in analysis.rows)
    return [_claims(analysis), *(section_table(analysis, section) for section in sections)]


def section_table(analysis: Analysis, section: str) -> Shown:
    """The numbers of a section: of the run, and of each twin with the difference to it."""
    header = ["measure", "at", analysis.run.label]
    for twin in analysis.twins:
        header += [twin.label, f"difference from {twin.label}"]
    rows = [
        [row.key.name, row.key.place, *_numbers(row, analysis)]
        for row in analysis.rows
        if row.key.section == section
    ]
    return Shown(section.replace(" ", "-"), TITLES[section], header, rows)


def _numbers(row: Row, analysis: Analysis) -> Iterator[str]:
    yield _written(row.run, row.key, analysis)
    for beside in row.against:
        if beside is None:
            yield from ("–", "–")
        else:
            yield _written(beside.twin, row.key, analysis)
            yield _written(beside.difference, row.key, analysis, sign="+")


def _written(
    found: Estimate | Paired, key: Key, analysis: Analysis, *, sign: Literal["", "+"] = ""
) -> str:
    """A mean, or with a sign a difference of means, with its interval."""
    mean, low, high = found[:3]
    percent = is_percent(key, analysis)

    def number(value: float) -> str:
        return f"{100 * value:{sign}.2f}" if percent else f"{value:{sign}.3g}"

    unit = (" points" if sign or key.name == "cost" else " %") if percent else ""
    if low is None or high is None:
        return number(mean) + unit
    return f"{number(mean)}{unit} [{number(low)}, {number(high)}]"


def _claims(analysis: Analysis) -> Shown:
    header = ["claim", "against", "verdict", "measured"]
    rows = [_claim(found, analysis) for found in analysis.claims]
    return Shown("claims", "What holds of the papers' claims", header, rows)


def _claim(judged: Judged, analysis: Analysis) -> list[str]:
    claim, twin, found, verdict = judged
    against = "" if twin is None else analysis.twins[twin].label
    sign: Literal["", "+"] = "" if claim.of == "run" else "+"
    return [claim.text, against, verdict, _written(found, claim.key, analysis, sign=sign)]


def markdown(analysis: Analysis) -> str:
    """All tables as Markdown."""
    lines = [introduction(analysis), ""]
    for table in tables(analysis):
        if table.rows:
            lines += [
                f"**{table.title}**",
                "",
                _row(table.header),
                "|---" * len(table.header) + "|",
            ]
            lines += [*map(_row, table.rows), ""]
    return "\n".join([*lines, *_notes(analysis)]).rstrip() + "\n"


def _notes(analysis: Analysis) -> list[str]:
    """What a person must know of the intervals."""
    told = [
        beside.difference.note
        for row in analysis.rows
        for beside in row.against
        if beside is not None and beside.difference.num_pairs > 1
    ]
    return [note for note in dict.fromkeys(told) if note]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
