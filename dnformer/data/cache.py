"""Cache format 1 on any storage: stages an ingest's parts, and switches over to them.

Each ingest's parts have names of their own, and the manifest, put last, makes them the dataset:
what was there before stays whole until then, and what stops an ingest leaves only files that the
next one removes.
"""

import json
import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from types import TracebackType
from typing import Any, Literal, final

import numpy as np
import psutil
import scipy.sparse as sp

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data import fingerprint as fp
from dnformer.data.manifest import NAME, Manifest, PartFile, parse_manifest
from dnformer.data.parts import (
    PartTable,
    edge_part,
    edge_row_bytes,
    id_part,
    node_part,
    node_row_bytes,
    write_part,
)
from dnformer.data.table import EdgeColumns, GraphTable, NodeColumns, Quantized
from dnformer.errors import DataError

_MARKER = ".ingest-in-progress"
_FOLDERS = ("edges", "nodes", "ids")
_ID_BYTES = 32

Folder = Literal["edges", "nodes", "ids"]


@final
class CacheWriter:
    """One ingest into the folder `uri`; a context that removes its parts unless they are published.

    Args:
        uri: empty, new, or a dataset's folder.
        overwrite: whether `publish` replaces the dataset that is there, also an equal or a damaged
            one.

    Raises:
        DataError: the folder holds something that is no dataset, or another ingest is at work.
    """

    def __init__(self, uri: str, *, overwrite: bool = False) -> None:
        self.uri = storage.absolute(uri)
        self._overwrite, self._token = overwrite, uuid.uuid4().hex[:8]
        self._published = False
        names = [name for name in storage.list_names(self.uri) if not _is_half_written(name)]
        if names and NAME not in names and _MARKER not in names:
            raise DataError(
                f"{self.uri} is not empty and holds no dataset (found {names[0]}); choose another "
                "--out"
            )
        ended = _has_ended(self.uri, _marker(self.uri))
        self.found = self._read_found()
        # the marker first: whenever this stops, the next ingest knows the rest for leftovers
        self._mark()
        # what an ingest on another host wrote is kept until ours is published, lest it publishes
        # in this moment what we remove
        if ended and (self.found is not None or NAME not in names):
            _remove_unreferenced(self.uri, self.found)

    def _mark(self) -> None:
        process = psutil.Process()
        mine = {
            "token": self._token,
            "host": socket.gethostname(),
            "pid": process.pid,
            "started": process.create_time(),
        }
        storage.write_bytes(storage.join(self.uri, _MARKER), json.dumps(mine).encode())

    def _read_found(self) -> Manifest | None:
        content = storage.read_if_exists(storage.join(self.uri, NAME))
        if content is None:
            return None
        try:
            return parse_manifest(content, self.uri)
        except DataError as error:
            if self._overwrite:
                return None
            raise DataError(f"{error}; --overwrite replaces what is there") from None

    def __enter__(self) -> "CacheWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._published:
            return
        try:
            self._remove_mine()
            if self._is_mine():
                storage.remove(storage.join(self.uri, _MARKER))
            for folder in _FOLDERS:
                storage.remove_empty(storage.join(self.uri, folder))
            storage.remove_empty(self.uri)
        except OSError:
            # the next ingest cleans up; what stopped this one matters more
            if error is None:
                raise

    def name(self, folder: Folder, number: int) -> str:
        """The name of this ingest's part `number`, for `write_part` in any process."""
        return f"{folder}/part-{self._token}-{number:05d}.parquet"

    def write(self, folder: Folder, parts: Iterable[PartTable]) -> list[PartFile]:
        """Stages `parts` as this ingest's parts 0, 1, ... of `folder`."""
        return [
            write_part(self.uri, self.name(folder, number), part)
            for number, part in enumerate(parts)
        ]

    def publish(self, manifest: Manifest) -> tuple[Manifest, bool]:
        """Makes the staged parts that `manifest` names the dataset.

        Returns:
            The dataset's manifest, and whether anything changed: an equal dataset is left as it
            is, but for its default split and source.

        Raises:
            DataError: another dataset is there, or another ingest has taken over.
        """
        if not self._is_mine():
            raise DataError(f"{self.uri}: another ingest has begun here meanwhile; run this again")
        # again: an ingest on another host may have published since
        found = self._read_found()
        if found is not None and not self._overwrite:
            if found.fingerprint == manifest.fingerprint:
                return self._keep(found, manifest)
            raise DataError(
                f"{self.uri} holds another dataset ({found.source}); choose another --out, or "
                "replace it with --overwrite"
            )
        self._put(manifest)
        _remove_unreferenced(self.uri, manifest)
        return manifest, True

    def _keep(self, found: Manifest, manifest: Manifest) -> tuple[Manifest, bool]:
        _remove_unreferenced(self.uri, found)
        update = {"split": manifest.split, "source_signature": manifest.source_signature}
        updated = found.model_copy(update=update)
        if updated != found:
            self._put(updated)
        return updated, updated.split != found.split

    def _put(self, manifest: Manifest) -> None:
        text = manifest.model_dump_json(indent=1, exclude_none=True)
        storage.write_bytes(storage.join(self.uri, NAME), text.encode())
        self._published = True
        if self._is_mine():
            storage.remove(storage.join(self.uri, _MARKER))

    def _is_mine(self) -> bool:
        return _marker(self.uri).get("token") == self._token

    def _remove_mine(self) -> None:
        for folder in _FOLDERS:
            for name in storage.list_names(storage.join(self.uri, folder)):
                if name.startswith(f"part-{self._token}-"):
                    storage.remove(storage.join(self.uri, f"{folder}/{name}"))


