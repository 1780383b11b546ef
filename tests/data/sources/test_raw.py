import io
import pickle
import shutil
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from torch_geometric.data import Data
from torch_geometric.datasets import Amazon, Planetoid
from torch_geometric.io import read_npz
from torch_geometric.io.planetoid import read_planetoid_data

from dnformer import storage
from dnformer.data.clean import clean
from dnformer.data.sources.raw import RAW_NAMES, RAW_POLICIES, RawSource, read_raw
from dnformer.data.table import GraphTable
from dnformer.errors import ConfigError, DataError

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
NPZ = "amazon_electronics_photo.npz"


def read(name: str, root: object) -> GraphTable:
    return clean(read_raw(RawSource(name=name, root=str(root))), RAW_POLICIES)


def assert_equals_pyg(table: GraphTable, data: Data) -> None:
    """The same nodes, features, labels, split and set of edges as PyG's own reader gives."""
    nodes = table.nodes
    x = nodes.x.toarray() if sp.issparse(nodes.x) else nodes.x
    assert np.array_equal(x, data.x.numpy())
    assert np.array_equal(nodes.targets[0].values, data.y.numpy())
    assert nodes.num_nodes == data.num_nodes
    assert nodes.targets[0].target.num_outputs == int(data.y.max()) + 1
    order = np.lexsort((data.edge_index[0].numpy(), data.edge_index[1].numpy()))
    assert np.array_equal(np.stack([table.src, table.dst]), data.edge_index.numpy()[:, order])
    masks = [data.get(f"{name}_mask") for name in ("train", "val", "test")]
    if masks[0] is None:
        assert nodes.split is None
    else:
        assert nodes.split is not None
        for code, mask in enumerate(masks, start=1):
            assert np.array_equal(nodes.split == code, mask.numpy())


def planetoid_parts() -> dict[str, Any]:
    """Two training nodes, 500 for validation, two more, then a gap in the three test nodes."""
    rng = np.random.default_rng(0)
    ally = np.eye(3, dtype=np.int32)[rng.integers(0, 3, 504)]
    graph = defaultdict(list, {node: [(node + 1) % 508] for node in range(508)})
    for node in range(508):
        graph[(node + 1) % 508].append(node)
    graph[3] += [3, 4, 4]  # a self-loop and a repetition
    return {
        "allx": sp.csr_matrix((rng.random((504, 4)) < 0.3).astype(np.float32)),
        "tx": sp.csr_matrix(np.array([[0, 2, 0, 0], [0, 0, 3, 0], [4, 0, 0, 5]], np.float32)),
        "x": sp.csr_matrix((2, 4), dtype=np.float32),
        "ally": ally,
        "ty": np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]], np.int32),
        "y": ally[:2],
        "graph": graph,
        "test.index": b"507\n504\n505\n",  # not sorted, 506 is missing
    }


def npz_parts() -> dict[str, Any]:
    adjacency = sp.csr_matrix(np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0]], np.float32))
    # row 0 has feature 1 twice, 2 - 1; row 2 a value above 1
    data, indices, indptr = [2.0, -1.0, -3.0, 7.0], [1, 1, 0, 1], [0, 2, 3, 4]
    return {
        "adj_data": adjacency.data,
        "adj_indices": adjacency.indices,
        "adj_indptr": adjacency.indptr,
        "adj_shape": np.array([3, 3]),
        "attr_data": np.array(data, np.float32),
        "attr_indices": np.array(indices, np.int32),
        "attr_indptr": np.array(indptr, np.int32),
        "attr_shape": np.array([3, 2]),
        "labels": np.array([0, 1, 0], np.int32),
    }


def write_planetoid(root: str, parts: dict[str, Any]) -> None:
    for part, value in parts.items():
        content = value if isinstance(value, bytes) else pickle.dumps(value, 4)
        storage.write_bytes(f"{root}/ind.citeseer.{part}", content)


def write_npz(root: str, parts: dict[str, Any]) -> None:
    file = io.BytesIO()
    np.savez(file, **parts)
    storage.write_bytes(f"{root}/{NPZ}", file.getvalue())


def test_read_raw_planetoid_with_a_gap_equals_pyg(tmp_path: Path) -> None:
    write_planetoid(str(tmp_path), planetoid_parts())
    table = read("Planetoid/CiteSeer", tmp_path)
    assert_equals_pyg(table, read_planetoid_data(str(tmp_path), "citeseer"))
    assert table.counts["self_loops_dropped"] == 1
    assert table.counts["duplicates_dropped"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"ind.citeseer.{part}" for part in planetoid_parts()
    )


