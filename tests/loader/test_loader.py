import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from dnformer.config import CacheConfig
from dnformer.data.cache import write_cache
from dnformer.data.graph import Graph, open_graph
from dnformer.data.table import EdgeColumns, GraphTable, Quantized
from dnformer.errors import ConfigError, DataError
from dnformer.loader import Cached, FullLoader, NeighborLoader, Visits, decode, open_source
from dnformer.loader.buffers import BufferPool
from dnformer.loader.source import DenseSource

NUM_NODES, NUM_FEATURES = 60, 5
RNG = np.random.default_rng(0)
EDGES = [tuple(edge) for edge in RNG.integers(0, NUM_NODES, (400, 2)).tolist()]
X = RNG.integers(0, 3, (NUM_NODES, NUM_FEATURES)).astype(np.float32)
Y = RNG.integers(0, 4, NUM_NODES)
SEEDS = RNG.permutation(NUM_NODES)[:25]

CPU = torch.device("cpu")

MakeGraph = Callable[..., Graph]


@pytest.fixture(scope="module")
def graph(make_graph: MakeGraph) -> Graph:
    return make_graph(EDGES, num_nodes=NUM_NODES, x=X, y=Y, num_classes=4)


@pytest.fixture(scope="module")
def sparse(make_graph: MakeGraph) -> Graph:
    x = sp.csr_matrix(X)
    return make_graph(EDGES, num_nodes=NUM_NODES, x=x, y=Y, num_classes=4)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == []


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dnformer-loader")]


def loader(graph: Graph, nodes: Any = SEEDS, **settings: Any) -> NeighborLoader:
    return NeighborLoader(graph, nodes, **{"num_neighbors": [4, 3], "batch_size": 10} | settings)


def values(batch: Data) -> dict[str, Any]:
    """The batch as plain values, copied."""
    return {
        key: value.to_dense().tolist() if isinstance(value, torch.Tensor) else value
        for key, value in batch.to_dict().items()
    }


def epoch(batches: Any) -> list[dict[str, Any]]:
    return [values(batch) for batch in batches]


def test_batch_is_data_with_the_documented_fields(graph: Graph) -> None:
    for batch in loader(graph):
        assert isinstance(batch, Data)
        n_id, num_nodes = batch.n_id, batch.num_nodes
        assert sorted(batch.keys()) == [
            "batch_size", "e_id", "edge_index", "input_id", "n_id", "num_sampled_edges",
            "num_sampled_nodes", "seed_rows", "x", "y",
        ]  # fmt: skip
        assert torch.equal(batch.x, torch.from_numpy(X)[n_id])
        assert torch.equal(batch.y, torch.from_numpy(Y)[n_id])
        assert n_id[: batch.batch_size].tolist() == SEEDS[batch.input_id].tolist()
        assert batch.seed_rows.tolist() == list(range(batch.batch_size))
        assert (sum(batch.num_sampled_nodes), sum(batch.num_sampled_edges)) == (
            num_nodes,
            batch.num_edges,
        )
        col = np.repeat(np.arange(NUM_NODES), np.diff(graph.store.colptr))
        ends = torch.from_numpy(np.stack([graph.store.row, col]))[:, batch.e_id]
        assert torch.equal(n_id[batch.edge_index.as_tensor()], ends)


def test_batch_edge_index_is_what_pyg_asks_for(graph: Graph) -> None:
    for batch in loader(graph):
        edge_index = batch.edge_index
        assert isinstance(edge_index, EdgeIndex)
        edge_index.validate()
        assert edge_index.is_sorted_by_col
        assert edge_index.sparse_size() == (batch.num_nodes, batch.num_nodes)
        (colptr, row), perm = edge_index.get_csc()
        assert perm is None
        assert torch.equal(row, edge_index[0].as_tensor())
        assert torch.equal(colptr.diff(), torch.bincount(edge_index[1], minlength=batch.num_nodes))


def test_batch_runs_through_a_pyg_model(graph: Graph) -> None:
    torch.manual_seed(0)
    model = GCNConv(NUM_FEATURES, 4)
    for batch in loader(graph):
        out = model(batch.x, batch.edge_index)
        same = model(batch.x, batch.edge_index.as_tensor())
        assert torch.allclose(out, same, atol=1e-6)
        torch.nn.functional.cross_entropy(out, batch.y).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_draws_list_equals_batches_drawn_one_by_one(graph: Graph) -> None:
    many = loader(graph, batch_size=2)
    kept = list(many)
    alone = [next(many.draws([index])) for index in range(len(many))]
    assert len(kept) == 13
    assert epoch(kept) == epoch(alone)
    # all of them are alive: no buffer was given out twice
    for batch in kept:
        assert torch.equal(batch.x, torch.from_numpy(X)[batch.n_id])


