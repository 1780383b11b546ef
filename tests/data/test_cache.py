import math
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.cache import write_cache
from dnformer.data.graph import open_graph
from dnformer.data.manifest import read_manifest
from dnformer.data.parts import read_part
from dnformer.data.table import EdgeColumns, GraphTable, NodeColumns, class_target
from dnformer.errors import DataError

from .helpers import assert_holds, every_column, tables

MakeTable = Callable[..., GraphTable]


def round_trip(table: GraphTable, uri: str, folder: Path) -> None:
    manifest, written = write_cache(table, uri, source="test")
    assert written
    assert read_manifest(uri) == manifest
    assert_holds(open_graph(uri, cache_dir=folder), table)
    storage.remove(uri)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@settings(max_examples=50)
@given(table=tables())
def test_write_cache_round_trip_in_memory(table: GraphTable, stores: Path) -> None:
    name = uuid.uuid4().hex
    round_trip(table, f"memory://{name}", stores / name)


@settings(max_examples=5)
@given(table=tables())
def test_write_cache_round_trip_on_s3(table: GraphTable, s3: str, stores: Path) -> None:
    name = uuid.uuid4().hex
    round_trip(table, f"{s3}/{name}", stores / name)


def test_write_cache_round_trip_in_a_local_folder(make_table: MakeTable, tmp_path: Path) -> None:
    table = make_table([(0, 1), (2, 1), (1, 0)], x=[[0.5], [1.0], [2.0]], ids=["", "b", "é"])
    round_trip(table, str(tmp_path / "a folder" / "data"), tmp_path / "stores")


