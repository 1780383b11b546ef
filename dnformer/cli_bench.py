"""The commands `dnformer bench ..`: each parses, runs one bench, prints what it found."""

import json
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from dnformer.cli_common import Json, Settings, say, waiting

bench = typer.Typer(help="Measure in one process, side by side.", rich_markup_mode=None)


@bench.command("ops")
def bench_ops(
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this case; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds; the median counts.")] = 7,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads (default: as torch chooses).")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    yardstick: Annotated[
        str | None, typer.Option(help="Python file of another operator to race against.")
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(help="Dataset for power-law and block, in place of a generated one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time and peak memory of the attention operator, beside PyG's layers and plain reading."""
    with waiting("loading torch"):
        from dnformer.bench import ops, report

    settings = ops.Settings(repeats, device, yardstick, graph)
    findings = ops.run(settings, case or [], threads=threads, say=say)
    _print(ops, report.show, findings, as_json)


@bench.command("loader")
def bench_loader(
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this case; may be repeated.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds; the median counts.")] = 7,
    yardstick: Annotated[
        str | None, typer.Option(help="Python file of another sampler to race against.")
    ] = None,
    graph: Annotated[
        str | None, typer.Option(help="Dataset for the case loader, in place of a generated one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Seeds and sampled edges a second: samplers of each kind, and loaders with their stages."""
    with waiting("loading torch"):
        from dnformer.bench import loader

    findings = loader.run(loader.Settings(repeats, yardstick, graph), case or [], say=say)
    _print(loader, loader.show, findings, as_json)


@bench.command("ingest")
def bench_ingest(
    edges: Annotated[int, typer.Option(help="Edges of the generated input.")] = 10_000_000,
    ids: Annotated[str, typer.Option(help="int, string or both.")] = "both",
    memory_limit: Annotated[str, typer.Option(help="Of each run, as in 4GiB.")] = "4GiB",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of each run (default: one a CPU).")
    ] = None,
    temp_dir: Annotated[
        str | None, typer.Option(help="Local folder for input, output and temporary files.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Timed rounds (default: 3; 1 from 50 M edges on).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Edge files to sorted, distinct Parquet: our ingest beside plain DuckDB and pyarrow."""
    with waiting("loading"):
        from dnformer.bench import ingest

    settings = ingest.Settings(edges, ids, memory_limit, threads, temp_dir, repeats)
    findings = ingest.run(settings, say=say)
    _print(ingest, ingest.show, findings, as_json)


@bench.command("train")
def bench_train(
    repeats: Annotated[
        int, typer.Option(min=1, help="Rounds, each a training with every contender.")
    ] = 3,
    graph: Annotated[
        str | None, typer.Option(help="Dataset with labels, in place of a generated one.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """The same training in this process, on one Ray worker and on two, with a core for each."""
    with waiting("loading torch"):
        from dnformer.bench import train

    found = train.run(train.Settings(repeats, graph, settings or ()), say=say)
    _print(train, train.show, [found], as_json)


@bench.command("predict")
def bench_predict(
    edges: Annotated[int, typer.Option(help="Edges of the generated graph.")] = 10_000_000,
    memory_limit: Annotated[str, typer.Option(help="Of the prediction, as in 2GiB.")] = "2GiB",
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 3,
    temp_dir: Annotated[str | None, typer.Option(help="Local folder for all files.")] = None,
    as_json: Json = False,
) -> None:
    """Exact predictions of all nodes, beside reading the features and running the layers once."""
    with waiting("loading torch"):
        from dnformer.bench import predict

    found = predict.run(predict.Settings(edges, memory_limit, repeats, temp_dir), say=say)
    _print(predict, predict.show, [found], as_json)


def _print(
    bench_of: ModuleType,
    show: Callable[[Any, Console], None],
    findings: Iterable[Any],
    as_json: bool,
) -> None:
    """Prints what a bench found, case by case, or one object at the end."""
    if as_json:
        print(json.dumps(bench_of.as_json(list(findings))))
        return
    console = Console()
    # lines that wrap are read more easily than cut ones
    console.width = max(console.width, 150)
    console.print(bench_of.header(), highlight=False)
    for found in findings:
        show(found, console)
