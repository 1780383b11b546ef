"""The engine `ray`: edges of units to indices, and the edges into a range of nodes to a part."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data import fingerprint as fp
from dnformer.data.clean import NUM_EXAMPLES, Edges
from dnformer.data.ingest import ray_tasks as tasks
from dnformer.data.ingest.edges import Written, pack, record_type, unpack, write_range
from dnformer.data.ingest.ray_ids import encoded_ends, placed
from dnformer.data.ingest.ray_look import Plan, Unit, edge_batches
from dnformer.data.ingest.scan import carried, edge_columns, no_edges
from dnformer.data.table import EdgeColumns, Int64Array
from dnformer.errors import DataError

# a cell is what is never cut: so many nodes at least, more where there would be too many cells
_CELL = 256
_MAX_CELLS = 1 << 18
# of a row of the tables below
_GIVEN, _REVERSE, _TOUCHED = 0, 1, 2


class MappedFacts(NamedTuple):
    """What the edges of a unit are.

    Attributes:
        rows: how many were given.
        num_loops: from a node to itself.
        num_dangling: with an end that is no node.
        dangling: the first rows with an end that is not in the node table.
    """

    rows: int
    num_loops: int
    num_dangling: int
    dangling: tuple[int, ...]


def cell_width(num_nodes: int) -> int:
    """Nodes of a cell, a power of two up to a block."""
    width = _CELL
    while width < fp.BLOCK and num_nodes > width * _MAX_CELLS:
        width *= 2
    return width


def map_edges(
    plan: Plan, unit: Unit, num_nodes: int, answers: Any = None
) -> tuple[Any, tuple[MappedFacts, Int64Array, Int64Array]]:
    """The edges of a unit by index: columns key (dst * N + src), kind and record.

    A row of kind touched, whose key has no source, says that its node has an edge to another.

    Args:
        plan: of the ingest.
        unit: of edges.
        num_nodes: N.
        answers: indices of the unit's ids; None where ids are their own indices.

    Returns:
        The table; and what edges were, the cells with rows of the table, and how many of each.
    """
    src, dst, known, columns = _read(plan, unit, num_nodes, answers)
    row = np.arange(unit.offset, unit.offset + src.size)
    dangling = row[~known][:NUM_EXAMPLES] if plan.nodes is not None else row[:0]
    missing = (src < 0) | (dst < 0)
    loop = (src == dst) & ~missing
    kept = ~missing
    if plan.policies.self_loops == "drop":
        kept &= ~loop
    num_missing, num_loops = int(missing.sum()), int(loop.sum())
    given = src.size
    src, dst, columns, row = src[kept], dst[kept], columns.take(kept), row[kept]
    edges = Edges(dst * num_nodes + src, columns, row)
    dtype = _record_type(plan)
    tables = [_table(edges, _GIVEN, dtype)]
    if plan.policies.direction == "undirected":
        tables.append(_table(edges._replace(key=src * num_nodes + dst), _REVERSE, dtype))
    else:
        touched = np.unique(src[src != dst]) * num_nodes
        tables.append(_touched(touched, dtype))
    table = pa.concat_tables(tables).combine_chunks()
    cell = table["key"].to_numpy() // (num_nodes * cell_width(num_nodes))
    cells = np.unique(cell, return_counts=True)
    facts = MappedFacts(given, num_loops, num_missing, tuple(dangling.tolist()))
    return table, (facts, *cells)


def _read(
    plan: Plan, unit: Unit, num_nodes: int, answers: Any
) -> tuple[Int64Array, Int64Array, npt.NDArray[np.bool_], EdgeColumns]:
    """(src, dst as indices, whether the node table has both, what edges carry)."""
    ids = plan.id_reader()
    read = [edge_columns(batch, plan.edge_roles, ids) for batch in edge_batches(plan, unit)]
    whole = {name: _whole([one.pop(name) for one in read]) for name in [*read[0]]}
    ends = [whole.pop(end) for end in ("src", "dst")]
    if answers is None:
        src, dst = (_inside(end.to_numpy(), num_nodes) for end in ends)
        known = (src >= 0) & (dst >= 0)
    else:
        at = encoded_ends(ends[:1], ends[1:]).indices.to_numpy()
        index, is_known = placed(answers)
        src, dst = np.split(index[at], 2)
        known = np.logical_and(*np.split(is_known[at], 2))
    columns = EdgeColumns()
    if whole:
        columns = carried(pa.RecordBatch.from_pydict(whole), no_edges(plan.edge_roles))
    return src, dst, known, columns


def _whole(arrays: list[Any]) -> Any:
    return pa.chunked_array(arrays).combine_chunks()


def _inside(ids: Int64Array, num_nodes: int) -> Int64Array:
    return np.where(ids < num_nodes, ids, -1)


def _record_type(plan: Plan) -> Any:
    like = no_edges(plan.edge_roles)
    return np.dtype(record_type(like, row=plan.policies.duplicates == "error"))


def _table(edges: Edges, kind: int, dtype: Any) -> Any:
    columns = {
        "key": pa.array(edges.key),
        "kind": pa.array(np.full(edges.key.size, kind, np.int8)),
    }
    if dtype.names is not None:
        columns["record"] = as_binary(pack(edges, dtype))
    return pa.table(columns)


def _touched(key: Int64Array, dtype: Any) -> Any:
    columns = {"key": pa.array(key), "kind": pa.array(np.full(key.size, _TOUCHED, np.int8))}
    if dtype.names is not None:
        columns["record"] = as_binary(np.zeros(key.size, dtype))
    return pa.table(columns)


def as_binary(records: npt.NDArray[Any]) -> Any:
    """Records as an Arrow array of their bytes."""
    kind = pa.binary(records.dtype.itemsize)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(records))]
    return pa.Array.from_buffers(kind, records.size, buffers)


def from_binary(column: Any, dtype: Any) -> npt.NDArray[Any]:
    """The same back."""
    array = column.combine_chunks()
    start = array.offset * dtype.itemsize
    stop = start + len(array) * dtype.itemsize
    content: npt.NDArray[np.uint8] = np.frombuffer(array.buffers()[1], np.uint8)[start:stop]
    return content.copy().view(dtype)


class Cuts(NamedTuple):
    """How edges are cut: part k has the next `ranges[k]` ranges; their first nodes are `firsts`."""

    firsts: list[int]
    ranges: list[int]


def no_cells(num_nodes: int) -> Int64Array:
    """No rows yet of each cell of each block: `[blocks, cells]`."""
    blocks = -(-num_nodes // fp.BLOCK)
    return np.zeros((blocks, fp.BLOCK // cell_width(num_nodes)), np.int64)


def cut_edges(plan: Plan, cells: Int64Array, num_nodes: int) -> Cuts:
    """Ranges of nodes whose edges fit into a task, and parts of them that are whole blocks.

    Raises:
        DataError: the edges into a few nodes do not fit.
    """
    most, row_bytes = _most_rows(plan)
    rows, width = cells.reshape(-1), cell_width(num_nodes)
    largest = int(np.argmax(rows))
    if rows[largest] > most:
        first = largest * width
        need, have = int(rows[largest]) * row_bytes, plan.sizes.task_bytes
        raise DataError(
            f"nodes {first} to {min(first + width, num_nodes) - 1}: about {rows[largest]:,} edges "
            f"lead to them, which take {need / 2**30:.1f} GiB in one task, and the cluster has "
            f"{have / 2**30:.1f} GiB for each CPU; use machines with more memory for each CPU, or "
            "engine local, which sorts them on disk"
        )
    return cut_ranges(cells, most, _target_rows(plan, most))


def _most_rows(plan: Plan) -> tuple[int, int]:
    """Rows that a task may hold, and the bytes that each takes there."""
    itemsize = _record_type(plan).itemsize
    # merged and sorted by Ray, then as columns, sorted, without repeats, and as Parquet
    row_bytes = 90 + 8 * (itemsize - 8)
    return max(int(0.7 * plan.sizes.task_bytes) // row_bytes, 1), row_bytes


def _target_rows(plan: Plan, most: int) -> int:
    itemsize = int(_record_type(plan).itemsize)
    return min(plan.sizes.part_bytes // (8 + itemsize), most)


def cut_ranges(rows: Int64Array, most: int, target: int) -> Cuts:
    """Cuts of `rows` of each cell of each block, `[blocks, cells]`: ranges of at most `most` rows.

    Parts have about `target`; a block that has to be cut is a part of its own.
    """
    width = fp.BLOCK // rows.shape[1]
    firsts, ranges, held = list[int](), list[int](), target
    for block, of_block in enumerate(rows.sum(axis=1).tolist()):
        if held + of_block > target:
            starts = _cuts_inside(rows[block], most) if of_block > most else [0]
            firsts += [block * fp.BLOCK + start * width for start in starts]
            ranges.append(len(starts))
            # nothing comes after a block that is cut
            held = of_block if len(starts) == 1 else target
        else:
            held += of_block
    return Cuts(firsts, ranges)


def _cuts_inside(rows: Int64Array, most: int) -> list[int]:
    starts, held = [0], 0
    for cell, count in enumerate(rows.tolist()):
        if held + count > most:
            starts.append(cell)
            held = 0
        held += count
    return starts


def write_edges(
    plan: Plan, num_nodes: int, place: tuple[str, str], ranges: list[Any]
) -> tuple[Written | None, int]:
    """Publishes the edges of some ranges as a part, and counts the nodes with an edge to another.

    Args:
        plan: of the ingest.
        num_nodes: N.
        place: the dataset's folder and the part's name.
        ranges: references to the tables of consecutive ranges of nodes, each held in its turn.

    Returns:
        The part, None where there are no edges, and the count.
    """
    num_touched = 0
    dtype, names = _record_type(plan), plan.edge_roles.attrs
    undirected = plan.policies.direction == "undirected"

    def edges() -> Iterator[tuple[Edges, Edges | None]]:
        nonlocal num_touched
        for reference in ranges:
            table = tasks.fetch(reference)
            if not table.num_rows:
                continue
            num_touched += _count_touched(table, num_nodes)
            given, reverses = (_edges(table, kind, dtype, names) for kind in (_GIVEN, _REVERSE))
            if given.key.size or reverses.key.size:
                yield given, reverses if undirected else None

    uri, name = place
    if any(_has_edges(tasks.fetch(reference)) for reference in ranges):
        duplicates = plan.policies.duplicates
        written = write_range(uri, name, edges(), num_nodes=num_nodes, duplicates=duplicates)
        return written, num_touched
    list(edges())
    return None, num_touched


def _has_edges(table: Any) -> bool:
    return table.num_rows > 0 and bool(pc.any(pc.not_equal(table["kind"], _TOUCHED)).as_py())


def _edges(table: Any, kind: int, dtype: Any, attr_names: tuple[str, ...]) -> Edges:
    rows = table.filter(pc.equal(table["kind"], kind))
    if dtype.names is None:
        return Edges(rows["key"].to_numpy().copy())
    return unpack(from_binary(rows["record"], dtype), attr_names)


def _count_touched(table: Any, num_nodes: int) -> int:
    key, kind = table["key"].to_numpy(), table["kind"].to_numpy()
    dst = key // num_nodes
    other = (kind == _TOUCHED) | (key - dst * num_nodes != dst)
    return int(np.unique(dst[other]).size)
