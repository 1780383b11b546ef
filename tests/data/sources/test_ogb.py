"""OGB's raw folders, small ones that the tests write in both layouts."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnformer import storage
from dnformer.data.clean import clean
from dnformer.data.sources.ogb import OgbSource, open_ogb
from dnformer.data.stream import in_memory
from dnformer.data.table import RawGraph, Target
from dnformer.errors import ConfigError, DataError

Parts = dict[str, Any]

CITED = [[0, 1, 4, 2, 3], [1, 2, 0, 3, 4]]  # 0 cites 1, ...


def papers() -> Parts:
    """Five papers as ogbn-arxiv has them: features, a class and a year each; a split by time."""
    return {
        "edge": np.array(CITED),
        "node_feat": np.array([[0.5, -0.0], [1.25, 2], [0, 3], [4, -1e-3], [5, 6]]),
        "node_label": np.array([[3], [39], [0], [1], [2]]),
        "node_year": np.array([[2015], [2016], [2018], [2019], [2020]]),
        "split": ("time", {"train": [0, 1], "valid": [2], "test": [4, 3]}),
    }


def proteins() -> Parts:
    """Four proteins: edges with 8 numbers, 112 labels, no features; node 3 has no edge."""
    rng = np.random.default_rng(0)
    return {
        "edge": np.array([[0, 1, 0], [1, 2, 2]]),
        "edge_feat": rng.integers(1, 999, (3, 8)) / 1000,
        "node_label": rng.integers(0, 2, (4, 112)),
        "node_species": np.array([[3702], [4932], [3702], [9606]]),
        "split": ("species", {"train": [0, 2], "valid": [1], "test": [3]}),
    }


def unlabelled() -> Parts:
    """`papers`, of which only one has a class, as in ogbn-papers100M."""
    parts = papers()
    parts["node_label"] = np.full((5, 1), np.nan, np.float32)
    parts["node_label"][2] = 171
    parts["node_feat"] = parts["node_feat"].astype(np.float32)
    return parts


def csv(rows: Any, *, number: str = "%r") -> bytes:
    lines = [",".join(number % value for value in np.atleast_1d(row).tolist()) for row in rows]
    return gzip.compress("".join(f"{line}\n" for line in lines).encode())


def write_csv(root: str, parts: Parts) -> None:
    files = {
        "raw/edge": parts["edge"].T,
        "raw/num-node-list": [len(parts["node_label"])],
        "raw/num-edge-list": [parts["edge"].shape[1]],
        "raw/node-label": parts["node_label"],
    }
    for name in ("node_feat", "edge_feat"):
        if name in parts:
            files[f"raw/{name.replace('_', '-')}"] = parts[name]
    for name in ("node_year", "node_species"):
        if name in parts:
            files[f"raw/{name}"] = parts[name]
    for name, rows in files.items():
        storage.write_bytes(f"{root}/{name}.csv.gz", csv(rows))
    write_split(root, parts)


def write_split(root: str, parts: Parts) -> None:
    split, sets = parts["split"]
    for name, nodes in sets.items():
        storage.write_bytes(f"{root}/split/{split}/{name}.csv.gz", csv(nodes))


def write_npz(root: str, parts: Parts, **changes: Any) -> None:
    arrays = {
        "edge_index": parts["edge"],
        "num_nodes_list": np.array([len(parts["node_label"])]),
        "num_edges_list": np.array([parts["edge"].shape[1]]),
        **{name: parts[name] for name in ("node_feat", "node_year", "edge_feat") if name in parts},
    }
    for file, content in (
        ("data", arrays | changes),
        ("node-label", {"node_label": parts["node_label"]}),
    ):
        stream = io.BytesIO()
        np.savez_compressed(stream, **content)
        storage.write_bytes(f"{root}/raw/{file}.npz", stream.getvalue())
    write_split(root, parts)


Writer = Callable[[str, Parts], None]
both = pytest.mark.parametrize("write", [write_csv, write_npz], ids=["csv", "npz"])


def read(name: str, root: object) -> RawGraph:
    return in_memory(open_ogb(OgbSource(name=name, root=str(root)))[0])


@both
def test_open_ogb_arxiv(write: Writer, tmp_path: Path) -> None:
    write(str(tmp_path), papers())
    stream, policies = open_ogb(OgbSource(name="ogbn-arxiv", root=str(tmp_path)))
    assert policies.direction == "directed"
    assert (stream.num_nodes, stream.num_edges) == (5, 5)
    raw = in_memory(stream)
    assert [raw.src.tolist(), raw.dst.tolist()] == CITED
    assert raw.edges.attr is None
    nodes = raw.nodes
    assert isinstance(nodes.x, np.ndarray)
    assert nodes.x.dtype == np.float32
    assert np.array_equal(nodes.x, papers()["node_feat"].astype(np.float32))
    assert not np.signbit(nodes.x[0, 1])
    ((target, y),) = nodes.targets
    assert target == Target(name="label", kind="class", num_outputs=40)
    assert y.dtype == np.int64
    assert y.tolist() == [3, 39, 0, 1, 2]
    assert nodes.split is not None
    assert nodes.split.tolist() == [1, 1, 2, 3, 3]
    assert nodes.time is not None
    assert nodes.time.dtype == np.int64
    assert nodes.time.tolist() == [2015, 2016, 2018, 2019, 2020]
    assert stream.where(2).endswith(
        "raw/edge.csv.gz row 3" if write is write_csv else "raw/data.npz: edge_index[:, 2]"
    )


@both
def test_open_ogb_products_gets_its_inverse_edges(write: Writer, tmp_path: Path) -> None:
    parts = papers()
    del parts["node_year"]
    parts["split"] = ("sales_ranking", parts["split"][1])
    write(str(tmp_path), parts)
    stream, policies = open_ogb(OgbSource(name="ogbn-products", root=str(tmp_path)))
    table = clean(in_memory(stream), policies)
    assert table.counts["num_edges"] == 10
    assert table.nodes.time is None
    assert table.nodes.targets[0].target.num_outputs == 47


@both
def test_open_ogb_proteins_has_labels_and_edge_attributes(write: Writer, tmp_path: Path) -> None:
    parts = proteins()
    write(str(tmp_path), parts)
    stream, policies = open_ogb(OgbSource(name="ogbn-proteins", root=str(tmp_path)))
    assert policies.direction == "undirected"
    raw = in_memory(stream)
    assert raw.edges.attr is not None
    assert np.array_equal(raw.edges.attr, parts["edge_feat"].astype(np.float32))
    assert raw.edges.attr_names[7] == "edge_feat_7"
    ((target, y),) = raw.nodes.targets
    assert target == Target(name="label", kind="multilabel", num_outputs=112)
    assert y.dtype == np.int8
    assert np.array_equal(y, parts["node_label"])
    # the mean of edges 0 and 2, 0 and 1, 1 and 2, none
    attr = parts["edge_feat"]
    expected = np.stack([attr[[0, 2]], attr[[0, 1]], attr[[1, 2]], 0 * attr[:2]]).mean(axis=1)
    assert raw.nodes.x == pytest.approx(expected, rel=1e-6)
    assert raw.nodes.split is not None
    assert raw.nodes.split.tolist() == [1, 2, 1, 3]


@both
def test_open_ogb_papers_without_a_label(write: Writer, tmp_path: Path) -> None:
    write(str(tmp_path), unlabelled())
    nodes = read("ogbn-papers100M", tmp_path).nodes
    assert nodes.targets[0].values.tolist() == [-1, -1, 171, -1, -1]
    assert nodes.targets[0].target.num_outputs == 172


def test_open_ogb_half_precision_stays(tmp_path: Path) -> None:
    parts = unlabelled()
    parts["node_feat"] = parts["node_feat"].astype(np.float16)
    write_npz(str(tmp_path), parts)
    x = read("ogbn-papers100M", tmp_path).nodes.x
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float16
    assert np.array_equal(x, parts["node_feat"])


def test_open_ogb_unknown_labels_of_proteins(tmp_path: Path) -> None:
    parts = proteins()
    parts["node_label"] = parts["node_label"].astype(np.float64)
    parts["node_label"][1, 5] = np.nan
    write_csv(str(tmp_path), parts)
    y = read("ogbn-proteins", tmp_path).nodes.targets[0].values
    assert y[1, 5] == -1
    assert np.array_equal(y[0], parts["node_label"][0])


@both
def test_open_ogb_in_several_pieces(write: Writer, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = papers() | {
        "edge": rng.integers(0, 70_000, (2, 140_000)),
        "node_feat": rng.integers(0, 99, (70_000, 1)) / 4,
        "node_label": rng.integers(0, 40, (70_000, 1)),
        "node_year": rng.integers(2000, 2020, (70_000, 1)),
    }
    write(str(tmp_path), parts)
    stream, _ = open_ogb(OgbSource(name="ogbn-arxiv", root=str(tmp_path)))
    assert [chunk.src.size for chunk in stream.edges()] == [131_072, 8_928]
    assert [block.num_nodes for block in stream.nodes()] == [65_536, 4_464]
    raw = in_memory(stream)
    assert np.array_equal([raw.src, raw.dst], parts["edge"])
    assert np.array_equal(raw.nodes.x, parts["node_feat"])
    assert np.array_equal(raw.nodes.targets[0].values, parts["node_label"][:, 0])
    assert np.array_equal(raw.nodes.time, parts["node_year"][:, 0])


@both
def test_open_ogb_attributes_in_several_pieces(write: Writer, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edge = rng.integers(0, 4, (2, 140_000))
    parts = proteins() | {"edge": edge, "edge_feat": edge.sum(axis=0)[:, None] / 8}
    write(str(tmp_path), parts)
    raw = read("ogbn-proteins", tmp_path)
    assert raw.edges.attr is not None
    assert np.array_equal(raw.edges.attr[:, 0], (raw.src + raw.dst) / 8)


def test_open_ogb_edges_stored_by_column(tmp_path: Path) -> None:
    write_npz(str(tmp_path), papers(), edge_index=np.asfortranarray(CITED))
    raw = read("ogbn-arxiv", tmp_path)
    assert [raw.src.tolist(), raw.dst.tolist()] == CITED


@pytest.mark.parametrize("folder", ["", "/ogbn_arxiv", "/ogbn_arxiv_pyg", "/arxiv"])
def test_open_ogb_finds_the_folder_anywhere(folder: str, tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}{len(folder)}"
    write_csv(root + folder, papers())
    assert read("ogbn-arxiv", root).nodes.num_nodes == 5


def test_open_ogb_missing_folder_names_where_it_looked(tmp_path: Path) -> None:
    message = rf"^no file edge.csv.gz or data.npz in {tmp_path}/raw, .*/arxiv/raw; give the folder"
    with pytest.raises(DataError, match=message):
        read("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(
    ("name", "nearest"), [("ogbn-arxive", "ogbn-arxiv"), ("papers100m", "ogbn-papers100M")]
)
def test_open_ogb_unknown_name_lists_the_nearest_first(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"^no graph '{name}' that .*; there are {nearest}, "):
        read(name, ".")


Change = Callable[[Any], Any]


@both
@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("edge", lambda e: e + 1, r"(row 3|\[:, 2\]): 5 -> 1: 5 is no node; the 5 nodes are 0 to"),
        ("edge", lambda e: -e, r"(row 1|\[:, 0\]): 0 -> -1: -1 is no node; the 5 nodes are 0 to 4"),
        ("node_feat", lambda x: x[:-1], r"node.feat.*: 4 rows, expected 5; fetch"),
        ("node_feat", lambda x: np.tile(x, (2, 1)), r"node.feat.*: more than 5 rows, expected 5"),
        (
            "node_feat",
            lambda x: np.where(x == 3, np.inf, x),
            r"node.feat.* row 3: feature 1 is inf",
        ),
        ("node_year", lambda t: t[:-1], r"node_year.*: 4 rows, expected 5; fetch"),
        ("node_year", lambda t: t + 0.5, r"node_year.* row 1: 2015.5 is no year; fetch"),
        ("node_year", lambda t: np.tile(t, (1, 2)), r"node_year.*: 2 columns, expected 1; fetch"),
        ("node_label", lambda y: y + 1, r"node.label.* row 2: label 40; labels are 0 to 39, nan"),
        ("node_label", lambda y: y - 2, r"node.label.* row 3: label -2; labels are 0 to 39, nan"),
        ("node_label", lambda y: y / 2, r"node.label.* row 1: label 1.5; labels are 0 to 39, nan"),
        ("node_label", lambda y: np.tile(y, (1, 2)), r"node.label.*: 2 columns, expected 1; fetch"),
    ],
)
def test_open_ogb_wrong_file_is_refused(
    write: Writer, part: str, change: Change, message: str, tmp_path: Path
) -> None:
    parts = papers()
    write(str(tmp_path), parts | {part: change(parts[part])})
    with pytest.raises(DataError, match=message) as caught:
        read("ogbn-arxiv", tmp_path)
    assert "\n" not in str(caught.value)


@both
@pytest.mark.parametrize("rows", [2, 4])
def test_open_ogb_wrong_number_of_attributes_is_refused(
    write: Writer, rows: int, tmp_path: Path
) -> None:
    parts = proteins()
    write(str(tmp_path), parts | {"edge_feat": np.ones((rows, 8))})
    found = "2" if rows == 2 else "more than 3"
    with pytest.raises(DataError, match=rf"edge.feat.*: {found} rows, expected 3; fetch it again$"):
        read("ogbn-proteins", tmp_path)


@pytest.mark.parametrize(
    ("file", "rows", "message"),
    [
        ("raw/edge", [[0], [1]], r"edge.csv.gz: 1 columns, expected source and destination"),
        ("raw/edge", [[0, 1]], r"edge.csv.gz: 1 rows, expected 5; fetch it again"),
        ("raw/edge", [[0, 1]] * 6, r"edge.csv.gz: more than 5 rows, expected 5; fetch it again"),
        ("raw/num-node-list", [5, 5], r"num-node-list.csv.gz: 2 graphs; only datasets of one"),
        ("raw/num-edge-list", [-5], r"num-edge-list.csv.gz: -5; a size is 0 or more"),
        ("raw/num-node-list", [0], r"raw: no nodes; fetch it again"),
        ("raw/num-node-list", [[5, 1]], r"num-node-list.csv.gz: 2 columns, expected one"),
        ("split/time/valid", [2, 5], r"time/valid.csv.gz row 2: 5 is no node; the 5 nodes are 0"),
        ("split/time/test", [3, 1], r"time/test.csv.gz row 2: node 1 is in train.csv.gz too; fet"),
    ],
)
def test_open_ogb_wrong_csv_file_is_refused(
    file: str, rows: Any, message: str, tmp_path: Path
) -> None:
    write_csv(str(tmp_path), papers())
    (tmp_path / f"{file}.csv.gz").write_bytes(csv(rows))
    with pytest.raises(DataError, match=message):
        read("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("raw/edge", gzip.compress(b"0,1\n1,x\n"), r"edge.csv.gz: cannot .*Row #2: .*'x'; fetch"),
        ("raw/edge", gzip.compress(b"0,1\n1\n"), r"edge.csv.gz: cannot be .*Row #2: Expected 2"),
        ("raw/edge", gzip.compress(b"0,1\n1,\n"), r"edge.csv.gz row 2: a value is missing; fetch"),
        ("raw/edge", gzip.compress(b"0,1\n" * 999)[:-9], r"edge.csv.gz: cannot be read as CSV: Tr"),
        ("raw/edge", b"0,1\n", r"edge.csv.gz: cannot be read as CSV: zlib inflate failed"),
        ("raw/node-feat", gzip.compress(b""), r"node-feat.csv.gz: cannot be .*: Empty CSV file"),
        ("split/time/test", gzip.compress(b""), r"time/test.csv.gz: cannot be read.*Empty CSV"),
    ],
    ids=["text", "ragged", "missing", "truncated", "no-gzip", "empty", "empty-split"],
)
def test_open_ogb_damaged_csv_file_is_named(
    file: str, content: bytes, message: str, tmp_path: Path
) -> None:
    write_csv(str(tmp_path), papers())
    (tmp_path / f"{file}.csv.gz").write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read("ogbn-arxiv", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "file",
    ["raw/num-node-list", "raw/num-edge-list", "raw/node-feat", "raw/node-label", "raw/node_year",
     "split/time/train", "split/time/valid", "split/time/test"],
)  # fmt: skip
def test_open_ogb_missing_csv_file_is_named(file: str, tmp_path: Path) -> None:
    write_csv(str(tmp_path), papers())
    (tmp_path / f"{file}.csv.gz").unlink()
    with pytest.raises(DataError, match=rf"{file}.csv.gz: no such file$"):
        read("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": np.array([CITED[0]])}, r"edge_index is of shape \[1, 5\], expected \[2, 5"),
        ({"edge_index": np.array(CITED, float)}, r"data.npz: edge_index is no integer array"),
        ({"num_nodes_list": np.array([2, 3])}, r"data.npz: num_nodes_list: 2 graphs; only"),
        ({"num_edges_list": np.array([4])}, r"edge_index is of shape \[2, 5\], expected \[2, 4\]"),
        ({"node_feat": np.full((5, 2), "a")}, r"data.npz: node_feat is <U1 with 2 dimensions; it"),
        ({"node_feat": np.asfortranarray(np.ones((5, 2)))}, r"node_feat is stored by column"),
        ({"node_feat": np.array([{}] * 5)}, r"data.npz: no npz file of plain arrays .*objects"),
    ],
    ids=["one-row", "floats", "two-graphs", "edges", "text", "by-column", "objects"],
)
def test_open_ogb_wrong_npz_file_is_refused(changes: Parts, message: str, tmp_path: Path) -> None:
    write_npz(str(tmp_path), papers(), **changes)
    with pytest.raises(DataError, match=message):
        read("ogbn-arxiv", tmp_path)


def test_open_ogb_npz_without_an_array_or_file(tmp_path: Path) -> None:
    parts = papers()
    del parts["node_year"]
    write_npz(str(tmp_path), parts)
    with pytest.raises(DataError, match=r"raw/data.npz: no npz file .*'node_year.npy'"):
        read("ogbn-arxiv", tmp_path)
    (tmp_path / "raw" / "node-label.npz").unlink()
    with pytest.raises(DataError, match=r"raw/node-label.npz: no such file$"):
        read("ogbn-arxiv", tmp_path)


@both
def test_open_ogb_any_damage_is_a_data_error(write: Writer, tmp_path: Path) -> None:
    """Bytes changed, cut off or added, in the files and in what they compress."""
    write(str(tmp_path), papers())
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    rng = np.random.default_rng(0)
    refused = []
    for _ in range(150):
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        inside = file.suffix == ".gz" and rng.random() < 0.6
        content = gzip.decompress(whole) if inside else whole
        at = int(rng.integers(len(content)))
        changed = (
            content[:at] + rng.bytes(1) + content[at + 1 :],
            content[:at],
            content[:at] + rng.bytes(5) + content[at:],
        )[rng.integers(3)]
        file.write_bytes(gzip.compress(changed) if inside else changed)
        try:
            read("ogbn-arxiv", tmp_path)  # another digit is another graph, and no damage
        except DataError as error:
            refused.append(str(error))
        file.write_bytes(whole)
    assert len(refused) > 75
    assert not any("\n" in message for message in refused)