def test_draws_dropped_batches_give_their_memory_back(graph: Graph) -> None:
    many = loader(graph, batch_size=20, num_neighbors=[-1, -1], threads=1, prefetch=1)
    addresses, others = [], []
    for _ in range(50):
        for batch in many:
            addresses.append(batch.x.data_ptr())
            num_bytes = batch.x.numel() * 4
        del batch
        # what was given back to the system goes to somebody else
        others += [np.ones(num_bytes + num_bytes // 4, dtype=np.uint8) for _ in range(4)]
    # one buffer for each batch that was alive at once, not one a batch
    assert len(addresses) == 100
    assert len(set(addresses)) <= 10


def test_draws_in_any_order_and_share_are_the_same(graph: Graph) -> None:
    many = loader(graph, batch_size=4)
    whole = epoch(many)
    backwards = epoch(many.draws([6, 5, 4, 3, 2, 1, 0]))
    assert backwards[::-1] == whole
    ranks = [epoch(loader(graph, batch_size=4).draws(range(rank, 7, 3))) for rank in range(3)]
    assert [ranks[index % 3][index // 3] for index in range(7)] == whole
    assert epoch(many.draws([2, 2])) == [whole[2], whole[2]]


def test_draws_past_the_end_have_no_seeds(graph: Graph) -> None:
    (batch,) = loader(graph).draws([3])
    assert (batch.batch_size, batch.num_nodes, batch.num_edges) == (0, 0, 0)
    assert loader(graph).num_seeds(3) == 0


def test_iter_gives_every_seed_once_and_a_short_last_batch(graph: Graph) -> None:
    many = loader(graph)
    batches = list(many)
    assert len(many) == len(batches) == 3
    sizes = [batch.batch_size for batch in batches]
    assert sizes == [many.num_seeds(index) for index in range(3)] == [10, 10, 5]
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batch in batches])
    assert sorted(seeds.tolist()) == sorted(SEEDS.tolist())
    positions = torch.cat([batch.input_id for batch in batches])
    assert sorted(positions.tolist()) == list(range(25))


def test_iter_without_shuffle_keeps_the_order(graph: Graph) -> None:
    many = loader(graph, shuffle=False)
    many.set_epoch(5)
    assert [i for batch in many for i in batch.input_id.tolist()] == list(range(25))


def test_set_epoch_changes_order_and_draws(graph: Graph) -> None:
    ordered, shuffled = loader(graph, shuffle=False), loader(graph)
    drawn, orders = [], []
    for number in range(3):
        for many in (ordered, shuffled):
            many.set_epoch(number)
        drawn.append([batch.e_id.tolist() for batch in ordered])
        orders.append(tuple(i for batch in shuffled for i in batch.input_id.tolist()))
    assert drawn[0] != drawn[1] != drawn[2]
    assert len(set(orders)) == 3


def test_set_epoch_after_a_restart_is_the_same(graph: Graph) -> None:
    first = loader(graph, seed=3)
    for number in range(4):
        first.set_epoch(number)
        last = epoch(first)
    again = loader(graph, seed=3)
    again.set_epoch(3)
    assert epoch(again) == last
    assert [again.key(index) for index in range(3)] == [first.key(index) for index in range(3)]


def test_set_epoch_while_batches_are_drawn_leaves_them_alone(graph: Graph) -> None:
    wanted = epoch(loader(graph, batch_size=2))
    many = loader(graph, batch_size=2, threads=1, prefetch=1)
    found = []
    for batch in many:
        many.set_epoch(9)
        found.append(values(batch))
    assert found == wanted


def test_streams_and_seeds_draw_differently(graph: Graph) -> None:
    found = {}
    for seed in (0, 1):
        for stream in ("train", "val", "predict"):
            many = loader(graph, shuffle=False, seed=seed, stream=stream)
            found[seed, stream] = str([batch.e_id.tolist() for batch in many])
            assert len({many.key(index) for index in range(3)}) == 3
    assert len(set(found.values())) == 6


@pytest.mark.parametrize("as_sparse", [False, True], ids=["dense", "csr"])
def test_threads_and_prefetch_change_nothing(sparse: Graph, as_sparse: bool) -> None:
    wanted = epoch(loader(sparse, batch_size=2, threads=1, prefetch=1, sparse=as_sparse))
    for number, prefetch in [(2, 1), (2, 8), (4, 4), (4, 30)]:
        many = loader(sparse, batch_size=2, threads=number, prefetch=prefetch, sparse=as_sparse)
        assert epoch(many) == wanted


def test_features_sparse_and_dense_are_equal(graph: Graph, sparse: Graph) -> None:
    wanted = epoch(loader(graph))
    assert epoch(loader(sparse)) == wanted
    as_csr = list(loader(sparse, sparse=True))
    assert {batch.x.layout for batch in as_csr} == {torch.sparse_csr}
    assert epoch(as_csr) == wanted


def test_labels_of_an_unlabelled_graph_are_none(make_graph: MakeGraph) -> None:
    (batch,) = NeighborLoader(
        make_graph([(0, 1)], x=[[1], [2]]), np.array([1]), num_neighbors=[-1], batch_size=1
    )
    assert batch.n_id.tolist() == [1, 0]
    assert batch.y is None


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.int8], ids=lambda dtype: dtype.__name__
)
def test_features_are_the_same_however_they_are_kept_and_read(
    make_graph: MakeGraph, dtype: Any
) -> None:
    x: Any = X.astype(dtype)
    if dtype is np.int8:
        x = Quantized(x, np.linspace(0.1, 0.7, NUM_FEATURES, dtype=np.float32))
    graph = make_graph(EDGES, num_nodes=NUM_NODES, x=x)
    wanted, visits = epoch(loader(graph)), Visits(SEEDS, [4, 3], 10)
    row_bytes = NUM_FEATURES * np.dtype(dtype).itemsize
    for reads in ("mmap", "direct"):
        for rows in (0, 1, 20, NUM_NODES):
            cache = CacheConfig(hot_bytes=rows * row_bytes, reads=reads, readers=3)
            features = open_source(graph.store, cache, visits=visits, device=CPU)
            assert features is not None
            assert features.source.reads == reads
            many = loader(graph, features=features, threads=2)
            assert epoch(many) == wanted
            assert (many.counts["hits"] > 0) == (rows > 0)
            raw = list(loader(graph, features=features, raw=True))
            assert {str(batch.x.dtype) for batch in raw} == {f"torch.{np.dtype(dtype).name}"}
            assert [decode(batch, torch.float32).tolist() for batch in raw] == [
                batch["x"] for batch in wanted
            ]


