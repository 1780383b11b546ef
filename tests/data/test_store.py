import hashlib
import json
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from filelock import FileLock

from dnformer import storage
from dnformer.data.cache import write_cache
from dnformer.data.manifest import read_manifest
from dnformer.data.store import Store, open_store
from dnformer.data.table import GraphTable, NodeColumns
from dnformer.errors import DataError

from .helpers import every_column

EDGES = [(0, 1), (2, 1), (0, 2)]
X = np.array([[1, 0], [0, 2], [0, 0]], dtype=np.float32)
LABEL = {"name": "label", "kind": "class", "num_outputs": 2}
ONE_CLASS, THREE_CLASSES = LABEL | {"num_outputs": 1}, LABEL | {"num_outputs": 3}
NAMED = LABEL | {"classes": ["a", "b"]}
LABELS: dict[str, Any] = {"y": [0, 1, -1], "num_classes": 2, "split": [1, 2, 3]}


@pytest.fixture
def dense(make_table: Callable[..., GraphTable]) -> Iterator[str]:
    """A dataset with dense features, labels, a split and string ids."""
    uri = f"memory://{uuid.uuid4().hex}"
    write_cache(make_table(EDGES, x=X, ids=["a", "b", "c"], **LABELS), uri, source="test")
    yield uri
    storage.remove(uri)


@pytest.fixture
def sparse(make_table: Callable[..., GraphTable]) -> Iterator[str]:
    """The same with sparse features and integer ids."""
    uri = f"memory://{uuid.uuid4().hex}"
    table = make_table(EDGES, x=sp.csr_matrix(X), ids=np.array([3, 5, 9]), **LABELS)
    write_cache(table, uri, source="test")
    yield uri
    storage.remove(uri)


def opened(uri: str, folder: Path) -> tuple[Store, list[str]]:
    """The store, and what was said about building it."""
    said: list[str] = []
    return open_store(uri, read_manifest(uri), folder, say=said.append), said


def arrays(store: Store) -> dict[str, np.ndarray]:
    found = {field.name: getattr(store, field.name) for field in fields(store)}
    found |= {f"y_{number}": values for number, values in enumerate(found.pop("targets"))}
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


def test_open_store_dense_has_the_documented_arrays(dense: str, tmp_path: Path) -> None:
    store, _ = opened(dense, tmp_path)
    types = {name: str(array.dtype) for name, array in arrays(store).items()}
    assert types == {
        "colptr": "int64", "row": "int32", "y_0": "int64", "x": "float32", "split": "int8"
    }  # fmt: skip
    assert store.colptr.tolist() == [0, 0, 2, 3]
    assert store.row.tolist() == [0, 2, 0]


