"""Graphs to measure on, from fixed seeds, grouped by destination.

N source nodes, M destination nodes, E edges.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dnformer.data.cache import write_cache
from dnformer.data.graph import Graph, open_graph
from dnformer.data.table import GraphTable, NodeColumns
from dnformer.loader import NeighborSampler
from dnformer.ops import Topology

Int64Array = npt.NDArray[np.int64]


class Csc(NamedTuple):
    """A graph as plain arrays, which go to another process as they are.

    Attributes:
        name: what kind of graph it is, for the table.
        colptr: int64 `[M+1]`.
        row: int64 `[E]`.
        num_src: N.
    """

    name: str
    colptr: Int64Array
    row: Int64Array
    num_src: int

    @property
    def num_dst(self) -> int:
        """M."""
        return len(self.colptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.row)

    def topology(self, device: str) -> Topology:
        """The operator's form, without its transpose."""
        colptr, row = (torch.from_numpy(array).to(device) for array in self[1:3])
        return Topology(colptr, row)

    def thinned(self) -> "Csc":
        """Every second edge, between the same nodes."""
        return self._replace(colptr=(self.colptr + 1) // 2, row=self.row[::2].copy())


def uniform(num_nodes: int, num_edges: int, *, seed: int = 0) -> Csc:
    """Both ends of each edge uniform."""
    rng = np.random.default_rng(seed)
    dst = rng.integers(0, num_nodes, num_edges)
    return _csc("uniform", dst, rng.integers(0, num_nodes, num_edges), num_nodes)


def regular(num_nodes: int, degree: int, *, seed: int = 0) -> Csc:
    """`degree` neighbours for each node, and each node a neighbour of as many."""
    rng = np.random.default_rng(seed)
    row = rng.permutation(np.repeat(np.arange(num_nodes), degree))
    colptr = np.arange(num_nodes + 1) * degree
    return Csc(f"regular, degree {degree}", colptr, row, num_nodes)


def star_in(num_nodes: int, num_edges: int) -> Csc:
    """All edges lead to node 0, from all nodes in turn."""
    row = np.arange(num_edges) % num_nodes
    return _csc("star, hub is destination", np.zeros_like(row), row, num_nodes)


def star_out(num_nodes: int, num_edges: int) -> Csc:
    """All edges come from node 0, and lead to all nodes in turn."""
    dst = np.arange(num_edges) % num_nodes
    return _csc("star, hub is source", dst, np.zeros_like(dst), num_nodes)


def power_law(num_nodes: int, num_edges: int, *, seed: int = 0) -> Csc:
    """Uniform sources; the i-th most popular destination has in-degree ~ i^(-2/3).

    That is a tail of exponent 2.5; of 2 million edges between 100,000 nodes the largest hub has
    2 %.
    """
    rng = np.random.default_rng(seed)
    rank = (num_nodes * rng.random(num_edges) ** 3).astype(np.int64)
    dst = rng.permutation(num_nodes)[rank]
    return _csc("power law", dst, rng.integers(0, num_nodes, num_edges), num_nodes)


def whole(uri: str, *, cache_dir: Path | None = None) -> Csc:
    """All edges of the dataset at `uri`."""
    graph = open_graph(uri, cache_dir=cache_dir)
    store = graph.store
    colptr, row = (np.array(array, dtype=np.int64) for array in (store.colptr, store.row))
    return Csc(Path(graph.uri).name, colptr, row, graph.num_nodes)


def block(graph: Graph, num_neighbors: Sequence[int], batch_size: int, *, seed: int = 0) -> Csc:
    """What a model's first layer sees of a batch: destinations are all nodes but the last hop's."""
    seeds = np.random.default_rng(seed).permutation(graph.num_nodes)[:batch_size]
    sample = NeighborSampler(graph, num_neighbors).sample(seeds, seed)
    num_dst = sum(sample.num_sampled_nodes[:-1])
    name = f"block of {Path(graph.uri).name}"
    return Csc(name, _offsets(sample.col, num_dst), sample.row, len(sample.n_id))


def open_or_make(
    uri: str | None, folder: Path, *, num_nodes: int, num_edges: int, num_features: int = 0
) -> Graph:
    """The dataset at `uri`, or a power-law graph that is ingested into `folder`."""
    if uri is not None:
        return open_graph(uri)
    graph = power_law(num_nodes, num_edges)
    dst = np.repeat(np.arange(num_nodes), np.diff(graph.colptr))
    order = np.lexsort((graph.row, dst))
    rng = np.random.default_rng(0)
    x = rng.random((num_nodes, num_features), np.float32) if num_features else None
    table = GraphTable(
        nodes=NodeColumns(num_nodes=num_nodes, x=x),
        src=graph.row[order],
        dst=dst,
        policies={"direction": "directed", "duplicates": "keep"},
        counts={"edges_read": num_edges},
    )
    write_cache(table, str(folder / "power-law"), source="bench")
    return open_graph(folder / "power-law", cache_dir=folder / "stores")


def _csc(name: str, dst: Int64Array, src: Int64Array, num_nodes: int) -> Csc:
    order = np.argsort(dst, kind="stable")
    return Csc(name, _offsets(dst, num_nodes), src[order], num_nodes)


def _offsets(dst: npt.NDArray[Any], num_dst: int) -> Int64Array:
    colptr = np.zeros(num_dst + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=num_dst), out=colptr[1:])
    return colptr