def test_edge_attributes_are_those_of_the_edges(
    make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    attr = np.arange(2 * len(EDGES), dtype=np.float32).reshape(-1, 2)
    table = replace(
        make_table(EDGES, num_nodes=NUM_NODES, x=X),
        edges=EdgeColumns(attr=attr, attr_names=("a", "b")),
    )
    write_cache(table, str(tmp_path / "data"), source="test")
    graph = open_graph(tmp_path / "data", cache_dir=tmp_path / "stores")
    for batch in loader(graph):
        assert batch.edge_attr.dtype == torch.float32
        assert batch.edge_attr.tolist() == attr[batch.e_id.numpy()].tolist()
    (batch,) = FullLoader(graph, SEEDS)
    assert np.array_equal(batch.edge_attr.numpy(), attr)


def test_seconds_say_where_the_time_went(graph: Graph) -> None:
    many = loader(graph)
    list(many)
    assert set(many.seconds) == {"sample", "gather"}
    assert min(many.seconds.values()) > 0


def test_draws_more_ahead_than_asked_are_not_taken(graph: Graph) -> None:
    taken: list[int] = []

    def indices() -> Iterator[int]:
        for index in range(100):
            taken.append(index)
            yield index % 3

    drawn = loader(graph, threads=1, prefetch=2).draws(indices())
    next(drawn)
    assert len(taken) == 3
    next(drawn)
    assert len(taken) == 4
    drawn.close()


@pytest.mark.parametrize("number", [1, 4], ids=["one-thread", "four-threads"])
def test_draws_exception_reaches_the_consumer_in_its_place(
    make_graph: MakeGraph, number: int
) -> None:
    graph = make_graph([], num_nodes=NUM_NODES, x=X)
    features = Cached(
        DenseSource(graph.store.x, reads="direct", readers=2), None, BufferPool(keep=4)
    )
    file = Path(graph.store.x.base.filename)
    nodes = np.array([0, 1, 2, 3, 4, 5, 6, NUM_NODES - 1, 8, 9])
    drawn = iter(
        loader(
            graph, nodes, num_neighbors=[0], batch_size=1, shuffle=False, threads=number,
            features=features,
        )
    )  # fmt: skip
    os.truncate(file, file.stat().st_size - 1)
    assert [next(drawn).n_id.tolist() for _ in range(7)] == [[node] for node in nodes[:7]]
    with pytest.raises(DataError, match=re.escape(str(file))):
        next(drawn)
    assert threads() == []
    assert list(drawn) == []


def test_draws_abandoned_leave_no_thread(graph: Graph) -> None:
    drawn = loader(graph, batch_size=1, threads=4).draws(range(25))
    next(drawn)
    assert threads() != []
    drawn.close()
    assert threads() == []
    for batch in loader(graph, batch_size=1, threads=4):
        assert batch.batch_size == 1
        break
    del batch
    assert threads() == []


def test_init_graph_without_features_is_an_error(make_graph: MakeGraph) -> None:
    bare = make_graph([(0, 1)], y=[0, 0], num_classes=1)
    with pytest.raises(DataError, match="has no features, and a model needs some; ingest it"):
        NeighborLoader(bare, np.array([0]), num_neighbors=[1], batch_size=1)
    with pytest.raises(DataError, match="has no features"):
        FullLoader(bare, np.array([0]))


@pytest.mark.parametrize("make", [loader, FullLoader], ids=["neighbor", "full"])
@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([1, 2, 1], "input node 1 stands more than once", id="twice"),
        pytest.param([60], r"input node 60 is not in 0\.\.59", id="past-the-end"),
        pytest.param([-1], "input node -1 is not in", id="negative"),
        pytest.param([], "input_nodes is empty", id="empty"),
        pytest.param([1.5], r"input_nodes .* node indices; found float", id="float"),
        pytest.param([True] * 60, "input_nodes .* node indices; found bool", id="mask"),
        pytest.param([[1]], r"input_nodes .* node indices; found .*\[1, 1\]", id="matrix"),
    ],
)
@pytest.mark.parametrize("convert", [np.array, torch.tensor], ids=["numpy", "torch"])
def test_init_wrong_input_nodes_are_named(
    graph: Graph, make: Any, nodes: list[Any], expected: str, convert: Any
) -> None:
    with pytest.raises(DataError, match=expected):
        make(graph, convert(nodes))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_init_takes_tensors_of_any_integer(graph: Graph, dtype: torch.dtype) -> None:
    nodes = torch.tensor([3, 1], dtype=dtype)
    many = loader(graph, nodes, shuffle=False)
    nodes[:] = 0
    (batch,) = many
    assert batch.n_id[:2].tolist() == [3, 1]


