"""Edges in indices, in any order, to sorted parts of a dataset: cut on disk, finished in memory.

`write_range` is what every engine does with the edges into a range of nodes.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numba
import numpy as np
import numpy.typing as npt

from dnformer.data import fingerprint as fp
from dnformer.data.clean import Edges, Policies, finish
from dnformer.data.ingest.buckets import Buckets, Cut, cut, first_cut
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import PartFile
from dnformer.data.parts import PartTable, edge_part, write_pieces
from dnformer.data.table import EdgeColumns, Int64Array

# of a part before compression; more edges at once would not be faster
_PART_BYTES = 256 << 20
# of Parquet's and the hash's own
_THREAD_BYTES = 80 << 20
_LEAST_ROWS = 1 << 10


class RefusedError(Exception):
    """An `error` policy met an edge that it refuses; `args[0]` is the policy."""


class Written(NamedTuple):
    """A part of edges, and what was done; see `clean.Finished`."""

    part: PartFile
    digests: fp.Digests
    num_repeats: int
    num_added: int
    repeated: Int64Array
    first_repeat: tuple[int, int] | None


def write_range(
    uri: str,
    name: str,
    ranges: Iterable[tuple[Edges, Edges | None]],
    *,
    num_nodes: int,
    duplicates: str,
    temp: Path | None = None,
) -> Written:
    """Finishes the edges into a range of nodes and publishes them as the part `name`.

    Args:
        uri: the dataset's folder.
        name: of the part.
        ranges: (edges given, reverses) of consecutive ranges of nodes, ascending, which together
            are whole blocks; one at a time is held.
        num_nodes: N.
        duplicates: the policy.
        temp: as in `storage.staged`.
    """
    hasher = fp.BlockHasher()
    repeats, added, repeated = 0, 0, []
    first_repeat: tuple[int, int] | None = None

    def pieces() -> Iterator[PartTable]:
        nonlocal repeats, added, first_repeat
        for given, reverses in ranges:
            done = finish(given, reverses, duplicates)
            del given, reverses
            repeats += done.num_repeats
            added += done.num_added
            repeated.append(done.repeated)
            first_repeat = min(filter(None, (first_repeat, done.first_repeat)), default=None)
            key, columns, _ = done.edges
            del done
            dst = key // num_nodes
            np.remainder(key, num_nodes, out=key)
            fp.hash_edges(hasher, dst, key, columns)
            yield edge_part(dst, key, columns)

    part = write_pieces(uri, name, pieces(), temp)
    return Written(part, hasher.digests(), repeats, added, np.concatenate(repeated), first_repeat)


def record_type(like: EdgeColumns, *, row: bool) -> npt.DTypeLike:
    """Of an edge on disk: its key alone, or with what edges like these carry."""
    fields: list[Any] = [("key", np.int64)]
    if like.weight is not None:
        fields.append(("weight", np.float32))
    if like.attr is not None:
        fields.append(("attr", np.float32, (like.attr.shape[1],)))
    if like.time is not None:
        fields.append(("time", np.int64))
    if row:
        fields.append(("row", np.int64))
    return np.dtype(fields) if len(fields) > 1 else np.dtype(np.int64)


def pack(edges: Edges, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Edges as records."""
    dtype = np.dtype(dtype)
    if dtype.names is None:
        return edges.key
    records = np.empty(edges.key.size, dtype)
    records["key"] = edges.key
    for name in dtype.names[1:]:
        records[name] = edges.row if name == "row" else getattr(edges.columns, name)
    return records


def unpack(records: npt.NDArray[Any], attr_names: tuple[str, ...]) -> Edges:
    """Records as edges."""
    names = records.dtype.names
    if names is None:
        return Edges(records)
    found = {name: np.ascontiguousarray(records[name]) for name in names}
    key, row = found.pop("key"), found.pop("row", None)
    return Edges(key, EdgeColumns(attr_names=attr_names, **found), row)


class Leaf(NamedTuple):
    """A bucket that fits into memory."""

    given: Buckets
    reverses: Buckets | None
    bucket: int


