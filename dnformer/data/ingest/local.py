"""The engine `local`: tables of any size into a dataset, in bounded memory, on one machine.

Read and staged, mapped to indices and cut into buckets, each bucket finished and written.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import numpy.typing as npt

from dnformer.data import fingerprint as fp
from dnformer.data.cache import CacheWriter, make_manifest
from dnformer.data.clean import NUM_EXAMPLES, Policies, check_policies, counts_of, least
from dnformer.data.ingest import examples
from dnformer.data.ingest import nodes as node_parts
from dnformer.data.ingest.buckets import Buckets, Cut
from dnformer.data.ingest.edges import EdgeSorter, RefusedError, Written
from dnformer.data.ingest.ids import IdMap, RankedIds, write_ids
from dnformer.data.ingest.join import JoinedIds, connected
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.scan import StageWriter, carried, staged_batches
from dnformer.data.ingest.stage import Staged, repeated_node, stage_tables
from dnformer.data.ingest.table_files import TableFiles
from dnformer.data.ingest.tables import TableSource
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.table import Int64Array
from dnformer.data.threads import in_threads
from dnformer.errors import DataError

# of the memory for data, while the buckets are being filled
_JOIN_SHARE = 0.5
_ID_ROWS = 4 * fp.BLOCK
# of nodes without columns
_BARE_BLOCKS = 64


def ingest_tables(
    source: TableSource,
    tables: tuple[TableFiles, TableFiles | None],
    policies: Policies,
    writer: CacheWriter,
    space: Workspace,
    progress: Progress,
    facts: dict[str, Any],
) -> Manifest:
    """Reads the tables of `source` and stages the dataset's parts.

    Args:
        source: what the columns are.
        tables: the files of edges and nodes.
        policies: what becomes of edges.
        writer: of the dataset.
        space: folder, memory and threads.
        progress: told of everything.
        facts: what the manifest shall say beside what is found out here.

    Raises:
        ConfigError: an option is wrong.
        DataError: a file or a value is wrong; the message names file, row and value.
    """
    staged = stage_tables(source, tables, policies, space, progress)
    return _Run(staged, policies, writer, space, progress).manifest(facts)


@final
class _Run:
    """One ingest after its tables were staged."""

    def __init__(
        self,
        staged: Staged,
        policies: Policies,
        writer: CacheWriter,
        space: Workspace,
        progress: Progress,
    ) -> None:
        self.staged, self.policies, self.writer = staged, policies, writer
        self.space, self.progress = space, progress
        self.hashes: list[fp.Digests] = []
        self.examples: dict[str, list[int]] = {}
        self._ids_path = space.folder / "ids.parquet"

    def manifest(self, facts: dict[str, Any]) -> Manifest:
        """All parts staged, and what they are."""
        with self._ids() as ids:
            num_nodes, is_range = ids.num_nodes, ids.is_range
            check_policies(self.policies, num_nodes=num_nodes, edges=self.staged.edges.like)
            sorter = self._map_edges(ids)
            nodes = self._map_nodes(ids)
            if not is_range:
                with StageWriter(self._ids_path) as stream:
                    for piece in ids.ids():
                        stream.write({"id": piece})
        edges = self._write_edges(sorter)
        node_files, num_values = self._write_nodes(nodes, num_nodes)
        counts = self._counts(sorter, edges, num_nodes)
        id_type = None if is_range else self.staged.id_type
        columns = node_parts.schema_of(self.staged.nodes, self.staged.edges.like, id_type)
        columns["num_values"] = num_values
        facts = facts | {
            "policies": self.policies.model_dump(),
            "counts": counts,
            "examples": self._named_examples(edges, num_nodes, is_range),
            "edges": [one.part for one in edges],
            "nodes": node_files,
            "id_files": [] if is_range else self._write_ids(),
        }
        return make_manifest(columns, facts, self.hashes)

    @contextmanager
    def _ids(self) -> Iterator[IdMap]:
        staged, nodes = self.staged, self.staged.nodes
        id_path = None if nodes is None else nodes.ids
        if staged.bits is not None:
            yield RankedIds(staged.bits, staged.edges, id_path)
            return
        memory = int(self.space.memory * _JOIN_SHARE)
        with connected(self.space, memory) as connection:
            with self.progress.stage("sort ids"):
                add = self.policies.dangling == "add"
                ids = JoinedIds(connection, staged.edges, id_path, add=add, memory=memory)
            if nodes is not None and (value := ids.repeated_node()) is not None:
                raise repeated_node(nodes, value, staged.id_name)
            yield ids

    def _map_edges(self, ids: IdMap) -> EdgeSorter:
        staged = self.staged
        sorter = EdgeSorter(
            self.space,
            self.policies,
            num_nodes=ids.num_nodes,
            num_edges=staged.edges.num_rows,
            like=staged.edges.like,
        )
        by_row = self.policies.duplicates == "error"

        def add(batch: Any) -> int:
            src, dst = (ids.find(batch.column(end).to_numpy()) for end in ("src", "dst"))
            row = batch.column("row").to_numpy() if by_row else None
            return sorter.add(src, dst, carried(batch, staged.edges.like), row)

        try:
            with self.progress.stage("map edges", total=staged.edges.num_rows) as stage:
                for rows in in_threads(add, ids.batches(row=by_row), self.space.threads):
                    stage.add(rows=rows)
        except RefusedError as error:
            raise self._refused(str(error), ids) from None
        if sorter.num_dangling or self.policies.dangling == "add":
            self.examples["dangling"] = self._dangling(ids)
        if sorter.num_loops and self.policies.self_loops == "drop":
            self.examples["self_loops"] = examples.self_loops(staged.edges, NUM_EXAMPLES)
        return sorter

    def _dangling(self, ids: IdMap) -> list[int]:
        return [] if self.staged.nodes is None else ids.dangling(NUM_EXAMPLES)

    def _refused(self, policy: str, ids: IdMap) -> DataError:
        """Names the first edge that an `error` policy refuses."""
        staged = self.staged
        if policy == "self_loops":
            (found,) = examples.edges_at(staged.edges, examples.self_loops(staged.edges, 1))
            return DataError(
                f"{found} is a self-loop; remove it, or set self_loops to keep or drop"
            )
        (row,) = ids.dangling(1)
        assert staged.nodes is not None
        name, value = examples.missing_end(staged.edges, row, staged.nodes.ids, staged.ends)
        found = f"{staged.edges.rows.where(row)}: {name} {value!r} is no node"
        return DataError(
            f"{found} of {staged.node_table}; add the node or remove the edge, or set dangling to "
            "drop or add"
        )

    def _map_nodes(self, ids: IdMap) -> Buckets | None:
        """The rows of the node table cut by index."""
        nodes = self.staged.nodes
        if nodes is None:
            return None
        dtype = node_parts.record_type(nodes)
        plan, _ = node_parts.first_node_cut(ids.num_nodes, dtype, self.space)
        buckets = Buckets(self.space.folder / "nodes", plan, dtype)

        def add(found: npt.NDArray[Any]) -> int:
            buckets.add(found["index"], found)
            return int(found.size)

        with self.progress.stage("map nodes", total=nodes.num_rows) as stage:
            found = node_parts.records(nodes, ids.node_indices(), dtype)
            for rows in in_threads(add, found, self.space.threads):
                stage.add(rows=rows)
        buckets.close()
        return buckets

    def _write_edges(self, sorter: EdgeSorter) -> list[Written]:
        def write(numbered: tuple[int, Any]) -> Written:
            number, leaves = numbered
            return sorter.write(self.writer.uri, self.writer.name("edges", number), leaves)

        written = []
        rows = int(sorter.num_read)
        with self.progress.stage("sort and write edges", total=rows) as stage:
            for one in in_threads(write, enumerate(sorter.parts()), self.space.threads):
                written.append(one)
                self.hashes.append(one.digests)
                stage.add(rows=one.part.rows)
        if self.policies.duplicates == "error":
            self._refuse_repeat(written)
        return written

    def _refuse_repeat(self, written: list[Written]) -> None:
        found = [one.first_repeat for one in written if one.first_repeat is not None]
        if found:
            second, first = min(found)
            first_edge, second_edge = examples.edges_at(self.staged.edges, (first, second))
            raise DataError(
                f"{second_edge} repeats {first_edge}; remove it, or set duplicates to drop or keep"
            )

    def _write_nodes(self, buckets: Buckets | None, num_nodes: int) -> tuple[list[PartFile], int]:
        nodes = self.staged.nodes
        plan = Cut(0, num_nodes, fp.BLOCK.bit_length() - 1, _BARE_BLOCKS)
        rows = _BARE_BLOCKS * fp.BLOCK
        if nodes is not None and buckets is not None:
            plan, rows = node_parts.first_node_cut(num_nodes, buckets.dtype, self.space)

        def write(bucket: int) -> node_parts.WrittenNodes:
            none = np.empty(0, node_parts.record_type(nodes) if nodes else [("index", np.int64)])
            pieces: Iterable[tuple[int, int, npt.NDArray[Any]]] = [(*plan.range(bucket), none)]
            if buckets is not None:
                pieces = node_parts.read_bucket(buckets, bucket, rows)
            name = self.writer.name("nodes", bucket)
            return node_parts.write_nodes(self.writer.uri, name, pieces, nodes, self.space.folder)

        files, num_values = [], 0
        with self.progress.stage("write nodes", total=num_nodes) as stage:
            for one in in_threads(write, range(plan.num_buckets), self.space.threads):
                files.append(one.part)
                self.hashes.append(one.digests)
                num_values += one.num_values
                stage.add(rows=one.part.rows)
        return files, num_values

    def _write_ids(self) -> list[PartFile]:
        def write(numbered: tuple[int, tuple[int, Any]]) -> tuple[PartFile, fp.Digests]:
            number, (first, column) = numbered
            name = self.writer.name("ids", number)
            return write_ids(self.writer.uri, name, first, column, self.space.folder)

        files = []
        with self.progress.stage("write ids") as stage:
            for part, digests in in_threads(
                write, enumerate(self._id_pieces()), self.space.threads
            ):
                files.append(part)
                self.hashes.append(digests)
                stage.add(rows=part.rows)
        return files

    def _id_pieces(self) -> Iterator[tuple[int, Any]]:
        """(first index, ids) of whole blocks."""
        first = 0
        for column in examples.rechunked(staged_batches(self._ids_path), _ID_ROWS):
            yield first, column
            first += len(column)

    def _counts(self, sorter: EdgeSorter, edges: list[Written], num_nodes: int) -> dict[str, int]:
        counts = counts_of(
            self.policies,
            num_read=sorter.num_read,
            num_loops=sorter.num_loops,
            num_repeats=sum(one.num_repeats for one in edges),
            num_added=sum(one.num_added for one in edges),
            num_dangling=sorter.num_dangling,
        )
        counts["isolated_nodes"] = sorter.num_isolated()
        if self.staged.nodes is not None and self.policies.dangling == "add":
            counts["nodes_added"] = num_nodes - self.staged.nodes.num_rows
        return counts

    def _named_examples(
        self, edges: list[Written], num_nodes: int, is_range: bool
    ) -> dict[str, list[str]]:
        """By policy, some of the edges that it changed, named as a person finds them."""
        rows = dict(self.examples)
        repeated = least(one.repeated for one in edges)
        if repeated.size and self.policies.duplicates != "keep":
            rows["duplicates"] = examples.repeats(
                self.staged.edges, self._pairs(repeated, num_nodes, is_range)
            )
        return {
            policy: examples.edges_at(self.staged.edges, found)
            for policy, found in rows.items()
            if found
        }

    def _pairs(self, keys: Int64Array, num_nodes: int, is_range: bool) -> list[tuple[Any, Any]]:
        ends = [((key % num_nodes), (key // num_nodes)) for key in keys.tolist()]
        if is_range:
            return ends
        names = examples.ids_at(self._ids_path, [node for pair in ends for node in pair])
        return [(names[src], names[dst]) for src, dst in ends]
