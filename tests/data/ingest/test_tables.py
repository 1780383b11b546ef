import gzip
import io
import logging
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dnformer import storage
from dnformer.data.ingest.run import ingest
from dnformer.data.ingest.tables import TableSource
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.table import NodeColumns, Quantized, TargetColumn
from dnformer.errors import ConfigError, DataError


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def write(uri: str, content: str | dict[str, Any] | pa.Table) -> str:
    """Publishes CSV text, or columns as Parquet."""
    if isinstance(content, str):
        storage.write_bytes(uri, content.encode())
        return uri
    file = io.BytesIO()
    pq.write_table(content if isinstance(content, pa.Table) else pa.table(content), file)
    storage.write_bytes(uri, file.getvalue())
    return uri


class Read(NamedTuple):
    """What a dataset holds, from its files."""

    pairs: list[tuple[int, int]]  # sorted by destination
    nodes: NodeColumns
    manifest: Manifest


def content(out: str, manifest: Manifest) -> Read:
    def table(parts: list[PartFile]) -> Any:
        files = [storage.read_bytes(f"{out}/{part.path}") for part in parts]
        return pa.concat_tables([pq.read_table(io.BytesIO(file)) for file in files])

    edges, nodes, x = table(manifest.edges), table(manifest.nodes), None
    if manifest.features == "dense":
        flat = nodes["x"].combine_chunks().flatten().to_numpy()
        x = flat.reshape(-1, manifest.num_features)
        if manifest.feature_scale is not None:
            x = Quantized(x, np.array(manifest.feature_scale, np.float32))
    elif manifest.features == "sparse":
        index, value = (nodes[name].combine_chunks() for name in ("x_index", "x_value"))
        parts = (value.flatten(), index.flatten(), index.offsets)
        x = sp.csr_matrix(parts, shape=(manifest.num_nodes, manifest.num_features))
    targets = []
    for number, target in enumerate(manifest.targets):
        column = nodes[f"y_{number}"].combine_chunks()
        values = column if target.kind == "class" else column.flatten()
        shape = -1 if target.kind == "class" else (-1, target.num_outputs)
        targets.append(TargetColumn(target, values.to_numpy().reshape(shape)))
    ids: Any = None
    if manifest.ids != "index":
        column = table(manifest.id_files)["id"]
        ids = column.to_pylist() if manifest.ids == "string" else column.to_numpy()
    columns = NodeColumns(
        num_nodes=manifest.num_nodes,
        x=x,
        targets=tuple(targets),
        split=nodes["split"].to_numpy() if manifest.stored_split else None,
        ids=ids,
        time=nodes["time"].to_numpy() if manifest.node_time else None,
    )
    pairs = zip(edges["src"].to_pylist(), edges["dst"].to_pylist(), strict=True)
    return Read(list(pairs), columns, manifest)


def ingested(source: TableSource, folder: str) -> Read:
    """Everything that the tables hold, with repetitions."""
    out = f"{folder}/out-{uuid.uuid4().hex}"
    manifest, _ = ingest(source, out, policies={"duplicates": "keep"})
    return content(out, manifest)


def read(folder: str, edges: Any, nodes: Any = None, **options: Any) -> Read:
    """Writes the tables, CSV where they are text and Parquet otherwise, and ingests them."""
    uris = {"edges": edges, "nodes": nodes}
    for name, table in uris.items():
        if table is not None:
            ending = "csv" if isinstance(table, str) else "parquet"
            uris[name] = write(f"{folder}/{name}.{ending}", table)
    return ingested(TableSource(**uris, **options), folder)


