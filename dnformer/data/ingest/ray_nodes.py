"""The engine `ray`: rows of the node table to indices, and a range of nodes to a part."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dnformer.data import fingerprint as fp
from dnformer.data.ingest import ray_tasks as tasks
from dnformer.data.ingest.nodes import (
    NodeReader,
    NodeStage,
    WrittenNodes,
    as_records,
    record_type,
    write_nodes,
)
from dnformer.data.ingest.ray_edges import as_binary, from_binary
from dnformer.data.ingest.ray_ids import placed
from dnformer.data.ingest.ray_look import Plan, Sizes, Unit, node_batches

# of nodes without columns
_BARE_BLOCKS = 64


def has_columns(stage: NodeStage | None) -> bool:
    """Whether nodes have more than their index."""
    return stage is not None and len(record_type(stage).names or ()) > 1


def map_nodes(plan: Plan, stage: NodeStage, unit: Unit, answers: Any = None) -> tuple[Any, int]:
    """The rows of a unit by index, columns key and record; and how many.

    Args:
        plan: of the ingest.
        stage: what all nodes are.
        unit: of nodes.
        answers: indices of the unit's ids; None where ids are their own indices.
    """
    assert plan.nodes is not None
    assert plan.node_roles is not None
    reader = NodeReader(plan.source, plan.node_roles, plan.nodes, start=unit.offset)
    # these know all names of classes, and so give the codes that all units agree on
    reader.facts.labels[:] = stage.labels
    ids, index = plan.id_reader(), None if answers is None else placed(answers)[0]
    dtype, pieces = record_type(stage), list[npt.NDArray[Any]]()
    for batch in node_batches(plan, unit, reader):
        start = batch.offset - unit.offset
        if index is None:
            found = ids.read(batch, plan.node_roles.id).to_numpy()
        else:
            found = index[start : start + batch.columns.num_rows]
        columns = pa.RecordBatch.from_pydict(reader.read(batch))
        pieces.append(as_records(stage, columns, found, dtype))
    records = np.concatenate(pieces)
    table = pa.table({"key": records["index"].copy(), "record": as_binary(records)})
    return table, table.num_rows


class NodeCuts(NamedTuple):
    """How nodes are cut: ranges of `width`, of which `per_part` make a part of whole blocks."""

    num_nodes: int
    width: int
    per_part: int

    def firsts(self) -> list[int]:
        """The first node of each range."""
        return list(range(0, self.num_nodes, self.width))


def cut_nodes(stage: NodeStage | None, num_nodes: int, sizes: Sizes) -> NodeCuts:
    """Ranges of nodes that fit into a task."""
    if stage is None or not has_columns(stage):
        return NodeCuts(num_nodes, _BARE_BLOCKS * fp.BLOCK, 1)
    # merged and sorted by Ray, then as records, as columns, and what Parquet keeps of both
    row_bytes = 6 * record_type(stage).itemsize + 64
    rows = max(int(0.7 * sizes.task_bytes) // row_bytes, 1)
    rows = min(rows, sizes.part_bytes // record_type(stage).itemsize)
    if rows >= fp.BLOCK:
        return NodeCuts(num_nodes, rows // fp.BLOCK * fp.BLOCK, 1)
    width = 1 << max(rows.bit_length() - 1, 8)
    return NodeCuts(num_nodes, width, fp.BLOCK // width)


def write_node_part(
    stage: NodeStage | None,
    cuts: NodeCuts,
    place: tuple[str, str],
    number: int,
    ranges: list[Any],
) -> WrittenNodes:
    """Publishes part `number` of the nodes.

    Args:
        stage: what all nodes are; None without a node table.
        cuts: how they are cut.
        place: the dataset's folder and the part's name.
        number: of the part.
        ranges: references to the tables of its ranges; none where nodes have no columns.
    """
    dtype = record_type(stage) if stage is not None else np.dtype([("index", np.int64)])

    def pieces() -> Iterator[tuple[int, int, npt.NDArray[Any]]]:
        for at in range(cuts.per_part):
            first = (number * cuts.per_part + at) * cuts.width
            stop = min(first + cuts.width, cuts.num_nodes)
            if first >= stop:
                return
            table = tasks.fetch(ranges[at]) if ranges else None
            found = np.empty(0, dtype)
            if table is not None and table.num_rows:
                found = from_binary(table["record"], dtype)
            yield first, stop, found

    return write_nodes(*place, pieces(), stage)
