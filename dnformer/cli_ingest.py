"""`dnformer ingest`: options to a config, progress while it runs, what it did."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dnformer import parsing
from dnformer.cli_common import Json, Settings, read_text, say, split_value, waiting
from dnformer.errors import ConfigError

if TYPE_CHECKING:
    from dnformer.data.ingest.progress import Stage
    from dnformer.data.manifest import Manifest

# in a log; a terminal is drawn anew as often as rich does it
_LOG_EVERY_S = 10.0
_SHOWN_EXAMPLES = 3


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
        list[str] | None,
        typer.Option(help="Edge table: Parquet or CSV, a URI or a glob; may be repeated."),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(help="Node table, likewise; synthetic: number of nodes."),
    ] = None,
    src: Annotated[str | None, typer.Option(help="Column of the source (default src).")] = None,
    dst: Annotated[str | None, typer.Option(help="Column of the destination (dst).")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of edge weights (weight).")] = None,
    edge_time: Annotated[
        str | None, typer.Option("--time", help="Column of edge times (time).")
    ] = None,
    edge_attrs: Annotated[
        str | None, typer.Option(help="Columns of edge attributes, comma-separated (none).")
    ] = None,
    node_id: Annotated[str | None, typer.Option("--id", help="Column of the node id (id).")] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Labels, comma-separated, each NAME[:class|multilabel|regression]"
            "[=COLUMN+COLUMN] (label)."
        ),
    ] = None,
    split_column: Annotated[str | None, typer.Option(help="Column of the split (split).")] = None,
    node_time: Annotated[str | None, typer.Option(help="Column of node times (none).")] = None,
    features: Annotated[
        str | None, typer.Option(help="Feature columns, comma-separated (default: the rest).")
    ] = None,
    features_file: Annotated[
        str | None, typer.Option(help=".npy or Parquet: row i belongs to row i of the nodes.")
    ] = None,
    feature_dtype: Annotated[str | None, typer.Option(help="float32, float16 or int8.")] = None,
    undirected: Annotated[bool, typer.Option(help="Add the reverse of each edge.")] = False,
    duplicates: Annotated[str | None, typer.Option(help="drop, keep, sum or error.")] = None,
    self_loops: Annotated[str | None, typer.Option(help="keep, drop or error.")] = None,
    dangling: Annotated[
        str | None, typer.Option(help="Edges to no row of --nodes: error, drop or add.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Default split: random, per_class, time, planetoid, column, or its YAML."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="synthetic: seed.")] = None,
    degree: Annotated[
        float | None, typer.Option(help="synthetic: mean number of neighbours.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace another dataset at --out.")] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="For tables: local, or ray: the cluster of RAY_ADDRESS, else a local one."
        ),
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Memory for tables, as in 4GiB (half of the machine's).")
    ] = None,
    temp_dir: Annotated[
        str | None, typer.Option(help="Local folder for temporary files (the system's).")
    ] = None,
    config: Annotated[
        str | None, typer.Option(help="YAML of all this; options override it.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Make a dataset of a graph: PyG's raw files, edge and node tables, or a generated one."""
    options = dict(locals())
    with waiting("loading"):
        from dnformer.data.ingest.progress import Progress as Stages
        from dnformer.data.ingest.run import IngestConfig
        from dnformer.data.ingest.run import ingest as run_ingest

    values = parsing.read_yaml(read_text(config), name=config) if config else {}
    for path, value in setting_paths(options):
        if value is not None:
            values = parsing.put(values, path, value)
    parsed = parsing.parse(IngestConfig, parsing.override(values, settings or []), name="ingest")
    start = time.perf_counter()
    by_ray = parsed.table is not None and parsed.engine is not None and parsed.engine.name == "ray"
    with (
        _ray_session() if by_ray else nullcontext(),
        _progress(f"ingesting into {parsed.out}") as show,
    ):
        stages = Stages(show)
        manifest, written = run_ingest(
            parsed.source,
            parsed.out,
            policies=parsed.policies,
            split=parsed.split,
            overwrite=parsed.overwrite,
            engine=parsed.engine,
            progress=stages,
        )
    seconds = time.perf_counter() - start
    if as_json:
        facts = {"uri": parsed.out, "written": written, "seconds": seconds}
        print(json.dumps(facts | {"stages": stages.seconds} | _facts(manifest)))
        return
    done = f"ingested in {seconds:.1f} s" if written else "is already there, nothing to do"
    print(f"{parsed.out}: {done}")
    _print(manifest)