def by_destination(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(pairs, key=lambda pair: pair[::-1])


EDGES = "src,dst\n0,1\n2,1\n"
NOT_UTF8 = pa.array([b"\xff"]).view(pa.string())
NODES = "id\n0\n1\n2\n"


def test_tables_ids_that_are_0_to_n_are_indices(folder: str) -> None:
    for edges, nodes in (
        (EDGES, "id\n2\n0\n1\n"),
        ({"src": [0, 2], "dst": [1, 1]}, {"id": [2, 0, 1]}),
        (EDGES, None),
    ):
        raw = read(folder, edges, nodes)
        assert raw.pairs == by_destination([(0, 1), (2, 1)])
        assert raw.nodes.num_nodes == 3
        assert raw.nodes.ids is None


def test_tables_integer_ids_rank_by_value(folder: str) -> None:
    for edges, nodes in (
        ("src,dst\n100,9\n9,20\n", None),
        ("src,dst\n100,9\n9,20\n", "id\n100\n9\n20\n"),
        ({"src": np.array([100, 9], np.uint8), "dst": [9, 20]}, {"id": [100, 9, 20]}),
        ({"src": [100, 9], "dst": [9, 20]}, "id\n100\n9\n20\n"),
        ("src,dst\n100,9\n9,20\n", {"id": [9, 20, 100]}),
    ):
        raw = read(folder, edges, nodes)
        assert isinstance(raw.nodes.ids, np.ndarray)
        assert raw.nodes.ids.dtype == np.int64
        assert raw.nodes.ids.tolist() == [9, 20, 100]
        assert raw.pairs == by_destination([(2, 0), (0, 1)])


def test_tables_string_ids_rank_by_utf8_bytes(folder: str) -> None:
    # by code points as UTF-16 the last two would change places
    names = ["Z", "a", "é", "\uff5e", "\U0001f600"]
    edges = {"src": names[::-1], "dst": ["a"] * 5}
    assert read(folder, edges).nodes.ids == names
    raw = read(folder, edges, {"id": ["é", "a", "\U0001f600", "Z", "\uff5e"]})
    assert raw.nodes.ids == names
    assert raw.pairs == by_destination([(4, 1), (3, 1), (2, 1), (1, 1), (0, 1)])


@pytest.mark.parametrize(
    ("edges", "ids"),
    [
        ("src,dst\n007,7\n", ["007", "7"]),
        ("src,dst\n1,x\n", ["1", "x"]),
        ("src,dst\n+1,2\n", ["+1", "2"]),
        ("src,dst\n1, 2\n", [" 2", "1"]),
        ("src,dst\n0x1F,1\n", ["0x1F", "1"]),
        ("src,dst\n1.0,1\n", ["1", "1.0"]),
        ("src,dst\n9223372036854775808,1\n", ["1", "9223372036854775808"]),
        ("src,dst\n-1,x\n", ["-1", "x"]),
        ("src,dst\nNA,null\n", ["NA", "null"]),
        ({"src": ["0"], "dst": ["1"]}, ["0", "1"]),
    ],
)
def test_tables_ids_that_are_not_all_plain_integers_stay_text(
    edges: Any, ids: list[str], tmp_path: Path
) -> None:
    assert read(str(tmp_path), edges).nodes.ids == ids


def test_tables_csv_ids_are_text_if_the_other_table_needs_it(tmp_path: Path) -> None:
    raw = read(str(tmp_path), "src,dst\n2,10\n", "id\nx\n2\n10\n")
    assert raw.nodes.ids == ["10", "2", "x"]
    raw = read(str(tmp_path), "src,dst\n2,10\n", {"id": ["2", "10"]})
    assert raw.nodes.ids == ["10", "2"]
    assert raw.pairs == by_destination([(1, 0)])


@pytest.mark.parametrize("kind", ["dictionary", "large_string", "string_view"])
def test_tables_any_string_type_is_an_id(kind: str, tmp_path: Path) -> None:
    column = pa.array(["b", "a"])
    if kind == "dictionary":
        column = column.dictionary_encode()
    else:
        column = column.cast(getattr(pa, kind)())
    raw = read(str(tmp_path), {"src": column, "dst": ["a", "a"]})
    assert raw.nodes.ids == ["a", "b"]
    assert raw.pairs == by_destination([(1, 0), (0, 0)])


@settings(deadline=None)
@given(
    ids=st.one_of(
        st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8, unique=True),
        st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=8, unique=True),
        st.permutations(list(range(5))),
    ),
    data=st.data(),
)
def test_tables_any_ids_map_to_their_rank(ids: list[Any], data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), min_size=1))
    src, dst = (list(ends) for ends in zip(*drawn, strict=True))
    raw = read("memory://any-ids", {"src": src, "dst": dst}, {"id": ids, "f": range(len(ids))})
    ranked = sorted(ids, key=lambda one: one.encode() if isinstance(one, str) else one)
    found = list(range(len(ids))) if raw.nodes.ids is None else list(raw.nodes.ids)
    assert found == ranked
    assert (raw.nodes.ids is None) == (ranked == list(range(len(ids))))
    assert raw.pairs == by_destination([(ranked.index(a), ranked.index(b)) for a, b in drawn])
    assert isinstance(raw.nodes.x, np.ndarray)
    assert [ids[int(row)] for row in raw.nodes.x[:, 0]] == ranked  # features moved along


