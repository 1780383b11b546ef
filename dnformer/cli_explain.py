"""The command `explain`."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from dnformer.cli_common import Json, RunFolder, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage

if TYPE_CHECKING:
    from dnformer.explain import Explanation, Explanations
    from dnformer.report import page

# columns that a narrow terminal does without, in this order; the page and --json have them
_LEAVE_OUT_FIRST = ("features", "w by head", "a1", "a2", "degree", "lambda")
# letters that a column of text has at least
_LEAST_TEXT = 6


def explain(
    run: RunFolder,
    node: Annotated[
        list[str], typer.Option(metavar="ID", help="Original id of a node; may be repeated.")
    ],
    hops: Annotated[
        int | None,
        typer.Option(min=1, help="How far from the node, at most the model's layers; default: 2."),
    ] = None,
    top: Annotated[
        int,
        typer.Option(
            min=1,
            help="Kept and subtracted neighbours shown of each node, and nodes of "
            "a hop whose own neighbours are shown.",
        ),
    ] = 5,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page with a drawing, too.")
    ] = None,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Show which neighbours a model kept and which it subtracted, hop by hop.

    A layer gives a node the sum of its neighbours' values, each with a weight w = a1 - lambda * a2:
    above 0 the neighbour is kept, below 0 subtracted. "share" is its part of that sum, along it.
    "push" is its first-order effect on the log odds of the predicted class (of the likeliest label;
    of a number, on the number): the gradient by the sum, times the neighbour's term. It says what
    the term does with everything else as it is, not what the model would say without the edge.
    """  # fmt: skip
    reached = configure_storage(storage_options)
    with waiting("loading torch"):
        from dnformer import explain as explaining
        from dnformer.explain.page import page_place, write_page
    place = None if html is None else page_place(html)
    found = explaining.explain(run, node, hops=hops, top=top, reached=reached)
    if place is not None:
        write_page(found, place)
        say(f"wrote {place}")
    if as_json:
        print(json.dumps(found.as_dict()))
        return
    for explanation in found.nodes:
        _show(found, explanation)


def _show(explained: "Explanations", found: "Explanation") -> None:
    from dnformer.explain import words

    own = found.facts[found.node]
    print(f"node {words.short(own.id)} of {explained.run}")
    for name, text in words.summary(found, explained.kind):
        print(f"  {name:13} {text}")
    print(f"  {words.verdict(found, found.hops[0])}")
    for hop in found.hops:
        table = words.hop_table(found, explained, hop, f"hop-{hop.number}")
        print(f"\n{table.caption}")
        _print(table)
    print()


def _print(table: "page.Table") -> None:
    names, cells = [column.name for column in table.columns], table.cells()
    if not sys.stdout.isatty():
        for line in _aligned([names, *cells]):
            print(f"  {line}")
        return
    for part in fitting(table, Console()):
        Console().print(part)


def fitting(table: "page.Table", console: Console) -> list[Table | Text]:
    """The table as wide as the terminal, and below it the columns that had no room."""
    unlimited, left_out = console.options.update(max_width=sys.maxsize), list[str]()
    for name in ("", *_LEAVE_OUT_FIRST):
        left_out += [column.name for column in table.columns if column.name == name]
        shown = _drawn(table, left_out)
        if Measurement.get(console, unlimited, shown).maximum <= console.width:
            break
    if not left_out:
        return [shown]
    return [shown, Text(f"no room for {', '.join(left_out)}: --json and --html FILE have them")]


def _drawn(table: "page.Table", left_out: Sequence[str]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    places = [at for at, column in enumerate(table.columns) if column.name not in left_out]
    for column in (table.columns[at] for at in places):
        if column.shown or column.name == "side":
            # half a number is another number
            justify: Literal["left", "right"] = "right" if column.shown else "left"
            shown.add_column(column.name, justify=justify, no_wrap=True)
        else:
            least = max(len(column.name), _LEAST_TEXT)
            shown.add_column(column.name, overflow="fold", min_width=least)
    side = [column.name for column in table.columns].index("side")
    for row in table.cells():
        style = {"kept": "green", "subtracted": "red"}.get(row[side], "")
        # text, not markup: ids are users' own
        shown.add_row(*(Text(row[at], style if at == side else "") for at in places))
    return shown


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
