"""The command `reproduce`."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dnformer import storage
from dnformer.cli_common import Json, say, waiting
from dnformer.errors import TrainError

_Table = Literal["table2", "table3", "figure2", "tune"]
_Protocol = Literal["random", "per_class", "column"]


def reproduce(  # noqa: PLR0913 - one parameter an option
    table: Annotated[
        _Table, typer.Argument(help="A table of the paper; or tune, which finds the configs.")
    ],
    datasets: Annotated[
        str | None, typer.Option(help="Comma-separated (all that have configs).")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="table2, tune: comma-separated (all that have configs).")
    ] = None,
    splits: Annotated[int, typer.Option(min=1, help="Splits, each with its seed.")] = 10,
    protocol: Annotated[
        _Protocol, typer.Option(help="Splits: random 60/20/20, per_class, or the data's column.")
    ] = "random",
    workers: Annotated[
        int, typer.Option(min=0, help="Runs at a time, on Ray; 0: one, in this process.")
    ] = 0,
    root: Annotated[
        Path | None, typer.Option(help="Folder of raw files, for datasets not ingested yet.")
    ] = None,
    configs: Annotated[
        Path, typer.Option(help="Folder of configs: DATASET/MODEL.yaml, candidates.yaml.")
    ] = Path("jobs/configs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder of runs.jsonl and of the tables.")] = Path(
        "jobs/results"
    ),
    storage_path: Annotated[
        str, typer.Option(help="Folder of the runs themselves.")
    ] = "runs/reproduce",
    max_hours: Annotated[
        float | None, typer.Option(min=0, help="No run begins after so long; 0: only the table.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of a table of the paper, and print it; the same again goes on."""
    with waiting("loading torch"):
        from dnformer.reproduce import (
            ROWS,
            Asked,
            Rows,
            Sitting,
            cells_of,
            markdown,
            run_cells,
            summary,
            write_best,
        )  # fmt: skip

    asked = Asked(table, configs, _names(datasets), _names(models), splits, protocol)
    cells, rows = cells_of(asked), Rows(results / ROWS)
    outcome = run_cells(cells, rows, Sitting(storage_path, workers, root, max_hours, say))
    of: Literal["test", "val"] = "val" if table == "tune" else "test"
    found = summary(cells, rows, outcome.fingerprints, protocol=protocol, of=of)
    if table == "tune":
        for line in write_best(cells, rows, outcome.fingerprints, configs):
            say(line)
    _keep(results / f"{table}-{protocol}", found, markdown(found))
    typer.echo(json.dumps(found) + "\n" if as_json else markdown(found), nl=False)
    if outcome.left:
        say(f"{outcome.left} runs are left; the same command goes on")
    if outcome.failed:
        raise TrainError(f"{len(outcome.failed)} runs failed; the same command tries them again")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _keep(stem: Path, summary: dict[str, Any], text: str) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(f"{stem}.json", (json.dumps(summary, indent=1) + "\n").encode())
    storage.write_bytes(f"{stem}.md", text.encode())