def test_tables_label_split_and_features_follow_the_ids(folder: str) -> None:
    expected = [[2.0, 0.5], [3.0, 0.25], [1.0, -1.0]]
    csv = "b,split,id,label,a\n1,train,c,1,-1\n2,test,a,,0.5\n3,valid,b,0,0.25\n"
    columns = {
        "b": [1, 2, 3],
        "split": ["train", "test", "valid"],
        "id": ["c", "a", "b"],
        "label": [1, None, 0],
        "a": np.array([-1, 0.5, 0.25], np.float16),
    }
    lists = {**columns, "x": pa.array([[1, -1], [2, 0.5], [3, 0.25]], pa.list_(pa.float64()))}
    del lists["a"], lists["b"]
    for nodes in (csv, columns, lists):
        raw = read(folder, "src,dst\na,b\n", nodes)
        assert isinstance(raw.nodes.x, np.ndarray)
        assert raw.nodes.x.dtype == np.float32
        assert raw.nodes.x.tolist() == expected
        assert raw.nodes.targets[0].values.dtype == np.int64
        assert raw.nodes.targets[0].values.tolist() == [-1, 0, 1]
        assert raw.nodes.targets[0].target.num_outputs == 2
        assert raw.nodes.targets[0].target.classes is None
        assert raw.nodes.split is not None
        assert raw.nodes.split.dtype == np.int8
        assert raw.nodes.split.tolist() == [3, 2, 1]


def test_tables_other_names(folder: str) -> None:
    raw = read(
        folder,
        {"from": ["a"], "to": ["b"]},
        {"key": ["b", "a"], "cls": [0, 1], "f": [1, 2], "g": [3, 4], "note": ["x", "y"]},
        src="from",
        dst="to",
        id="key",
        label="cls",
        features=["g", "f"],
    )
    assert isinstance(raw.nodes.x, np.ndarray)
    assert raw.nodes.x.tolist() == [[4, 2], [3, 1]]
    assert raw.nodes.targets[0].values.tolist() == [1, 0]


def test_tables_without_node_columns_has_none(folder: str) -> None:
    raw = read(folder, EDGES, NODES)
    assert raw.nodes.x is raw.nodes.split is None
    assert raw.nodes.targets == ()
    assert read(folder, EDGES, "id,a\n0,1\n1,1\n2,1\n", features=[]).nodes.x is None


@pytest.mark.parametrize("kind", ["list_", "large_list", "fixed"])
def test_tables_any_list_type_is_features(kind: str, tmp_path: Path) -> None:
    list_type = pa.list_(pa.int32(), 2) if kind == "fixed" else getattr(pa, kind)(pa.int32())
    lists = pa.array([[9, 9], [1, 2], [3, 4], [5, 6]], list_type)[1:]  # with an offset
    raw = read(str(tmp_path), EDGES, {"id": [2, 1, 0], "x": lists})
    assert isinstance(raw.nodes.x, np.ndarray)
    assert raw.nodes.x.tolist() == [[5, 6], [3, 4], [1, 2]]


def test_tables_sparse_features_become_csr(tmp_path: Path) -> None:
    x = np.zeros((3, 64))
    x[2, 5] = 7
    nodes = {"id": [0, 1, 2], "x": pa.array(x.tolist())}
    found = read(str(tmp_path), EDGES, nodes).nodes.x
    assert sp.issparse(found)
    assert np.array_equal(found.toarray(), x)
    dense = read(str(tmp_path), EDGES, nodes, feature_layout="dense").nodes.x
    assert np.array_equal(dense, x)