def test_read_raw_npz_equals_pyg(tmp_path: Path) -> None:
    write_npz(str(tmp_path), npz_parts())
    table = read("Amazon/Photo", tmp_path)
    assert_equals_pyg(table, read_npz(str(tmp_path / NPZ)))
    assert table.counts["edges_added_by_undirected"] == 1


@pytest.mark.parametrize("folder", ["", "/raw", "/Photo/raw"], ids=["itself", "raw", "pyg-root"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_read_raw_finds_the_folder(folder: str, kind: str, tmp_path: Path) -> None:
    root = str(tmp_path) if kind == "local" else f"memory://{tmp_path.name}-{folder.count('/')}"
    write_npz(root + folder, npz_parts())
    raw = read_raw(RawSource(name="Amazon/Photo", root=root + "/"))
    assert raw.nodes.num_nodes == 3
    assert raw.where(1) == f"{root}{folder}/{NPZ}: 0 -> 1"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Planetoid/cora", "Planetoid/Cora, "),
        ("CiteSeer", "Planetoid/CiteSeer, "),
        ("Amazon/Phtoo", "Amazon/Photo, "),
        ("physics", "Coauthor/Physics, "),
    ],
)
def test_read_raw_unknown_name_lists_the_nearest_first(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"^no graph '{name}'; there are {nearest}") as caught:
        read_raw(RawSource(name=name, root="."))
    assert all(known in str(caught.value) for known in RAW_NAMES)


def test_read_raw_missing_folder_names_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^no file ind.cora.graph in .*{tmp_path}/Cora/raw;"):
        read("Planetoid/Cora", tmp_path)


@pytest.mark.parametrize("part", ["allx", "tx", "ally", "ty", "y", "test.index"])
def test_read_raw_missing_planetoid_file_is_named(part: str, tmp_path: Path) -> None:
    write_planetoid(str(tmp_path), planetoid_parts())
    (tmp_path / f"ind.citeseer.{part}").unlink()
    with pytest.raises(DataError, match=rf"ind.citeseer.{part}: no such file$"):
        read("Planetoid/CiteSeer", tmp_path)


Change = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("allx", lambda x: x[:-1], r"allx: 503 rows, expected 504"),
        ("tx", lambda x: x[:-1], r"tx: 2 rows, expected 3"),
        ("tx", lambda x: x[:, :3], r"tx: 3 features, .*allx has 4"),
        ("ty", lambda y: y[:-1], r"ty: 2 rows, expected 3"),
        ("y", lambda y: np.tile(y, (3, 1)), r"y: 6 training nodes .* overlap the test nodes"),
        ("ally", lambda y: y.argmax(1), r"ally: an array of shape \[504\], expected one-hot"),
        ("ally", lambda y: sp.csr_matrix(y), r"ally: holds a csr_matrix, expected an array"),
        ("allx", lambda x: x * np.nan, r"ind.citeseer node \d+: feature \d is nan"),
        ("allx", lambda x: {0: [1]}, r"allx: holds a dict, expected a matrix"),
        ("allx", lambda x: np.zeros(3), r"allx: an array of shape \[3\], expected a matrix"),
        ("graph", lambda g: {**g, 600: [0]}, r"expected each once, 504 to 508"),
        ("graph", lambda g: {**g, 3: [600]}, r"graph: 3 -> 600: 600 is no node"),
        ("graph", lambda g: {**g, 3: "ab"}, r"graph: a node's neighbours are no list"),
        ("graph", lambda g: {**g, 3: [1.0]}, r"graph: a node is no integer"),
        ("graph", lambda g: {**g, 3: [2**70]}, r"graph: a node is no integer"),
        ("graph", lambda g: np.zeros((2, 2)), r"graph: holds a ndarray, expected a dict"),
        ("test.index", lambda t: b"504\nx\n507\n", r"test.index line 2: b'x' is no node"),
        ("test.index", lambda t: b"9" * 5000, r"test.index line 1: b'9{40}' is no node"),
        ("test.index", lambda t: b"", r"test.index: 0 lines, no node; expected each once"),
        ("test.index", lambda t: b"504\n504\n507\n", r"3 lines, 2 nodes, 504 to 507; expected"),
        (
            "test.index",
            lambda t: b"503\n505\n507\n",
            r"3 nodes, 503 to 507; expected .* 504 to 507",
        ),
        (
            "test.index",
            lambda t: b"504\n505\n506\n",
            r"3 nodes, 504 to 506; expected .* 504 to 507",
        ),
    ],
)
def test_read_raw_wrong_planetoid_file_is_refused(
    part: str, change: Change, message: str, tmp_path: Path
) -> None:
    parts = planetoid_parts()
    write_planetoid(str(tmp_path), {**parts, part: change(parts[part])})
    with pytest.raises(DataError, match=message) as caught:
        read("Planetoid/CiteSeer", tmp_path)
    assert "\n" not in str(caught.value)


