from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from dnformer.bench import ingest
from dnformer.bench.ingest import Findings, Row, Settings, Target
from dnformer.bench.ingest_contenders import CONTENDERS, Result, Task
from dnformer.bench.resident import countable
from dnformer.data.ingest.progress import Progress
from dnformer.errors import BackendError, ConfigError

# one edge twice, one self-loop
EDGES = {"src": [9, 2, 2, 5, 9], "dst": [5, 9, 9, 5, 2]}


def found(settings: Settings) -> list[Findings]:
    return list(ingest.run(settings, say=lambda text: None))


@pytest.mark.parametrize(
    ("impl", "ids"), [(impl, ids) for impl, c in CONTENDERS.items() for ids in c.ids]
)
def test_every_contender_writes_each_edge_once_in_order(
    tmp_path: Path, impl: str, ids: str
) -> None:
    columns: dict[str, list[Any]] = dict(EDGES)
    if ids == "string":
        columns = {end: [f"n{node}" for node in nodes] for end, nodes in EDGES.items()}
    names = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    pq.write_table(pa.table(columns)[:2], names[0])
    pq.write_table(pa.table(columns)[2:], names[1])
    (tmp_path / "temp").mkdir()
    out, progress = tmp_path / "out", Progress()
    task = Task(impl, ids, names, str(out), str(tmp_path / "temp"), 4 << 30, 1)
    num_edges, num_nodes = CONTENDERS[impl].run(task, progress)
    assert num_edges == 4
    assert progress.seconds
    (path,) = (path for path in out.rglob("*.parquet") if "edges" in str(path.relative_to(out)))
    table = pq.read_table(path)
    edges = list(zip(table["dst"].to_pylist(), table["src"].to_pylist(), strict=True))
    if impl == "dnformer" or ids == "string":
        assert num_nodes == 3
        assert edges == [(0, 2), (1, 1), (1, 2), (2, 0)]
    else:  # peers leave integers as they are
        assert num_nodes is None
        assert edges == [(2, 9), (5, 5), (5, 9), (9, 2)]


def test_runs_have_processes_of_their_own_and_leave_nothing(tmp_path: Path) -> None:
    (findings,) = found(
        Settings(edges=2001, ids="string", temp_dir=str(tmp_path), repeats=1, threads=1)
    )
    assert [row.impl for row in findings.rows] == ["dnformer", "DuckDB"]
    assert len({row.num_edges for row in findings.rows}) == 1
    for row in findings.rows:
        assert row.note == ""
        assert row.seconds is not None
        assert row.low == row.high == row.seconds > 0
        assert (row.cpu_seconds or 0) > 0
        assert row.num_rows == 2000 >= (row.num_edges or 0) > 0
        assert row.rows_per_s == pytest.approx(2000 / row.seconds)
        assert row.edges_per_s == pytest.approx((row.num_edges or 0) / row.seconds)
        assert row.bytes_per_s == pytest.approx(row.input_bytes / row.seconds)
        assert sum(row.stages.values()) > 0
        assert (row.output_bytes or 0) > 0
        if countable():
            assert (row.peak_bytes or 0) > 20 << 20
    ours, duckdb = (row.seconds or 0 for row in findings.rows)
    ratio, peak = findings.targets
    assert ratio.found == findings.rows[0].to_duckdb == pytest.approx(ours / duckdb)
    assert ratio.at_most is peak.at_most is None
    assert list(tmp_path.iterdir()) == []


def test_contender_without_the_memory_is_left_out_and_a_failure_is_told(tmp_path: Path) -> None:
    settings = Settings(
        edges=20_000, ids="int", memory_limit="1MiB", temp_dir=str(tmp_path), repeats=2, threads=1
    )
    (findings,) = found(settings)
    ours, _, memory = findings.rows
    assert ours.note.startswith("failed: ")
    assert "memory limit 1 MiB" in ours.note
    assert ours.seconds is ours.to_duckdb is None
    assert memory.note == "left out: it would take about 1.22 MiB, more than 1 MiB"
    assert [target.found for target in findings.targets] == [None, None]
    assert findings.targets[0].at_most == 1.6


def test_contenders_that_disagree_are_an_error() -> None:
    one = Result(1.0, 1.0, {}, None, 7, None, 10)
    ingest.check({"dnformer": [one], "DuckDB": [one._replace(num_nodes=3)]})
    with pytest.raises(BackendError, match="disagree on num_edges: dnformer 7, DuckDB 8"):
        ingest.check({"dnformer": [one], "DuckDB": [one._replace(num_edges=8)]})


def test_rounds_that_disagree_are_an_error() -> None:
    one = Result(1.0, 1.0, {}, None, 7, None, 10)
    with pytest.raises(BackendError, match="num_edges"):
        ingest.check({"dnformer": [one, one._replace(num_edges=8), one]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(ids="strings"), "--ids strings: expected int, string, both"),
        (Settings(edges=999), "--edges 999: expected 1000 or more"),
        (Settings(temp_dir="nowhere"), "--temp-dir nowhere: is no folder"),
        (Settings(memory_limit="much"), "'much' is no size"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(settings: Settings, message: str) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=message):
        ingest.run(settings, say=said.append)
    assert said == []


def test_memory_has_a_target_where_the_issue_sets_one() -> None:
    row = Row("string", "dnformer", 9.0, peak_bytes=5 << 30, num_rows=100_000_000, to_duckdb=2.0)
    ratio, peak = ingest.targets(row)
    assert (ratio.at_most, ratio.found) == (None, 2.0)
    assert (peak.at_most, peak.found, peak.met) == (4.0, 5.0, False)


def test_as_json_and_the_table_have_every_row() -> None:
    rows = [
        Row("int", "dnformer", 2.0, 1.5, 2.5, 3.25, 5e6, 4e6, 3e6, 512 << 20, {"read edges": 0.75},
            10_000_000, 8_000_000, 6_000_000, 7_000_000, 1.25),
        Row("int", "pyarrow", num_rows=10_000_000, note="left out: no memory"),
    ]  # fmt: skip
    findings = Findings(rows, [Target("int", "seconds, ours over DuckDB", 1.25, at_most=1.6)])
    json = ingest.as_json([findings])
    keys = ("case", "impl", "seconds", "peak_bytes")
    assert [tuple(row[key] for key in keys) for row in json["rows"]] == [
        ("int", "dnformer", 2.0, 512 << 20),
        ("int", "pyarrow", None, None),
    ]
    assert json["rows"][0]["stages"] == {"read edges": 0.75}
    assert json["targets"][0]["met"] is True
    assert {"duckdb", "pyarrow"} <= json["versions"].keys()
    console = Console(width=150, record=True)
    ingest.show(findings, console)
    text = console.export_text()
    for piece in ("10,000,000 edges in 6.0 MB", "2.00", "3.25", "1.25", "512", "read edges 0.75",
                  "left out: no memory", "met", "1.25, target"):  # fmt: skip
        assert piece in text
    assert "duckdb" in ingest.header()
