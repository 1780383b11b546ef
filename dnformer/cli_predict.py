"""`dnformer predict`: options to a config, progress while it runs, what came out."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dnformer import parsing
from dnformer.cli_common import Ended, Json, Settings, read_text, say, waiting
from dnformer.cli_storage import StorageOptions, configure_storage

if TYPE_CHECKING:
    from dnformer.prediction.progress import State
    from dnformer.prediction.results import Predictions

# in a log; a terminal is drawn anew as often as rich does it
_LOG_EVERY_S = 10.0
_SHOWN_FILES = 3


def predict(  # noqa: PLR0913 - one parameter an option
    run: Annotated[str | None, typer.Argument(help="Folder of a run: STORAGE_PATH/NAME.")] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of the predictions, local or a URI.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Another dataset of the same schema (the run's own).")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="File of node ids: .txt, one a line; .csv or .parquet, column id."),
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Node ids, comma-separated.")] = None,
    split: Annotated[str | None, typer.Option(help="Only nodes of train, val or test.")] = None,
    mode: Annotated[
        str | None, typer.Option(help="exact: every neighbour (default); or sampled.")
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Add what the last layer gives.")
    ] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Add what each layer gives.")] = False,
    compare_sampled: Annotated[
        bool,
        typer.Option(
            "--compare-sampled",
            help="Measure sampled outputs, too, where labels are known (always for few nodes).",
        ),
    ] = False,
    workers: Annotated[int | None, typer.Option(help="Ray workers (0: this process).")] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Of each process, as in 2GiB (half of the machine's).")
    ] = None,
    temp_dir: Annotated[
        str | None, typer.Option(help="Local folder for what is not held in memory.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace other predictions at --out.")
    ] = False,
    config: Annotated[
        str | None, typer.Option(help="YAML of all this; options override it.")
    ] = None,
    settings: Settings = None,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Write what a run's best model says of each node; the same command goes on if it stopped."""
    options = dict(locals())
    values = prediction_values(options)
    with waiting("loading torch"):
        from dnformer.prediction import launch
        from dnformer.prediction.options import PredictConfig

    parsed = parsing.parse(PredictConfig, values, name="predict")
    begin = time.perf_counter()
    try:
        with _progress() as told:
            found = launch.start(parsed, say=told)
    except KeyboardInterrupt:
        raise Ended(
            "stopped; the same command goes on after the parts that are done", 130
        ) from None
    seconds = time.perf_counter() - begin
    if as_json:
        print(json.dumps(_facts(found, seconds)))
    else:
        _print(found, seconds)


def prediction_values(options: dict[str, Any]) -> dict[str, Any]:
    """The command's options as `PredictConfig` takes them, on top of those of `--config`."""
    file = options["config"]
    values = parsing.read_yaml(read_text(file), name=file) if file else {}
    for name in ("run", "out", "data", "nodes", "split", "mode", "workers", "memory_limit",
                 "temp_dir"):  # fmt: skip
        if options[name] is not None:
            values[name] = options[name]
    if options["ids"] is not None:
        values["ids"] = [each for each in options["ids"].split(",") if each.strip()]
    for name in ("embeddings", "layers", "compare_sampled", "overwrite"):
        if options[name]:
            values[name] = True
    if options["storage_options"]:
        reached = configure_storage(options["storage_options"])
        values["storage"] = reached.model_dump(mode="json")
    return parsing.override(values, options["settings"] or [])


@contextmanager
def _progress() -> Iterator[Callable[["State"], None]]:
    """A bar on a terminal, a line now and then in a log."""
    if not sys.stderr.isatty():
        yield _log()
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(state: "State") -> None:
            if state.text.startswith("warning: "):
                console.print(state.text, highlight=False, markup=False)
                return
            done = min(state.done, state.total)
            bars.update(task, description=state.text, total=state.total or None, completed=done)

        yield show


def _log() -> Callable[["State"], None]:
    """Each stage once, and now and then how far it is."""
    last, text, begun = time.monotonic(), "", 0.0

    def show(state: "State") -> None:
        nonlocal last, text, begun
        now = time.monotonic()
        if state.total and not begun:
            begun = now
        if state.text != text:
            say(state.text)
        elif now - last < _LOG_EVERY_S or not 0 < state.done < state.total:
            return
        else:
            left = (now - begun) * (state.total - state.done) / state.done
            say(f"{state.text}: {state.done / state.total:.0%}, {left:.0f} s left")
        last, text = now, state.text

    return show


def _facts(found: "Predictions", seconds: float) -> dict[str, Any]:
    manifest = found.manifest
    plain = manifest.model_dump(mode="json")
    keys = ("num_nodes", "columns", "metrics", "counts", "comparison", "identity", "files")
    return {"uri": found.uri, "seconds": seconds} | {key: plain[key] for key in keys}


def _print(found: "Predictions", seconds: float) -> None:
    from dnformer.training.objectives import main_metric, shown

    manifest = found.manifest
    print(f"{found.uri}: {manifest.num_nodes:,} nodes in {seconds:.1f} s")
    print(f"  columns {', '.join(manifest.columns)}")
    for split, metrics in found.metrics.items():
        name = main_metric(metrics)
        of = f"{manifest.counts[split]:,} nodes whose labels are known"
        print(f"  {split} {name} {shown(name, metrics[name])} ({of})")
    compared = manifest.comparison
    if compared is not None:
        name = main_metric(compared.exact)
        exact, sampled = (shown(name, each[name]) for each in (compared.exact, compared.sampled))
        fan_out = ", ".join(map(str, compared.num_neighbors))
        print(f"  {compared.split} {name}: exact {exact}, sampled [{fan_out}] {sampled}")
    paths = [file.path for file in manifest.files]
    more = f" and {len(paths) - _SHOWN_FILES} more" if len(paths) > _SHOWN_FILES else ""
    print(f"  {', '.join(paths[:_SHOWN_FILES])}{more}")
