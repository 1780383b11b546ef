"""What a measurement found: rows, targets beside what was found, and how a person reads them."""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Row(NamedTuple):
    """One contender in one case.

    Attributes:
        case: name of the case.
        graph: what it ran on.
        scope: "op", "layer", "floor", "graph" or "process".
        impl: the contender.
        passes: "forward", "forward+backward", or what else was timed.
        num_edges: E.
        heads: H.
        width: D.
        seconds: median of the rounds; None where it was not measured, and `note` says why.
        low: of the rounds.
        high: of the rounds.
        to_ours: seconds over those of our implementation in the same scope, graph and pass.
        to_floor: seconds over those of the floor of reading.
        extra_bytes: peak memory beyond inputs and results, as if all results were there then.
        bytes_per_edge_head: how much that grows with each edge and head.
        copy_share: on a GPU, the bytes that must be read each second, over the bytes that a large
            copy reads and writes each second.
        note: anything else.
    """

    case: str
    graph: str
    scope: str
    impl: str
    passes: str
    num_edges: int = 0
    heads: int = 0
    width: int = 0
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    to_ours: float | None = None
    to_floor: float | None = None
    extra_bytes: int | None = None
    bytes_per_edge_head: float | None = None
    copy_share: float | None = None
    note: str = ""


class Target(NamedTuple):
    """A figure beside the range it should lie in; None is no bound, and no figure."""

    case: str
    name: str
    found: float | None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it does; None where there is no figure."""
        if self.found is None:
            return None
        low, high = self.at_least, self.at_most
        return (low is None or self.found >= low) and (high is None or self.found <= high)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "met": self.met}

    def line(self) -> str:
        """For a person."""
        bounds = [
            f"{word} {bound:g}"
            for word, bound in (("at least", self.at_least), ("at most", self.at_most))
            if bound is not None
        ]
        verdict = {True: "met", False: "not met", None: "not measured"}[self.met]
        found = "" if self.found is None else f"{self.found:.2f}, "
        wanted = f"target {' and '.join(bounds)}" if bounds else "no target"
        return f"  {verdict if bounds else 'shown':12} {self.name}: {found}{wanted}"


class Findings(NamedTuple):
    """All of one case."""

    rows: list[Row]
    targets: list[Target]


_TEXT = ("graph", "scope", "impl", "pass")
_FIGURES = ("E", "H×D", "ms", "min", "max", "/ ours", "/ floor", "extra MB", "B/edge/head")


def show(findings: Findings, console: Console) -> None:
    """Prints one case as a table, with its targets under it."""
    if not findings.rows:
        return
    columns = (*_TEXT, *_FIGURES, "notes")
    rows = map(_cells, findings.rows)
    print_case(console, findings.rows[0].case, columns, rows, findings.targets, text=len(_TEXT))


def print_case(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    targets: Sequence[Target],
    *,
    text: int = 1,
) -> None:
    """Prints a table and its targets: `text` columns of words, columns of figures, notes.

    Without any note the last column is left out.
    """
    listed = list(rows)
    width = len(columns) if any(row[-1] for row in listed) else len(columns) - 1
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for place, name in enumerate(columns[:width]):
        if place == len(columns) - 1:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="left" if place < text else "right", no_wrap=True)
    for row in listed:
        table.add_row(*map(escape, row[:width]))
    console.print(table)
    for target in targets:
        console.print(target.line(), highlight=False, markup=False)
    console.print()


def _cells(row: Row) -> list[str]:
    times = [_figure(t, 1e3) for t in (row.seconds, row.low, row.high)]
    size = f"{row.heads}×{row.width}" if row.heads else ""
    share = f"{row.copy_share:.0%} of copying" if row.copy_share is not None else ""
    return [
        row.graph, row.scope, row.impl, row.passes, f"{row.num_edges:,}" if row.num_edges else "",
        size, *times, _figure(row.to_ours), _figure(row.to_floor),
        _figure(row.extra_bytes, 1e-6), _figure(row.bytes_per_edge_head),
        ", ".join(filter(None, (share, row.note))),
    ]  # fmt: skip


def _figure(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return ""
    value *= scale
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def ratio(one: float | None, other: float | None) -> float | None:
    """`one` over `other`; None where one of them is not known."""
    return None if one is None or other is None else one / other


def versions(*packages: str) -> dict[str, str]:
    """Of Python, of ours and of `packages`."""
    named = {name: version(name) for name in ("dnformer", *packages)}
    return {"python": platform.python_version(), **named}


def heading(*packages: str) -> str:
    """The same in a line, above tables."""
    return ", ".join(f"{name} {number}" for name, number in versions(*packages).items())


def load() -> str:
    """How busy the machine is: more threads are no faster than one where its cores are."""
    return f"load {psutil.getloadavg()[0]:.1f} on {os.cpu_count()} cores before"


def for_json(findings: Sequence[Any], packages: Sequence[str]) -> dict[str, Any]:
    """The findings of any bench, with `rows` and `targets` each, as one object for programs."""
    return {
        "rows": [row._asdict() for found in findings for row in found.rows],
        "targets": [target.as_dict() for found in findings for target in found.targets],
        "versions": versions(*packages),
    }