@final
class EdgeSorter:
    """Takes edges in any order, keeps them on disk, and writes them sorted.

    Args:
        space: where, with how much memory.
        policies: what becomes of them.
        num_nodes: N.
        num_edges: about how many there will be.
        like: what they carry.
    """

    def __init__(
        self,
        space: Workspace,
        policies: Policies,
        *,
        num_nodes: int,
        num_edges: int,
        like: EdgeColumns,
    ) -> None:
        self._space, self._policies, self.num_nodes = space, policies, num_nodes
        self._attr_names = like.attr_names
        self.dtype = np.dtype(record_type(like, row=policies.duplicates == "error"))
        self._undirected = policies.direction == "undirected"
        rows = num_edges * (2 if self._undirected else 1)
        self.max_rows = _max_rows(space, self.dtype.itemsize)
        self._given, self._reverses = self._buckets(
            space.folder / "edges", first_cut(num_nodes, rows=rows, max_rows=self.max_rows)
        )
        self.num_read = self.num_loops = self.num_dangling = 0
        self._touched: npt.NDArray[np.uint64] = np.zeros(num_nodes // 64 + 1, np.uint64)
        self._lock = threading.Lock()

    def _buckets(self, folder: Path, plan: Cut) -> tuple[Buckets, Buckets | None]:
        given = Buckets(folder.with_name(f"{folder.name}-given"), plan, self.dtype)
        if not self._undirected:
            return given, None
        return given, Buckets(folder.with_name(f"{folder.name}-back"), plan, self.dtype)

    def add(
        self, src: Int64Array, dst: Int64Array, columns: EdgeColumns, row: Int64Array | None
    ) -> int:
        """Adds edges, in any thread; an end -1 is no node. Returns how many were given.

        Raises:
            RefusedError: an edge is dangling, or a self-loop, and that is an error.
        """
        given = src.size
        missing = (src < 0) | (dst < 0)
        num_missing = int(np.count_nonzero(missing))
        loop = src == dst
        if num_missing:
            if self._policies.dangling == "error":
                raise RefusedError("dangling")
            loop &= ~missing
        num_loops = int(np.count_nonzero(loop))
        if num_loops and self._policies.self_loops == "error":
            raise RefusedError("self_loops")
        drop = missing if num_missing else None
        if num_loops and self._policies.self_loops == "drop":
            drop = missing | loop
        if drop is not None:
            kept = ~drop
            src, dst, columns = src[kept], dst[kept], columns.take(kept)
            row = None if row is None else row[kept]
        with self._lock:
            self.num_read += given
            self.num_dangling += num_missing
            self.num_loops += num_loops
            _touch(self._touched, src, dst)
        self._add(self._given, dst, src, columns, row)
        if self._reverses is not None:
            self._add(self._reverses, src, dst, columns, row)
        return given

    def _add(
        self,
        buckets: Buckets,
        dst: Int64Array,
        src: Int64Array,
        columns: EdgeColumns,
        row: Int64Array | None,
    ) -> None:
        key = dst * self.num_nodes
        key += src
        buckets.add(dst, pack(Edges(key, columns, row), self.dtype))

    def num_isolated(self) -> int:
        """Nodes without an edge to or from another node."""
        return self.num_nodes - int(np.bitwise_count(self._touched).sum())

    def parts(self) -> Iterator[list[Leaf]]:
        """The buckets, each list of them the edges of one part."""
        self._given.close()
        if self._reverses is not None:
            self._reverses.close()
        for bucket in range(self._given.plan.num_buckets):
            yield from self._fitting(Leaf(self._given, self._reverses, bucket))

    def _fitting(self, leaf: Leaf) -> Iterator[list[Leaf]]:
        rows = int(leaf.given.rows[leaf.bucket])
        if leaf.reverses is not None:
            rows += int(leaf.reverses.rows[leaf.bucket])
        if not rows:
            return
        first, stop = leaf.given.plan.range(leaf.bucket)
        plan = None
        if rows > self.max_rows:
            plan = cut(first, stop, rows=rows, max_rows=self.max_rows)
        if plan is None:
            yield [leaf]
            return
        smaller = self._cut_again(leaf, plan)
        leaves = (Leaf(*smaller, bucket) for bucket in range(plan.num_buckets))
        parts = (part for one in leaves for part in self._fitting(one))
        if stop - first > fp.BLOCK:
            yield from parts
        else:  # a block is one part
            yield [one for part in parts for one in part]

    def _cut_again(self, leaf: Leaf, plan: Cut) -> tuple[Buckets, Buckets | None]:
        smaller = self._buckets(self._space.folder / f"edges-{plan.first}-{plan.stop}", plan)
        for larger, into in ((leaf.given, smaller[0]), (leaf.reverses, smaller[1])):
            if larger is not None and into is not None:
                for records in larger.pieces(leaf.bucket):
                    key = records if records.dtype.names is None else records["key"]
                    into.add(key // self.num_nodes, records)
                into.close()
        return smaller

    def write(self, uri: str, name: str, leaves: list[Leaf]) -> Written:
        """Writes the part `name`, in any thread."""
        return write_range(
            uri,
            name,
            (self._take(leaf) for leaf in leaves),
            num_nodes=self.num_nodes,
            duplicates=self._policies.duplicates,
            temp=self._space.folder,
        )

    def _take(self, leaf: Leaf) -> tuple[Edges, Edges | None]:
        given, reverses = (
            None if buckets is None else unpack(buckets.take(leaf.bucket), self._attr_names)
            for buckets in (leaf.given, leaf.reverses)
        )
        assert given is not None
        return given, reverses


def _max_rows(space: Workspace, record_bytes: int) -> int:
    """Edges, reverses included, that a thread may finish at once."""
    carried = record_bytes - 8
    # the keys, sorted, without repeats, and both ends; what is carried: as read, by column,
    # sorted, without repeats, and joined with its reverses
    row_bytes = 40 + (24 + 5 * carried if carried else 0)
    memory = int(0.7 * space.memory / space.threads) - _THREAD_BYTES
    return max(min(memory // row_bytes, _PART_BYTES // (16 + carried)), _LEAST_ROWS)


@numba.njit(nogil=True, cache=True)
def _touch(words: Any, src: Any, dst: Any) -> None:
    for at in range(src.size):
        if src[at] != dst[at]:
            words[src[at] >> 6] |= np.uint64(1) << np.uint64(src[at] & 63)
            words[dst[at] >> 6] |= np.uint64(1) << np.uint64(dst[at] & 63)