@pytest.mark.parametrize("setting", ["batch_size", "threads", "prefetch"])
def test_init_settings_below_one_are_refused(graph: Graph, setting: str) -> None:
    with pytest.raises(ConfigError, match="1 or more"):
        loader(graph, **{setting: 0})


@pytest.mark.parametrize("as_sparse", [False, True], ids=["dense", "csr"])
def test_full_loader_gives_the_whole_graph(sparse: Graph, as_sparse: bool) -> None:
    full = FullLoader(sparse, torch.from_numpy(SEEDS), sparse=as_sparse)
    (batch,) = full
    assert (len(full), full.num_seeds(0), full.num_seeds(1)) == (1, 25, 0)
    assert batch.x.is_sparse_csr == as_sparse
    assert np.array_equal(batch.x.to_dense().numpy(), X)
    assert batch.y.tolist() == Y.tolist()
    assert batch.seed_rows.tolist() == SEEDS.tolist()
    assert batch.batch_size == 25
    batch.edge_index.validate()
    assert batch.edge_index.sparse_size() == (NUM_NODES, NUM_NODES)
    wanted = sorted(EDGES, key=lambda edge: edge[::-1])
    assert [tuple(pair) for pair in batch.edge_index.as_tensor().T.tolist()] == wanted


def test_full_loader_key_follows_the_epoch(graph: Graph) -> None:
    full = FullLoader(graph, SEEDS, seed=1)
    first = full.key(0)
    full.set_epoch(1)
    assert full.key(0) != first
    assert full.key(0) != FullLoader(graph, SEEDS, seed=2).key(0)
    full.set_epoch(0)
    assert full.key(0) == first
