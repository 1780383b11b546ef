"""What `dnformer bench ingest` races: each reads the same edge files and writes sorted Parquet.

Run as a program with a `Task` in JSON: one contender in a process of its own, whose `Result` is
the last line on stdout.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq

from dnformer.bench.resident import countable, status_bytes

# what a call would import: its time is not an ingest's
from dnformer.data.ingest import local  # noqa: F401
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.run import EngineConfig, ingest
from dnformer.data.ingest.tables import TableSource


class Task(NamedTuple):
    """One run of a contender.

    Attributes:
        impl: the contender.
        ids: "int" or "string".
        edges: Parquet files of the columns src and dst.
        out: folder for the output; it is made.
        temp_dir: folder for temporary files; it is there.
        memory: bytes it may take: all of the process for ours, DuckDB's own limit for DuckDB.
        threads: that it may use.
    """

    impl: str
    ids: str
    edges: list[str]
    out: str
    temp_dir: str
    memory: int
    threads: int


class Result(NamedTuple):
    """What one run took.

    Attributes:
        seconds: from the call to its return; imports are not in it.
        cpu_seconds: of all threads in that time; other programs disturb them less.
        stages: seconds by stage, as far as there are stages.
        peak_bytes: the most resident memory of the process, with what all contenders import, about
            170 MiB; None where the system does not say.
        num_edges: written.
        num_nodes: written; None where ids stay as they are.
        output_bytes: of all files written.
    """

    seconds: float
    cpu_seconds: float
    stages: dict[str, float]
    peak_bytes: int | None
    num_edges: int
    num_nodes: int | None
    output_bytes: int


Counts = tuple[int, int | None]


def ours(task: Task, progress: Progress) -> Counts:
    """`dnformer ingest --edges ... --duplicates drop`."""
    manifest, _ = ingest(
        TableSource(edges=task.edges),
        task.out,
        policies={"duplicates": "drop"},
        engine=EngineConfig(memory_limit=task.memory, temp_dir=task.temp_dir, threads=task.threads),
        progress=progress,
    )
    return manifest.num_edges, manifest.num_nodes


def plain_duckdb(task: Task, progress: Progress) -> Counts:
    """The same logical work in SQL."""
    run = _duckdb_strings if task.ids == "string" else _duckdb_integers
    Path(task.out).mkdir()
    config: dict[str, Any] = {
        "threads": str(task.threads),
        "memory_limit": f"{task.memory}B",
        "temp_directory": task.temp_dir,
    }
    with duckdb.connect(config=config) as connection:
        return run(connection.execute, task, progress)


def _duckdb_integers(execute: Any, task: Task, progress: Progress) -> Counts:
    select = f"SELECT DISTINCT dst, src FROM read_parquet({task.edges}) ORDER BY dst, src"
    with progress.stage("sort and write edges"):
        return _copy(execute, select, f"{task.out}/edges.parquet"), None


def _duckdb_strings(execute: Any, task: Task, progress: Progress) -> Counts:
    edges = f"read_parquet({task.edges})"
    with progress.stage("sort ids"):
        execute(
            f"CREATE TABLE ids AS SELECT src AS id FROM {edges} UNION SELECT dst FROM {edges} "
            "ORDER BY id"
        )
    with progress.stage("sort and write edges"):
        select = (
            f"SELECT DISTINCT d.rowid AS dst, s.rowid AS src FROM {edges} e JOIN ids d "
            "ON e.dst = d.id JOIN ids s ON e.src = s.id ORDER BY dst, src"
        )
        num_edges = _copy(execute, select, f"{task.out}/edges.parquet")
    with progress.stage("write ids"):
        select = "SELECT rowid AS index, id FROM ids ORDER BY index"
        return num_edges, _copy(execute, select, f"{task.out}/ids.parquet")


def _copy(execute: Any, select: str, path: str) -> int:
    """Rows written."""
    execute(f"COPY ({select}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    return int(pq.read_metadata(path).num_rows)


def plain_pyarrow(task: Task, progress: Progress) -> Counts:
    """All in memory, integers only."""
    with progress.stage("read edges"):
        tables = [pq.read_table(file, columns=["dst", "src"]) for file in task.edges]
        # a table in one piece is sorted several times as fast
        table = pa.concat_tables(tables).combine_chunks()
        del tables
    with progress.stage("sort edges"):
        table = table.sort_by([("dst", "ascending"), ("src", "ascending")])
    with progress.stage("drop repeated edges"):
        table = table.filter(_firsts(table))
    with progress.stage("write edges"):
        Path(task.out).mkdir()
        pq.write_table(table, f"{task.out}/edges.parquet", compression="zstd")
    return table.num_rows, None


def _firsts(table: Any) -> Any:
    """Which rows differ from the row before, as a mask."""
    dst, src = (table[name] for name in ("dst", "src"))
    differ = pc.or_(*(pc.not_equal(column[1:], column[:-1]) for column in (dst, src)))
    first = pa.array([True] * min(table.num_rows, 1))
    return pa.chunked_array([first, *differ.chunks])


class Contender(NamedTuple):
    """An implementation.

    Attributes:
        run: does the work and gives (edges, nodes) written.
        ids: the kinds of ids it takes.
        row_bytes: memory that a row of input takes; 0 for one that keeps to a limit.
    """

    run: Callable[[Task, Progress], Counts]
    ids: tuple[str, ...]
    row_bytes: int = 0


CONTENDERS = {
    "dnformer": Contender(ours, ("int", "string")),
    "DuckDB": Contender(plain_duckdb, ("int", "string")),
    "pyarrow": Contender(plain_pyarrow, ("int",), row_bytes=64),
}


def run(task: Task) -> Result:
    """One run in this process, and the most memory that this process had until then."""
    pa.set_cpu_count(task.threads)
    progress = Progress()
    start, cpu_start = time.perf_counter(), time.process_time()
    num_edges, num_nodes = CONTENDERS[task.impl].run(task, progress)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = status_bytes("VmHWM") if countable() else None
    written = sum(path.stat().st_size for path in Path(task.out).rglob("*") if path.is_file())
    return Result(seconds, cpu_seconds, progress.seconds, peak, num_edges, num_nodes, written)


def main(arguments: Sequence[str]) -> None:
    """Runs the task that the only argument describes."""
    print(json.dumps(run(Task(**json.loads(arguments[0])))._asdict()))


if __name__ == "__main__":
    main(sys.argv[1:])
