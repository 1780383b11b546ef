from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dnformer import storage
from dnformer.data.graph import open_graph
from dnformer.data.ingest.run import ingest
from dnformer.data.ingest.tables import TableSource
from dnformer.data.sources.synthetic import SyntheticSource, open_synthetic
from dnformer.data.sources.synthetic_kernels import make_shuffle
from dnformer.data.sources.synthetic_tables import string_ids, write_tables
from dnformer.data.stream import in_memory
from dnformer.errors import DataError

SMALL: dict[str, Any] = {"nodes": 90, "classes": 3, "features": 2, "degree": 4}


def read(folder: Path, name: str) -> Any:
    return pq.read_table(sorted(folder.glob(f"{name}-*.parquet")))


def test_write_tables_int_ids_are_the_nodes(tmp_path: Path) -> None:
    stream = open_synthetic(SyntheticSource(kind="power_law", **SMALL))
    write_tables(stream, str(tmp_path))
    raw = in_memory(stream)
    edges, nodes = read(tmp_path, "edges"), read(tmp_path, "nodes")
    assert np.array_equal(edges["src"], raw.src)
    assert np.array_equal(edges["dst"], raw.dst)
    assert nodes["id"].to_pylist() == list(range(90))
    assert np.array_equal(nodes["label"], raw.nodes.targets[0].values)
    assert isinstance(raw.nodes.x, np.ndarray)
    assert nodes["features"].to_pylist() == raw.nodes.x.tolist()


def test_write_tables_string_ids_name_the_same_graph(tmp_path: Path) -> None:
    stream = open_synthetic(SyntheticSource(**SMALL))
    write_tables(stream, str(tmp_path), ids="string")
    raw = in_memory(stream)
    ids = read(tmp_path, "nodes")["id"].to_pylist()
    assert len(set(ids)) == 90
    assert all(len(one) == 14 and one.startswith("user-0000000") for one in ids)
    node = {one: number for number, one in enumerate(ids)}
    edges = read(tmp_path, "edges")
    assert [node[one] for one in edges["src"].to_pylist()] == raw.src.tolist()
    assert [node[one] for one in edges["dst"].to_pylist()] == raw.dst.tolist()
    order = np.argsort(ids)  # by name says nothing about the number
    assert abs(np.corrcoef(order, np.arange(90))[0, 1]) < 0.3


def test_string_ids_have_nine_hexadecimal_digits() -> None:
    size = 0x123456789
    found = string_ids(np.array([0, size - 1]), make_shuffle(size, 0)).to_pylist()
    assert all(int(one.removeprefix("user-"), 16) < size for one in found)
    assert string_ids(np.array([0, 1]), make_shuffle(2, 0)).to_pylist() in (
        ["user-000000000", "user-000000001"],
        ["user-000000001", "user-000000000"],
    )


def test_write_tables_ingested_are_the_graph(tmp_path: Path) -> None:
    stream = open_synthetic(SyntheticSource(**SMALL))
    folder = tmp_path / "tables"
    write_tables(stream, str(folder))
    tables = TableSource(
        edges=f"{folder}/edges-*.parquet", nodes=f"{folder}/nodes-*.parquet", feature_layout="dense"
    )
    ingest(tables, str(tmp_path / "one"))
    ingest(SyntheticSource(**SMALL), str(tmp_path / "two"))
    one, two = (open_graph(tmp_path / name, cache_dir=tmp_path) for name in ("one", "two"))
    assert one.num_edges == two.num_edges
    for part in ("colptr", "row", "x"):
        assert np.array_equal(getattr(one.store, part), getattr(two.store, part)), part
    assert np.array_equal(one.y, two.y)


def test_write_tables_cuts_files(tmp_path: Path) -> None:
    source = SyntheticSource(nodes=70_000, edges=400_000, classes=2, features=0)
    write_tables(open_synthetic(source), str(tmp_path), rows_per_file=131_072)
    rows = {path.name: pq.read_metadata(path).num_rows for path in sorted(tmp_path.iterdir())}
    assert rows == {
        "edges-00000.parquet": 131_072,
        "edges-00001.parquet": 131_072,
        "edges-00002.parquet": 131_072,
        "edges-00003.parquet": 400_000 - 3 * 131_072,
        "nodes-00000.parquet": 70_000,
    }


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_write_tables_small_features(dtype: Any, tmp_path: Path) -> None:
    source = SyntheticSource(**SMALL, feature_dtype=dtype)
    write_tables(open_synthetic(source), str(tmp_path))
    exact = in_memory(open_synthetic(SyntheticSource(**SMALL))).nodes.x
    found = np.array(read(tmp_path, "nodes")["features"].to_pylist())
    assert np.abs(found - exact).max() < (0.002 if dtype == "float16" else 0.02)


def test_write_tables_anywhere_and_only_into_an_empty_folder() -> None:
    stream = open_synthetic(SyntheticSource(**SMALL))
    uri = "memory://synthetic-tables"
    write_tables(stream, uri)
    assert storage.list_names(uri) == ["edges-00000.parquet", "nodes-00000.parquet"]
    with pytest.raises(DataError, match=r"is not empty \(found edges-00000.parquet\); choose anot"):
        write_tables(stream, uri)
