"""Node columns of every kind through files, buckets and back."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from dnformer.config import SplitConfig
from dnformer.data.cache import CacheWriter, write_cache
from dnformer.data.clean import Policies
from dnformer.data.graph import Graph, open_graph
from dnformer.data.ingest.local import ingest_tables
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.run import ingest
from dnformer.data.ingest.tables import TableSource, open_tables
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import Manifest
from dnformer.data.table import GraphTable, NodeColumns, Quantized, Target, TargetColumn
from dnformer.errors import ConfigError, DataError


def tables(folder: Path, nodes: dict[str, Any], **options: Any) -> TableSource:
    """Three nodes 2, 0, 1 in this order, and an edge."""
    pq.write_table(pa.table({"src": [0], "dst": [1]}), folder / "edges.parquet")
    pq.write_table(pa.table({"id": [2, 0, 1]} | nodes), folder / "nodes.parquet")
    edges, nodes_file = (str(folder / f"{name}.parquet") for name in ("edges", "nodes"))
    return TableSource(edges=edges, nodes=nodes_file, **options)


def opened(folder: Path, source: TableSource, label: str | None = None, **policies: str) -> Graph:
    out = folder / uuid.uuid4().hex
    ingest(source, str(out), policies=policies)
    return open_graph(out, cache_dir=folder / "stores", label=label)


def test_several_targets_of_each_kind(tmp_path: Path) -> None:
    source = tables(
        tmp_path,
        {
            "topic": ["b", None, "a"],
            "tags": [[1, 0], None, [-1, 1]],
            "a": [True, None, False],
            "b": [0, 1, 1],
            "price": [0.5, None, -0.0],
            "where": pa.array([[1.5, 2.0], [3, 4], None], pa.list_(pa.float32())),
        },
        label="topic,tags,both=a+b,price:regression,where",
    )
    graph = opened(tmp_path, source)
    assert graph.target.name == "topic"
    assert graph.manifest.targets == [
        Target(name="topic", kind="class", num_outputs=2, classes=["a", "b"]),
        Target(name="tags", kind="multilabel", num_outputs=2),
        Target(name="both", kind="multilabel", num_outputs=2, classes=["a", "b"]),
        Target(name="price", kind="regression", num_outputs=1),
        Target(name="where", kind="regression", num_outputs=2),
    ]
    topic, tags, both, price, where = graph.store.targets
    assert topic.tolist() == [-1, 0, 1]
    assert tags.tolist() == [[-1, -1], [-1, 1], [1, 0]]
    assert both.tolist() == [[-1, 1], [0, 1], [1, 0]]
    assert np.array_equal(price, [[np.nan], [0], [0.5]], equal_nan=True)
    assert not np.signbit(price[1, 0])
    assert np.array_equal(where, [[3, 4], [np.nan] * 2, [1.5, 2]], equal_nan=True)
    assert graph.num_features == 0


def test_targets_in_csv_say_their_kind(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,price,a,b\n2,0.5,1,0\n0,,,1\n1,-2,0,1\n")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    files = {"edges": str(tmp_path / "edges.csv"), "nodes": str(tmp_path / "nodes.csv")}
    graph = opened(
        tmp_path, TableSource(**files, label="price:regression,both:multilabel=a+b"), label="both"
    )
    assert graph.y.tolist() == [[-1, 1], [0, 1], [1, 0]]
    assert np.array_equal(graph.store.targets[0], [[np.nan], [-2], [0.5]], equal_nan=True)
    with pytest.raises(
        ConfigError, match=r"label both: give its kind, .* both:multilabel or both:"
    ):
        opened(tmp_path, TableSource(**files, label="both=a+b"))


@pytest.mark.parametrize(
    ("nodes", "label", "message"),
    [
        ({"t": [[1, 2], [0, 0], [0, 0]]}, "t", r"row 1: t is 2; multilabel labels are 0, 1, or"),
        ({"t": [[1, 0], [0], [0, 0]]}, "t", r"row 2: column 't' has 1 values, expected 2"),
        ({"t": [1.0, np.inf, 0]}, "t:regression", r"row 2: t is inf; regression labels are num"),
        ({"t": [["a"], ["b"], ["c"]]}, "t", r"column 't' is string, not numbers"),
        ({"t": [1, 0, -3]}, "t", r"row 3: t -3 is negative|row 3: label -3 is negative"),
        ({"t": ["a", "b", "c"], "u": [1, 2, 3]}, "v:class=t+u", "a class is one column, not 2"),
    ],
    ids=["past-one", "ragged", "infinite", "text", "negative", "two-columns"],
)
def test_bad_targets_are_named(
    nodes: dict[str, Any], label: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        opened(tmp_path, tables(tmp_path, nodes, label=label, features=[]))


def test_num_classes_is_of_the_first_class(tmp_path: Path) -> None:
    nodes = {"a": [0.5, 1, 2], "b": [0, 1, 1], "c": [0, 0, 1]}
    source = tables(tmp_path, nodes, label="a:regression,b,c", num_classes=5)
    targets = opened(tmp_path, source).manifest.targets
    assert [target.num_outputs for target in targets] == [1, 5, 2]


def test_same_label_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="label a, a: a name stands twice"):
        TableSource(edges="e.csv", nodes="n.csv", label="a,a")


def test_float16_features(tmp_path: Path) -> None:
    source = tables(tmp_path, {"x": [[1.0, 2], [0.1, -1e-9], [3, 4]]}, feature_dtype="float16")
    x = opened(tmp_path, source).store.x
    assert x.dtype == np.float16
    assert x.tolist() == [[np.float16(0.1), 0], [3, 4], [1, 2]]
    assert not np.signbit(x[0, 1])
    source = tables(tmp_path, {"x": [[1.0, 2], [0, 7e4], [3, 4]]}, feature_dtype="float16")
    with pytest.raises(DataError, match=r"row 2: feature 1 is 70000; float16 holds up to 65504"):
        opened(tmp_path, source)


def test_int8_features_have_one_scale_a_feature(tmp_path: Path) -> None:
    source = tables(tmp_path, {"x": [[1.27, 0], [-0.64, 0], [0.01, 0]]}, feature_dtype="int8")
    graph = opened(tmp_path, source)
    assert graph.store.x.dtype == np.int8
    assert graph.store.x.tolist() == [[-64, 0], [1, 0], [127, 0]]
    assert graph.manifest.feature_scale == pytest.approx([0.01, 1])


def test_sparse_features_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match="sparse features are float32; leave out int8"):
        TableSource(edges="e.csv", nodes="n.csv", feature_layout="sparse", feature_dtype="int8")


@pytest.mark.parametrize("ending", ["npy", "lists.parquet", "columns.parquet"])
def test_features_from_a_file_by_position(ending: str, tmp_path: Path) -> None:
    x, file = np.array([[1, 2], [3, 4], [5, 6]], ">f8"), str(tmp_path / f"x.{ending}")
    if ending == "npy":
        np.save(file, x)
    elif ending == "lists.parquet":
        pq.write_table(pa.table({"x": x.tolist()}), file)
    else:
        pq.write_table(pa.table({"f1": x[:, 1].tolist(), "f0": x[:, 0].tolist()}), file)
    options: dict[str, Any] = {"features_file": file, "label": "label"}
    if ending == "columns.parquet":
        options["features"] = ["f0", "f1"]
    nodes = {"label": [0, 1, 1], "note": ["not", "read", "here"]}
    assert opened(tmp_path, tables(tmp_path, nodes, **options)).store.x.tolist() == [
        [3, 4], [5, 6], [1, 2],
    ]  # fmt: skip


def save(x: Any, **options: Any) -> Any:
    return lambda file: np.save(file, x, **options)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (save(np.zeros((2, 4))), r"x.npy: 2 rows, and .*nodes.parquet row 3 is past them; row i"),
        (save(np.zeros((4, 4))), r"x.npy: more rows than the 3 of .*nodes.parquet; row i belongs"),
        (save(np.array([[1], [np.nan], [2]])), r"x.npy row 2: feature 0 is nan; it must be"),
        (save(np.zeros(3)), r"x.npy is float64 of shape \[3\]; give real numbers"),
        (save(np.array([[None]] * 3), allow_pickle=True), r"x.npy is object of shape \[3, 1\]"),
        (save(np.zeros((3, 2), order="F")), r"x.npy is in Fortran order; save np.ascont"),
        (lambda file: Path(file).write_bytes(b"no numpy"), r"x.npy: no .npy file"),
    ],
    ids=["short", "long", "nan", "flat", "pickle", "fortran", "no-npy"],
)
def test_features_file_that_does_not_fit_is_named(write: Any, message: str, tmp_path: Path) -> None:
    file = str(tmp_path / "x.npy")
    write(file)
    with pytest.raises(DataError, match=message):
        opened(tmp_path, tables(tmp_path, {}, features_file=file))


def test_node_time_and_the_split_by_it(tmp_path: Path) -> None:
    nodes = {"label": [0, 1, 1], "when": pa.array([30, 10, 20], pa.int32())}
    out = str(tmp_path / "out")
    split = SplitConfig(time=(0.34, 0.34, 0.32))
    ingest(tables(tmp_path, nodes, node_time="when"), out, split=split)
    graph = open_graph(out, cache_dir=tmp_path)
    assert graph.store.node_time is not None
    assert graph.store.node_time.tolist() == [10, 20, 30]
    assert graph.split("train").tolist() == [0]
    assert graph.split("test").tolist() == [2]


def test_added_nodes_have_nothing(tmp_path: Path) -> None:
    nodes = {
        "label": [0, 1, 1], "split": ["train", "val", "test"], "when": [5, 6, 7],
        "f": [1.0, 2.0, 3.0], "r": [0.5, 0.5, 0.5],
    }  # fmt: skip
    source = tables(tmp_path, nodes, node_time="when", label="label,r:regression", features=["f"])
    pq.write_table(pa.table({"src": [4], "dst": [1]}), tmp_path / "edges.parquet")
    store = opened(tmp_path, source, dangling="add").store
    assert store.targets[0].tolist() == [1, 1, 0, -1]
    assert np.array_equal(store.targets[1], [[0.5]] * 3 + [[np.nan]], equal_nan=True)
    assert store.split.tolist() == [2, 3, 1, 0]
    assert store.x.tolist() == [[2], [3], [1], [0]]
    assert store.node_time.tolist() == [6, 7, 5, 0]


def in_buckets(folder: Path, source: TableSource, memory: int) -> Manifest:
    space = Workspace(folder / uuid.uuid4().hex, memory, 2)
    space.folder.mkdir()
    with CacheWriter(str(space.folder / "out")) as writer:
        return ingest_tables(
            source, open_tables(source), Policies(), writer, space, Progress(),
            {"source": "test", "split": None},
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", "sparse", "int8"])
def test_many_nodes_in_small_pieces_equal_the_whole(kind: str, tmp_path: Path) -> None:
    num_nodes, width = 140_000, 64 if kind == "sparse" else 3
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (num_nodes, width)).astype(np.float32)
    x[rng.random(x.shape) < (0.9 if kind == "sparse" else 0)] = 0
    y = rng.integers(0, 5, num_nodes)
    order = rng.permutation(num_nodes)
    flat = pa.array(x[order].ravel())
    nodes = {
        "id": order, "label": y[order], "x": pa.FixedSizeListArray.from_arrays(flat, width),
    }  # fmt: skip
    pq.write_table(pa.table(nodes), tmp_path / "nodes.parquet", row_group_size=30_000)
    pq.write_table(pa.table({"src": [0], "dst": [1]}), tmp_path / "edges.parquet")
    source = TableSource(
        edges=str(tmp_path / "edges.parquet"),
        nodes=str(tmp_path / "nodes.parquet"),
        feature_dtype="int8" if kind == "int8" else "float32",
    )
    small = in_buckets(tmp_path, source, 1 << 20)
    scale = (np.abs(x).max(axis=0) / np.float32(127)).astype(np.float32)
    columns: Any = {"dense": x, "sparse": sp.csr_matrix(x)}.get(kind)
    if kind == "int8":
        columns = Quantized(np.rint(x / scale).astype(np.int8), scale)
    target = Target(name="label", kind="class", num_outputs=5)
    table = GraphTable(
        nodes=NodeColumns(num_nodes=num_nodes, x=columns, targets=(TargetColumn(target, y),)),
        src=np.array([0]), dst=np.array([1]), policies={}, counts={},
    )  # fmt: skip
    whole, _ = write_cache(table, str(tmp_path / "whole"), source="test")
    assert small.fingerprint == whole.fingerprint
    assert small.num_values == whole.num_values
    assert in_buckets(tmp_path, source, 1 << 30).fingerprint == whole.fingerprint
