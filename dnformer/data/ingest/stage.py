"""Both tables staged: read once, checked, with the integer ids seen on the way."""

from typing import Any, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data.clean import Policies, check_policies
from dnformer.data.features import TEXT
from dnformer.data.ingest.ids import IdBits
from dnformer.data.ingest.nodes import NodeStage, stage_nodes
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.scan import (
    EdgeStage,
    IdColumn,
    IdReader,
    TextIds,
    no_edges,
    stage_edges,
    staged_batches,
)
from dnformer.data.ingest.table_files import TableFiles
from dnformer.data.ingest.tables import TableSource, edge_roles, node_roles
from dnformer.data.ingest.workspace import Workspace
from dnformer.errors import DataError

# of the memory for data
_BITS_SHARE = 0.25
# of a batch, all of its copies included, times the batches that are read or worked on at once
_ROW_BYTES = 1 << 10


class Staged(NamedTuple):
    """Both tables, checked, on local disk.

    Attributes:
        edges: the edges.
        nodes: the nodes; None where the endpoints are the nodes.
        bits: the ids of all nodes, where they are integers that a bitmap holds.
        node_table: the node table's name.
        ends: names of the columns of the source and the destination.
        id_name: and of the node's id.
        id_type: int64 or text, as Arrow has them.
    """

    edges: EdgeStage
    nodes: NodeStage | None
    bits: IdBits | None
    node_table: str
    ends: tuple[str, str]
    id_name: str
    id_type: Any


def stage_tables(
    source: TableSource,
    tables: tuple[TableFiles, TableFiles | None],
    policies: Policies,
    space: Workspace,
    progress: Progress,
) -> Staged:
    """Reads both tables once, or twice where CSV ids turn out to be text only late.

    Raises:
        ConfigError: an option is wrong.
        DataError: a file or a value is wrong; the message names file, row and value.
    """
    try:
        return _stage(source, tables, policies, space, progress, as_text=False)
    except TextIds:
        return _stage(source, tables, policies, space, progress, as_text=True)


def _stage(
    source: TableSource,
    tables: tuple[TableFiles, TableFiles | None],
    policies: Policies,
    space: Workspace,
    progress: Progress,
    *,
    as_text: bool,
) -> Staged:
    edge_table, node_table = tables
    roles = edge_roles(source, edge_table)
    check_policies(policies, num_nodes=0, edges=no_edges(roles))
    columns = [IdColumn(edge_table, roles.src), IdColumn(edge_table, roles.dst)]
    nodes = None
    if node_table is not None:
        columns.append(IdColumn(node_table, source.id))
    ids = IdReader(columns, as_text=as_text)
    seen = _SeenIds(ids.type, int(space.memory * _BITS_SHARE))
    if node_table is not None:
        with progress.stage("read nodes", total=node_table.num_bytes(), in_bytes=True) as stage:
            nodes = stage_nodes(
                source,
                node_roles(source, node_table),
                node_table,
                ids,
                folder=space.folder,
                stage=stage,
            )
            _see_nodes(seen, nodes, source.id)
    see_ends = seen.add if nodes is None or policies.dangling == "add" else lambda column: None
    with progress.stage("read edges", total=edge_table.num_bytes(), in_bytes=True) as stage:
        path = space.folder / "edges.parquet"
        rows = max(min(space.memory // _ROW_BYTES, 1 << 20), 1 << 14)
        edges = stage_edges(edge_table, roles, ids, path=path, stage=stage, see=see_ends, rows=rows)
    ids.finish()
    # Arrow keeps what it has had, and what comes next may take all of the limit
    pa.default_memory_pool().release_unused()
    return Staged(
        edges=edges,
        nodes=nodes,
        bits=seen.bits,
        node_table="" if node_table is None else node_table.name,
        ends=(source.src, source.dst),
        id_name=source.id,
        id_type=ids.type,
    )


@final
class _SeenIds:
    """The integer ids seen so far, as long as a bitmap holds them."""

    def __init__(self, kind: Any, max_bytes: int) -> None:
        self.bits = None if kind == TEXT else IdBits(max_bytes)

    def add(self, column: Any) -> None:
        """Adds ids, which are no text."""
        if self.bits is None:
            return
        ids = column.to_numpy()
        # a negative id is an error, or CSV ids are text: either way no bitmap is needed
        if ids.min(initial=0) < 0 or not self.bits.add(ids):
            self.bits = None

    def add_new(self, column: Any) -> int:
        """The same; the first position of an id that was there before, -1 for none."""
        if self.bits is None:
            return -1
        ids = column.to_numpy()
        at = None if ids.min(initial=0) < 0 else self.bits.add_new(ids)
        if at is None:
            self.bits = None
            return -1
        return at


def _see_nodes(seen: _SeenIds, nodes: NodeStage, name: str) -> None:
    for batch in staged_batches(nodes.ids):
        at = seen.add_new(batch.column(0))
        if at >= 0:
            raise repeated_node(nodes, batch.column(0)[at].as_py(), name)


def repeated_node(nodes: NodeStage, value: Any, name: str) -> DataError:
    """The error of an id that two rows of the node table have."""
    start, rows = 0, list[int]()
    for batch in staged_batches(nodes.ids):
        same = pc.equal(batch.column(0), pa.scalar(value, batch.column(0).type))
        rows += (np.flatnonzero(same.to_numpy(zero_copy_only=False)) + start).tolist()
        start += batch.num_rows
    first, second = rows[:2]
    found = f"{nodes.rows.where(second)}: {name} {value!r}"
    return DataError(f"{found} repeats {nodes.rows.where(first)}; a node has one row")
