"""A streamed graph into a dataset: the same as through memory, and in bounded memory."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dnformer.data.cache import CacheWriter, write_cache
from dnformer.data.clean import Policies, clean
from dnformer.data.graph import open_graph
from dnformer.data.ingest.progress import Progress
from dnformer.data.ingest.run import EngineConfig, ingest
from dnformer.data.ingest.stream import ingest_stream
from dnformer.data.ingest.workspace import Workspace
from dnformer.data.manifest import Manifest
from dnformer.data.sources.ogb import OgbSource
from dnformer.data.sources.synthetic import SyntheticSource, open_synthetic
from dnformer.data.stream import EdgeChunk, GraphStream, in_memory
from dnformer.data.table import EdgeColumns, NodeColumns, class_target
from dnformer.errors import ConfigError, DataError


def published(stream: GraphStream, folder: Path, *, memory: int = 1 << 30, **policies: str) -> Any:
    space = Workspace(folder / "temp", memory, 2)
    space.folder.mkdir(parents=True)
    with CacheWriter(str(folder / "out")) as writer:
        facts = {"source": "a stream", "split": None}
        manifest = ingest_stream(stream, Policies(**policies), writer, space, Progress(), facts)
        return writer.publish(manifest)[0]


def through_memory(stream: GraphStream, folder: Path, **policies: str) -> Manifest:
    table = clean(in_memory(stream), Policies(**policies))
    return write_cache(table, str(folder / "memory"), source="memory")[0]


def small(pairs: list[tuple[int, int]], *, columns: bool = False, size: int = 3) -> GraphStream:
    """Five nodes and `pairs` (src, dst) in chunks of `size`."""
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    count = len(edges)
    carried = EdgeColumns()
    if columns:
        weight = np.linspace(1, 2, count).astype(np.float32)
        attr = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        carried = EdgeColumns(
            weight=weight, attr=attr, attr_names=("a", "b"), time=np.arange(count)[::-1].copy()
        )

    def chunks() -> Iterator[EdgeChunk]:
        for first in range(0, count, size):
            rows = slice(first, first + size)
            yield EdgeChunk(edges[rows, 0], edges[rows, 1], carried.take(rows))

    nodes = NodeColumns(
        num_nodes=5,
        targets=class_target(np.array([0, 1, 0, 1, -1]), 2),
        split=np.array([1, 2, 3, 1, 0], dtype=np.int8),
        time=np.arange(5) + 2000,
    )
    return GraphStream(
        num_nodes=5,
        num_edges=count,
        edges=chunks,
        nodes=lambda: iter([nodes]),
        where=lambda edge: f"row {edge + 1}",
        counts={"from_source": 7},
    )


PAIRS = [(4, 0), (1, 2), (3, 3), (1, 2), (3, 3), (4, 0), (1, 2), (2, 1)]


@pytest.mark.parametrize("columns", [False, True], ids=["bare", "columns"])
@pytest.mark.parametrize(
    "policies",
    [
        {},
        {"direction": "undirected", "self_loops": "drop"},
        {"duplicates": "keep", "direction": "undirected"},
    ],
    ids=["default", "undirected", "keep"],
)
def test_ingest_stream_equals_the_way_through_memory(
    columns: bool, policies: dict[str, str], tmp_path: Path
) -> None:
    stream = small(PAIRS, columns=columns)
    found, expected = (
        published(stream, tmp_path, **policies),
        through_memory(stream, tmp_path, **policies),
    )
    assert found.fingerprint == expected.fingerprint
    assert found.counts == expected.counts
    assert found.policies == expected.policies


@pytest.mark.parametrize(
    ("kind", "dtype"), [("sbm", "float32"), ("power_law", "float16"), ("rmat", "int8")]
)
def test_ingest_stream_of_a_synthetic_graph_equals_the_way_through_memory(
    kind: Any, dtype: Any, tmp_path: Path
) -> None:
    # more than one block of nodes, and so little memory that edges are cut into many buckets
    source = SyntheticSource(kind=kind, nodes=70_000, degree=2, features=3, feature_dtype=dtype)
    found = published(open_synthetic(source), tmp_path, memory=1 << 20)
    expected = through_memory(open_synthetic(source), tmp_path)
    assert found.fingerprint == expected.fingerprint
    assert found.counts == expected.counts
    assert len(found.edges) > 1


def test_ingest_stream_is_a_dataset(tmp_path: Path) -> None:
    published(small(PAIRS, columns=True), tmp_path)
    graph = open_graph(tmp_path / "out", cache_dir=tmp_path)
    assert graph.store.row.tolist() == [4, 2, 1, 3]
    assert graph.split("val").tolist() == [1]
    assert graph.y.tolist() == [0, 1, 0, 1, -1]


def test_ingest_stream_without_edges(tmp_path: Path) -> None:
    manifest = published(small([]), tmp_path)
    assert (manifest.num_edges, manifest.counts["isolated_nodes"]) == (0, 5)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"self_loops": "error"}, r"^row 3 is a self-loop; .*set self_loops to keep or drop$"),
        ({"duplicates": "error"}, r"^row 4 repeats row 2; .*set duplicates to drop or keep$"),
    ],
    ids=["self-loops", "duplicates"],
)
def test_ingest_stream_error_policy_names_the_first_edge(
    policies: dict[str, str], message: str, tmp_path: Path
) -> None:
    for size in (1, 3, 100):
        with pytest.raises(DataError, match=message):
            published(small(PAIRS, size=size), tmp_path / str(size), **policies)
        assert not list((tmp_path / str(size) / "out").rglob("*.parquet"))


def test_ingest_stream_nothing_to_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="duplicates sum adds the weights"):
        published(small(PAIRS), tmp_path, duplicates="sum")


def write_ogb(folder: Path) -> OgbSource:
    files = {
        "raw/edge": "0,1\n1,2\n2,2\n",
        "raw/num-node-list": "3\n",
        "raw/num-edge-list": "3\n",
        "raw/node-feat": "1,2\n3,4\n5,6\n",
        "raw/node-label": "0\n1\n2\n",
        "split/sales_ranking/train": "0\n",
        "split/sales_ranking/valid": "1\n",
        "split/sales_ranking/test": "2\n",
    }
    for name, text in files.items():
        file = folder / f"{name}.csv.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(text.encode(), mtime=0))
    return OgbSource(name="ogbn-products", root=str(folder))


def test_ingest_ogb_takes_its_direction_and_split(tmp_path: Path) -> None:
    source = write_ogb(tmp_path / "products")
    manifest, written = ingest(source, str(tmp_path / "out"))
    assert written
    assert manifest.source == "ogb:ogbn-products"
    assert (manifest.num_nodes, manifest.num_edges, manifest.num_classes) == (3, 5, 47)
    graph = open_graph(tmp_path / "out", cache_dir=tmp_path)
    assert graph.split("test").tolist() == [2]
    directed, _ = ingest(source, str(tmp_path / "two"), policies={"direction": "directed"})
    assert directed.num_edges == 3


@pytest.mark.parametrize("kind", ["synthetic", "ogb"])
def test_ingest_of_a_stream_again_does_nothing(kind: str, tmp_path: Path) -> None:
    source: Any = SyntheticSource(nodes=50, classes=2, features=2, degree=4)
    if kind == "ogb":
        source = write_ogb(tmp_path / "products")
    out = str(tmp_path / "out")
    first, _ = ingest(source, out)
    assert ingest(source, out) == (first, False)
    with pytest.raises(DataError, match="came from other files or options; choose another --out"):
        ingest(source, out, policies={"self_loops": "drop"})


def test_ingest_of_changed_ogb_files_is_refused(tmp_path: Path) -> None:
    source = write_ogb(tmp_path / "products")
    ingest(source, str(tmp_path / "out"))
    file = tmp_path / "products" / "raw" / "node-label.csv.gz"
    file.write_bytes(gzip.compress(b"0\n1\n1\n"))
    with pytest.raises(DataError, match="holds another dataset"):
        ingest(source, str(tmp_path / "out"))
    assert ingest(source, str(tmp_path / "out"), overwrite=True)[1]


def test_ingest_of_a_stream_takes_the_local_engine_only(tmp_path: Path) -> None:
    source = SyntheticSource(nodes=50, classes=2, features=2, degree=4)
    expected, _ = ingest(source, str(tmp_path / "one"))
    temp = tmp_path / "temp"
    engine = EngineConfig(temp_dir=str(temp), threads=1, memory_limit="100GiB")
    assert ingest(source, str(tmp_path / "two"), engine=engine)[0].fingerprint == (
        expected.fingerprint
    )
    assert list(temp.iterdir()) == []
    with pytest.raises(ConfigError, match="engine ray is for tables; leave it out"):
        ingest(source, str(tmp_path / "three"), engine=EngineConfig(name="ray"))