def _marker(uri: str) -> dict[str, Any]:
    content = storage.read_if_exists(storage.join(uri, _MARKER))
    try:
        values = json.loads(content or b"{}")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _has_ended(uri: str, marker: dict[str, Any]) -> bool:
    """Whether the ingest that left `marker` is known to run no more; on another host it is not.

    Raises:
        DataError: it runs.
    """
    if not marker:
        return True
    pid, started = marker.get("pid"), marker.get("started")
    if marker.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    if pid == os.getpid():
        return False
    if _runs(pid, started):
        raise DataError(
            f"{uri}: an ingest is at work here (process {pid} on this host); wait, or stop it"
        )
    return True


def _runs(pid: int, started: Any) -> bool:
    """Whether process `pid` runs, and is the one of then: numbers are given again."""
    try:
        process = psutil.Process(pid)
        # the kernel's start of time, from which these are counted, wavers by a second
        same = isinstance(started, float) and abs(process.create_time() - started) < 5
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OverflowError, ValueError):
        return False


def _is_half_written(name: str) -> bool:
    """Whether a file is what a killed process left of a manifest or marker on a local disk."""
    return name.endswith(".tmp") and name.startswith((f".{NAME}.", f".{_MARKER}."))


def _remove_unreferenced(uri: str, manifest: Manifest | None) -> None:
    """Removes the parts that no dataset names: leftovers of an ingest that was stopped."""
    kept: set[str] = set()
    if manifest is not None:
        kept = {part.path for part in (*manifest.edges, *manifest.nodes, *manifest.id_files)}
    for name in storage.list_names(uri):
        if _is_half_written(name):
            storage.remove(storage.join(uri, name))
    for folder in _FOLDERS:
        for name in storage.list_names(storage.join(uri, folder)):
            if f"{folder}/{name}" not in kept:
                storage.remove(storage.join(uri, f"{folder}/{name}"))


def write_cache(
    table: GraphTable,
    uri: str,
    *,
    source: str,
    split: SplitConfig | None = None,
    overwrite: bool = False,
    part_bytes: int = 256 << 20,
) -> tuple[Manifest, bool]:
    """Publishes `table` as a dataset at `uri`.

    Args:
        table: the cleaned graph.
        uri: folder of the dataset; empty, new, or a dataset.
        source: what was ingested, for the manifest.
        split: default split recipe, recorded outside the fingerprint.
        overwrite: replace the dataset that is there, also an equal or a damaged one.
        part_bytes: size of a part before compression, at least one block of nodes.

    Returns:
        The manifest, and whether anything was written: an equal dataset is left as it is.

    Raises:
        DataError: the folder holds another dataset, or something that is none.
    """
    nodes = table.nodes
    hasher = fp.BlockHasher()
    fp.hash_edges(hasher, table.dst, table.src, table.edges)
    fp.hash_nodes(hasher, 0, nodes)
    with CacheWriter(uri, overwrite=overwrite) as writer:
        ranges = list(row_ranges(nodes.num_nodes, node_row_bytes(nodes), part_bytes))
        node_parts = (node_part(take_nodes(nodes, rows), rows.start) for rows in ranges)
        facts = {
            "source": source,
            "split": split,
            "policies": table.policies,
            "counts": table.counts,
            "edges": writer.write("edges", _edge_parts(table, part_bytes)),
            "nodes": writer.write("nodes", node_parts),
            "id_files": writer.write("ids", _id_parts(nodes, part_bytes)),
        }
        manifest = make_manifest(schema(nodes, table.edges), facts, [hasher.digests()])
        return writer.publish(manifest)


