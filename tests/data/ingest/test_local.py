"""Tables through files, buckets and joins against the same graph cleaned in memory."""

import logging
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.cache import CacheWriter, write_cache
from dnformer.data.clean import Policies, clean
from dnformer.data.ingest.local import ingest_tables
from dnformer.data.ingest.progress import Progress, Stage
from dnformer.data.ingest.run import EngineConfig, ingest
from dnformer.data.ingest.tables import TableSource, open_tables
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import Manifest
from dnformer.data.table import EdgeColumns, NodeColumns, RawGraph
from dnformer.errors import ConfigError, DataError

Edge = tuple[int, int, float, float, int]

TIGHT, ROOMY = 1 << 20, 1 << 30


def write(path: Path, columns: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return str(path)


def run(
    folder: Path, source: TableSource, memory: int = ROOMY, threads: int = 2, **policies: str
) -> Manifest:
    """Ingests with so much memory for data; next to none cuts everything as small as it gets."""
    space = Workspace(folder / uuid.uuid4().hex, memory, threads)
    space.folder.mkdir()
    with CacheWriter(str(space.folder / "out")) as writer:
        facts = {"source": "test", "split": None}
        chosen = Policies.model_validate(policies)
        return ingest_tables(source, open_tables(source), chosen, writer, space, Progress(), facts)


def expected(folder: Path, edges: list[Edge], ids: list[Any], **policies: str) -> Manifest:
    """The dataset of the same edges between the nodes 0..N-1 of `ids`, by way of memory."""
    ranked = sorted(ids, key=lambda one: one.encode() if isinstance(one, str) else one)
    rank = {one: at for at, one in enumerate(ranked)}
    column = {at: np.array([edge[at] for edge in edges]) for at in (2, 3, 4)}
    is_range = ranked == list(range(len(ranked)))
    names: Any = ranked if isinstance(ranked[0], str) else np.array(ranked, np.int64)
    raw = RawGraph(
        nodes=NodeColumns(num_nodes=len(ids), ids=None if is_range else names),
        src=np.array([rank[ids[edge[0]]] for edge in edges], np.int64),
        dst=np.array([rank[ids[edge[1]]] for edge in edges], np.int64),
        where=str,
        edges=EdgeColumns(
            weight=column[2].astype(np.float32),
            attr=column[3].astype(np.float32)[:, None],
            attr_names=("a",),
            time=column[4].astype(np.int64),
        ),
    )
    table = clean(raw, Policies.model_validate(policies))
    return write_cache(table, str(folder / uuid.uuid4().hex), source="test")[0]


def edge_table(path: Path, edges: list[Edge], ids: list[Any]) -> str:
    columns = {
        "src": [ids[edge[0]] for edge in edges],
        "dst": [ids[edge[1]] for edge in edges],
        "weight": [edge[2] for edge in edges],
        "a": [edge[3] for edge in edges],
        "time": [edge[4] for edge in edges],
    }
    return write(path, columns)


IDS: dict[str, Callable[[int], Any]] = {
    "range": lambda node: node,
    "int": lambda node: node * 3 + 5,
    "far-int": lambda node: (node << 55) + 9 - node,
    "string": lambda node: f"{'zyxw'[node % 4]}{node:03d}é",
}


@settings(max_examples=25)
@given(
    edges=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.integers(0, 4),
            st.sampled_from([0.5, -1.25, 3e7]),
            st.sampled_from([0.0, 0.1]),
            st.integers(-1, 1),
        ),
        min_size=1,
        max_size=25,
    ),
    kind=st.sampled_from(sorted(IDS)),
    direction=st.sampled_from(["directed", "undirected"]),
    duplicates=st.sampled_from(["drop", "keep", "sum"]),
    self_loops=st.sampled_from(["drop", "keep"]),
)
def test_any_policies_give_what_memory_gives(
    edges: list[Edge],
    kind: str,
    direction: str,
    duplicates: str,
    self_loops: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("policies")
    ids = [IDS[kind](node) for node in range(5)]
    policies = {"direction": direction, "duplicates": duplicates, "self_loops": self_loops}
    source = TableSource(
        edges=edge_table(folder / "edges.parquet", edges, ids),
        nodes=write(folder / "nodes.parquet", {"id": ids[::-1]}),
        edge_attrs=["a"],
    )
    found = run(folder, source, **policies)
    wanted = expected(folder, edges, ids, **policies)
    assert found.fingerprint == wanted.fingerprint
    assert found.counts == wanted.counts
    assert found.policies == wanted.policies


def random_edges(num_edges: int, num_nodes: int) -> list[Edge]:
    """Some hubs, some repeated edges."""
    rng = np.random.default_rng(0)
    dst = (num_nodes * rng.random(num_edges) ** 4).astype(np.int64)
    src = rng.integers(0, num_nodes, num_edges)
    dst[: num_edges // 4], src[: num_edges // 8] = 3, 7
    weight, time = rng.integers(0, 3, num_edges) / 4, rng.integers(0, 3, num_edges)
    return list(zip(src.tolist(), dst.tolist(), weight, weight + 1, time.tolist(), strict=True))


@pytest.mark.parametrize("kind", ["range", "int", "far-int", "string"])
@pytest.mark.parametrize("duplicates", ["drop", "keep", "sum"])
def test_bucket_count_threads_and_files_do_not_matter(
    kind: str, duplicates: str, tmp_path: Path
) -> None:
    num_nodes = 140_000 if kind in ("range", "int") else 127
    edges = random_edges(8_000, num_nodes)
    ids = [IDS[kind](node) for node in range(num_nodes)]
    policies = {"direction": "undirected", "duplicates": duplicates}
    nodes = write(tmp_path / "nodes.parquet", {"id": ids})
    whole = edge_table(tmp_path / "whole.parquet", edges, ids)
    for at in range(3):
        edge_table(tmp_path / f"part-{at}.parquet", edges[at * 3000 : (at + 1) * 3000], ids)
    sources = {
        "whole": TableSource(edges=whole, nodes=nodes, edge_attrs=["a"]),
        "parts": TableSource(
            edges=[str(tmp_path / "part-[01].parquet"), str(tmp_path / "part-2.parquet")],
            nodes=nodes,
            edge_attrs=["a"],
        ),
    }
    memory = TIGHT if kind == "range" else 60 << 20
    tight = run(tmp_path, sources["parts"], memory, threads=1, **policies)
    roomy = run(tmp_path, sources["whole"], **policies)
    wanted = expected(tmp_path, edges, ids, **policies)
    assert tight.fingerprint == roomy.fingerprint == wanted.fingerprint
    assert tight.counts == roomy.counts == wanted.counts
    assert len(roomy.edges) < len(tight.edges) or num_nodes == 127
    names = [
        {policy: [one.rpartition(": ")[2] for one in edges] for policy, edges in of.items()}
        for of in (tight.examples, roomy.examples)
    ]
    assert names[0] == names[1]


def sample(folder: Path, **columns: Any) -> TableSource:
    """b -> a twice, c -> c, a -> z, where z is no node."""
    edges = {"src": ["b", "b", "c", "a"], "dst": ["a", "a", "c", "z"], **columns}
    nodes = {"id": ["c", "b", "a"], "label": [0, 1, 1], "f": [3.0, 2.0, 1.0]}
    return TableSource(
        edges=write(folder / "edges.parquet", edges), nodes=write(folder / "nodes.parquet", nodes)
    )


@pytest.mark.parametrize("names", [str, lambda name: "abcz".index(name) * 5], ids=["string", "int"])
def test_dangling_edges_are_named_dropped_or_given_nodes(
    names: Callable[[str], Any], tmp_path: Path
) -> None:
    source = sample(
        tmp_path,
        src=[names(one) for one in "bbca"],
        dst=[names(one) for one in "aacz"],
    )
    write(tmp_path / "nodes.parquet", {"id": [names(x) for x in "cba"], "label": [0, 1, 1]})
    file, z = f"{tmp_path}/edges.parquet", names("z")
    with pytest.raises(DataError, match=rf"row 4: dst {z!r} is no node of .*set dangling to drop"):
        run(tmp_path, source)
    dropped = run(tmp_path, source, dangling="drop")
    assert (dropped.num_nodes, dropped.num_edges) == (3, 2)
    assert dropped.counts["dangling_dropped"] == 1
    assert dropped.counts["edges_read"] == 4
    assert dropped.examples["dangling"] == [f"{file} row 4: {names('a')} -> {z}"]
    added = run(tmp_path, source, dangling="add")
    assert (added.num_nodes, added.num_edges) == (4, 3)
    assert added.counts["nodes_added"] == 1
    assert added.examples["dangling"] == dropped.examples["dangling"]


def test_examples_name_file_row_and_edge(tmp_path: Path) -> None:
    policies = {"dangling": "drop", "self_loops": "drop"}
    manifest = run(tmp_path, sample(tmp_path), **policies)
    file = f"{tmp_path}/edges.parquet"
    assert manifest.examples == {
        "dangling": [f"{file} row 4: a -> z"],
        "self_loops": [f"{file} row 3: c -> c"],
        "duplicates": [f"{file} row 2: b -> a"],
    }


def test_error_policies_name_the_first_edge(tmp_path: Path) -> None:
    source = sample(tmp_path)
    file = f"{tmp_path}/edges.parquet"
    with pytest.raises(DataError, match=rf"^{file} row 3: c -> c is a self-loop; remove it"):
        run(tmp_path, source, dangling="drop", self_loops="error")
    for memory in (64 << 20, ROOMY):
        with pytest.raises(DataError, match=rf"^{file} row 2: b -> a repeats {file} row 1: b -> a"):
            run(tmp_path, source, memory, dangling="drop", duplicates="error")


def test_sum_without_anything_to_add_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="have neither; name a weight column"):
        run(tmp_path, sample(tmp_path), dangling="drop", duplicates="sum")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"weight": [1.0, None, 1.0, 1.0]}, r"row 2: weight has no value; fill it"),
        ({"weight": [1.0, 1.0, float("nan"), 1.0]}, r"row 3: weight is nan; it must be a finite"),
        (
            {"weight": ["x"] * 4},
            r"row 1 and on: column 'weight' is string.* with weight, or rename",
        ),
        ({"time": [1, 2, None, 4]}, r"row 3: time has no value"),
        ({"time": [0.5] * 4}, r"column 'time' is double; times are integers, dates or timestamps"),
        ({"time": ["soon"] * 4}, r"row 1 and on: column 'time': .*soon"),
    ],
    ids=["null", "nan", "text", "no-time", "float-time", "text-time"],
)
def test_bad_edge_columns_are_named(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        run(tmp_path, sample(tmp_path, **columns), dangling="drop")


def test_times_may_be_dates_and_timestamps(tmp_path: Path) -> None:
    stamps = ["2020-01-01T00:00:00", "1969-12-31T23:59:59"]
    for column in (
        pa.array(stamps).cast(pa.timestamp("s")),
        pa.array(stamps),
        [1577836800000000, -1000000],
    ):
        edges = write(tmp_path / "e.parquet", {"src": [0, 1], "dst": [1, 1], "time": column})
        manifest = run(tmp_path, TableSource(edges=edges))
        assert manifest.edge_time
        # the second edge is the earlier one of node 1, and they do not repeat each other
        assert manifest.fingerprint == run(tmp_path, TableSource(edges=edges)).fingerprint


def test_second_ingest_of_the_same_reads_nothing(tmp_path: Path) -> None:
    source, out = sample(tmp_path), str(tmp_path / "out")
    first, written = ingest(source, out, policies={"dangling": "drop"})
    assert written
    stages = Progress()
    assert ingest(source, out, policies={"dangling": "drop"}, progress=stages) == (first, False)
    assert list(stages.seconds) == ["compare with what is there"]
    # other files, of other names, with the same content are the same
    moved = replace_files(source, tmp_path / "moved")
    assert ingest(moved, out, policies={"dangling": "drop"})[1] is False
    split = SplitConfig(random=(0.5, 0.25, 0.25))
    changed, written = ingest(moved, out, policies={"dangling": "drop"}, split=split)
    assert written
    assert (changed.split, changed.fingerprint) == (split, first.fingerprint)
    with pytest.raises(DataError, match="came from other files or options; choose another --out"):
        ingest(moved, out, policies={"dangling": "drop", "self_loops": "drop"})
    _, written = ingest(moved, out, policies={"dangling": "drop"}, split=split, overwrite=True)
    assert written


def replace_files(source: TableSource, folder: Path) -> TableSource:
    folder.mkdir()
    assert source.nodes is not None
    moved = {}
    for name, (uri,) in (("edges", source.edges), ("nodes", source.nodes)):
        moved[name] = [str(Path(uri).rename(folder / f"{name}-2.parquet"))]
    return source.model_copy(update=moved)


@pytest.mark.parametrize("to", ["memory", "s3"])
def test_tables_and_dataset_on_other_stores(
    to: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    local = sample(tmp_path)
    wanted, _ = ingest(local, str(tmp_path / "out"), policies={"dangling": "drop"})
    base = request.getfixturevalue("s3") if to == "s3" else "memory://ingest"
    base = f"{base}/{uuid.uuid4().hex}"
    for name in ("edges", "nodes"):
        content = (tmp_path / f"{name}.parquet").read_bytes()
        storage.write_bytes(f"{base}/{name}/part.parquet", content)
    source = TableSource(edges=f"{base}/edges/*.parquet", nodes=f"{base}/nodes/*.parquet")
    found, written = ingest(source, f"{base}/out", policies={"dangling": "drop"})
    assert written
    assert found.fingerprint == wanted.fingerprint
    assert found.examples["duplicates"] == [f"{base}/edges/part.parquet row 2: b -> a"]
    assert ingest(source, f"{base}/out", policies={"dangling": "drop"}) == (found, False)


def test_failed_ingest_leaves_nothing_behind(tmp_path: Path) -> None:
    temp = tmp_path / "temp"
    with pytest.raises(DataError, match="is no node of"):
        ingest(sample(tmp_path), str(tmp_path / "out"), engine=EngineConfig(temp_dir=str(temp)))
    assert not (tmp_path / "out").exists()
    assert list(temp.iterdir()) == []


def test_no_room_for_ids_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"ids do not fit into 0 MiB and this disk.*raise memory_lim"):
        run(tmp_path, sample(tmp_path), memory=1 << 18, dangling="drop")


PEAK = """
import re, sys
from dnformer.data.ingest.run import EngineConfig, ingest
from dnformer.data.ingest.tables import TableSource
limit = EngineConfig(memory_limit=sys.argv[3], temp_dir=sys.argv[2] + "/temp", threads=2)
ingest(TableSource(edges=sys.argv[1]), sys.argv[2] + "/out", engine=limit)
# ru_maxrss would begin with what the parent had
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) >> 10)
"""


def test_memory_limit_is_of_the_whole_process(tmp_path: Path) -> None:
    rng, ids = np.random.default_rng(0), pa.array([f"node-{i:09d}" for i in range(400_000)])
    columns = {
        end: ids.take(pa.array(rng.integers(0, 400_000, 4_000_000))) for end in ("src", "dst")
    }
    edges = write(tmp_path / "edges.parquet", columns)
    peaks = []
    for at, limit in enumerate(("550MiB", "8GiB")):
        command = [sys.executable, "-c", PEAK, edges, str(tmp_path / str(at)), limit]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[0] <= 550
    assert peaks[1] > peaks[0]  # or the limit had nothing to limit


def test_stages_are_told_with_rows_and_time_left(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def say(stage: Stage) -> None:
        told.append((stage.name, stage.rows, stage.total))
        assert stage.name in stage.line()

    ingest(sample(tmp_path), str(tmp_path / "out"), policies={"dangling": "drop"},
           progress=Progress(say))  # fmt: skip
    names = list(dict.fromkeys(name for name, _, _ in told))
    assert names[:3] == ["compare with what is there", "read nodes", "read edges"]
    assert ("map edges", 4, 4) in told


def test_columns_not_read_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dnformer"):
        run(tmp_path, sample(tmp_path, note=["x"] * 4, weight=[1.0] * 4), dangling="drop")
    assert caplog.messages == [f"{tmp_path}/edges.parquet: columns not read: note"]
