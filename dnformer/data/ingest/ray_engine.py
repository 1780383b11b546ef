"""The engine `ray`: tables into the dataset that the engine `local` makes of them, on a cluster.

The driver holds counts, examples and references; rows are in tasks and in Ray's object store.
"""

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from dnformer.data import fingerprint as fp
from dnformer.data.cache import CacheWriter, make_manifest
from dnformer.data.clean import NUM_EXAMPLES, Policies, check_policies, counts_of, least
from dnformer.data.ingest import ray_edges as edge_work
from dnformer.data.ingest import ray_examples as examples
from dnformer.data.ingest import ray_ids as id_work
from dnformer.data.ingest import ray_nodes as node_work
from dnformer.data.ingest import ray_tasks as tasks
from dnformer.data.ingest.edges import Written
from dnformer.data.ingest.nodes import WrittenNodes, schema_of
from dnformer.data.ingest.progress import Progress, Stage
from dnformer.data.ingest.ray_look import Looked, Plan, Sizes, look_at_all
from dnformer.data.ingest.scan import no_edges
from dnformer.data.ingest.table_files import TableFiles
from dnformer.data.ingest.tables import TableSource, edge_roles, node_roles
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.parts import read_part
from dnformer.data.table import Int64Array
from dnformer.errors import ConfigError, DataError

_ID_ROWS = 4 * fp.BLOCK


def ingest_tables(
    source: TableSource,
    tables: tuple[TableFiles, TableFiles | None],
    policies: Policies,
    writer: CacheWriter,
    progress: Progress,
    facts: dict[str, Any],
    *,
    sizes: Sizes | None = None,
) -> Manifest:
    """Reads the tables of `source` and stages the dataset's parts, in tasks of the Ray at hand.

    Args:
        source: what the columns are.
        tables: the files of edges and nodes, which every machine of the cluster reads.
        policies: what becomes of edges.
        writer: of the dataset, to whose folder every machine writes.
        progress: told of everything.
        facts: what the manifest shall say beside what is found out here.
        sizes: how work is cut; None: for what the cluster has.

    Raises:
        BackendError: no Ray was started, or it failed.
        ConfigError: an option is wrong.
        DataError: a file or a value is wrong; the message names file, row and value.
    """
    tasks.require_ray()
    edges, nodes = tables
    _refuse_memory(writer.uri, *source.edges, *(source.nodes or []), source.features_file or "")
    plan = Plan(
        source=source,
        edges=edges,
        nodes=nodes,
        edge_roles=edge_roles(source, edges),
        node_roles=None if nodes is None else node_roles(source, nodes),
        policies=policies,
        sizes=sizes or Sizes(task_bytes=tasks.task_memory()),
    )
    check_policies(policies, num_nodes=0, edges=no_edges(plan.edge_roles))
    with progress.stage("read and check") as stage:
        looked = look_at_all(plan, stage)
    return _Run(looked, writer, progress).manifest(facts)


def _refuse_memory(*uris: str) -> None:
    for uri in uris:
        if uri.startswith("memory://"):
            raise ConfigError(
                f"{uri}: engine ray works in several processes, which do not share memory://; use "
                "a folder or a store that all of them reach, or engine local"
            )


def _tables(found: Iterator[tuple[Any, int]], stage: Stage) -> list[Any]:
    tables = []
    for table, rows in found:
        tables.append(table)
        stage.add(rows=rows)
    return tables


