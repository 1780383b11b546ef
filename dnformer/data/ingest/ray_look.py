"""The engine `ray`: tables cut into units, and the first look at each, which checks every value.

A unit is what one task reads. Files are read again for each step that needs them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data.clean import NUM_EXAMPLES, Policies
from dnformer.data.features import TEXT
from dnformer.data.ingest import ray_tasks as tasks
from dnformer.data.ingest.nodes import NodeFacts, NodeReader, NodeStage, batch_rows, node_stage
from dnformer.data.ingest.scan import IdColumn, IdReader, TextIds, edge_columns
from dnformer.data.ingest.table_files import Batch, Piece, RowCounter, Rows, TableFiles
from dnformer.data.ingest.tables import EdgeRoles, NodeRoles, TableSource
from dnformer.errors import DataError

_MAX_UNITS = 1 << 10
# ids that the ranges of a shuffle are chosen from
_SAMPLE = 1 << 17


class Sizes(NamedTuple):
    """How work is cut.

    Attributes:
        unit_rows: of a table, that one task reads; row groups and CSV files stay whole.
        range_ids: that meet in one task, about.
        task_bytes: of memory that a task may take.
        part_bytes: of a part of the dataset before compression, about.
    """

    unit_rows: int = 1 << 20
    range_ids: int = 1 << 22
    task_bytes: int = 1 << 30
    part_bytes: int = 256 << 20


class Plan(NamedTuple):
    """What every task has to know.

    Attributes:
        source: what the columns are.
        edges: the edge table.
        nodes: the node table; None where the endpoints are the nodes.
        edge_roles: names of the edge columns.
        node_roles: of the node columns, likewise.
        policies: what becomes of edges.
        sizes: how work is cut.
        as_text: whether CSV ids are text, as an earlier look found.
        sample: ids to give from each unit.
    """

    source: TableSource
    edges: TableFiles
    nodes: TableFiles | None
    edge_roles: EdgeRoles
    node_roles: NodeRoles | None
    policies: Policies
    sizes: Sizes
    as_text: bool = False
    sample: int = 0

    @property
    def all_there(self) -> bool:
        """Whether every endpoint is a node."""
        return self.nodes is None or self.policies.dangling == "add"

    def id_reader(self) -> IdReader:
        """What reads ids of both tables."""
        columns = [
            IdColumn(self.edges, self.edge_roles.src),
            IdColumn(self.edges, self.edge_roles.dst),
        ]
        if self.nodes is not None:
            columns.append(IdColumn(self.nodes, self.source.id))
        return IdReader(columns, as_text=self.as_text)


class Unit(NamedTuple):
    """Rows that one task reads.

    Attributes:
        number: of all units, those of nodes first.
        of_nodes: whether they are of the node table.
        pieces: consecutive pieces of it.
        is_last: whether no row of the table comes after them.
        offset: rows of the table before them.
    """

    number: int
    of_nodes: bool
    pieces: tuple[Piece, ...]
    is_last: bool
    offset: int = 0


def cut(plan: Plan) -> list[Unit]:
    """Both tables in units."""
    least = plan.sizes.unit_rows
    nodes = [] if plan.nodes is None else list(_bundles(plan.nodes, least))
    bundles = [(True, pieces) for pieces in nodes]
    bundles += [(False, pieces) for pieces in _bundles(plan.edges, least)]
    units, offset = [], 0
    for number, (of_nodes, pieces) in enumerate(bundles):
        offset = 0 if number == len(nodes) else offset
        is_last = number in (len(nodes) - 1, len(bundles) - 1)
        units.append(Unit(number, of_nodes, pieces, is_last, offset))
        offset += sum(piece.rows or 0 for piece in pieces)
    return units


def _bundles(table: TableFiles, least: int) -> Iterator[tuple[Piece, ...]]:
    rows = max(least, sum(table.num_rows.values()) // _MAX_UNITS)
    held, count = list[Piece](), 0
    for piece in table.pieces(rows):
        held.append(piece)
        count += piece.rows or 0
        # how many rows a CSV file has is not known
        if count >= rows or piece.rows is None:
            yield tuple(held)
            held, count = [], 0
    if held:
        yield tuple(held)


def edge_batches(plan: Plan, unit: Unit, *, ends: bool = False) -> Iterator[Batch]:
    """The rows of a unit of edges; with `ends` no more than the ids."""
    roles = plan.edge_roles
    names = [roles.src, roles.dst] if ends else list(roles.columns())
    numbers = [] if ends else roles.numbers()
    batches = plan.edges.read_pieces(unit.pieces, names, numbers=numbers, offset=unit.offset)
    return (batch for batch in batches if batch.columns.num_rows)


def node_batches(plan: Plan, unit: Unit, reader: NodeReader | None) -> Iterator[Batch]:
    """The rows of a unit of nodes; without a reader no more than the ids."""
    assert plan.nodes is not None
    assert plan.node_roles is not None
    names, numbers = [plan.node_roles.id], list[str]()
    if reader is not None:
        names, numbers = list(plan.node_roles.columns()), reader.numbers()
    rows = batch_rows(plan.source, plan.node_roles)
    batches = plan.nodes.read_pieces(
        unit.pieces, names, numbers=numbers, rows=rows, offset=unit.offset
    )
    return (batch for batch in batches if batch.columns.num_rows)


class Look(NamedTuple):
    """What a unit's rows are.

    Attributes:
        rows: how many there are.
        starts: {file: row of the unit at which it begins}; negative where it began before.
        sample: some of the ids, as an Arrow array; None where there are none.
        loops: the first rows of the table with an edge from a node to itself.
        facts: of nodes.
        error: what is wrong.
        later: what is wrong unless ids are text.
        is_text: whether a CSV id is no integer.
    """

    rows: int = 0
    starts: dict[str, int] = {}  # noqa: RUF012 - never changed
    sample: Any = None
    loops: tuple[int, ...] = ()
    facts: NodeFacts | None = None
    error: DataError | None = None
    later: DataError | None = None
    is_text: bool = False


def look(plan: Plan, unit: Unit) -> Look:
    """Reads and checks all values of a unit."""
    try:
        return _look_at_nodes(plan, unit) if unit.of_nodes else _look_at_edges(plan, unit)
    except TextIds:
        return Look(is_text=True)
    except DataError as error:
        return Look(error=error)


def _look_at_edges(plan: Plan, unit: Unit) -> Look:
    ids, counter, rows = plan.id_reader(), RowCounter(), 0
    samples, loops = list[Any](), list[int]()
    for batch in edge_batches(plan, unit):
        counter.see(batch)
        columns = edge_columns(batch, plan.edge_roles, ids)
        same = pc.equal(columns["src"], columns["dst"]).to_numpy(zero_copy_only=False)
        loops += (np.flatnonzero(same)[: NUM_EXAMPLES - len(loops)] + batch.offset).tolist()
        samples += [_some(columns[end], plan.sample) for end in ("src", "dst")]
        rows += batch.columns.num_rows
    return _seen(plan, unit, ids, counter, samples, rows)._replace(loops=tuple(loops))


def _look_at_nodes(plan: Plan, unit: Unit) -> Look:
    assert plan.nodes is not None
    assert plan.node_roles is not None
    ids, counter, rows, samples = plan.id_reader(), RowCounter(), 0, list[Any]()
    reader = NodeReader(plan.source, plan.node_roles, plan.nodes, start=unit.offset)
    for batch in node_batches(plan, unit, reader):
        counter.see(batch)
        samples.append(_some(ids.read(batch, plan.node_roles.id), plan.sample))
        reader.read(batch)
        rows += batch.columns.num_rows
    if unit.is_last:
        reader.features.finish(unit.offset + rows, plan.nodes.name)
    return _seen(plan, unit, ids, counter, samples, rows)._replace(facts=reader.facts)


def _some(ids: Any, count: int) -> Any:
    return ids.take(pa.array(np.linspace(0, len(ids) - 1, min(count, len(ids))).astype(np.int64)))


def _seen(
    plan: Plan, unit: Unit, ids: IdReader, counter: RowCounter, samples: list[Any], rows: int
) -> Look:
    begun = counter.rows()
    starts = [start - unit.offset for start in begun.starts]
    sample = _some(pa.concat_arrays(samples), plan.sample) if samples else None
    later = None
    try:
        ids.finish()
    except DataError as error:
        later = error
    return Look(rows, dict(zip(begun.files, starts, strict=True)), sample, later=later)


def count_rows(plan: Plan, unit: Unit) -> int:
    """How many rows a unit of nodes has."""
    return sum(batch.columns.num_rows for batch in node_batches(plan, unit, None))


class Looked(NamedTuple):
    """Both tables after the first look.

    Attributes:
        plan: with `as_text` as it has to be.
        units: those with rows, each with its offset.
        node_rows: of the node table.
        edge_rows: of the edge table.
        node_where: where each row of the node table is.
        edge_where: and of the edge table.
        ids: a sorted sample, as Python values.
        loops: the first rows with an edge from a node to itself.
        stage: what all nodes are, as the engine `local` has it; None without a node table.
        id_type: int64 or text, as Arrow has them.
    """

    plan: Plan
    units: list[Unit]
    node_rows: int
    edge_rows: int
    node_where: Rows
    edge_where: Rows
    ids: list[Any]
    loops: list[int]
    stage: NodeStage | None
    id_type: Any

    def units_of(self, *, nodes: bool) -> list[Unit]:
        """The units of one table."""
        return [unit for unit in self.units if unit.of_nodes == nodes]


def look_at_all(plan: Plan, stage: Any) -> Looked:
    """Looks at all units; twice where CSV ids turn out to be text.

    Raises:
        DataError: a value is wrong; of several, the first one in the order of the files.
    """
    units = cut(plan)
    plan = plan._replace(sample=max(16, _SAMPLE // len(units)))
    units = _with_feature_rows(plan, units)
    looks = _looks(plan, units, stage)
    if looks is None:
        plan = plan._replace(as_text=True)
        looks = _looks(plan, units, stage)
        assert looks is not None, "as text every id can be read"
    later = next((one.later for one in looks if one.later is not None), None)
    if later is not None:
        raise later
    return _together(plan, units, looks)


def _with_feature_rows(plan: Plan, units: list[Unit]) -> list[Unit]:
    """Units that know their offsets before the first look, where features come by position."""
    of_nodes = [unit for unit in units if unit.of_nodes]
    if plan.source.features_file is None or not plan.nodes or not plan.nodes.is_csv:
        return units
    shared = tasks.share(plan)
    counts = list(tasks.each(count_rows, ((shared, unit) for unit in of_nodes[:-1])))
    offsets = np.cumsum([0, *counts]).tolist()
    placed = [unit._replace(offset=at) for unit, at in zip(of_nodes, offsets, strict=True)]
    return placed + units[len(of_nodes) :]


def _looks(plan: Plan, units: list[Unit], stage: Any) -> list[Look] | None:
    shared, looks = tasks.share(plan), []
    for one in tasks.each(look, ((shared, unit) for unit in units)):
        if one.error is not None:
            raise one.error
        if one.is_text:
            return None
        stage.add(rows=one.rows)
        looks.append(one)
    return looks


def _together(plan: Plan, units: list[Unit], looks: list[Look]) -> Looked:
    placed, rows = list[Unit](), {True: 0, False: 0}
    starts: dict[bool, dict[str, int]] = {True: {}, False: {}}
    loops: list[int] = []
    for unit, one in zip(units, looks, strict=True):
        offset = rows[unit.of_nodes]
        for file, start in one.starts.items():
            starts[unit.of_nodes].setdefault(file, offset + start)
        loops += [row - unit.offset + offset for row in one.loops]
        rows[unit.of_nodes] += one.rows
        if one.rows:
            placed.append(unit._replace(number=len(placed), offset=offset))
    for table, count in ((plan.nodes, rows[True]), (plan.edges, rows[False])):
        if table is not None and not count:
            raise table.empty()
    where = {of: Rows(list(found), list(found.values())) for of, found in starts.items()}
    samples = [one.sample for one in looks if one.sample is not None]
    # a hub is in many samples, and is sent by each unit once
    sample = pc.unique(pa.concat_arrays(samples))
    return Looked(
        plan=plan,
        units=placed,
        node_rows=rows[True],
        edge_rows=rows[False],
        node_where=where[True],
        edge_where=where[False],
        ids=sample.take(pc.sort_indices(sample)).to_pylist(),
        loops=loops[:NUM_EXAMPLES],
        stage=_stage(plan, units, looks, where[True], rows[True]),
        id_type=TEXT if samples[0].type == TEXT else pa.int64(),
    )


def _stage(
    plan: Plan, units: list[Unit], looks: list[Look], where: Rows, num_rows: int
) -> NodeStage | None:
    if plan.node_roles is None:
        return None
    total: NodeFacts | None = None
    offset = 0
    for unit, one in zip(units, looks, strict=True):
        if not unit.of_nodes or one.facts is None or not one.rows:
            continue
        if total is None:
            total = one.facts
        else:
            total.merge(one.facts, where.where(offset))
        offset += one.rows
    assert total is not None
    return node_stage(plan.source, plan.node_roles, total, where, num_rows)
