"""The command line: parses, builds a config, calls one function, prints what it gave.

Exit codes: 0 done; 1 a run that started failed; 2 a mistake by the user, one line on stderr.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dnformer import config as configs
from dnformer import parsing
from dnformer.cli_cache import cache
from dnformer.cli_common import Json, Settings, say, split_value, waiting
from dnformer.cli_ingest import ingest
from dnformer.errors import DNFormerError

app = typer.Typer(
    name="dnformer",
    help="Trains differential-attention graph transformers on graphs of any size.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line, by default the process's own, and exits with its code."""
    # torch's OpenMP threads wait for each other in a loop; on cores that others use too, a long one
    # costs more than it saves (bench/LOG.md, 2026-11-29)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s", stream=sys.stderr)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(arguments or ["--help"], standalone_mode=False)
    except DNFormerError as error:
        _fail(str(error), error.exit_code)
    except typer.Abort:
        _fail("stopped", 130)
    except typer.TyperException as error:
        _fail(f"{error} (see dnformer --help)", 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 1)
    if code == 130:  # how typer says that the user pressed Ctrl-C
        _fail("stopped", code)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


app.command()(ingest)


@app.command()
def describe(
    uri: Annotated[str, typer.Argument(help="Folder of a dataset.")],
    split: Annotated[str | None, typer.Option(help="Split to count, as in ingest.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a computed split.")] = 0,
    as_json: Json = False,
) -> None:
    """Print what a dataset holds: counts, degrees, homophily, isolated nodes, splits, classes."""
    with waiting("loading"):
        from dnformer.data.graph import open_graph
    value = split_value(split)
    recipe = parsing.parse(configs.SplitConfig, value, name="--split") if value else None
    facts = open_graph(uri, split=recipe, seed=seed, say=say).describe()
    if as_json:
        print(json.dumps(facts))
        return
    print(facts["uri"])
    for name, fact in facts.items():
        if name != "uri" and fact is not None:
            print(f"  {name.replace('_', ' '):16} {_plain(fact)}")


def _plain(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_plain(value)}" for name, value in fact.items()) or "none"
    if isinstance(fact, list):
        return ", ".join(map(str, fact)) or "none"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, int):
        return f"{fact:,}"
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


@app.command()
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML of the run.")],
    settings: Settings = None,
    repeat: Annotated[
        int, typer.Option(min=1, help="Train this many times, with other seeds and splits.")
    ] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what the run holds.")] = False,
    as_json: Json = False,
) -> None:
    """Train a run; the same command goes on where it was stopped."""
    parsed = configs.load_config(config, settings or [])
    with waiting("loading torch"):
        from dnformer.train import launch

    try:
        with _training_progress(parsed) as progress:
            if repeat > 1:
                result = launch.repeat(parsed, repeat, fresh=fresh, progress=progress)
            else:
                result = launch.train(parsed, fresh=fresh, progress=progress)
    except KeyboardInterrupt:
        say("stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None
    _print_result(result, as_json)


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="Folder of a run: STORAGE_PATH/NAME.")],
    as_json: Json = False,
) -> None:
    """Validate and test the best weights of a run anew."""
    with waiting("loading torch"):
        from dnformer.train import launch
    _print_result(launch.evaluate(run), as_json)


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    from dnformer.train.objectives import main_metric, shown

    metric = main_metric(result["test"])
    if "values" in result:
        mean, std, *each = (
            shown(metric, value) for value in (result["mean"], result["std"], *result["values"])
        )
        print(f"test {metric} {mean} ± {std} (mean ± std of {len(each)} runs)")
        print("  of each: " + ", ".join(each))
    else:
        print(f"test {metric} {shown(metric, result['test'][metric])} at the best validation")
        best, epochs = result["best_epoch"] + 1, result["epochs"]
        print(
            f"  validation {shown(metric, result['val'][metric])}, best epoch {best} of {epochs}, "
            f"{result['seconds']:.1f} s of training"
        )
    print(f"  files of the run: {result['run']}")


bench = typer.Typer(help="Measure in one process, side by side.", rich_markup_mode=None)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")


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
    console = Console()
    console.width = max(console.width, 150)  # lines that wrap are read more easily than cut ones
    findings = ops.run(settings, case or [], threads=threads, say=say)
    if as_json:
        print(json.dumps(ops.as_json(list(findings))))
        return
    console.print(ops.header(), highlight=False)
    for found in findings:
        report.show(found, console)


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
    if as_json:
        print(json.dumps(loader.as_json(list(findings))))
        return
    console = Console()
    console.width = max(console.width, 150)
    console.print(loader.header(), highlight=False)
    for found in findings:
        loader.show(found, console)


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
    if as_json:
        print(json.dumps(ingest.as_json(list(findings))))
        return
    console = Console()
    console.width = max(console.width, 150)
    console.print(ingest.header(), highlight=False)
    for found in findings:
        ingest.show(found, console)


@contextmanager
def _training_progress(config: configs.RunConfig) -> Iterator[Any]:
    """A bar with the time left on a terminal; a line an epoch in a log."""
    from dnformer.train.launch import Progress as Told

    total = config.train.epochs
    if not sys.stderr.isatty():
        yield Told(say, lambda record: say(_line(record, total)))
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(), TextColumn("left at most"), TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)

        def record(values: dict[str, Any]) -> None:
            if values["kind"] == "epoch":
                bar.update(task, completed=values["epoch"] + 1, description=_scores(values))
                return
            bar.update(task, completed=values["epoch"])
            console.print(_line(values, total), highlight=False)

        yield Told(lambda text: console.print(text, highlight=False), record)


def _scores(record: dict[str, Any]) -> str:
    from dnformer.train.objectives import main_metric, shown

    text = f"loss {record['train/loss']:.4f}"
    for split in ("train", "val"):
        keys = {key.removeprefix(f"{split}/"): key for key in record if key.startswith(f"{split}/")}
        if keys:
            metric = main_metric(keys)
            text += f"  {split} {metric} {shown(metric, record[keys[metric]])}"
    return text


def _line(record: dict[str, Any], total: int) -> str:
    if record["kind"] == "start":
        again = f"goes on from step {record['step']}, in epoch {record['epoch'] + 1}"
        return again if record["step"] else "starts"
    stages = sorted(record["stage_seconds"].items(), key=lambda item: -item[1])
    where = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages[:4])
    return (
        f"epoch {record['epoch'] + 1}/{total}  {_scores(record)}  "
        f"{record['seconds']:.2f} s ({where}){_cache(record)}"
    )


def _cache(record: dict[str, Any]) -> str:
    """What the hot rows saved; nothing without any."""
    if not record["cache_hit_rate"]:
        return ""
    read = record["feature_bytes_read"] / 2**20
    return f"  hot {100 * record['cache_hit_rate']:.1f} %, {read:,.0f} MiB read"


if __name__ == "__main__":
    main()