@pytest.mark.parametrize(
    ("labels", "y", "classes"),
    [
        (pa.array([1.0, None, 0.0]), [1, -1, 0], None),
        (pa.array([1, -1, 0], pa.int8()), [1, -1, 0], None),
        (pa.array([True, None, False]), [1, -1, 0], None),
        (pa.array(["b", None, "a"]), [1, -1, 0], ["a", "b"]),
        (pa.array(["b", "", "a"]), [1, -1, 0], ["a", "b"]),
        (pa.array(["b", None, "a"]).dictionary_encode(), [1, -1, 0], ["a", "b"]),
        (pa.array(["1", None, "0"]), [1, -1, 0], ["0", "1"]),
        ("1,,0", [1, -1, 0], None),
        ("1.0,-1.0,0.", [1, -1, 0], None),
        ("b,,a", [1, -1, 0], ["a", "b"]),
        ("true,,false", [1, -1, 0], ["false", "true"]),
        ("1,,01", [1, -1, 0], ["01", "1"]),
        ("1,,x", [0, -1, 1], ["1", "x"]),
    ],
    ids=str,
)
def test_tables_any_kind_of_label(
    labels: Any, y: list[int], classes: list[str] | None, tmp_path: Path
) -> None:
    nodes: Any = {"id": [0, 1, 2], "label": labels}
    if isinstance(labels, str):
        values = zip(range(3), labels.split(","), strict=True)
        nodes = "id,label\n" + "".join(f"{node},{label}\n" for node, label in values)
    raw = read(str(tmp_path), EDGES, nodes)
    assert raw.nodes.targets[0].values.tolist() == y
    assert raw.nodes.targets[0].target.num_outputs == 2
    assert raw.nodes.targets[0].target.classes == classes


def test_tables_num_classes_and_labels_without_value(tmp_path: Path) -> None:
    nodes = {"id": [0, 1, 2], "label": [0, 4, None]}
    raw = read(str(tmp_path), EDGES, nodes, num_classes=9)
    assert raw.nodes.targets[0].target.num_outputs == 9
    nodes["label"] = [None] * 3
    assert read(str(tmp_path), EDGES, nodes).nodes.targets == ()
    raw = read(str(tmp_path), EDGES, nodes, num_classes=9)
    assert raw.nodes.targets[0].values.tolist() == [-1, -1, -1]
    assert raw.nodes.targets[0].target.num_outputs == 9


def test_tables_several_files_count_rows_each(folder: str) -> None:
    write(f"{folder}/e-0.csv", "src,dst\na,b\nb,a\n")
    write(f"{folder}/e-1.csv", "src,dst\n")
    write(f"{folder}/e-2.csv", "dst,src\nc,a\n")
    write(f"{folder}/n-0.parquet", {"id": ["c"], "label": pa.array([None], pa.null()), "f": [1]})
    write(f"{folder}/n-1.parquet", {"f": [2.5, 0], "label": [1.0, 0.0], "id": ["a", "b"]})
    raw = ingested(TableSource(edges=f"{folder}/e-*.csv", nodes=f"{folder}/n-?.parquet"), folder)
    assert raw.pairs == by_destination([(0, 1), (1, 0), (0, 2)])
    assert isinstance(raw.nodes.x, np.ndarray)
    assert raw.nodes.x.tolist() == [[2.5], [0], [1]]
    assert raw.nodes.targets[0].values.tolist() == [1, 0, -1]


@pytest.mark.parametrize("ending", ["csv.gz", "csv.zst", "csv"])
def test_tables_compressed_csv(ending: str, folder: str) -> None:
    content = ("\ufeff" + EDGES).encode()  # with the mark that spreadsheets write
    if ending != "csv":
        content = pa.compress(content, {"csv.gz": "gzip", "csv.zst": "zstd"}[ending], asbytes=True)
    storage.write_bytes(f"{folder}/edges.{ending}", content)
    raw = ingested(TableSource(edges=f"{folder}/edges.{ending}"), folder)
    assert raw.pairs == by_destination([(0, 1), (2, 1)])


def test_tables_quoted_csv_ids(tmp_path: Path) -> None:
    raw = read(str(tmp_path), 'src,dst\n"a,b","c ""d"""\n')
    assert raw.nodes.ids == ["a,b", 'c "d"']


