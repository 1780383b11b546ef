"""Small graphs for the samplers, and what they should draw of them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dnformer.data.counter_rng import key_of
from dnformer.data.store import Store
from dnformer.loader.sampler import NeighborSampler, Sample

Pairs = list[tuple[int, int]]


def structure(edges: Pairs, num_nodes: int, **columns: Any) -> Any:
    """What a sampler reads of a graph; columns of edges are in the order (dst, src)."""
    pairs = np.array(sorted(edges, key=lambda edge: edge[::-1]), dtype=np.int64).reshape(-1, 2)
    colptr = np.searchsorted(pairs[:, 1], np.arange(num_nodes + 1))
    dtypes = {"weight": np.float32, "edge_time": np.int64, "node_time": np.int64}
    arrays = {name: np.array(values, dtypes[name]) for name, values in columns.items()}
    store = Store(colptr=colptr, row=pairs[:, 0].astype(np.int32), **arrays)
    return SimpleNamespace(uri="graph", num_nodes=num_nodes, store=store)


def star(degree: int, **columns: Any) -> Any:
    """Node 0 with the neighbours 1 to `degree`."""
    return structure([(source, 0) for source in range(1, degree + 1)], degree + 1, **columns)


def brute_force(graph: Any, seeds: Sequence[int], num_hops: int) -> Sample:
    """Every neighbour, by the definition."""
    colptr, rows = graph.store.colptr, graph.store.row
    n_id, edges, num_nodes, num_edges = list(seeds), [], [len(seeds)], []
    begin = 0
    for _ in range(num_hops):
        end, before = len(n_id), len(edges)
        for col in range(begin, end):
            for position in range(colptr[n_id[col]], colptr[n_id[col] + 1]):
                source = int(rows[position])
                if source not in n_id:
                    n_id.append(source)
                edges.append((n_id.index(source), col, position))
        num_nodes.append(len(n_id) - end)
        num_edges.append(len(edges) - before)
        begin = end
    row, col, e_id = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    return Sample(np.array(n_id), np.stack([row, col]), e_id, num_nodes, num_edges)


def assert_equal(found: Sample, expected: Sample) -> None:
    for name, a, b in zip(Sample._fields, found, expected, strict=True):
        assert np.array_equal(a, b), name
    assert {str(array.dtype) for array in found[:3]} == {"int64"}


@st.composite
def graphs(draw: st.DrawFn, **values: st.SearchStrategy[Any]) -> Any:
    """Graphs of up to 8 nodes, with columns of edges from `values` and `node_time` of nodes."""
    num_nodes = draw(st.integers(1, 8))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=25))
    columns = {}
    for name, value in values.items():
        size = num_nodes if name == "node_time" else len(edges)
        columns[name] = draw(st.lists(value, min_size=size, max_size=size))
    return structure(edges, num_nodes, **columns)


def some_nodes(data: st.DataObject, graph: Any) -> np.ndarray:
    """Distinct nodes."""
    node = st.integers(0, graph.num_nodes - 1)
    return np.array(data.draw(st.lists(node, unique=True), label="seeds"), dtype=np.int64)


def drawn(sample: Sample, node: int) -> list[int]:
    """Edges drawn for a node, in order."""
    local = sample.n_id.tolist().index(node)
    return sample.e_id[sample.col == local].tolist()


def epochs(graph: Any, fan_out: int, num_epochs: int, **settings: Any) -> list[list[int]]:
    """Edges of node 0 in each epoch, by the loader's keys."""
    sampler = NeighborSampler(graph, [fan_out], **settings)
    keys = (key_of(0, "train", epoch, 0) for epoch in range(num_epochs))
    return [drawn(sampler.sample(np.array([0]), key), 0) for key in keys]
