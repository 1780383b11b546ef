from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dnformer.config import CacheConfig
from dnformer.data.graph import Graph
from dnformer.errors import ConfigError
from dnformer.loader import NeighborLoader, Visits, open_source
from dnformer.loader.source import DenseSource, reads_directly

X = np.arange(24, dtype=np.float32).reshape(8, 3)
CPU = torch.device("cpu")

MakeGraph = Callable[..., Graph]


def filled(source: DenseSource, ids: list[int], dtype: Any = np.float32) -> tuple[Any, Any]:
    to = np.zeros((len(ids), source.width), dtype)
    access = source.fill(np.array(ids, dtype=np.int64), to)
    return to, access


@pytest.mark.parametrize("reads", ["mmap", "direct"])
@pytest.mark.parametrize("hot", [None, [], [2, 5], list(range(8))], ids=str)
def test_fill_mixes_hot_rows_and_others(
    make_graph: MakeGraph, reads: str, hot: list[int] | None
) -> None:
    source = DenseSource(make_graph([], num_nodes=8, x=X).store.x, reads=reads, readers=2)
    if hot is not None:
        source.keep_hot(np.array(hot, dtype=np.int64))
    for ids in ([], [5], [7, 2, 0, 2], list(range(8))):
        rows, access = filled(source, ids)
        assert np.array_equal(rows, X[ids])
        hits = sum(node in (hot or []) for node in ids)
        assert access[:2] == (len(ids), hits)
        assert (access.bytes_read == 0) == (hits == len(ids))
        assert source.reads == "direct" or access.bytes_read == 12 * (len(ids) - hits)


@pytest.mark.parametrize(
    ("reads", "num_bytes", "expected"),
    [
        ("auto", 700, False),
        ("auto", 701, True),
        ("mmap", 10**6, False),
        ("direct", 1, True),
    ],
)
def test_reads_directly_what_does_not_fit(reads: str, num_bytes: int, expected: bool) -> None:
    assert reads_directly(reads, num_bytes, 1000) == expected


def test_reads_auto_maps_a_small_graph(make_graph: MakeGraph) -> None:
    assert DenseSource(make_graph([], num_nodes=8, x=X).store.x).reads == "mmap"


def test_rows_in_plain_memory_are_never_read_from_a_file() -> None:
    source = DenseSource(X.copy(), reads="direct")
    assert source.reads == "mmap"
    assert np.array_equal(filled(source, [3, 1])[0], X[[3, 1]])


def test_fill_int8_multiplies_each_column_with_its_scale() -> None:
    x = np.array([[1, -2], [127, -128]], dtype=np.int8)
    scale = np.array([0.5, 0.1], dtype=np.float32)
    source = DenseSource(x, scale)
    assert filled(source, [1, 0])[0].tolist() == (x[[1, 0]] * scale).tolist()
    assert filled(source, [1], np.int8)[0].tolist() == [[127, -128]]


def test_fill_float16_is_exact() -> None:
    x = np.array([[65504, 6e-8, -0.0, 1 / 3]], dtype=np.float16)
    rows, _ = filled(DenseSource(x), [0])
    assert rows.tobytes() == x.astype(np.float32).tobytes()


@pytest.mark.parametrize(("rows", "expected"), [(0, 0), (1, 1), (2, 2), (7, 3)])
def test_open_source_keeps_the_nodes_met_most(
    make_graph: MakeGraph, rows: int, expected: int
) -> None:
    graph = make_graph([(1, 0), (2, 0), (1, 3)], num_nodes=8, x=X)
    visits = Visits(np.array([0]), [-1], 1)
    cache = CacheConfig(hot_bytes=rows * 12 + 11)
    opened = open_source(graph.store, cache, visits=visits, device=CPU)
    assert opened is not None
    # 0 is the seed, 1 and 2 are drawn, nothing else is met
    assert opened.source.num_hot == expected
    assert opened.on_device is None


VISITS = Visits(np.array([0]), [-1], 1)


def test_open_source_of_sparse_features_is_none_and_says_so(
    make_graph: MakeGraph, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make_graph([], num_nodes=8, x=sp.csr_matrix(X))
    assert open_source(graph.store, visits=VISITS, device=CPU) is None
    assert caplog.text == ""
    assert open_source(graph.store, CacheConfig(hot_bytes=99), visits=VISITS, device=CPU) is None
    assert "cache.hot_bytes and cache.hot_gpu_bytes are ignored" in caplog.text


def test_open_source_without_a_gpu_says_that_its_rows_are_ignored(
    make_graph: MakeGraph, caplog: pytest.LogCaptureFixture
) -> None:
    graph = make_graph([], num_nodes=8, x=X)
    opened = open_source(graph.store, CacheConfig(hot_gpu_bytes=99), visits=VISITS, device=CPU)
    assert opened is not None
    assert opened.on_device is None
    assert "cache.hot_gpu_bytes is ignored" in caplog.text


def test_keep_hot_refuses_what_the_process_may_not_use() -> None:
    source = DenseSource(X)
    source.row_bytes = 2**50
    with pytest.raises(ConfigError, match=r"cache\.hot_bytes: .* MiB do not fit; this process may"):
        source.keep_hot(np.arange(8))


def test_counts_of_a_loader_are_those_of_its_batches(make_graph: MakeGraph) -> None:
    # each seed draws its one neighbour: 4 rows, of which node 5 is hot
    graph = make_graph([(5, 0), (5, 1)], num_nodes=8, x=X)
    cache = CacheConfig(hot_bytes=12)
    seeds = np.array([0, 1])
    visits = Visits(seeds, [1], 1)
    opened = open_source(graph.store, cache, visits=visits, device=CPU)
    assert opened is not None
    assert opened.source.num_hot == 1
    loader = NeighborLoader(graph, seeds, num_neighbors=[1], batch_size=1, features=opened)
    list(loader)
    assert loader.counts == {"rows": 4, "hits": 2, "bytes_read": 24}
    next(loader.draws([0]))
    assert loader.counts == {"rows": 6, "hits": 3, "bytes_read": 36}


def test_device_rows_are_as_stored(make_graph: MakeGraph, tmp_path: Path) -> None:
    x = X.astype(np.float16)
    source = DenseSource(make_graph([], num_nodes=8, x=x).store.x)
    rows = source.device_rows(np.array([1, 6]), CPU)
    assert rows.x.dtype == torch.float16
    assert rows.x.tolist() == x[[1, 6]].tolist()
    assert rows.slots.find(np.array([6, 0, 1]))[0].tolist() == [1, -1, 0]