def test_tables_other_edge_columns_warn(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dnformer"):
        read(folder, "w,src,dst,t\n1,0,1,2\n")
    assert caplog.messages == [f"{folder}/edges.csv: columns not read: w, t"]
    caplog.clear()
    read(folder, EDGES, NODES)
    assert not caplog.messages


EDGES_REFUSED: dict[str, tuple[Any, str]] = {
    "negative-id": ("src,dst\n0,1\n1,-1\n", r"edges.csv row 2: dst -1 is negative;"),
    "null-id": ({"src": [0, None], "dst": [1, 1]}, r"row 2: src None is empty;"),
    "all-null-ids": ({"src": [None], "dst": [None]}, r"row 1: src None is empty;"),
    "empty-id": ("src,dst\na,b\na,\n", r"edges.csv row 2: dst '' is empty;"),
    "huge-id": ({"src": [1], "dst": pa.array([2**63], pa.uint64())}, r"row 1: dst 92.*8 is too l"),
    "float-id": ({"src": [0.5], "dst": [1]}, r"column 'src' is double; it must be int"),
    "not-utf8-id": ({"src": NOT_UTF8, "dst": ["b"]}, r"row 1 and on: column 'src': .*UTF8"),
    "mixed-ends": ({"src": [1], "dst": ["a"]}, r"src of .*edges.parquet is int64 and dst of .* is"),
    "no-src": ("a,b\n0,1\n", r"/edges.csv: no column 'src'; it has a, b; name the column with src"),
    "near-dst": ("src,dts\n0,1\n", r"no column 'dst' \(did you mean 'dts'\?\); it has"),
    "twice-src": ("src,src,dst\n0,1,2\n", r"edges.csv: 2 columns 'src'; rename all but"),
    "no-edges": ("src,dst\n", r"/edges.csv: no rows; the table must have at least one"),
    "empty-file": ("", r"/edges.csv: cannot be read as CSV: Empty CSV file"),
    "ragged-edges": ("src,dst\n\n0,1\n2\n", r"edges.csv row 2: 1 values, expected 2 as"),
}

NODES_REFUSED: dict[str, tuple[Any, str]] = {
    "negative-node": ({"id": [0, 1, -2]}, r"nodes.parquet row 3: id -2 is negative"),
    "empty-string-id": ({"id": ["", "1"]}, r"nodes.parquet row 1: id '' is empty;"),
    "duplicate-node": ("id\n0\n1\n2\n1\n", r"/nodes.csv row 4: id 1 repeats .*nodes.csv row 2; a"),
    "nan-feature": ("id,a,b\n2,1,1\n1,1,nan\n0,1,1\n", r"/nodes.csv row 2: b is nan; it must be a"),
    "infinite-feature": (
        {"id": [1, 0], "x": [[1.0], [float("-inf")]]},
        r"row 2: x\[0\] is -inf; it",
    ),
    "empty-csv-feature": ("id,a\n0,1\n1,\n2,1\n", r"nodes.csv row 2: a has no value;"),
    "null-in-list": ({"id": [0, 1, 2], "x": [[1, 2], [3, None], [5, 6]]}, r"row 2: x has no val"),
    "text-feature": ({"id": [0, 1, 2], "name": ["x", "y", "z"]}, r"column 'name' is string, not n"),
    "text-csv-feature": ("id,a,name\n0,1,5\n1,1,abc\n2,1,5\n", r"/nodes.csv row 2: name is 'abc',"),
    "two-lists": (
        {"id": [0], "x": [[1, 2]], "z": [[1, 2]]},
        r"row 1: column 'x' has 2 values, exp",
    ),
    "empty-lists": (
        {"id": [0], "x": pa.array([[]], pa.list_(pa.int8()))},
        r"'x' has 0 values, exp",
    ),
    "ragged": ({"id": [0, 1, 2], "x": [[1, 2], [3, 4], [5]]}, r"/nodes.parquet row 3: column 'x'"),
    "ragged-csv": ("id,a\n0,1\n1,2,3\n2,1\n", r"/nodes.csv row 2: 3 values, expected 2 as in the"),
    "label-negative": ("id,label\n0,0\n1,-2\n2,1\n", r"nodes.csv row 2: label -2 is neg"),
    "label-wild": ("id,label\n0,0\n1,9\n2,\n", r"row 2: label 9 makes 10 classes, but"),
    "label-fraction": ({"id": [0, 1, 2], "label": [0, 1.5, 0]}, r"row 2: label 1.5 is no"),
    "label-csv-fraction": ("id,label\n0,0\n1,1.5\n2,0\n", r"row 2: label 1.5 is no class"),
    "label-type": (
        {"id": [0], "label": pa.array([1], pa.date32())},
        r"column 'label' is date32.* must be whole",
    ),
    "split-unknown": ("id,split\n0,train\n1,dev\n2,test\n", r"/nodes.csv row 2: split 'dev' is no"),
    "split-empty": ("id,split\n0,train\n1,\n2,test\n", r"no row has val in column 'split'; fill i"),
    "split-all-null": ({"id": [0, 1, 2], "split": [None] * 3}, r"no row has train in col"),
    "split-type": ({"id": [0, 1, 2], "split": [1, 2, 3]}, r"'split' is int64; it must"),
    "no-id": ("node\n0\n", r"nodes.csv: no column 'id'.*name the column with id$"),
    "no-nodes": ({"id": pa.array([], pa.int64())}, r"nodes.parquet: no rows"),
}

PAIRS_REFUSED: dict[str, tuple[Any, Any, str]] = {
    "dangling": ("src,dst\n0,1\n3,1\n", NODES, r"/edges.csv row 2: src 3 is no node of .*csv;"),
    "dangling-string": (
        {"src": ["a"], "dst": ["z"]},
        {"id": ["a"]},
        r"row 1: dst 'z' is no node of",
    ),
    "dangling-in-gap": ({"src": [5], "dst": [6]}, {"id": [5, 7]}, r"row 1: dst 6 is no node of"),
    "mixed": ("src,dst\na,1\n", {"id": [1]}, r"row 1: src 'a' is no plain integer, id of"),
    "mixed-zero": ("src,dst\n1,01\n", {"id": [1]}, r"row 1: dst '01' is no plain integer"),
}

OPTIONS_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "label-large": ("id,label\n0,0\n1,3\n2,1\n", {"num_classes": 3}, r"row 2: label 3 is out"),
    "names": ("id,label\n0,a\n1,b\n2,a\n", {"num_classes": 3}, r"label has 2 class names, but"),
    "no-label": (NODES, {"label": "class"}, r"no column 'class'.*name the column with label"),
    "no-split": (NODES, {"split": "fold"}, r"no column 'fold'.*name the column with split"),
    "no-feature": (NODES, {"features": ["a"]}, r"no column 'a'.* with features"),
}


