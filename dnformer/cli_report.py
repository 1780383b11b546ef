"""The command `report`."""

import json
from typing import Annotated

import typer

from dnformer.cli_common import Json, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SEARCH|RESULTS...",
            help="Folder of a run, of a search or of `reproduce`'s results; or of several runs, to "
            "see them side by side.",
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="The page, local or any fsspec URI.")
    ] = "report.html",
    nodes: Annotated[
        int, typer.Option(min=1, help="Measure attention of so many nodes, drawn at random.")
    ] = 10_000,
    metrics_only: Annotated[
        bool, typer.Option("--metrics-only", help="Leave out what needs the model and its dataset.")
    ] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page on a run, a search or several runs, which works offline."""
    with waiting("loading torch"):
        from dnformer.report.kinds import Options
        from dnformer.report.write import write_report

        reached = configure_storage(storage_options)
    written = write_report(runs, out, Options(nodes, metrics_only, reached, say))
    if as_json:
        print(json.dumps(written._asdict()))
    else:
        print(f"{written.report}  ({written.size / 1e6:.1f} MB, {', '.join(written.sections)})")