@pytest.fixture(scope="module")
def large() -> GraphTable:
    """200,000 nodes, four blocks of the fingerprint; the third block has no edge."""
    num_nodes = 200_000
    rng = np.random.default_rng(0)
    dst = np.sort(np.concatenate([rng.integers(0, num_nodes, 3000), np.full(2000, 7)]))
    dst = dst[dst // 65_536 != 2]
    src = rng.integers(0, num_nodes, len(dst))
    order = np.lexsort((src, dst))
    x = sp.random(num_nodes, 50, density=1e-3, format="csr", dtype=np.float32, random_state=0)
    nodes = NodeColumns(
        num_nodes=num_nodes,
        x=sp.csr_matrix(x),
        targets=class_target(rng.integers(-1, 3, num_nodes), 3),
        ids=[f"{node:06d}" for node in range(num_nodes)],
    )
    return GraphTable(nodes=nodes, dst=dst[order], src=src[order], policies={}, counts={})


def test_write_cache_of_any_part_size_is_the_same_graph(large: GraphTable, tmp_path: Path) -> None:
    one, _ = write_cache(large, str(tmp_path / "one"), source="test")
    many, _ = write_cache(large, str(tmp_path / "many"), source="test", part_bytes=1)
    assert [len(files) for files in (one.edges, one.nodes, one.id_files)] == [1, 1, 1]
    assert [len(files) for files in (many.edges, many.nodes, many.id_files)] == [3, 4, 4]
    assert many.fingerprint == one.fingerprint
    for name in ("one", "many"):
        graph = open_graph(tmp_path / name, cache_dir=tmp_path / f"stores-{name}")
        assert_holds(graph, large)


def test_write_cache_files_are_as_the_format_says(make_table: MakeTable, tmp_path: Path) -> None:
    table = make_table([(2, 0), (1, 0)], num_nodes=3, x=[[1, 2]] * 3, y=[0, 1, 0], num_classes=2)
    manifest, _ = write_cache(table, str(tmp_path / "data"), source="test")
    edges = pq.read_table(tmp_path / "data" / manifest.edges[0].path)
    assert edges.to_pydict() == {"dst": [0, 0], "src": [1, 2]}
    nodes = pq.ParquetFile(tmp_path / "data" / manifest.nodes[0].path)
    assert str(nodes.schema_arrow.field("x").type) == "fixed_size_list<element: float>[2]"
    assert nodes.metadata.row_group(0).column(0).compression == "ZSTD"
    assert sorted(os.listdir(tmp_path / "data")) == ["edges", "manifest.json", "nodes"]
    assert manifest.edges[0].bytes == (tmp_path / "data" / manifest.edges[0].path).stat().st_size


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder that is not there yet."""
    uri = f"memory://{uuid.uuid4().hex}"
    yield uri
    storage.remove(uri)


def fingerprint_of(table: GraphTable) -> str:
    uri = f"memory://{uuid.uuid4().hex}"
    manifest, _ = write_cache(table, uri, source="test")
    storage.remove(uri)
    return manifest.fingerprint


BASE: dict[str, Any] = {
    "num_nodes": 3,
    "x": [[1, 0], [0, 2], [0, 0]],
    "y": [0, 1, -1],
    "num_classes": 2,
    "split": [1, 2, 3],
}
CHANGES: dict[str, dict[str, Any]] = {
    "feature": {"x": [[1, 0], [0, 2.5], [0, 0]]},
    "feature-moved": {"x": [[0, 1], [0, 2], [0, 0]]},
    "feature-in-the-next-row": {"x": [[1, 0], [0, 0], [0, 2]]},
    "sparse-features": {"x": sp.csr_matrix(np.array(BASE["x"], dtype=np.float32))},
    "no-features": {"x": None},
    "label": {"y": [0, 0, -1]},
    "no-labels": {"y": None, "num_classes": 0},
    "classes": {"num_classes": 3},
    "class-names": {"classes": ["a", "b"]},
    "other-class-names": {"classes": ["a", "c"]},
    "split": {"split": [1, 2, 0]},
    "no-split": {"split": None},
    "int-ids": {"ids": np.array([0, 1, 3])},
    "other-int-ids": {"ids": np.array([0, 1, 4])},
    "string-ids": {"ids": ["a", "ab", "b"]},
    "other-string-ids": {"ids": ["a", "a", "bb"]},
    "one-more-node": {
        "num_nodes": 4, "x": [[1, 0], [0, 2], [0, 0], [0, 0]], "y": [0, 1, -1, -1],
        "split": [1, 2, 3, 0],
    },
}  # fmt: skip
EDGES = [(0, 1), (2, 1), (0, 2)]


def test_write_cache_fingerprint_changes_with_every_value(make_table: MakeTable) -> None:
    found = {name: fingerprint_of(make_table(EDGES, **BASE | new)) for name, new in CHANGES.items()}
    found["base"] = fingerprint_of(make_table(EDGES, **BASE))
    for name, edges in {
        "source": [(1, 1), (2, 1), (0, 2)],
        "destination": [(0, 1), (2, 2), (0, 2)],
        "reversed": [(1, 0), (1, 2), (2, 0)],
        "twice": [(0, 1), (0, 1), (2, 1), (0, 2)],
        "one-less": [(0, 1), (2, 1)],
        "none": [],
    }.items():
        found[name] = fingerprint_of(make_table(edges, **BASE))
    assert len(set(found.values())) == len(found)


def test_write_cache_fingerprint_is_pinned(make_table: MakeTable) -> None:
    sparse = {"x": sp.csr_matrix(np.array(BASE["x"], dtype=np.float32)), "ids": ["a", "b", "é"]}
    assert fingerprint_of(make_table(EDGES, **BASE)) == (
        "7a7cea024570e8225d992314892c9fdea81d2e4213493dd3f0b11a2b277d6c47"
    )
    assert fingerprint_of(make_table(EDGES, **BASE | sparse)) == (
        "03f040026acad8c504a65314f768f409154ddff77f2ea52224fcfe1e7ea481c6"
    )


def test_write_cache_fingerprint_of_every_column_is_pinned() -> None:
    assert fingerprint_of(every_column()) == (
        "3cdfebd639d05878c6e6fe96434313108f02b986629f2ef3987678b946c4e6dc"
    )


def test_write_cache_stores_no_negative_zero(memory: str, tmp_path: Path) -> None:
    one, zero = (
        GraphTable(
            nodes=NodeColumns(num_nodes=1, x=np.array([[value]], dtype=np.float16)),
            edges=EdgeColumns(weight=np.array([value], dtype=np.float32)),
            dst=np.array([0]), src=np.array([0]), policies={}, counts={},
        )
        for value in (-0.0, 0.0)
    )  # fmt: skip
    assert fingerprint_of(one) == fingerprint_of(zero)
    write_cache(one, memory, source="test")
    store = open_graph(memory, cache_dir=tmp_path).store
    assert not np.signbit(store.x).any()
    assert not np.signbit(store.weight).any()


def test_write_cache_fingerprint_leaves_out_how_it_was_made(make_table: MakeTable) -> None:
    table = make_table(EDGES, **BASE)
    other = GraphTable(
        nodes=table.nodes, dst=table.dst, src=table.src, policies={"a": "b"}, counts={"c": 1}
    )
    assert fingerprint_of(table) == fingerprint_of(other)


def content(uri: str) -> dict[str, bytes]:
    """Every file below a folder."""
    fs, path = fsspec.url_to_fs(uri)
    return {name: fs.cat_file(name) for name in fs.find(path)}


def test_write_cache_equal_dataset_again_writes_nothing(
    make_table: MakeTable, tmp_path: Path
) -> None:
    uri = str(tmp_path / "data")
    first, written = write_cache(make_table(EDGES, **BASE), uri, source="first")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    again, written_again = write_cache(make_table(EDGES, **BASE), uri, source="second")
    assert (written, written_again) == (True, False)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == times


def test_write_cache_other_recipe_replaces_the_manifest_only(
    make_table: MakeTable, memory: str
) -> None:
    table = make_table(EDGES, **BASE)
    first, _ = write_cache(table, memory, source="test")
    before = content(memory)
    recipe = SplitConfig(planetoid=1)
    second, written = write_cache(table, memory, source="test", split=recipe)
    assert written
    assert read_manifest(memory) == second == first.model_copy(update={"split": recipe})
    changed = {name for name, data in content(memory).items() if before.get(name) != data}
    assert {name.rsplit("/", 1)[1] for name in changed} == {"manifest.json"}


def test_write_cache_other_dataset_is_refused_without_overwrite(
    make_table: MakeTable, memory: str
) -> None:
    write_cache(make_table(EDGES, **BASE), memory, source="pyg:Planetoid/Cora")
    before = content(memory)
    with pytest.raises(DataError, match=r"holds another dataset \(pyg:Planetoid/Cora\).*--overwr"):
        write_cache(make_table([(0, 1)]), memory, source="test")
    assert content(memory) == before


def test_write_cache_other_dataset_is_replaced_with_overwrite(
    make_table: MakeTable, memory: str, tmp_path: Path
) -> None:
    write_cache(make_table(EDGES, **BASE | {"ids": ["a", "b", "c"]}), memory, source="test")
    table = make_table([(0, 1)])
    _, written = write_cache(table, memory, source="test", overwrite=True)
    assert written
    kinds = {name.split("/")[2] for name in content(memory)}
    assert kinds == {"edges", "manifest.json", "nodes"}
    assert_holds(open_graph(memory, cache_dir=tmp_path), table)


def test_write_cache_overwrite_writes_an_equal_dataset_anew(
    make_table: MakeTable, memory: str, tmp_path: Path
) -> None:
    table = make_table(EDGES, **BASE)
    first, _ = write_cache(table, memory, source="first")
    second, written = write_cache(table, memory, source="second", overwrite=True)
    assert written
    assert second.fingerprint == first.fingerprint
    assert second.edges[0].path != first.edges[0].path
    assert len(content(memory)) == 3
    assert read_manifest(memory).source == "second"
    assert_holds(open_graph(memory, cache_dir=tmp_path), table)


def test_write_cache_overwrite_mends_a_damaged_dataset(
    make_table: MakeTable, memory: str, tmp_path: Path
) -> None:
    table = make_table(EDGES, **BASE)
    manifest, _ = write_cache(table, memory, source="test")
    storage.write_bytes(f"{memory}/{manifest.edges[0].path}", b"damaged")
    with pytest.raises(DataError, match="--overwrite"):
        open_graph(memory, cache_dir=tmp_path)
    write_cache(table, memory, source="test", overwrite=True)
    assert_holds(open_graph(memory, cache_dir=tmp_path), table)


@pytest.mark.parametrize(
    "manifest", [b"{", b'{"format": 2}'], ids=["damaged-manifest", "newer-format"]
)
def test_write_cache_unreadable_dataset_is_replaced_only_with_overwrite(
    make_table: MakeTable, memory: str, manifest: bytes
) -> None:
    storage.write_bytes(f"{memory}/manifest.json", manifest)
    with pytest.raises(DataError, match="--overwrite replaces what is there"):
        write_cache(make_table([(0, 1)]), memory, source="test")
    assert content(memory) == {f"/{memory.removeprefix('memory://')}/manifest.json": manifest}
    assert write_cache(make_table([(0, 1)]), memory, source="test", overwrite=True)[1]


@pytest.mark.parametrize("overwrite", [False, True])
def test_write_cache_folder_of_something_else_is_refused_and_untouched(
    make_table: MakeTable, memory: str, overwrite: bool
) -> None:
    for name in ("photo.jpg", "edges/mine.csv"):
        storage.write_bytes(f"{memory}/{name}", b"precious")
    before = content(memory)
    with pytest.raises(DataError, match=r"is not empty and holds no dataset \(found edges\)"):
        write_cache(make_table([(0, 1)]), memory, source="test", overwrite=overwrite)
    assert content(memory) == before


class DyingFileSystem(MemoryFileSystem):
    """A memory:// of its own whose process is killed before its n-th change."""

    protocol = "dying"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in MemoryFileSystem
    pseudo_dirs = [""]  # noqa: RUF012
    changes_left = math.inf

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("dying://", "memory://")))

    def _change(self) -> None:
        DyingFileSystem.changes_left -= 1
        if DyingFileSystem.changes_left < 0:
            raise KeyboardInterrupt

    def put_file(self, *args: Any, **kwargs: Any) -> None:
        self._change()
        super().put_file(*args, **kwargs)

    def rm_file(self, path: str) -> None:
        self._change()
        super().rm_file(path)
        # an object store has no empty folders
        self.pseudo_dirs[:] = [""]

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        for file in self.find(path):
            self.rm_file(file)


