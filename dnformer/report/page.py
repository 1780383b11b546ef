"""What a page is made of: sections of blocks, of which each figure has a table with its numbers.

A builder of a kind of page (`run_page`, `search_page`, `comparison_page`) gives a `Page`; `render`
makes one HTML file of it. The tables are what programs read: they stand in the page as JSON, too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

Row: TypeAlias = Sequence[Any]
# a trace or layout as plotly.js takes it, with colours by name: "$s1" is the page's --s1
Plotly: TypeAlias = dict[str, Any]


def count(value: Any) -> str:
    """A whole number as a person reads it."""
    return f"{value:,}"


def share(value: Any) -> str:
    """A share in per cent."""
    return f"{100 * value:.2f} %"


def number(value: Any) -> str:
    """Any number, with four digits."""
    return f"{value:.4g}"


def seconds(value: Any) -> str:
    """Seconds."""
    return f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"


class Column(NamedTuple):
    """A column of a table; without `shown` it is text.

    Attributes:
        name: its header.
        shown: how a value that is there is written.
    """

    name: str
    shown: Callable[[Any], str] | None = None


class Block(ABC):
    """A piece of a section; its HTML is `templates/<kind>.html`."""

    kind: ClassVar[str]

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """For programs, by id."""

    @abstractmethod
    def drawing(self) -> dict[str, Plotly]:
        """What plotly.js draws, by the id of its element."""


@dataclass(frozen=True)
class Table(Block):
    """Rows of plain values; None is "not known".

    Attributes:
        id: unique on the page; its key in the page's JSON.
        caption: what the rows are.
        columns: of all rows; the first names the row.
        rows: their values, not yet put into words.
        best: the row that is marked, if any.
    """

    kind: ClassVar[str] = "table"

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    best: int | None = None

    def cells(self) -> list[list[str]]:
        """The rows in words."""
        return [
            [_cell(column, value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]

    def numbers(self) -> dict[str, Any]:
        """The rows."""
        return {
            self.id: {
                "caption": self.caption,
                "columns": [column.name for column in self.columns],
                "rows": [list(row) for row in self.rows],
            }
        }

    def drawing(self) -> dict[str, Plotly]:
        """Nothing."""
        return {}


def _cell(column: Column, value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return str(value) if column.shown is None else column.shown(value)


@dataclass(frozen=True)
class Figure(Block):
    """A drawing, what it shows in a sentence, and its numbers as a table.

    Attributes:
        title: its heading.
        says: what a reader who does not see it is told.
        traces: as plotly.js takes them.
        layout: likewise; fonts, grid and margins are the page's.
        table: the numbers.
        height: in pixels.
    """

    kind: ClassVar[str] = "figure"

    title: str
    says: str
    traces: Sequence[Plotly]
    layout: Plotly
    table: Table
    height: int = 380

    @property
    def id(self) -> str:
        """Unique on the page."""
        return f"figure-{self.table.id}"

    def numbers(self) -> dict[str, Any]:
        """Those of its table."""
        return self.table.numbers()

    def drawing(self) -> dict[str, Plotly]:
        """Itself."""
        return {self.id: {"data": list(self.traces), "layout": self.layout}}


@dataclass(frozen=True)
class Facts(Block):
    """Names with values, of which some are more important.

    Attributes:
        id: its key in the page's JSON.
        main: what is written large.
        rest: the others.
    """

    kind: ClassVar[str] = "facts"

    id: str
    main: Sequence[tuple[str, str]]
    rest: Sequence[tuple[str, str]]

    def numbers(self) -> dict[str, Any]:
        """All of them, in words."""
        return {self.id: dict([*self.main, *self.rest])}

    def drawing(self) -> dict[str, Plotly]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Words(Block):
    """A paragraph; a `notice` stands out."""

    kind: ClassVar[str] = "words"

    text: str
    notice: bool = False

    def numbers(self) -> dict[str, Any]:
        """None."""
        return {}

    def drawing(self) -> dict[str, Plotly]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Folded(Block):
    """A long text that opens on demand."""

    kind: ClassVar[str] = "folded"

    title: str
    text: str

    def numbers(self) -> dict[str, Any]:
        """None."""
        return {}

    def drawing(self) -> dict[str, Plotly]:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading; one without blocks is left out."""

    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """All that a page shows.

    Attributes:
        subject: "run", "search" or another kind of thing.
        title: the page's heading.
        sources: URIs of what it tells of.
        sections: in their order.
        facts: for programs alone.
    """

    subject: str
    title: str
    sources: Sequence[str]
    sections: Sequence[Section]
    facts: dict[str, Any] = field(default_factory=dict)

    def numbers(self) -> dict[str, Any]:
        """What the page shows, for programs: plain values that JSON has words for."""
        about = {
            "format": 1,
            "subject": self.subject,
            "title": self.title,
            "sources": list(self.sources),
        }
        shown: dict[str, Any] = {}
        for block in self._blocks():
            shown |= block.numbers()
        values: dict[str, Any] = finite(about | self.facts | {"shown": shown})
        return values

    def drawings(self) -> dict[str, Plotly]:
        """All figures by the id of their element."""
        found: dict[str, Plotly] = {}
        for block in self._blocks():
            found |= finite(block.drawing())
        return found

    def _blocks(self) -> list[Block]:
        return [block for section in self.sections for block in section.blocks]


def finite(value: Any) -> Any:
    """`value` as JSON takes it: None for numbers that are not finite, plain types for numpy's."""
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, np.generic | np.ndarray):
        return finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