@final
class _Run:
    """One ingest after its tables were checked."""

    def __init__(self, looked: Looked, writer: CacheWriter, progress: Progress) -> None:
        self.looked, self.writer, self.progress = looked, writer, progress
        self.plan, self.policies = looked.plan, looked.plan.policies
        self.shared = tasks.share(looked.plan)
        self.num_node_units = len(looked.units_of(nodes=True))
        self.hashes: list[fp.Digests] = []
        self.num_nodes, self.is_range = 0, False

    def manifest(self, facts: dict[str, Any]) -> Manifest:
        """All parts staged, and what they are."""
        self._refuse_loops()
        answers, id_tables = self._ids()
        edges_there = no_edges(self.plan.edge_roles)
        check_policies(self.policies, num_nodes=self.num_nodes, edges=edges_there)
        id_files = [] if self.is_range else self._write_ids(id_tables)
        del id_tables
        nodes = self._write_nodes(answers)
        mapped, edges, touched = self._write_edges(answers)
        id_type = None if self.is_range else self.looked.id_type
        columns = schema_of(self.looked.stage, edges_there, id_type)
        columns["num_values"] = sum(one.num_values for one in nodes)
        facts = facts | {
            "policies": self.policies.model_dump(),
            "counts": self._counts(mapped, edges, touched),
            "examples": self._examples(mapped, edges, id_files),
            "edges": [one.part for one in edges],
            "nodes": [one.part for one in nodes],
            "id_files": id_files,
        }
        self.hashes += [one.digests for one in edges] + [one.digests for one in nodes]
        return make_manifest(columns, facts, self.hashes)

    def _refuse_loops(self) -> None:
        """With `self_loops: error`; a later look tells where an edge may be dropped before."""
        if self.policies.self_loops == "error" and self.looked.loops and self.plan.all_there:
            raise self._loop()

    def _loop(self) -> DataError:
        (found,) = examples.named(self.looked, self.looked.loops[:1])
        return DataError(f"{found} is a self-loop; remove it, or set self_loops to keep or drop")

    def _ids(self) -> tuple[list[Any], list[tuple[int, Any]]]:
        """The answers to each unit, None where ids are indices, and (first index, ids) by range."""
        units, firsts = self.looked.units, id_work.id_ranges(self.looked)
        offsets = [unit.offset for unit in self.looked.units_of(nodes=True)]
        with self.progress.stage("sort ids") as stage:
            calls = ((self.shared, unit, firsts) for unit in units)
            sent = _tables(tasks.each_table(id_work.send_ids, calls), stage)
            sent = tasks.shuffle(sent, "range", range(len(firsts) + 1))
            to_sort = ((self.shared, offsets, table) for table in sent)
            ranges = list(tasks.each_table(id_work.sort_range, to_sort))
        facts = [one for _, one in ranges]
        self._refuse_nodes(facts)
        self._refuse_dangling(facts, list(zip(sent, [table for table, _ in ranges], strict=True)))
        starts = np.cumsum([0, *(one.num_nodes for one in facts)]).tolist()
        self.num_nodes = starts.pop()
        self.is_range = max(one.largest for one in facts) == self.num_nodes - 1
        id_tables = list(zip(starts, [table for table, _ in ranges], strict=True))
        # where endpoints make nodes, an index alone does not tell whether the node table has it
        if self.is_range and (self.plan.nodes is None or not self.plan.all_there):
            return [None] * len(units), id_tables
        with self.progress.stage("map ids") as stage:
            asked = (
                (self.shared, self.num_node_units, first, one, nodes)
                for one, (first, nodes) in zip(sent, id_tables, strict=True)
            )
            answers = _tables(tasks.each_table(id_work.answer, asked), stage)
            return tasks.shuffle(answers, "unit", range(len(units))), id_tables

    def _refuse_nodes(self, facts: list[id_work.RangeFacts]) -> None:
        found = [one.repeat for one in facts if one.repeat is not None]
        if found:
            row, earlier, value = min(found, key=lambda one: one[0])
            where = self.looked.node_where.where
            raise DataError(
                f"{where(row)}: {self.plan.source.id} {value!r} repeats {where(earlier)}; a node "
                "has one row"
            )

    def _refuse_dangling(
        self, facts: list[id_work.RangeFacts], ranges: list[tuple[Any, Any]]
    ) -> None:
        """With `dangling: error`, names the first edge with an end that is no node."""
        lacking = [one.lacking for one in facts if one.lacking is not None]
        if not lacking or self.policies.dangling != "error":
            return
        first = min(lacking)
        calls = ((*tables, first) for tables in ranges)
        missing = list(tasks.each(id_work.lacking_ids, calls))
        call = (self.shared, self.looked.units[first], missing)
        ((row, name, value),) = tasks.each(examples.first_dangling, [call])
        assert self.plan.nodes is not None
        raise DataError(
            f"{self.looked.edge_where.where(row)}: {name} {value!r} is no node of "
            f"{self.plan.nodes.name}; add the node or remove the edge, or set dangling to drop or "
            "add"
        )

    def _write_ids(self, id_tables: list[tuple[int, Any]]) -> list[PartFile]:
        def calls() -> Iterator[tuple[Any, ...]]:
            for number, first in enumerate(range(0, self.num_nodes, _ID_ROWS)):
                stop = min(first + _ID_ROWS, self.num_nodes)
                slices, tables = [], []
                ends = [start for start, _ in id_tables[1:]] + [self.num_nodes]
                for (start, table), end in zip(id_tables, ends, strict=True):
                    begin, until = max(first, start), min(stop, end)
                    if begin < until:
                        slices.append((begin - start, until - begin))
                        tables.append(table)
                name = self.writer.name("ids", number)
                yield self.writer.uri, name, first, slices, *tables

        files = []
        with self.progress.stage("write ids", total=self.num_nodes) as stage:
            for part, digests in tasks.each(id_work.write_id_part, calls()):
                files.append(part)
                self.hashes.append(digests)
                stage.add(rows=part.rows)
        return files

    def _write_nodes(self, answers: list[Any]) -> list[WrittenNodes]:
        stage, units = self.looked.stage, self.looked.units_of(nodes=True)
        cuts = node_work.cut_nodes(stage, self.num_nodes, self.plan.sizes)
        shared = tasks.share(stage)
        ranges: list[Any] = []
        if node_work.has_columns(stage):
            with self.progress.stage("map nodes", total=self.looked.node_rows) as said:
                calls = ((self.shared, shared, unit, answers[unit.number]) for unit in units)
                tables = _tables(tasks.each_table(node_work.map_nodes, calls), said)
                ranges = tasks.shuffle(tables, "key", cuts.firsts())
        step = cuts.per_part
        parts = range(-(-len(cuts.firsts()) // step))

        def calls_of_parts() -> Iterator[tuple[Any, ...]]:
            for number in parts:
                place = (self.writer.uri, self.writer.name("nodes", number))
                yield shared, cuts, place, number, ranges[number * step : (number + 1) * step]

        written = []
        with self.progress.stage("write nodes", total=self.num_nodes) as said:
            for one in tasks.each(node_work.write_node_part, calls_of_parts()):
                written.append(one)
                said.add(rows=one.part.rows)
        return written

    def _write_edges(
        self, answers: list[Any]
    ) -> tuple[list[edge_work.MappedFacts], list[Written], int]:
        """What edges were, the parts, and the number of nodes with an edge to another."""
        tables, mapped, cells = [], [], edge_work.no_cells(self.num_nodes)
        with self.progress.stage("map edges", total=self.looked.edge_rows) as stage:
            units = self.looked.units_of(nodes=False)
            calls = ((self.shared, unit, self.num_nodes, answers[unit.number]) for unit in units)
            for table, (one, at, rows) in tasks.each_table(edge_work.map_edges, calls):
                tables.append(table)
                mapped.append(one)
                cells.reshape(-1)[at] += rows
                stage.add(rows=one.rows)
        if self.policies.self_loops == "error" and any(one.num_loops for one in mapped):
            raise self._loop()
        cuts = edge_work.cut_edges(self.plan, cells, self.num_nodes)
        if not cuts.firsts:
            return mapped, [], 0
        with self.progress.stage("sort and write edges", total=self.looked.edge_rows) as stage:
            found = tasks.shuffle(tables, "key", [one * self.num_nodes for one in cuts.firsts])
            del tables
            written, touched = [], 0
            for one, count in tasks.each(edge_work.write_edges, self._edge_calls(cuts, found)):
                touched += count
                if one is not None:
                    written.append(one)
                    stage.add(rows=one.part.rows)
        self._refuse_repeat(written)
        return mapped, written, touched

    def _edge_calls(self, cuts: edge_work.Cuts, found: list[Any]) -> Iterator[tuple[Any, ...]]:
        begin = 0
        for number, count in enumerate(cuts.ranges):
            place = (self.writer.uri, self.writer.name("edges", number))
            yield self.shared, self.num_nodes, place, found[begin : begin + count]
            begin += count

    def _refuse_repeat(self, written: list[Written]) -> None:
        found = [one.first_repeat for one in written if one.first_repeat is not None]
        if found and self.policies.duplicates == "error":
            second, first = min(found)
            first_edge, second_edge = examples.named(self.looked, [first, second])
            raise DataError(
                f"{second_edge} repeats {first_edge}; remove it, or set duplicates to drop or keep"
            )

    def _counts(
        self, mapped: list[edge_work.MappedFacts], edges: list[Written], touched: int
    ) -> dict[str, int]:
        counts = counts_of(
            self.policies,
            num_read=self.looked.edge_rows,
            num_loops=sum(one.num_loops for one in mapped),
            num_repeats=sum(one.num_repeats for one in edges),
            num_added=sum(one.num_added for one in edges),
            num_dangling=sum(one.num_dangling for one in mapped),
        )
        counts["isolated_nodes"] = self.num_nodes - touched
        if self.plan.nodes is not None and self.policies.dangling == "add":
            counts["nodes_added"] = self.num_nodes - self.looked.node_rows
        return counts

    def _examples(
        self,
        mapped: list[edge_work.MappedFacts],
        edges: list[Written],
        id_files: list[PartFile],
    ) -> dict[str, list[str]]:
        """By policy, some of the edges that it changed, named as a person finds them."""
        rows = {"dangling": [row for one in mapped for row in one.dangling][:NUM_EXAMPLES]}
        if self.policies.self_loops == "drop" and any(one.num_loops for one in mapped):
            rows["self_loops"] = self.looked.loops
        repeated = least(one.repeated for one in edges)
        if repeated.size and self.policies.duplicates != "keep":
            rows["duplicates"] = examples.repeats(self.looked, self._pairs(repeated, id_files))
        return {
            policy: examples.named(self.looked, found) for policy, found in rows.items() if found
        }

    def _pairs(self, keys: Int64Array, id_files: list[PartFile]) -> list[tuple[Any, Any]]:
        ends = [(key % self.num_nodes, key // self.num_nodes) for key in keys.tolist()]
        if self.is_range:
            return ends
        wanted, names = {node for pair in ends for node in pair}, dict[int, Any]()
        for number in sorted({node // _ID_ROWS for node in wanted}):
            first = number * _ID_ROWS
            for batch in read_part(self.writer.uri, id_files[number], ["id"], _ID_ROWS):
                here = [node for node in wanted if first <= node < first + batch.num_rows]
                names |= {node: batch.column(0)[node - first].as_py() for node in here}
                first += batch.num_rows
        return [(names[src], names[dst]) for src, dst in ends]