def test_open_store_sparse_has_the_documented_arrays(sparse: str, tmp_path: Path) -> None:
    store, _ = opened(sparse, tmp_path)
    types = {name: str(array.dtype) for name, array in arrays(store).items()}
    assert types == {
        "colptr": "int64", "row": "int32", "y_0": "int64", "split": "int8",
        "x_indptr": "int64", "x_indices": "int32", "x_values": "float32",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_open_store_arrays_are_read_only(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store, _ = opened(request.getfixturevalue(kind), tmp_path)
    for array in arrays(store).values():
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_open_store_again_is_not_built_again(dense: str, tmp_path: Path) -> None:
    first, said = opened(dense, tmp_path)
    assert len(said) == 1
    assert dense in said[0]
    manifest = read_manifest(dense)
    # the store alone is enough: nothing of the dataset is read
    storage.remove(dense)
    again = open_store(dense, manifest, tmp_path, say=said.append)
    assert len(said) == 1
    for name, array in arrays(first).items():
        assert np.array_equal(arrays(again)[name], array)


def test_open_store_folder_is_the_users_own(dense: str, tmp_path: Path) -> None:
    opened(dense, tmp_path / "stores")
    assert stat.S_IMODE((tmp_path / "stores").stat().st_mode) == 0o700


def test_open_store_half_built_leftover_is_rebuilt(dense: str, tmp_path: Path) -> None:
    fingerprint = read_manifest(dense).fingerprint
    for name in (fingerprint, f".{fingerprint}.tmp"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "row.npy", np.array([7, 7, 7], dtype=np.int32))
    store, said = opened(dense, tmp_path)
    assert len(said) == 1
    assert store.row.tolist() == [0, 2, 0]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [fingerprint]


@pytest.mark.parametrize("name", ["y_0.npy", "x.npy", "split.npy", "complete"])
def test_open_store_with_a_file_cleaned_away_is_rebuilt(
    dense: str, tmp_path: Path, name: str
) -> None:
    opened(dense, tmp_path)
    (tmp_path / read_manifest(dense).fingerprint / name).unlink()
    store, said = opened(dense, tmp_path)
    assert len(said) == 1
    assert store.targets[0].tolist() == [0, 1, -1]


def test_open_store_failed_build_leaves_nothing(dense: str, tmp_path: Path) -> None:
    storage.remove(f"{dense}/nodes")
    with pytest.raises(DataError, match="no such file"):
        opened(dense, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


OPENER = """
import hashlib, sys
from pathlib import Path
from dnformer.data.manifest import read_manifest
from dnformer.data.store import open_store

uri, folder, me = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
said = []

def say(text):
    said.append(text.split()[0])
    (folder / f"{me}-{said[-1]}").touch()

store = open_store(uri, read_manifest(uri), folder / "stores", say=say)
print(*said, hashlib.sha256(store.row.tobytes()).hexdigest())
"""


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_open_store_by_two_processes_at_once_is_built_by_one(
    make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    table = make_table(EDGES)
    manifest, _ = write_cache(table, str(tmp_path / "data"), source="test")
    (tmp_path / "stores").mkdir()
    # as a third one that builds, so that both are there before one begins
    with FileLock(tmp_path / "stores" / f"{manifest.fingerprint}.lock"):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", OPENER, str(tmp_path / "data"), str(tmp_path), name],
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in ("first", "second")
        ]
        wait_for(tmp_path / "first-waiting", tmp_path / "second-waiting")
    printed = [process.communicate(timeout=60)[0].split() for process in processes]
    digest = hashlib.sha256(table.src.astype(np.int32).tobytes()).hexdigest()
    assert sorted(printed, key=len) == [
        ["waiting", digest],
        ["waiting", "building", digest],
    ]


def craft(uri: str, kind: str, change: Callable[[pa.Table], pa.Table], **manifest: Any) -> str:
    """Rewrites the part of a kind, with a manifest that agrees; gives the part's URI."""
    values = json.loads(storage.read_bytes(f"{uri}/manifest.json"))
    part = values[kind][0]
    file = f"{uri}/{part['path']}"
    with storage.fetched(file) as path:
        table = change(pq.read_table(path))
    with storage.staged(file) as path:
        pq.write_table(table, path)
        content = path.read_bytes()
    part |= {
        "rows": table.num_rows,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    storage.write_bytes(f"{uri}/manifest.json", json.dumps(values | manifest).encode())
    return file


def replaced(name: str, column: Any) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pa.array(column))

    return change


def fixed(rows: list[list[float]], kind: Any = None) -> Any:
    return pa.array(rows, pa.list_(kind or pa.float32(), len(rows[0])))


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        pytest.param("edges", replaced("src", [0, 3, 0]), r"node 3 is not in 0\.\.2", id="node"),
        pytest.param("edges", replaced("dst", [-1, 1, 2]), "node -1 is not in", id="negative"),
        pytest.param("edges", replaced("dst", [1, 2, 1]), "edges are not sorted", id="dst-order"),
        pytest.param("edges", replaced("src", [2, 0, 0]), "edges are not sorted", id="src-order"),
        pytest.param("edges", replaced("src", [0, None, 0]), "'src' holds nulls", id="null"),
        pytest.param("edges", replaced("src", [0.0, 2.0, 0.0]), "'src' is double", id="float-edge"),
        pytest.param(
            "edges", replaced("src", pa.array([0, 2, 2**63], pa.uint64())), "is no int64", id="huge"
        ),
        pytest.param("edges", lambda t: t.drop(["src"]), "column 'src' is missing", id="no-src"),
        pytest.param("nodes", replaced("y_0", [0, 2, -1]), r"y_0 2 is not in -1\.\.1", id="label"),
        pytest.param("nodes", replaced("split", [1, 2, 4]), r"split 4 is not in 0\.\.3", id="part"),
        pytest.param(
            "nodes",
            replaced("x", fixed([[1, 0], [0, float("nan")], [0, 0]])),
            "a value is NaN",
            id="nan",
        ),
        pytest.param(
            "nodes", replaced("x", fixed([[1, 0, 3]] * 3)), "not 2 values a row", id="wide"
        ),
        pytest.param(
            "nodes",
            replaced("x", fixed([[1, 0]] * 3, pa.float64())),
            "values are double",
            id="x64",
        ),
        pytest.param(
            "nodes",
            replaced("x", pa.array([[1, None]] * 3, pa.list_(pa.float32(), 2))),
            "or hold nulls",
            id="null-feature",
        ),
        pytest.param("nodes", replaced("x", ["a", "b", "c"]), "'x' is string", id="text-feature"),
        pytest.param("nodes", replaced("y_0", [1, 1, -1]), "the fingerprint", id="other-y"),
        pytest.param(
            "id_files", replaced("id", ["a", "b", "d"]), "not what the fingerprint", id="other-id"
        ),
        pytest.param("id_files", replaced("id", [0.5, 1.5, 2.5]), "ids are double", id="float-id"),
        pytest.param("id_files", replaced("id", ["a", None, "b"]), "'id' holds nulls", id="no-id"),
    ],
)
def test_open_store_content_against_the_manifest_is_refused(
    dense: str,
    tmp_path: Path,
    kind: str,
    change: Callable[[pa.Table], pa.Table],
    expected: str,
) -> None:
    file = craft(dense, kind, change)
    with pytest.raises(DataError, match=expected) as caught:
        opened(dense, tmp_path)
    named = dense if "fingerprint" in expected else file
    assert str(caught.value).startswith(f"{named}: ")


@pytest.fixture
def full() -> Iterator[str]:
    """A dataset with every kind of column."""
    uri = f"memory://{uuid.uuid4().hex}"
    write_cache(every_column(), uri, source="test")
    yield uri
    storage.remove(uri)


def at(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """Changes a value; in a list, its first."""

    def change(table: pa.Table) -> pa.Table:
        values = table[name].to_pylist()
        values[row] = [value, *values[row][1:]] if isinstance(values[row], list) else value
        kind = table.schema.field(name).type
        return table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))

    return change


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        pytest.param("edges", "weight", NAN, "a value is NaN", id="weight"),
        pytest.param("edges", "attr", -INF, "a value is NaN or infinite", id="attr"),
        pytest.param("edges", "attr", None, "or hold nulls", id="attr-null"),
        pytest.param("edges", "time", 77, "the fingerprint", id="time"),
        pytest.param("edges", "time", None, "'time' holds nulls", id="time-null"),
        pytest.param("nodes", "index", 1, "index does not go on from 0", id="index"),
        pytest.param("nodes", "x", 100, "the fingerprint", id="x"),
        pytest.param("nodes", "y_0", 2, r"y_0 2 is not in -1\.\.1", id="class"),
        pytest.param("nodes", "y_1", NAN, "the fingerprint", id="number"),
        pytest.param("nodes", "y_1", None, "or hold nulls", id="number-null"),
        pytest.param("nodes", "y_2", 2, r"y_2 2 is not in -1\.\.1", id="many"),
        pytest.param("nodes", "time", 3, "the fingerprint", id="node-time"),
        pytest.param("id_files", "index", 7, "index does not go on from 0", id="id-index"),
        pytest.param("id_files", "id", 2, "the fingerprint", id="id"),
    ],
)
def test_open_store_any_changed_value_is_refused(
    full: str, tmp_path: Path, kind: str, name: str, value: Any, expected: str
) -> None:
    craft(full, kind, at(name, 0, value))
    with pytest.raises(DataError, match=expected):
        opened(full, tmp_path)


