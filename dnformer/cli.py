"""The command line: parses, builds a config, calls one function, prints what it gave.

Exit codes: 0 done; 1 a run that started failed; 2 a mistake by the user, one line on stderr.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dnformer import config as configs
from dnformer.cli_cache import cache
from dnformer.errors import ConfigError, DNFormerError

app = typer.Typer(
    name="dnformer",
    help="Trains differential-attention graph transformers on graphs of any size.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a config field; may be repeated."),
]


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
    sys.exit(code or 0)


def _fail(message: str, code: int) -> NoReturn:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _waiting(text: str) -> Iterator[None]:
    """Says what is going on where a person waits."""
    if sys.stderr.isatty():
        with Console(stderr=True).status(text):
            yield
    else:
        _say(text)
        yield


_SPLITS: dict[str, Any] = {
    "random": {"random": [0.6, 0.2, 0.2]},
    "per_class": {"per_class": [0.6, 0.2, 0.2]},
    "planetoid": {"planetoid": 20},
    "column": {"column": True},
}


@app.command()
def ingest(  # noqa: PLR0913 - one parameter an option
    source: Annotated[
        str | None,
        typer.Argument(
            help="pyg:NAME, as in pyg:Planetoid/Cora, ogb:NAME, as in ogb:ogbn-arxiv, or "
            "synthetic:KIND of sbm, power_law, rmat; or use --edges."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder of the dataset, local or a URI.")] = None,
    root: Annotated[str | None, typer.Option(help="pyg, ogb: folder with the raw files.")] = None,
    edges: Annotated[
        str | None, typer.Option(help="Edge table: Parquet or CSV, a URI or a glob.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Node table, likewise; synthetic: number of nodes.")
    ] = None,
    src: Annotated[str | None, typer.Option(help="Column of the source (default src).")] = None,
    dst: Annotated[str | None, typer.Option(help="Column of the destination (dst).")] = None,
    node_id: Annotated[str | None, typer.Option("--id", help="Column of the node id (id).")] = None,
    label: Annotated[str | None, typer.Option(help="Column of the label (label).")] = None,
    split_column: Annotated[str | None, typer.Option(help="Column of the split (split).")] = None,
    features: Annotated[
        str | None, typer.Option(help="Feature columns, comma-separated (default: the rest).")
    ] = None,
    undirected: Annotated[bool, typer.Option(help="Add the reverse of each edge.")] = False,
    duplicates: Annotated[str | None, typer.Option(help="drop, keep or error.")] = None,
    self_loops: Annotated[str | None, typer.Option(help="keep, drop or error.")] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Default split: random, per_class, planetoid, column, or its YAML."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="synthetic: seed.")] = None,
    degree: Annotated[
        float | None, typer.Option(help="synthetic: mean number of neighbours.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace another dataset at --out.")] = False,
    config: Annotated[
        str | None, typer.Option(help="YAML of all this; options override it.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Make a dataset of a graph: PyG's raw files, edge and node tables, or a generated one."""
    with _waiting("loading"):
        from dnformer.data.ingest import IngestConfig
        from dnformer.data.ingest import ingest as run_ingest

    values = configs.read_yaml(_read_text(config), name=config) if config else {}
    options: list[tuple[str, Any]] = [
        ("out", out), ("split", _split_value(split)), ("overwrite", overwrite or None),
        ("policies.direction", "undirected" if undirected else None),
        ("policies.duplicates", duplicates), ("policies.self_loops", self_loops),
    ]  # fmt: skip
    kind, _, name = (source or "").partition(":")
    if kind == "synthetic":
        options += [
            ("synthetic.kind", name), ("synthetic.nodes", nodes), ("synthetic.seed", seed),
            ("synthetic.degree", degree),
        ]  # fmt: skip
    elif kind in ("pyg", "ogb"):
        options += [(f"{kind}.name", name), (f"{kind}.root", root)]
    elif source:
        raise ConfigError(
            f"source {source!r}: expected pyg:NAME, ogb:NAME or synthetic:KIND; tables come by "
            "--edges"
        )
    else:
        columns = features.split(",") if features else None
        options += [
            ("table.edges", edges), ("table.nodes", nodes), ("table.src", src),
            ("table.dst", dst), ("table.id", node_id), ("table.label", label),
            ("table.split", split_column), ("table.features", columns),
        ]  # fmt: skip
    for path, value in options:
        if value is not None:
            values = configs.put(values, path, value)
    parsed = configs.parse(IngestConfig, configs.override(values, settings or []), name="ingest")
    start = time.perf_counter()
    with _waiting(f"ingesting into {parsed.out}"):
        manifest, written = run_ingest(
            parsed.source,
            parsed.out,
            policies=parsed.policies,
            split=parsed.split,
            overwrite=parsed.overwrite,
        )
    seconds = time.perf_counter() - start
    if as_json:
        keys = ("num_nodes", "num_edges", "num_features", "num_classes", "fingerprint", "policies",
                "counts")  # fmt: skip
        facts = {key: getattr(manifest, key) for key in keys}
        print(json.dumps({"uri": parsed.out, "written": written, "seconds": seconds, **facts}))
        return
    done = f"ingested in {seconds:.1f} s" if written else "is already there, nothing to do"
    print(f"{parsed.out}: {done}")
    print(
        f"  {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{manifest.num_features:,} {manifest.features} features, {manifest.num_classes} classes"
    )
    print("  " + ", ".join(f"{k} {v}" for k, v in manifest.policies.items()))
    print("  " + ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in manifest.counts.items()))
    print(f"  fingerprint {manifest.fingerprint}")


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _split_value(text: str | None) -> Any:
    if text is None or text in _SPLITS:
        return _SPLITS.get(text) if text else None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--split {text}: expected {', '.join(_SPLITS)}, or '{{random: [..]}}'")
    return value


