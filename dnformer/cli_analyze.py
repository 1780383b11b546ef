"""The command `analyze`."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dnformer import storage
from dnformer.cli_common import Json, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage
from dnformer.errors import ConfigError

if TYPE_CHECKING:
    from dnformer.analysis.run import Analysis


def analyze(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run, or of its repeats.")],
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN",
            help="Its twin with one softmax (model.attention: single), same data; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of analysis.html, .md and .json, local or a URI."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Look at the attention of so many nodes, drawn evenly (all)."),
    ] = None,
    train_noise: Annotated[
        bool,
        typer.Option(
            "--train-noise", help="Train on graphs with noise edges, too: 4 runs each, in --out."
        ),
    ] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Measure what a model's attention does, beside its twin: contrast, outliers, noise, bits."""
    if train_noise and out is None:
        raise ConfigError("--train-noise trains runs that are kept in --out; give a folder")
    with waiting("loading torch"):
        from dnformer.analysis.run import Asked, analyse
        from dnformer.analysis.tables import markdown

        reached = configure_storage(storage_options)
    folder = storage.join(storage.absolute(out), "noise") if train_noise and out else None
    found = analyse(Asked(run, tuple(against or ()), nodes, folder, reached), say)
    if out is not None:
        _write(found, storage.absolute(out))
    if as_json:
        print(_json(found))
    elif sys.stdout.isatty():
        _show(found)
    else:
        print(markdown(found), end="")


def _json(found: "Analysis") -> str:
    from dnformer.report.page import finite

    return json.dumps(finite(found.plain()))


def _write(found: "Analysis", out: str) -> None:
    from dnformer.analysis.tables import markdown
    from dnformer.report.analysis_page import analysis_page
    from dnformer.report.render import render

    for name, content in (
        ("analysis.json", _json(found) + "\n"),
        ("analysis.md", markdown(found)),
        ("analysis.html", render(analysis_page(found))),
    ):
        storage.write_bytes(storage.join(out, name), content.encode())
        say(f"wrote {storage.join(out, name)}")


def _show(found: "Analysis") -> None:
    from dnformer.analysis.tables import introduction, tables

    console = Console()
    console.print(Text(introduction(found)))
    for shown in tables(found):
        table = Table(title=shown.title, title_justify="left", box=None, pad_edge=False)
        for number, name in enumerate(shown.header):
            table.add_column(Text(name), justify="left" if number < 2 else "right")
        for row in shown.rows:
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)