def _ray_session() -> AbstractContextManager[None]:
    from dnformer.ray_runtime import Resources, session

    return session(Resources(1, 1, object_store_bytes=None), say)


_COMMON = {
    "out": "out", "duplicates": "policies.duplicates", "self_loops": "policies.self_loops",
    "dangling": "policies.dangling", "engine": "engine.name",
    "memory_limit": "engine.memory_limit", "temp_dir": "engine.temp_dir",
}  # fmt: skip
_TABLE = {
    "edges": "edges", "nodes": "nodes", "src": "src", "dst": "dst", "weight": "weight",
    "edge_time": "time", "edge_attrs": "edge_attrs", "node_id": "id", "label": "label",
    "split_column": "split", "node_time": "node_time", "features": "features",
    "features_file": "features_file", "feature_dtype": "feature_dtype",
}  # fmt: skip


def setting_paths(options: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(dotted path in `IngestConfig`, value) of each option, None where it is not given."""
    yield from ((path, options[option]) for option, path in _COMMON.items())
    yield "split", split_value(options["split"])
    yield "overwrite", options["overwrite"] or None
    yield "policies.direction", "undirected" if options["undirected"] else None
    source = options["source"] or ""
    kind, _, name = source.partition(":")
    if kind == "synthetic":
        yield "synthetic.kind", name
        yield "synthetic.nodes", _only(options["nodes"])
        yield "synthetic.seed", options["seed"]
        yield "synthetic.degree", options["degree"]
    elif kind in ("pyg", "ogb"):
        yield f"{kind}.name", name
        yield f"{kind}.root", options["root"]
    elif source:
        raise ConfigError(
            f"source {source!r}: expected pyg:NAME, ogb:NAME or synthetic:KIND; tables come by "
            "--edges"
        )
    else:
        for option, path in _TABLE.items():
            value = options[option]
            listed = option in ("features", "edge_attrs") and value is not None
            yield f"table.{path}", value.split(",") if listed else value


def _only(nodes: list[str] | None) -> str | None:
    """The number of nodes of a synthetic graph."""
    if nodes is not None and len(nodes) > 1:
        raise ConfigError("--nodes is the number of nodes of a synthetic graph; give it once")
    return nodes[0] if nodes else None


def _facts(manifest: "Manifest") -> dict[str, Any]:
    keys = ("num_nodes", "num_edges", "num_features", "num_classes", "fingerprint", "policies",
            "counts", "examples")  # fmt: skip
    return {key: getattr(manifest, key) for key in keys}


def _features(manifest: "Manifest") -> str:
    if not manifest.num_features:
        return "no features"
    dtype = "" if manifest.feature_dtype == "float32" else f"{manifest.feature_dtype} "
    return f"{manifest.num_features:,} {manifest.features} {dtype}features"


def _print(manifest: "Manifest") -> None:
    print(
        f"  {manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{_features(manifest)}, {manifest.num_classes} classes"
    )
    print("  " + ", ".join(f"{k} {v}" for k, v in manifest.policies.items()))
    print("  " + ", ".join(f"{k.replace('_', ' ')} {v:,}" for k, v in manifest.counts.items()))
    for policy, edges in manifest.examples.items():
        more = ", ..." if len(edges) > _SHOWN_EXAMPLES else ""
        print(f"  {policy.replace('_', ' ')}: {', '.join(edges[:_SHOWN_EXAMPLES])}{more}")
    print(f"  fingerprint {manifest.fingerprint}")


@contextmanager
def _progress(text: str) -> Iterator[Callable[["Stage"], None]]:
    """A bar a stage on a terminal, a line now and then in a log."""
    if not sys.stderr.isatty():
        say(text)
        yield _log()
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[int, Any] = {}

        def show(stage: "Stage") -> None:
            if id(stage) not in tasks:
                tasks[id(stage)] = bars.add_task(stage.name, total=stage.total or None, line="")
            line = stage.line().partition(": ")[2]
            bars.update(tasks[id(stage)], completed=stage.done, line=line)

        bars.add_task(text, total=None, line="")
        yield show


def _log() -> Callable[["Stage"], None]:
    last = time.monotonic()

    def show(stage: "Stage") -> None:
        nonlocal last
        if time.monotonic() - last >= _LOG_EVERY_S and stage.rows:
            last = time.monotonic()
            say(stage.line())

    return show