@app.command()
def describe(
    uri: Annotated[str, typer.Argument(help="Folder of a dataset.")],
    split: Annotated[str | None, typer.Option(help="Split to count, as in ingest.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of a computed split.")] = 0,
    as_json: Json = False,
) -> None:
    """Print what a dataset holds: counts, degrees, homophily, isolated nodes, splits, classes."""
    with _waiting("loading"):
        from dnformer.data.graph import open_graph
    value = _split_value(split)
    recipe = configs.parse(configs.SplitConfig, value, name="--split") if value else None
    facts = open_graph(uri, split=recipe, seed=seed, say=_say).describe()
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
    with _waiting("loading torch"):
        from dnformer.train import launch

    try:
        with _training_progress(parsed) as progress:
            if repeat > 1:
                result = launch.repeat(parsed, repeat, fresh=fresh, progress=progress)
            else:
                result = launch.train(parsed, fresh=fresh, progress=progress)
    except KeyboardInterrupt:
        _say("stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None
    _print_result(result, as_json)


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="Folder of a run: STORAGE_PATH/NAME.")],
    as_json: Json = False,
) -> None:
    """Validate and test the best weights of a run anew."""
    with _waiting("loading torch"):
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
    with _waiting("loading torch"):
        from dnformer.bench import ops, report

    settings = ops.Settings(repeats, device, yardstick, graph)
    console = Console()
    console.width = max(console.width, 150)  # lines that wrap are read more easily than cut ones
    findings = ops.run(settings, case or [], threads=threads, say=_say)
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
    with _waiting("loading torch"):
        from dnformer.bench import loader

    findings = loader.run(loader.Settings(repeats, yardstick, graph), case or [], say=_say)
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
    with _waiting("loading"):
        from dnformer.bench import ingest

    settings = ingest.Settings(edges, ids, memory_limit, threads, temp_dir, repeats)
    findings = ingest.run(settings, say=_say)
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
        yield Told(_say, lambda record: _say(_line(record, total)))
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