@pytest.fixture
def dying() -> str:
    """An empty folder on a store that can die."""
    fsspec.register_implementation("dying", DyingFileSystem, clobber=True)
    DyingFileSystem.store.clear()
    DyingFileSystem.changes_left = math.inf
    return "dying://data"


def killed_before_change(number: int, table: GraphTable, uri: str, *, overwrite: bool) -> bool:
    """Whether the ingest was killed before its `number`-th change; then the store is well again."""
    DyingFileSystem.changes_left = number
    try:
        write_cache(table, uri, source="new", overwrite=overwrite)
    except KeyboardInterrupt:
        return True
    finally:
        DyingFileSystem.changes_left = math.inf
    return False


@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "over-another"])
def test_write_cache_killed_at_any_change_is_made_good_by_the_next(
    make_table: MakeTable, dying: str, tmp_path: Path, overwrite: bool
) -> None:
    old = make_table(EDGES, **BASE | {"ids": ["a", "b", "c"]})
    new = make_table([(0, 1), (1, 0)], y=[0, 1], num_classes=2)
    number, killed = 0, True
    while killed:
        storage.remove(dying)
        if overwrite:
            write_cache(old, dying, source="old")
        killed = killed_before_change(number, new, dying, overwrite=overwrite)
        try:
            whole: str | None = read_manifest(dying).source
        except DataError:
            whole = None
        if whole == "old":
            assert_holds(open_graph(dying, cache_dir=tmp_path), old)
            write_cache(new, dying, source="new", overwrite=True)
        else:
            write_cache(new, dying, source="new")
        assert_holds(open_graph(dying, cache_dir=tmp_path), new)
        assert {"edges", "manifest.json", "nodes"} == (
            set(storage.list_names(dying)) - {".ingest-in-progress"}
        )
        number += 1
    assert number >= 6