def test_open_store_float16_features_are_finite(tmp_path: Path) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    nodes = NodeColumns(num_nodes=2, x=np.array([[1], [2]], dtype=np.float16))
    none = np.empty(0, dtype=np.int64)
    write_cache(
        GraphTable(nodes=nodes, dst=none, src=none, policies={}, counts={}), uri, source="test"
    )
    craft(uri, "nodes", at("x", 1, np.float16(INF)))
    with pytest.raises(DataError, match="a value is NaN or infinite"):
        opened(uri, tmp_path)
    storage.remove(uri)


def test_open_store_parts_that_share_a_block_are_refused(dense: str, tmp_path: Path) -> None:
    values = json.loads(storage.read_bytes(f"{dense}/manifest.json"))
    with storage.fetched(f"{dense}/{values['edges'][0]['path']}") as path:
        table = pq.read_table(path)
    parts = []
    for number, rows in enumerate((table.slice(0, 2), table.slice(2))):
        name = f"edges/part-half-{number}.parquet"
        with storage.staged(f"{dense}/{name}") as path:
            pq.write_table(rows, path)
            content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        parts.append({"path": name, "rows": rows.num_rows, "bytes": len(content), "sha256": digest})
    storage.write_bytes(f"{dense}/manifest.json", json.dumps(values | {"edges": parts}).encode())
    expected = f"^{dense}/edges/part-half-1.parquet: begins with node 2, inside of what the file"
    with pytest.raises(DataError, match=expected):
        opened(dense, tmp_path)


