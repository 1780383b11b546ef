"""Ids of any kind to indices by DuckDB: distinct, ordered, joined; it spills to disk."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import duckdb
import pyarrow.parquet as pq

from dnformer.data.ingest.ids import IdMap
from dnformer.data.ingest.scan import EdgeStage
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.table import Int64Array

_ROWS = 1 << 18


@contextmanager
def connected(space: Workspace, memory: int) -> Iterator[Any]:
    """A DuckDB in memory, which keeps to `memory` bytes and spills into the workspace."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": str(space.threads),
        "memory_limit": f"{memory}B",
        "temp_directory": str(space.folder / "duckdb"),
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    connection = duckdb.connect(config=config)
    try:
        # it would stand in what a program reads
        connection.execute("SET enable_progress_bar = false")
        yield connection
    except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
        found = " ".join(str(error).split(" Possible solutions")[0].split())
        raise OSError(
            errno.ENOMEM,
            f"ids do not fit into {memory >> 20} MiB and this disk ({found}); raise memory_limit, "
            "or choose a larger temp_dir",
            str(space.folder),
        ) from None
    finally:
        connection.close()


@final
class JoinedIds(IdMap):
    """The ids of staged tables, in a DuckDB table in order: the row there is the index.

    Args:
        connection: of `connected`.
        edges: the edges.
        nodes: the stage of the nodes, None where the endpoints are the nodes.
        add: whether endpoints are nodes beside those of the node table.
        memory: that the connection may take.
    """

    def __init__(
        self, connection: Any, edges: EdgeStage, nodes: Path | None, *, add: bool, memory: int
    ) -> None:
        self._connection, self._edges, self._nodes = connection, edges, nodes
        self._all_there = nodes is None or add
        self.is_range = False
        self._repeated: list[Any] = []
        self._view("edges", edges.path)
        if nodes is not None:
            self._view("nodes", nodes)
        # in its own passes: DuckDB holds what it has not yet merged, all repetitions included, and
        # does not get below its memory limit where that is many times as much
        passes = 1 + int(self._id_bytes() / memory)
        connection.execute("SET preserve_insertion_order = false")
        for number in range(passes):
            self._add_distinct(number, passes)
        connection.execute("SET preserve_insertion_order = true")
        connection.execute("CREATE TABLE ids AS SELECT id FROM found ORDER BY id")
        connection.execute("DROP TABLE found")
        self.num_nodes = int(self._value("SELECT count(*) FROM ids"))

    def _view(self, name: str, path: Path) -> None:
        """A staged table as `name`, with `row` counted from 0."""
        staged = self._connection.read_parquet(str(path), file_row_number=True)
        staged.project("* RENAME (file_row_number AS row)").create_view(name, replace=True)

    def _id_bytes(self) -> int:
        """About what all ids take in DuckDB, repetitions included."""
        stages = [] if self._nodes is None else [self._nodes]
        if self._all_there:
            stages.append(self._edges.path)
        # 16 bytes a string beside its characters; in an edge's file are its columns too
        return int(1.4 * sum(path.stat().st_size for path in stages))

    def _add_distinct(self, number: int, passes: int) -> None:
        """Adds the ids of one pass, by their hash, to the table `found`."""
        sources = []
        if self._nodes is not None:
            self._find_repeated(f"hash(id) % {passes} = {number}")
            sources.append("SELECT id FROM nodes")
        if self._all_there:
            sources += ["SELECT src AS id FROM edges", "SELECT dst AS id FROM edges"]
        union = " UNION ALL ".join(sources)
        to = "CREATE TABLE found AS" if number == 0 else "INSERT INTO found"
        self._connection.execute(
            f"{to} SELECT id FROM ({union}) WHERE hash(id) % {passes} = {number} GROUP BY id"
        )

    def _value(self, sql: str) -> Any:
        return self._rows(sql)[0][0]

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(sql).fetchall()
        return rows

    def _stream(self, sql: str) -> Iterator[Any]:
        yield from self._connection.sql(sql).to_arrow_reader(_ROWS)

    def ids(self) -> Iterator[Any]:
        """All ids in order, in Arrow arrays."""
        for batch in self._stream("SELECT id FROM ids ORDER BY rowid"):
            yield batch.column(0)

    def batches(self, *, row: bool) -> Iterator[Any]:
        """Record batches of src and dst as indices, -1 for no node, what edges carry, and `row`."""
        names = pq.read_schema(self._edges.path).names
        also = [name for name in names if name not in ("src", "dst")] + ["row"] * row
        carried = "".join(f", e.{name}" for name in also)
        join = "JOIN" if self._all_there else "LEFT JOIN"
        yield from self._stream(
            f"SELECT coalesce(s.rowid, -1) AS src, coalesce(d.rowid, -1) AS dst{carried} FROM edges"
            f" e {join} ids s ON e.src = s.id {join} ids d ON e.dst = d.id"
        )

    def find(self, ends: Int64Array) -> Int64Array:
        """Ends are indices already."""
        return ends

    def node_indices(self) -> Iterator[Int64Array]:
        """The index of each row of the node table, in order."""
        assert self._nodes is not None
        for batch in self._stream(
            "SELECT i.rowid AS index FROM nodes n JOIN ids i ON n.id = i.id ORDER BY n.row"
        ):
            yield batch.column(0).to_numpy()

    def _find_repeated(self, which: str) -> None:
        repeated = f"SELECT id FROM nodes WHERE {which} GROUP BY id HAVING count(*) > 1"
        value = self._value(f"SELECT min(id) FROM ({repeated})")
        self._repeated += [] if value is None else [value]

    def repeated_node(self) -> Any:
        """The least id that two rows of the node table have, None where there is none."""
        return min(self._repeated, default=None)

    def dangling(self, limit: int) -> list[int]:
        """Rows of the first edges with an end that is in no row of the node table."""
        assert self._nodes is not None
        rows = self._rows(
            "WITH known AS MATERIALIZED (SELECT id FROM nodes) SELECT e.row FROM edges e LEFT "
            "JOIN known s ON e.src = s.id LEFT JOIN known d ON e.dst = d.id WHERE s.id IS NULL OR "
            f"d.id IS NULL ORDER BY e.row LIMIT {limit}"
        )
        return [row for (row,) in rows]
