"""Ingest: reads a source, applies the policies, publishes the dataset."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, Union

from pydantic import Field, model_validator

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.cache import CacheWriter, write_cache
from dnformer.data.clean import Policies, clean
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.signature import signature, stream_signature
from dnformer.data.ingest.stream import ingest_stream
from dnformer.data.ingest.tables import TableSource, open_tables
from dnformer.data.ingest.workspace import Workspace, workspace
from dnformer.data.manifest import NAME, Manifest, read_manifest
from dnformer.data.sources.ogb import OgbSource, open_ogb
from dnformer.data.sources.raw import RAW_POLICIES, RawSource, read_raw
from dnformer.data.sources.synthetic import SyntheticSource, open_synthetic
from dnformer.data.stream import GraphStream
from dnformer.data.table import RawGraph
from dnformer.errors import ConfigError, DataError
from dnformer.parsing import Section, parse

if TYPE_CHECKING:
    from torch_geometric.data import Data

_log = logging.getLogger("dnformer")

StreamSource: TypeAlias = OgbSource | SyntheticSource
Source: TypeAlias = Union[RawSource, StreamSource, TableSource, "Data"]


class EngineConfig(Section):
    """What ingests, and what it may use; the result does not depend on it."""

    name: Literal["local", "ray"] = Field("local", description="this machine, or a Ray cluster")
    memory_limit: str | int | None = Field(
        None,
        description="memory of the whole process, as in 4GiB, or bytes; null: half of the "
        "machine's, or of what its cgroup may use",
    )
    temp_dir: str | None = Field(
        None, description="local folder of all temporary files; null: the system's"
    )
    threads: int | None = Field(None, ge=1, description="null: one a CPU")


class IngestConfig(Section):
    """What `dnformer ingest` makes of what: one of pyg, ogb, synthetic and table."""

    out: str = Field(description="folder of the dataset: local or any fsspec URI")
    pyg: RawSource | None = Field(None, description="raw files of a graph that PyG knows")
    ogb: OgbSource | None = Field(None, description="raw files of a graph of OGB")
    synthetic: SyntheticSource | None = Field(None, description="a generated graph")
    table: TableSource | None = Field(None, description="edge and node tables")
    policies: dict[str, str] = Field(
        {},
        description="direction, duplicates, self_loops, dangling, where not the source's defaults",
    )
    split: SplitConfig | None = Field(None, description="default split recipe of the dataset")
    overwrite: bool = Field(False, description="replace another dataset at `out`")
    engine: EngineConfig | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "IngestConfig":
        names = ("pyg", "ogb", "synthetic", "table")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise ValueError(f"takes one source of pyg, ogb, synthetic, table; found {found}")
        return self

    @property
    def source(self) -> RawSource | OgbSource | SyntheticSource | TableSource:
        """The one source."""
        found = self.pyg or self.ogb or self.synthetic or self.table
        assert found is not None
        return found


def ingest(
    source: Source,
    out: str,
    *,
    policies: dict[str, str] | None = None,
    split: SplitConfig | None = None,
    overwrite: bool = False,
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
) -> tuple[Manifest, bool]:
    """Publishes `source` as a dataset at `out`.

    Args:
        source: raw files of PyG's or OGB's, tables, a synthetic graph, or a PyG `Data`.
        out: folder of the dataset, local or any fsspec URI.
        policies: `direction`, `duplicates`, `self_loops`, `dangling`, where not the source's
            defaults: directed as given, drop, keep, error; raw PyG files: undirected, drop, drop;
            OGB's: the direction that OGB gives them.
        split: default split recipe, recorded outside the fingerprint.
        overwrite: replace another dataset that is there.
        engine: what reads tables, with how much memory; a synthetic graph and OGB's take `local`,
            and others are held in memory.
        progress: told of the stages of an ingest that does not hold the graph.

    Returns:
        The manifest, and whether anything was written: an equal dataset is left as it is, and
        where it came from the same files and options these are not even read.

    Raises:
        DataError: the data are wrong; the message names file, row and value.
        ConfigError: an option is wrong.
    """
    run = _Run(out, split, overwrite, engine or EngineConfig(), progress or Progress())
    if isinstance(source, TableSource):
        return _ingest_tables(source, policies or {}, run)
    if run.engine.name == "ray":
        raise ConfigError("engine ray is for tables; leave it out")
    if isinstance(source, StreamSource):
        return _ingest_stream(source, policies or {}, run)
    if engine is not None:
        raise ConfigError("engine is for what is not held in memory, as this is; leave it out")
    raw, defaults, name = _read(source)
    table = clean(raw, _policies(defaults, policies or {}))
    return write_cache(table, out, source=name, split=split, overwrite=overwrite)


class _Run(NamedTuple):
    """Where an ingest goes, and with what."""

    out: str
    split: SplitConfig | None
    overwrite: bool
    engine: EngineConfig
    progress: Progress


# stages a dataset's parts: (writer, space, facts) to the manifest
_Stage: TypeAlias = Callable[[CacheWriter, Workspace, dict[str, Any]], Manifest]


def _ingest_tables(source: TableSource, given: dict[str, str], run: _Run) -> tuple[Manifest, bool]:
    policies = _policies(Policies(), given)
    tables = open_tables(source)

    def stage(writer: CacheWriter, space: Workspace, facts: dict[str, Any]) -> Manifest:
        if run.engine.name == "ray":
            from dnformer.data.ingest import ray_engine

            _warn_of_unused(run.engine)
            return ray_engine.ingest_tables(source, tables, policies, writer, run.progress, facts)
        # DuckDB and what else only tables need takes a moment to import
        from dnformer.data.ingest.local import ingest_tables

        return ingest_tables(source, tables, policies, writer, space, run.progress, facts)

    return _publish(
        f"table:{tables[0].name}", lambda: signature(source, tables, policies), stage, run
    )


def _warn_of_unused(engine: EngineConfig) -> None:
    given = [name for name in ("memory_limit", "temp_dir", "threads") if getattr(engine, name)]
    if given:
        _log.warning("engine ray takes what the cluster has; ignored: %s", ", ".join(given))


def _ingest_stream(source: StreamSource, given: dict[str, str], run: _Run) -> tuple[Manifest, bool]:
    stream, defaults, name = _open_stream(source)
    policies = _policies(defaults, given)

    def stage(writer: CacheWriter, space: Workspace, facts: dict[str, Any]) -> Manifest:
        return ingest_stream(stream, policies, writer, space, run.progress, facts)

    return _publish(name, lambda: stream_signature(source, policies), stage, run)


def _publish(name: str, sign: Callable[[], str], stage: _Stage, run: _Run) -> tuple[Manifest, bool]:
    """What `stage` makes, unless the dataset that is there came from the same."""
    with run.progress.stage("compare with what is there"):
        facts = {"source": name, "source_signature": sign(), "split": run.split}
    there = None if run.overwrite else _there(run.out)
    if there is not None and there.source_signature is not None:
        if there.source_signature != facts["source_signature"]:
            raise DataError(
                f"{run.out} holds another dataset ({there.source}), or came from other files or "
                "options; choose another --out, or replace it with --overwrite"
            )
        if there.split == run.split:
            return there, False
        with CacheWriter(run.out) as writer:
            return writer.publish(there.model_copy(update={"split": run.split}))
    engine = run.engine
    with (
        CacheWriter(run.out, overwrite=run.overwrite) as writer,
        workspace(engine.temp_dir, engine.memory_limit, engine.threads) as space,
    ):
        return writer.publish(stage(writer, space, facts))


def _there(uri: str) -> Manifest | None:
    """The manifest of the dataset at `uri`; None where there is none, or none that can be read."""
    if not storage.exists(storage.join(storage.absolute(uri), NAME)):
        return None
    try:
        return read_manifest(storage.absolute(uri))
    except DataError:
        return None  # the writer says what to do


def _open_stream(source: StreamSource) -> tuple[GraphStream, Policies, str]:
    """(graph, default policies, what the manifest calls it)."""
    if isinstance(source, SyntheticSource):
        return open_synthetic(source), Policies(), source.name
    return *open_ogb(source), f"ogb:{source.name}"


def _read(source: Union[RawSource, "Data"]) -> tuple[RawGraph, Policies, str]:
    """(graph, default policies, what the manifest calls it)."""
    if isinstance(source, RawSource):
        return read_raw(source), RAW_POLICIES, f"pyg:{source.name}"
    # the one source that needs torch, which takes seconds to import
    from dnformer.data.sources.pyg import from_data

    return from_data(source), Policies(), "torch_geometric.data.Data"


def _policies(defaults: Policies, given: dict[str, str]) -> Policies:
    return parse(Policies, defaults.model_dump() | given, name="policies")