class Attack:
    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return open, (str(self.made), "w")


@pytest.mark.parametrize("part", ["allx", "tx", "ally", "ty", "y", "graph"])
def test_read_raw_malicious_pickle_runs_nothing(part: str, tmp_path: Path) -> None:
    write_planetoid(str(tmp_path), {**planetoid_parts(), part: Attack(tmp_path / "made")})
    with pytest.raises(DataError, match=rf"ind.citeseer.{part}: asks for \w+.open; only arrays"):
        read("Planetoid/CiteSeer", tmp_path)
    assert not (tmp_path / "made").exists()


def test_read_raw_malicious_npz_runs_nothing(tmp_path: Path) -> None:
    objects = np.array([Attack(tmp_path / "made")], dtype=object)
    write_npz(str(tmp_path), {**npz_parts(), "labels": objects})
    with pytest.raises(DataError, match=rf"{NPZ}: no npz file of plain arrays .*allow_pickle"):
        read("Amazon/Photo", tmp_path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("attr_shape", np.array([4, 2]), "attr: no CSR matrix"),
        ("attr_shape", np.array([3, 2, 1]), "attr_shape is array"),
        ("attr_shape", np.array([3.0, 2.0]), "attr_shape is array"),
        ("attr_indices", np.array([9, 1, 0, 1]), "attr: no CSR matrix"),
        ("attr_data", np.array([1, np.inf, 1, 1]), "node 0: feature 1 is inf"),
        ("adj_indices", np.array([0, 1, 2, 3]), "adj: no CSR matrix"),
        ("labels", np.array([0, 1]), r"labels \[2\] do not fit the 3 rows of attr"),
        ("labels", np.array([0.0, 1.0, 1.0]), "labels are float64; they must be integers"),
        ("labels", np.array([0, -3, 1]), "node 1: label -3 is negative"),
    ],
)
def test_read_raw_wrong_npz_array_is_refused(
    part: str, value: Any, message: str, tmp_path: Path
) -> None:
    write_npz(str(tmp_path), {**npz_parts(), part: value})
    with pytest.raises(DataError, match=rf"{NPZ}.*{message}") as caught:
        read("Amazon/Photo", tmp_path)
    assert "\n" not in str(caught.value)


def test_read_raw_missing_npz_array_is_named(tmp_path: Path) -> None:
    parts = npz_parts()
    del parts["labels"]
    write_npz(str(tmp_path), parts)
    with pytest.raises(DataError, match=rf"{NPZ}: no array 'labels'; it has adj_data, "):
        read("Amazon/Photo", tmp_path)


def test_read_raw_damaged_npz_is_refused(tmp_path: Path) -> None:
    write_npz(str(tmp_path), npz_parts())
    whole = (tmp_path / NPZ).read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], pickle.dumps([1])):
        (tmp_path / NPZ).write_bytes(content)
        with pytest.raises(DataError, match=rf"{NPZ}: no npz file of plain arrays"):
            read("Amazon/Photo", tmp_path)
    for at in range(0, len(whole), 7):
        (tmp_path / NPZ).write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            read("Amazon/Photo", tmp_path)
        except DataError:
            continue  # any other exception fails the test


@pytest.mark.shared
@pytest.mark.filterwarnings("ignore")  # PyG unpickles by names that numpy and scipy deprecate
@pytest.mark.parametrize("name", ["Planetoid/Cora", "Planetoid/CiteSeer", "Amazon/Photo"])
def test_read_raw_real_graph_equals_pygs_class(name: str, tmp_path: Path) -> None:
    family, graph = name.split("/")
    shutil.copytree(SHARED / graph, tmp_path / graph)
    data = {"Planetoid": Planetoid, "Amazon": Amazon}[family](str(tmp_path), graph)[0]
    assert_equals_pyg(read(name, SHARED / graph), data)


@pytest.mark.shared
def test_read_raw_physics_is_never_dense() -> None:
    """Its features are 1.1 GB dense; reading and cleaning takes less than a tenth of that."""
    tracemalloc.start()
    try:
        read("Coauthor/Physics", SHARED)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 9e6 < peak_bytes < 110e6
