"""The engine `ray` on a Ray of two CPUs, against the engine `local` on the same tables."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dnformer import storage
from dnformer.cli import main
from dnformer.data.cache import CacheWriter
from dnformer.data.clean import Policies
from dnformer.data.graph import open_graph
from dnformer.data.ingest import ray_engine
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.ray_edges import Cuts, cell_width, cut_ranges
from dnformer.data.ingest.ray_look import Sizes
from dnformer.data.ingest.run import EngineConfig, ingest
from dnformer.data.ingest.tables import TableSource, open_tables
from dnformer.data.manifest import Manifest
from dnformer.errors import BackendError, ConfigError, DataError
from dnformer.ray_runtime import Resources, session

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    # Ray warns of its own settings, and leaves its processes to the interpreter's end
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# every unit a row group, every range of ids a few, next to no memory for a task
SMALL = Sizes(unit_rows=1, range_ids=40, task_bytes=2_000_000, part_bytes=4_000)


@pytest.fixture(scope="module")
def ray(s3: str) -> Iterator[None]:
    """A session whose processes know the way to the S3 of the tests, which is there before."""
    with session(Resources(2, 1), lambda text: None):
        yield


def write(path: Path, content: str | dict[str, Any], **options: Any) -> str:
    """CSV, compressed by its name, or columns as Parquet."""
    if isinstance(content, dict):
        pq.write_table(pa.table(content), path, **options)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content)
    return str(path)


def by_ray(out: str, source: TableSource, sizes: Sizes | None, **policies: str) -> Manifest:
    with CacheWriter(out) as writer:
        manifest = ray_engine.ingest_tables(
            source, open_tables(source), Policies.model_validate(policies), writer, Progress(),
            {"source": f"table:{', '.join(source.edges)}", "split": None}, sizes=sizes,
        )  # fmt: skip
        return writer.publish(manifest)[0]


def same_by_both(
    folder: Path, source: TableSource, sizes: Sizes | None = None, **policies: str
) -> Manifest:
    """What the engine `ray` makes, which is what `local` makes but for the cut into files."""
    local, _ = ingest(source, str(folder / "local"), policies=policies)
    found = by_ray(str(folder / "ray"), source, sizes, **policies)
    apart = {"edges", "nodes", "id_files", "source_signature"}
    assert found.model_dump(exclude=apart) == local.model_dump(exclude=apart)
    return found


def names(numbers: Any) -> list[str]:
    """Ids whose order is neither that of the numbers nor of UTF-16."""
    first = "zaé\U0001f600"
    return [f"{first[int(n) % 4]}{n}" for n in numbers]


def mixed(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Columns of nodes: classes by name, several labels, numbers, split, time, features."""
    return {
        "label": [[*"pqr", None][one] for one in rng.integers(0, 4, count)],
        "tags": list(rng.integers(-1, 2, (count, 3))),
        "mass": [None if one > 0.9 else float(one) for one in rng.random(count)],
        "split": [["train", "valid", "test", ""][one] for one in rng.integers(0, 4, count)],
        "born": rng.integers(0, 99, count),
        "f": list(np.where(rng.random((count, 70)) < 0.1, rng.normal(size=(count, 70)), 0)),
    }


def test_no_ray_is_said(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "src,dst\n0,1\n")
    with pytest.raises(BackendError, match=r"engine ray needs a Ray that is started"):
        ingest(TableSource(edges=[edges]), str(tmp_path / "out"), engine=EngineConfig(name="ray"))
    assert storage.list_names(str(tmp_path / "out")) == []