def refused(message: str, *args: Any, **options: Any) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(*args, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", EDGES_REFUSED)
def test_tables_bad_edge_table_is_refused(case: str, folder: str) -> None:
    edges, message = EDGES_REFUSED[case]
    refused(message, folder, edges)


@pytest.mark.parametrize("case", NODES_REFUSED)
def test_tables_bad_node_table_is_refused(case: str, folder: str) -> None:
    nodes, message = NODES_REFUSED[case]
    refused(message, folder, EDGES, nodes)


@pytest.mark.parametrize("case", PAIRS_REFUSED)
def test_tables_tables_that_do_not_fit_are_refused(case: str, folder: str) -> None:
    edges, nodes, message = PAIRS_REFUSED[case]
    refused(message, folder, edges, nodes)


@pytest.mark.parametrize("case", OPTIONS_REFUSED)
def test_tables_option_that_does_not_fit_is_refused(case: str, folder: str) -> None:
    nodes, options, message = OPTIONS_REFUSED[case]
    refused(message, folder, EDGES, nodes, **options)


def test_tables_message_begins_with_the_uri_as_given(folder: str) -> None:
    refused(rf"^{folder}/edges.csv row 2: dst -1 is negative", folder, "src,dst\n0,1\n1,-1\n")


def test_tables_row_of_the_right_file_is_named(folder: str) -> None:
    write(f"{folder}/e-0.parquet", {"src": [0, 1], "dst": [1, 0]})
    write(f"{folder}/e-1.parquet", {"src": [0, 7], "dst": [1, 0]})
    write(f"{folder}/n-0.parquet", {"id": [0], "x": [[1, 2]]})
    write(f"{folder}/n-1.parquet", {"id": [1, 2], "x": [[1, 2], [1, 2]]})
    source = TableSource(edges=f"{folder}/e-*.parquet", nodes=f"{folder}/n-*.parquet")
    with pytest.raises(DataError, match=r"e-1.parquet row 2: src 7 is no node of .*n-\*.parquet"):
        ingested(source, folder)
    write(f"{folder}/n-1.parquet", {"id": [1, 0], "x": [[1, 2], [1, 2]]})
    with pytest.raises(DataError, match=r"n-1.parquet row 2: id 0 repeats .*n-0.parquet row 1"):
        ingested(source, folder)
    for wrong, message in (
        ({"id": [1, 7], "x": [[1, 2], [1, 2, 3]]}, r"row 2: column 'x' has 3 values, expected 2"),
        ({"id": [1, 7], "x": [1, 2]}, r"row 1 and on: column 'x' is int64, expected lists of 2"),
        (
            {"id": ["1", "7"], "x": [[1, 2], [1, 2]]},
            r"column 'id' is int64 in .*n-0.* and large_st",
        ),
        ({"id": [1, 7], "z": [[1, 2], [1, 2]]}, r"n-1.parquet: no column 'x'"),
        ({"id": [1, 7], "x": [[1, 2]] * 2, "w": [1, 2]}, r"n-1.parquet: other columns than .*: w;"),
    ):
        write(f"{folder}/n-1.parquet", wrong)
        with pytest.raises(DataError, match=message):
            ingested(source, folder)


def test_tables_file_that_cannot_be_read_is_named(folder: str) -> None:
    for name, content, message in (
        ("e.parquet", b"hello", "cannot be read as Parquet"),
        ("e.parquet", b"PAR1" * 8, "cannot be read as Parquet"),
        ("e.csv", b"src,dst\n\xff\xfe,1\n", "cannot be read as CSV: .*UTF8"),
        ("e.csv.gz", b"src,dst\n0,1\n", "cannot be read as CSV: zlib"),
        ("e.csv.gz", gzip.compress(b"src,dst\n0,1\n" * 9)[:-12], "cannot be read as CSV"),
        ("e.csv.zst", b"src,dst\n0,1\n", "cannot be read as CSV: ZSTD"),
        ("e.txt", b"src,dst\n0,1\n", r"the name must end in .parquet, .csv, .csv.gz, .csv.zst"),
    ):
        storage.write_bytes(f"{folder}/{name}", content)
        with pytest.raises(DataError, match=rf"^{folder}/{name}: {message}[^\n]*$"):
            ingested(TableSource(edges=f"{folder}/{name}"), folder)


def test_tables_missing_file_folder_or_mixture_is_named(folder: str) -> None:
    write(f"{folder}/edges/part.parquet", {"src": [0], "dst": [1]})
    write(f"{folder}/edges/part.csv", EDGES)
    for edges, message in (
        ("none.csv", "none.csv: no such file"),
        ("none-*.csv", r"none-\*.csv: no file matches"),
        ("edges", r"edges is a folder; give its files, as in .*/edges/\*.parquet"),
        ("edges/*", r"edges/\*: Parquet and CSV files; a table has files of one kind"),
    ):
        with pytest.raises(DataError, match=message):
            ingested(TableSource(edges=f"{folder}/{edges}"), folder)


@pytest.mark.parametrize(
    "options", [{"label": "y"}, {"split": "s"}, {"features": ["f"]}, {"num_classes": 2}], ids=str
)
def test_tables_node_option_without_node_table_is_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^{next(iter(options))} is about the node table, but"):
        read(str(tmp_path), EDGES, **options)


def test_tables_num_classes_without_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^num_classes needs labels, but .*nodes.csv has no col"):
        read(str(tmp_path), EDGES, NODES, num_classes=3)


@pytest.mark.parametrize(
    "options",
    [
        {"features": ["id"]},
        {"label": "a", "features": ["a"]},
        {"src": "dst"},
        {"edge_attrs": ["w", "src"]},
    ],
    ids=str,
)
def test_tables_column_named_for_two_things_is_refused(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^column '\w+' is named for two things; name it once$"):
        read(str(tmp_path), "src,dst,w\n0,1,2\n", "id,a\n0,1\n1,2\n", **options)


def test_table_source_unknown_option_is_refused() -> None:
    with pytest.raises(ValidationError, match="wieght"):
        TableSource.model_validate({"edges": "e.csv", "wieght": "w"})