def test_write_cache_interrupted_has_no_manifest(make_table: MakeTable, dying: str) -> None:
    assert killed_before_change(2, make_table(EDGES, **BASE), dying, overwrite=False)
    assert storage.list_names(dying) == [".ingest-in-progress", "edges"]
    with pytest.raises(DataError, match="no dataset here"):
        read_manifest(dying)


@pytest.mark.parametrize("kind", ["edges", "nodes", "id_files"])
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(lambda data: data[:-1], "bytes, the manifest says", id="truncated"),
        pytest.param(
            lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
            "its content is not what the manifest says",
            id="one-bit",
        ),
        pytest.param(None, "no such file", id="missing"),
    ],
)
def test_read_part_damaged_file_is_named(
    make_table: MakeTable,
    memory: str,
    tmp_path: Path,
    kind: str,
    damage: Callable[[bytes], bytes] | None,
    expected: str,
) -> None:
    table = make_table(EDGES, **BASE | {"ids": ["a", "b", "c"]})
    manifest, _ = write_cache(table, memory, source="test")
    part = getattr(manifest, kind)[0]
    file = f"{memory}/{part.path}"
    data = storage.read_bytes(file)
    storage.remove(file)
    if damage is not None:
        storage.write_bytes(file, damage(data))
    with pytest.raises(DataError, match=f"^{file}: .*{expected}"):
        list(read_part(memory, part, ["index"], 1))
    with pytest.raises(DataError, match=f"^{file}: .*{expected}"):
        open_graph(memory, cache_dir=tmp_path)
    assert [path.name for path in tmp_path.rglob("*.npy")] == []
