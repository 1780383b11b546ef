"""`dnformer bench ingest`: our ingest beside plain DuckDB and pyarrow on the same edge files.

Every run is a process of its own, so that memory is fresh and its peak is that run's. The time is
from the call to its return: without Python's start and imports, with the loading of kernels.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow.parquet as pq
from rich.console import Console

from dnformer.bench.ingest_contenders import CONTENDERS, Result, Task
from dnformer.bench.report import Target, for_json, heading, print_case, ratio
from dnformer.cgroup import cores
from dnformer.data.ingest.workspace import parse_bytes
from dnformer.data.sources.synthetic import SyntheticSource, open_synthetic
from dnformer.data.sources.synthetic_tables import write_tables
from dnformer.errors import BackendError, ConfigError

Ids = Literal["int", "string"]
CASES: dict[str, tuple[Ids, ...]] = {
    "int": ("int",),
    "string": ("string",),
    "both": ("int", "string"),
}
_DEGREE = 10
_LEAST_EDGES = 1_000
# from here on a round takes minutes, and noise counts for less
_MANY_EDGES = 50_000_000
# where the issue asks for a peak of memory
_TARGET_EDGES = 100_000_000
_TARGET_RATIO, _TARGET_GIB = 1.6, 4.0


class Settings(NamedTuple):
    """What the command takes.

    Attributes:
        edges: of the input, repeats included.
        ids: "int", "string" or "both".
        memory_limit: of each run, as in 4GiB.
        threads: of each run; None: one a CPU.
        temp_dir: local folder for input, output and temporary files; None: the system's.
        repeats: timed rounds; None: 3, or 1 where a round takes long.
    """

    edges: int = 10_000_000
    ids: str = "both"
    memory_limit: str = "4GiB"
    threads: int | None = None
    temp_dir: str | None = None
    repeats: int | None = None


class Row(NamedTuple):
    """One contender in one case.

    Attributes:
        case: "int" or "string", the ids.
        impl: the contender.
        seconds: median of the rounds; None where `note` says why.
        low: of the rounds.
        high: of the rounds.
        cpu_seconds: of all threads, median of the rounds.
        rows_per_s: rows of the input a second.
        edges_per_s: edges of the output a second.
        bytes_per_s: bytes of the input files a second.
        peak_bytes: the most resident memory of the process, in the worst of the rounds.
        stages: seconds by stage, medians of the rounds.
        num_rows: of the input.
        num_edges: of the output.
        input_bytes: of the input files.
        output_bytes: of the output files.
        to_duckdb: seconds over DuckDB's.
        note: anything else.
    """

    case: str
    impl: str
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    cpu_seconds: float | None = None
    rows_per_s: float | None = None
    edges_per_s: float | None = None
    bytes_per_s: float | None = None
    peak_bytes: int | None = None
    stages: dict[str, float] = {}  # noqa: RUF012 - never changed
    num_rows: int = 0
    num_edges: int | None = None
    input_bytes: int = 0
    output_bytes: int | None = None
    to_duckdb: float | None = None
    note: str = ""


class Findings(NamedTuple):
    """All of one case."""

    rows: list[Row]
    targets: list[Target]


class Limits(NamedTuple):
    """What each run may use: bytes of memory, and threads."""

    memory: int
    threads: int


class Input(NamedTuple):
    """The edge files.

    Attributes:
        folder: where all files of a case are; contenders run in it.
        ids: "int" or "string".
        files: names in `folder`.
        num_rows: of all files.
        num_bytes: of all files.
    """

    folder: Path
    ids: Ids
    files: list[str]
    num_rows: int
    num_bytes: int


def run(settings: Settings, *, say: Callable[[str], None]) -> Iterator[Findings]:
    """Runs the cases one after the other, as they are asked for.

    Raises:
        ConfigError: a setting is wrong.
        BackendError: contenders disagree about the number of edges or nodes.
    """
    if settings.ids not in CASES:
        raise ConfigError(f"--ids {settings.ids}: expected {', '.join(CASES)}")
    if settings.edges < _LEAST_EDGES:
        raise ConfigError(f"--edges {settings.edges}: expected {_LEAST_EDGES} or more")
    if settings.temp_dir is not None and not Path(settings.temp_dir).is_dir():
        raise ConfigError(f"--temp-dir {settings.temp_dir}: is no folder")
    memory = parse_bytes(settings.memory_limit)
    repeats = settings.repeats or (3 if settings.edges < _MANY_EDGES else 1)
    limits = Limits(memory, settings.threads or cores())

    def findings() -> Iterator[Findings]:
        for ids in CASES[settings.ids]:
            with tempfile.TemporaryDirectory(
                prefix="dnformer-bench-ingest-", dir=settings.temp_dir
            ) as folder:
                say(f"{ids} ids: making kernels and {settings.edges:,} edges")
                # compiles what is not in the cache of kernels
                _once(_make_input(Path(folder, "small"), ids, _LEAST_EDGES), "dnformer", limits)
                made = _make_input(Path(folder, "large"), ids, settings.edges)
                yield _case(made, limits, repeats, say)

    return findings()


def _make_input(folder: Path, ids: Ids, edges: int) -> Input:
    source = SyntheticSource(
        kind="power_law", nodes=edges // _DEGREE, edges=edges // 2 * 2, features=0
    )
    write_tables(open_synthetic(source), str(folder / "input"), ids=ids)
    paths = sorted((folder / "input").glob("edges-*.parquet"))
    return Input(
        folder,
        ids,
        [f"input/{path.name}" for path in paths],
        sum(pq.read_metadata(path).num_rows for path in paths),
        sum(path.stat().st_size for path in paths),
    )


def _case(made: Input, limits: Limits, repeats: int, say: Callable[[str], None]) -> Findings:
    names = [name for name, contender in CONTENDERS.items() if made.ids in contender.ids]
    notes = {name: _refusal(name, made, limits) for name in names}
    racing = [name for name in names if not notes[name]]
    results: dict[str, list[Result]] = {name: [] for name in names}
    for turn in range(repeats):
        for place in range(len(racing)):
            name = racing[(turn + place) % len(racing)]
            if notes[name]:  # it failed in an earlier round
                continue
            say(f"{made.ids} ids, round {turn + 1} of {repeats}: {name}")
            found = _once(made, name, limits)
            if isinstance(found, str):
                notes[name] = found
            else:
                results[name].append(found)
    check(results)
    rows = [_row(made, name, notes[name], results[name]) for name in names]
    base = next((row.seconds for row in rows if row.impl == "DuckDB"), None)
    rows = [row._replace(to_duckdb=ratio(row.seconds, base)) for row in rows]
    return Findings(rows, targets(rows[0]))


def _refusal(name: str, made: Input, limits: Limits) -> str:
    """Why a contender is left out; empty where it is not."""
    need = CONTENDERS[name].row_bytes * made.num_rows
    if need <= limits.memory:
        return ""
    return f"left out: it would take about {_mib(need)}, more than {_mib(limits.memory)}"


def _mib(size: int) -> str:
    mib = size / 2**20
    return f"{mib:,.0f} MiB" if mib >= 100 else f"{mib:.3g} MiB"


def _once(made: Input, name: str, limits: Limits) -> Result | str:
    """What a run took, or how it failed; its files are removed."""
    out, temp = (made.folder / one for one in ("out", "temp"))
    temp.mkdir()
    _settle(made)
    task = Task(name, made.ids, made.files, out.name, temp.name, *limits)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dnformer.bench.ingest_contenders", json.dumps(task._asdict())],
            cwd=made.folder,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(temp)
    if done.returncode < 0:
        return f"failed: ended by signal {-done.returncode}"
    if done.returncode:
        return f"failed: {' '.join(done.stderr.strip().splitlines()[-1:])}"
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def _settle(made: Input) -> None:
    """Input in the page cache, and nothing of others still being written."""
    for file in made.files:
        with (made.folder / file).open("rb") as stream:
            while stream.read(1 << 24):
                pass
    os.sync()


def check(results: dict[str, list[Result]]) -> None:
    """Refuses figures of contenders, or rounds, that did not do the same.

    Raises:
        BackendError: they wrote different numbers of edges, or of nodes where they count these.
    """
    for what in ("num_edges", "num_nodes"):
        found = {
            name: sorted({getattr(result, what) for result in each} - {None})
            for name, each in results.items()
        }
        if len({number for numbers in found.values() for number in numbers}) > 1:
            told = ", ".join(f"{name} {n:,}" for name, numbers in found.items() for n in numbers)
            raise BackendError(f"contenders disagree on {what}: {told}; the figures mean nothing")


def _row(made: Input, name: str, note: str, results: Sequence[Result]) -> Row:
    row = Row(made.ids, name, num_rows=made.num_rows, input_bytes=made.num_bytes, note=note)
    if note:
        return row
    seconds = [result.seconds for result in results]
    middle, last = statistics.median(seconds), results[-1]
    peaks = [result.peak_bytes for result in results if result.peak_bytes is not None]
    return row._replace(
        seconds=middle,
        low=min(seconds),
        high=max(seconds),
        cpu_seconds=statistics.median(result.cpu_seconds for result in results),
        rows_per_s=made.num_rows / middle,
        edges_per_s=last.num_edges / middle,
        bytes_per_s=made.num_bytes / middle,
        peak_bytes=max(peaks, default=None),
        stages={
            stage: statistics.median(result.stages[stage] for result in results)
            for stage in last.stages
        },
        num_edges=last.num_edges,
        output_bytes=last.output_bytes,
    )


def targets(ours: Row) -> list[Target]:
    """Ours beside what was asked for."""
    is_int, is_large = ours.case == "int", ours.num_rows >= _TARGET_EDGES
    gib = None if ours.peak_bytes is None else ours.peak_bytes / 2**30
    most = _TARGET_RATIO if is_int else None
    return [
        Target(ours.case, "seconds, ours over DuckDB", ours.to_duckdb, at_most=most),
        Target(
            ours.case,
            "peak memory of ours, GiB",
            gib,
            at_most=None if is_int or not is_large else _TARGET_GIB,
        ),
    ]


_PEERS = ("duckdb", "pyarrow", "numba", "numpy")


def as_json(findings: Sequence[Findings]) -> dict[str, Any]:
    """One object for programs."""
    return for_json(findings, _PEERS)


def header() -> str:
    """One line above the tables."""
    return heading(*_PEERS)


def show(findings: Findings, console: Console) -> None:
    """Prints one case as a table, with its targets under it."""
    first = findings.rows[0]
    title = (
        f"{first.case} ids: {first.num_rows:,} edges in {first.input_bytes / 1e6:,.1f} MB of "
        "Parquet; distinct, sorted, written"
    )
    figures = ("s", "min", "max", "CPU s", "/ DuckDB", "M rows/s", "M edges/s", "MB/s", "peak MiB")
    columns = ("impl", *figures, "s by stage, notes")
    print_case(console, title, columns, map(_cells, findings.rows), findings.targets)


def _cells(row: Row) -> list[str]:
    if row.seconds is None:
        return [row.impl, *[""] * 9, row.note]
    times = (row.seconds, row.low, row.high, row.cpu_seconds)
    speeds = (row.rows_per_s, row.edges_per_s, row.bytes_per_s)
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f}"
    stages = [f"{name} {seconds:.2f}" for name, seconds in row.stages.items()]
    return [
        row.impl, *(f"{figure or 0:.2f}" for figure in times),
        "" if row.to_duckdb is None else f"{row.to_duckdb:.2f}",
        *(f"{(speed or 0) / 1e6:.2f}" for speed in speeds), peak, ", ".join(stages),
    ]  # fmt: skip
