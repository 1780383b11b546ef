from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from dnformer.config import CacheConfig
from dnformer.data.graph import Graph
from dnformer.data.table import Quantized
from dnformer.loader import Cached, NeighborLoader, Visits, decode, open_source
from dnformer.loader.buffers import BufferPool
from dnformer.loader.source import DenseSource
from dnformer.loader.transfer import memory_of, move

MakeGraph = Callable[..., Graph]

RNG = np.random.default_rng(0)
NUM_NODES = 60
EDGES = [tuple(edge) for edge in RNG.integers(0, NUM_NODES, (400, 2)).tolist()]
X = RNG.integers(-9, 9, (NUM_NODES, 5))
SEEDS = np.arange(0, NUM_NODES, 2)
CPU = torch.device("cpu")
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param("cuda", id="cuda", marks=[pytest.mark.gpu, NEEDS_CUDA]),
]


def stored(dtype: Any) -> Any:
    x = X.astype(dtype)
    return Quantized(x, np.linspace(0.1, 0.7, 5, dtype=np.float32)) if dtype is np.int8 else x


def loader(graph: Graph, **settings: Any) -> NeighborLoader:
    return NeighborLoader(graph, SEEDS, num_neighbors=[4, 3], batch_size=7, **settings)


def values(batch: Data) -> dict[str, Any]:
    return {
        key: value.tolist() if isinstance(value, torch.Tensor) else value
        for key, value in batch.to_dict().items()
    }


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("on_device", [0, 1, 20, NUM_NODES])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_batches_with_rows_on_a_device_are_the_same(
    make_graph: MakeGraph, dtype: Any, on_device: int, name: str
) -> None:
    device = torch.device(name)
    graph = make_graph(EDGES, num_nodes=NUM_NODES, x=stored(dtype))
    wanted = [values(batch) for batch in loader(graph)]
    source = DenseSource(graph.store.x, graph.store.x_scale, reads="direct", readers=2)
    rows = source.device_rows(np.arange(on_device), device)
    source.keep_hot(np.arange(50, NUM_NODES))
    cached = Cached(source, rows, BufferPool(keep=4, pinned=name == "cuda"))
    many = loader(graph, features=cached, device=device)
    found = list(many)
    assert {batch.x.device.type for batch in found} == {name}
    assert [values(batch) for batch in found] == wanted
    nodes = np.concatenate([batch["n_id"] for batch in wanted])
    assert many.counts["rows"] == len(nodes)
    assert many.counts["hits"] == np.count_nonzero((nodes < on_device) | (nodes >= 50))
    raw = list(loader(graph, features=cached, device=device, raw=True))
    assert [decode(batch, torch.float32).tolist() for batch in raw] == [
        batch["x"] for batch in wanted
    ]
    assert {batch.x.element_size() for batch in raw} == {np.dtype(dtype).itemsize}


@pytest.mark.parametrize("name", DEVICES)
def test_move_keeps_everything(make_graph: MakeGraph, name: str) -> None:
    device = torch.device(name)
    graph = make_graph(EDGES, num_nodes=NUM_NODES, x=X.astype(np.float32))
    batch = next(iter(loader(graph)))
    moved = move(batch, device)
    assert values(moved) == values(batch)
    assert {v.device.type for v in moved.to_dict().values() if isinstance(v, torch.Tensor)} == {
        name
    }
    assert isinstance(moved.edge_index, EdgeIndex)
    assert moved.edge_index.is_sorted_by_col
    assert moved.edge_index.sparse_size() == batch.edge_index.sparse_size()


@pytest.mark.parametrize("name", DEVICES)
def test_csr_batches_go_to_a_device_too(make_graph: MakeGraph, name: str) -> None:
    device = torch.device(name)
    graph = make_graph(EDGES, num_nodes=NUM_NODES, x=sp.csr_matrix(X.astype(np.float32)))
    wanted = list(loader(graph, sparse=True))
    for batch, same in zip(loader(graph, sparse=True, device=device), wanted, strict=True):
        assert batch.x.layout == torch.sparse_csr
        assert batch.x.device.type == name
        assert batch.x.to_dense().tolist() == same.x.to_dense().tolist()


def test_memory_of_a_batch_is_all_of_it(make_graph: MakeGraph) -> None:
    graph = make_graph(EDGES, num_nodes=NUM_NODES, x=sp.csr_matrix(X.astype(np.float32)))
    batch = next(iter(loader(graph, sparse=True)))
    found = {tensor.data_ptr() for tensor in memory_of(batch)}
    x = batch.x
    parts = x.values(), x.col_indices(), x.crow_indices(), batch.n_id
    for tensor in (*parts, batch.edge_index.as_tensor()):
        assert tensor.data_ptr() in found


@pytest.mark.gpu
@NEEDS_CUDA
def test_batches_of_live_tensors_are_never_overwritten_on_a_gpu(make_graph: MakeGraph) -> None:
    device = torch.device("cuda")
    graph = make_graph(EDGES, num_nodes=NUM_NODES, x=X.astype(np.float16))
    visits = Visits(SEEDS, [4, 3], 7)
    cache = CacheConfig(hot_bytes=100, hot_gpu_bytes=100)
    features = open_source(graph.store, cache, visits=visits, device=device)
    assert features is not None
    assert features.on_device is not None
    wanted = [batch.x.clone() for batch in loader(graph)]
    for _ in range(20):
        many = loader(graph, features=features, device=device, threads=4)
        sums = [batch.x.double().sum() for batch in many]
        assert [float(s) for s in sums] == [float(x.double().sum()) for x in wanted]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_decode_is_float32_first(dtype: torch.dtype) -> None:
    scale = torch.tensor([0.1, 3.0])
    quantized = torch.tensor([[7, -3]], dtype=torch.int8)
    wanted = (quantized.float() * scale).to(dtype)
    assert torch.equal(decode(Data(x=quantized, x_scale=scale), dtype), wanted)
    half = torch.tensor([[0.1, 2.0]], dtype=torch.float16)
    assert torch.equal(decode(Data(x=half), dtype), half.to(dtype))
    whole = torch.tensor([[0.1, 2.0]])
    assert torch.equal(decode(Data(x=whole), dtype), whole.to(dtype))