@pytest.mark.parametrize("sizes", [None, SMALL], ids=["one-task", "many-tasks"])
def test_string_ids_and_all_columns_of_nodes(
    sizes: Sizes | None, ray: None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    ids = names(rng.permutation(90))
    for number in range(2):
        part = slice(45 * number, 45 * number + 45)
        columns = {"id": ids[part], **mixed(rng, 45)}
        write(tmp_path / f"n{number}.parquet", columns, row_group_size=10)
    ends = {end: [ids[one] for one in rng.integers(0, 80, 400)] for end in ("src", "dst")}
    edges = write(tmp_path / "e.parquet", ends, row_group_size=50)
    source = TableSource(
        edges=[edges], nodes=[str(tmp_path / "n*.parquet")], node_time="born",
        label=["label", "tags:multilabel", "mass:regression"], features=["f"],
    )  # fmt: skip
    found = same_by_both(tmp_path, source, sizes)
    assert found.features == "sparse"
    assert found.counts["isolated_nodes"] >= 10
    graph = open_graph(tmp_path / "ray", cache_dir=tmp_path / "stores")
    assert graph.num_edges == found.num_edges


@pytest.mark.parametrize(
    "policies",
    [
        {"direction": "undirected", "duplicates": "sum", "self_loops": "drop", "dangling": "drop"},
        {"duplicates": "drop", "self_loops": "drop", "dangling": "add"},
        {"direction": "undirected", "duplicates": "keep", "dangling": "add"},
    ],
    ids=lambda policies: "-".join(policies.values()),
)
def test_policies_with_columns_of_edges(
    policies: dict[str, str], ray: None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    for number in range(3):
        columns = {
            "src": rng.integers(0, 40, 900) ** 2,
            "dst": rng.integers(0, 700, 900) ** 2,
            "weight": rng.integers(0, 3, 900).astype(np.float32),
            "a": rng.normal(size=900),
            "b": rng.normal(size=900),
            "time": rng.integers(0, 5, 900),
        }
        write(tmp_path / f"e{number}.parquet", columns, row_group_size=300)
    nodes = write(tmp_path / "n.csv", "id\n" + "".join(f"{n * n}\n" for n in range(600)))
    source = TableSource(edges=[str(tmp_path / "e*.parquet")], nodes=[nodes], edge_attrs=["a", "b"])
    found = same_by_both(tmp_path, source, SMALL, **policies)
    assert "dangling" in found.examples
    assert ("duplicates" in found.examples) == (policies["duplicates"] != "keep")


def test_csv_ids_that_turn_out_to_be_text(ray: None, tmp_path: Path) -> None:
    write(tmp_path / "e0.csv", "src,dst,time\n7,8,2020-01-01\n-3,8,2020-01-02\n")
    write(tmp_path / "e1.csv.gz", "src,dst,time\n07,8,2020-01-01\n7,8,2019-01-01\n")
    source = TableSource(edges=[str(tmp_path / "e0.csv"), str(tmp_path / "e1.csv.gz")])
    found = same_by_both(tmp_path, source)
    assert (found.ids, found.num_nodes) == ("string", 4)
    assert found.examples["duplicates"] == [f"{tmp_path}/e1.csv.gz row 2: 7 -> 8"]


@pytest.mark.parametrize("file", ["x.npy", "x.parquet"])
def test_features_by_position_of_several_csv_files(file: str, ray: None, tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=(9, 2))
    if file == "x.npy":
        np.save(tmp_path / file, x)
    else:
        write(tmp_path / file, {"u": x[:, 0], "v": x[:, 1]}, row_group_size=2)
    for number, ids in enumerate(([8, 0, 1], [2, 4, 3, 5], [7, 6])):
        write(tmp_path / f"n{number}.csv", "id\n" + "".join(f"{one}\n" for one in ids))
    edges = write(tmp_path / "e.csv", "src,dst\n0,1\n8,1\n")
    source = TableSource(
        edges=[edges], nodes=[str(tmp_path / "n*.csv")], features_file=str(tmp_path / file),
        feature_dtype="int8",
    )  # fmt: skip
    assert same_by_both(tmp_path, source).feature_dtype == "int8"


def test_several_blocks_and_a_hub(ray: None, tmp_path: Path) -> None:
    count = 140_000
    node = np.arange(count)
    columns = {
        "src": np.concatenate([node, node[:5000]]),
        "dst": np.concatenate([(node + 1) % count, np.full(5000, 70_000)]),
    }
    edges = write(tmp_path / "e.parquet", columns, row_group_size=50_000)
    table = {"id": node[::-1], "label": node % 3, "f": (node % 7).astype(np.float32)}
    nodes = write(tmp_path / "n.parquet", table, row_group_size=60_000)
    source = TableSource(edges=[edges], nodes=[nodes])
    sizes = Sizes(unit_rows=50_000, range_ids=100_000, task_bytes=6_000_000, part_bytes=4_000_000)
    found = same_by_both(tmp_path, source, sizes)
    assert found.ids == "index"
    assert len(found.edges) == len(found.nodes) == 3
    # for which no range is small enough
    with pytest.raises(DataError, match=r"nodes 69888 to 70143: about 5,512 edges lead to them"):
        by_ray(str(tmp_path / "other"), source, sizes._replace(task_bytes=300_000))


def test_cuts_of_edges_keep_blocks_whole_and_ranges_small() -> None:
    cell = 1 << 14
    rows = np.zeros((6, 4), np.int64)
    rows[1, 3], rows[2, 0], rows[3, :3], rows[5, 1] = 4, 5, (6, 5, 4), 1
    # blocks 1 and 2 together, 3 alone and cut, 5 alone; 0 and 4 have nothing
    block = 65_536
    assert cut_ranges(rows, most=10, target=9) == Cuts(
        [block, 3 * block, 3 * block + cell, 5 * block], [1, 2, 1]
    )


def test_cells_are_few_and_make_up_blocks() -> None:
    assert [cell_width(nodes) for nodes in (9, 256 << 18, (256 << 18) + 1, 1 << 40)] == [
        256, 256, 512, 65_536,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("edges", "policies", "message"),
    [
        ({"src": [1, 2], "dst": [2, 2], "weight": [1, np.nan]}, {},
         r"e\.parquet row 2: weight is nan; it must be a finite number"),
        ({"src": [1, 9], "dst": [2, 1]}, {}, r"e\.parquet row 2: src 9 is no node of \S*n\.csv"),
        ({"src": [1, 2, 1], "dst": [2, 2, 2]}, {"duplicates": "error"},
         r"e\.parquet row 3: 1 -> 2 repeats \S*e\.parquet row 1: 1 -> 2"),
        ({"src": [1, 9, 2], "dst": [2, 9, 2]}, {"self_loops": "error", "dangling": "drop"},
         r"row 2: 9 -> 9 is a self-loop"),
        ({"src": [1, -2], "dst": [2, 2]}, {}, r"e\.parquet row 2: src -2 is negative"),
        ({"src": [1, 1], "dst": [2, 2], "weight": [3e38, 3e38]}, {"duplicates": "sum"},
         r"the sum over a repeated edge is past 3\.4e38"),
    ],
    ids=["weight", "dangling", "duplicates", "self-loops", "id", "sum"],
)  # fmt: skip
def test_wrong_edges_are_named_as_by_local(
    edges: dict[str, Any], policies: dict[str, str], message: str, ray: None, tmp_path: Path
) -> None:
    nodes = write(tmp_path / "n.csv", "id\n1\n2\n")
    source = TableSource(
        edges=[write(tmp_path / "e.parquet", edges, row_group_size=1)], nodes=[nodes]
    )
    with pytest.raises(DataError, match=message) as by_local:
        ingest(source, str(tmp_path / "local"), policies=policies)
    with pytest.raises(DataError) as found:
        by_ray(str(tmp_path / "ray"), source, SMALL, **policies)
    assert str(found.value) == str(by_local.value)
    assert storage.list_names(str(tmp_path / "ray")) == []


def test_wrong_nodes_are_named_as_by_local(ray: None, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "src,dst\n1,2\n")
    for number, columns in enumerate((
        {"id": [1, 2, 3, 2], "f": [0.0, 1.0, 2.0, 3.0]},
        {"id": [1, 2, 3], "f": [[0.0], [1.0], [1.0, 2.0]]},
        {"id": [1, 2, 3], "label": [0, 1, 70]},
    )):  # fmt: skip
        nodes = write(tmp_path / f"n{number}.parquet", columns, row_group_size=1)
        source = TableSource(edges=[edges], nodes=[nodes])
        with pytest.raises(DataError) as by_local:
            ingest(source, str(tmp_path / "local"))
        with pytest.raises(DataError) as found:
            by_ray(str(tmp_path / "ray"), source, SMALL)
        row = f"{nodes} row {(4, 3, 3)[number]}"
        assert row in str(by_local.value)
        assert row in str(found.value)


def test_s3_and_the_command(s3: str, ray: None, capsys: pytest.CaptureFixture[str]) -> None:
    storage.write_bytes(f"{s3}/e.csv", b"src,dst\na,b\nb,c\na,b\n")
    with pytest.raises(SystemExit) as ended:
        main(["ingest", "--edges", f"{s3}/*.csv", "--out", f"{s3}/out", "--engine", "ray"])
    assert ended.value.code == 0
    assert "3 nodes, 2 edges" in capsys.readouterr().out
    local, _ = ingest(TableSource(edges=[f"{s3}/*.csv"]), f"{s3}/local")
    again, written = ingest(
        TableSource(edges=[f"{s3}/*.csv"]), f"{s3}/out", engine=EngineConfig(name="ray")
    )
    assert (again.fingerprint, written) == (local.fingerprint, False)


def test_memory_of_one_process_is_refused(ray: None, tmp_path: Path) -> None:
    source = TableSource(edges=[write(tmp_path / "e.csv", "src,dst\n0,1\n")])
    with pytest.raises(ConfigError, match=r"memory://out: engine ray works in several processes"):
        ingest(source, "memory://out", engine=EngineConfig(name="ray"))
