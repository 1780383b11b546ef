"""The commands `dnformer runs ..`: what runs there are, how they stand, and how they go."""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dnformer.cli_common import Json, run_folders, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage
from dnformer.errors import ConfigError

if TYPE_CHECKING:
    from dnformer.runs import Difference, Entry

runs = typer.Typer(help="What runs there are, and what they came to.", rich_markup_mode=None)

Folder = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Folder of a run, repeats or a search.", autocompletion=run_folders
    ),
]


@runs.command("ls")
def runs_ls(
    storage_path: Annotated[
        str, typer.Argument(help="Folder of the runs: storage_path of their config.")
    ] = "runs",
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """List the runs, repeats and searches below a folder."""
    configure_storage(storage_options)
    with waiting("looking"):
        from dnformer.runs import list_runs

        entries = list_runs(storage_path)
    if as_json:
        print(json.dumps({"runs": [entry._asdict() for entry in entries]}))
    elif entries:
        _print_table(_table(entries))
    else:
        print(f"{storage_path}: no runs")


@runs.command("show")
def runs_show(run: Folder, storage_options: StorageOptions = None, as_json: Json = False) -> None:
    """Show how a run stands, its settings, its metrics and what can be done with it."""
    configure_storage(storage_options)
    with waiting("looking"):
        from dnformer.runs import find_run, parts, settings_of

        entry = find_run(run)
        inside = [] if entry.kind == "run" else parts(entry)
        settings = settings_of(entry)
    if as_json:
        facts = {"settings": settings, "parts": [each._asdict() for each in inside]}
        print(json.dumps(entry._asdict() | facts))
        return
    for name, text in _lines(entry).items():
        print(f"{name:10} {text}")
    for path, value in settings.items():
        print(f"  {path:26} {_value(value)}")
    if inside:
        _print_table(_table(inside))


@runs.command("diff")
def runs_diff(
    one: Annotated[
        str, typer.Argument(metavar="RUN", help="Folder of a run.", autocompletion=run_folders)
    ],
    other: Annotated[
        str, typer.Argument(metavar="RUN", help="Of another one.", autocompletion=run_folders)
    ],
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Show the settings and metrics in which two runs differ."""
    configure_storage(storage_options)
    with waiting("looking"):
        from dnformer.runs import differences

        config, metrics = differences(one, other)
    if as_json:
        print(json.dumps({
            "config": {each.name: [each.one, each.other] for each in config},
            "metrics": {each.name: [each.one, each.other] for each in metrics},
        }))  # fmt: skip
    elif config or metrics:
        _print_table(_comparison(one, other, config, metrics))
    else:
        print("no setting and no metric differs")


@runs.command("rm")
def runs_rm(
    run: Folder,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Remove a run, repeats or a search with all its files; one that goes on is refused."""
    configure_storage(storage_options)
    with waiting("looking"):
        from dnformer.runs import find_run, remove_run

        entry = find_run(run)
    if not yes:
        _ask(entry)
    remove_run(entry)
    if as_json:
        print(json.dumps({"removed": entry.uri, "bytes": entry.bytes}))
    else:
        print(f"removed {entry.uri} ({_size(entry.bytes)})")


def _ask(entry: "Entry") -> None:
    if not sys.stdin.isatty():
        raise ConfigError(f"{entry.uri}: nobody is there to ask; --yes removes it")
    what = f"{entry.kind} {entry.uri}, {entry.state}, {_size(entry.bytes)}"
    if not typer.confirm(f"Remove {what}?"):
        say("kept")
        raise typer.Exit(1)


def _print_table(table: Table) -> None:
    console = Console()
    # lines that wrap are read more easily than cut ones
    console.width = max(console.width, 150)
    console.print(table)


def _table(entries: "list[Entry]") -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("name", "state", "done", "metric", "best val", "test", "dataset", "when", "size"):
        right = name in ("done", "best val", "test", "size")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "dataset")
    for entry in entries:
        table.add_row(*map(Text, _row(entry)))
    return table


def _row(entry: "Entry") -> list[str]:
    kind = "" if entry.kind == "run" else f" ({entry.kind})"
    dataset = "/".join(entry.dataset.split("/")[-2:])
    return [
        f"{entry.name}{kind}", entry.state, f"{entry.done}/{entry.of}", entry.metric or "",
        _shown(entry, entry.val), _test(entry), dataset, _when(entry.changed_s), _size(entry.bytes),
    ]  # fmt: skip


def _lines(entry: "Entry") -> dict[str, str]:
    unit = {"run": "epochs", "repeats": "runs", "search": "trials"}[entry.kind]
    lines = {
        entry.kind: entry.uri,
        "state": entry.problem or f"{entry.state}, {entry.done} of at most {entry.of} {unit}",
        "dataset": entry.dataset,
        "written": f"{_when(entry.changed_s)}, {_size(entry.bytes)}",
    }
    if entry.metric is not None:
        tested = f", test {_test(entry)}" if entry.test is not None else ""
        lines["metric"] = f"{entry.metric}: best validation {_shown(entry, entry.val)}{tested}"
    if entry.state == "finished" and entry.kind == "run":
        lines["next"] = f"dnformer export {entry.uri} --out DIR"
    elif entry.state == "stopped":
        lines["next"] = f"the same dnformer {'tune' if entry.kind == 'search' else 'train'} goes on"
    return lines


def _comparison(
    one: str, other: str, config: "list[Difference]", metrics: "list[Difference]"
) -> Table:
    table = Table("", one, other, "change", box=None, pad_edge=False)
    for each in config:
        table.add_row(*map(Text, (each.name, _value(each.one), _value(each.other))))
    for each in metrics:
        change = ""
        if None not in (each.one, each.other):
            change = f"{each.other - each.one:+.4g}"
        table.add_row(*map(Text, (each.name, _value(each.one), _value(each.other), change)))
    return table


def _value(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shown(entry: "Entry", value: float | None) -> str:
    from dnformer.training.objectives import shown

    return "" if value is None or entry.metric is None else shown(entry.metric, value)


def _test(entry: "Entry") -> str:
    text = _shown(entry, entry.test)
    return text if entry.std is None else f"{text} ± {_shown(entry, entry.std)}"


def _when(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