def lists(rows: list[Any], kind: Any) -> Any:
    return pa.array(rows, pa.list_(kind))


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        pytest.param(
            "x_index", lists([[2], [1], []], pa.int32()), r"index 2 is not in 0\.\.1", id="wide"
        ),
        pytest.param("x_index", lists([[-1], [1], []], pa.int32()), "index -1", id="negative"),
        pytest.param("x_index", lists([[0], [], []], pa.int32()), "more indices", id="uneven"),
        pytest.param("x_index", [0, 1, 2], "are no lists", id="no-list"),
        pytest.param("x_index", lists([["a"], ["1"], []], pa.string()), "no int64", id="text"),
        pytest.param(
            "x_value", lists([[float("inf")], [2], []], pa.float32()), "infinite", id="infinite"
        ),
        pytest.param("x_value", lists([[1], [2], []], pa.int32()), "are int32", id="integers"),
    ],
)
def test_open_store_sparse_content_against_the_manifest_is_refused(
    sparse: str, tmp_path: Path, name: str, column: Any, expected: str
) -> None:
    file = craft(sparse, "nodes", replaced(name, column))
    with pytest.raises(DataError, match=expected) as caught:
        opened(sparse, tmp_path)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        pytest.param({"num_values": 1}, "2 values, not 1", id="fewer-values"),
        pytest.param({"num_values": 3}, "2 values, not 3", id="more-values"),
        pytest.param({"num_features": 1}, "index 1 is not in", id="fewer-features"),
        pytest.param({"num_features": 3}, "fingerprint", id="more-features"),
        pytest.param({"features": "dense"}, "'x' is missing", id="dense"),
        pytest.param({"features": "none"}, "0 feature values, not 2", id="no-features"),
        pytest.param({"targets": []}, "fingerprint", id="no-labels"),
        pytest.param({"stored_split": False}, "fingerprint", id="no-split"),
        pytest.param({"targets": [ONE_CLASS]}, "y_0 1 is not in", id="fewer-classes"),
        pytest.param({"targets": [THREE_CLASSES]}, "fingerprint", id="more-classes"),
        pytest.param({"targets": [NAMED]}, "fingerprint", id="class-names"),
        pytest.param({"ids": "string"}, "ids are int64, not string", id="string-ids"),
        pytest.param({"fingerprint": "0" * 64}, "fingerprint", id="fingerprint"),
    ],
)
def test_open_store_manifest_against_the_content_is_refused(
    sparse: str, tmp_path: Path, manifest: dict[str, Any], expected: str
) -> None:
    craft(sparse, "nodes", lambda table: table, **manifest)
    with pytest.raises(DataError, match=expected):
        opened(sparse, tmp_path)


@pytest.mark.parametrize("kind", ["edges", "nodes", "id_files"])
def test_open_store_part_that_is_no_parquet_is_refused(
    dense: str, tmp_path: Path, kind: str
) -> None:
    values = json.loads(storage.read_bytes(f"{dense}/manifest.json"))
    values[kind][0] |= {"bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    storage.write_bytes(f"{dense}/manifest.json", json.dumps(values).encode())
    file = f"{dense}/{values[kind][0]['path']}"
    storage.write_bytes(file, b"abc")
    with pytest.raises(DataError, match=f"^{file}: no readable Parquet file"):
        opened(dense, tmp_path)


def test_open_store_part_with_other_rows_is_refused(dense: str, tmp_path: Path) -> None:
    file = craft(dense, "edges", lambda table: table.slice(0, 2))
    values = json.loads(storage.read_bytes(f"{dense}/manifest.json"))
    values["edges"][0]["rows"] = 3
    storage.write_bytes(f"{dense}/manifest.json", json.dumps(values).encode())
    with pytest.raises(DataError, match=f"^{file}: 2 rows, not 3"):
        opened(dense, tmp_path)


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_open_store_larger_than_the_disk_is_refused(sparse: str, tmp_path: Path, kind: str) -> None:
    manifest = {"targets": [LABEL | {"kind": kind, "num_outputs": 2**55}]}
    craft(sparse, "nodes", lambda table: table, **manifest)
    with pytest.raises(DataError, match=r"takes .* MiB, .* MiB free; set cache\.dir"):
        opened(sparse, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