def schema(nodes: NodeColumns, edges: EdgeColumns) -> dict[str, Any]:
    """What a manifest says of the columns; any piece of a graph gives all but `num_values`."""
    x, features = nodes.x, "none"
    if x is not None:
        features = "sparse" if sp.issparse(x) else "dense"
    ids = nodes.ids
    return {
        "num_features": 0 if x is None else _matrix(x).shape[1],
        "features": features,
        "feature_dtype": "float32" if x is None else str(_matrix(x).dtype),
        "feature_scale": x.scale.tolist() if isinstance(x, Quantized) else None,
        "num_values": int(x.nnz) if isinstance(x, sp.csr_matrix) else 0,
        "targets": [column.target for column in nodes.targets],
        "node_time": nodes.time is not None,
        "edge_weight": edges.weight is not None,
        "edge_attr_names": list(edges.attr_names),
        "edge_time": edges.time is not None,
        "stored_split": nodes.split is not None,
        "ids": "index" if ids is None else "string" if isinstance(ids, list) else "int",
        "dtypes": _dtypes(nodes, edges),
    }


def _matrix(x: Any) -> Any:
    return x.values if isinstance(x, Quantized) else x


def _dtypes(nodes: NodeColumns, edges: EdgeColumns) -> dict[str, str]:
    none = np.empty(0, np.int64)
    parts = {
        "edges": edge_part(none, none, edges.take(slice(0))),
        "nodes": node_part(take_nodes(nodes, slice(0, 0)), 0),
    }
    return {
        f"{folder}.{field.name}": str(field.type)
        for folder, part in parts.items()
        for field in part.columns.schema
    }


def make_manifest(
    schema: dict[str, Any], facts: dict[str, Any], hashes: Iterable[fp.Digests]
) -> Manifest:
    """The manifest of staged parts.

    Args:
        schema: of the columns, as `schema` gives it.
        facts: source, split, policies, counts, and the parts: edges, nodes, id_files.
        hashes: of all columns and blocks.
    """
    draft = Manifest(
        fingerprint="0" * 64,
        num_nodes=sum(part.rows for part in facts["nodes"]),
        num_edges=sum(part.rows for part in facts["edges"]),
        created_by=f"dnformer {version('dnformer')}",
        **schema | {"num_values": sum(part.values for part in facts["nodes"])},
        **facts,
    )
    found = fp.fingerprint(draft.schema_values(), draft.num_nodes, hashes)
    return draft.model_copy(update={"fingerprint": found})


def take_nodes(nodes: NodeColumns, rows: slice) -> NodeColumns:
    """The columns of a range of nodes, without ids."""
    x: Any = nodes.x
    if x is not None:
        x = Quantized(x.values[rows], x.scale) if isinstance(x, Quantized) else x[rows]
    return NodeColumns(
        num_nodes=rows.stop - rows.start,
        x=x,
        targets=tuple(column._replace(values=column.values[rows]) for column in nodes.targets),
        split=None if nodes.split is None else nodes.split[rows],
        time=None if nodes.time is None else nodes.time[rows],
    )


def row_ranges(num_nodes: int, row_bytes: float, part_bytes: int) -> Iterator[slice]:
    """Ranges of nodes that begin on block boundaries, of about `part_bytes` each."""
    rows = max(1, int(part_bytes / row_bytes) // fp.BLOCK) * fp.BLOCK
    for first in range(0, num_nodes, rows):
        yield slice(first, min(first + rows, num_nodes))


def _edge_parts(table: GraphTable, part_bytes: int) -> Iterator[PartTable]:
    """One range of destinations a part."""
    row_bytes = edge_row_bytes(table.edges)
    num_blocks = -(-table.nodes.num_nodes // fp.BLOCK)
    ends = np.searchsorted(table.dst, np.arange(1, num_blocks + 1) * fp.BLOCK)
    begin = 0
    for end in ends:
        if (end - begin) * row_bytes >= part_bytes or end == len(table.dst):
            rows = slice(begin, end)
            yield edge_part(table.dst[rows], table.src[rows], table.edges.take(rows))
            begin = end
            if end == len(table.dst):
                return


def _id_parts(nodes: NodeColumns, part_bytes: int) -> Iterator[PartTable]:
    if nodes.ids is None:
        return
    for rows in row_ranges(nodes.num_nodes, _ID_BYTES, part_bytes):
        yield id_part(nodes.ids[rows], rows.start)
