"""Graphs with edges added: at random, as noise, or to nodes of other classes, as distractors.

What is added is a function of the graph and a seed, is not in the graph yet, and is no self-loop. A
changed graph has its own structure in memory; features, labels and splits are those of the graph.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.data.table import (
    EdgeColumns,
    Features,
    GraphTable,
    NodeColumns,
    Quantized,
    TargetColumn,
)
from dnformer.errors import DataError

Array = npt.NDArray[Any]

# draws for those that did not fit before it is given up
_ROUNDS = 500


class Added(NamedTuple):
    """A graph with more edges.

    Attributes:
        graph: the changed graph.
        keys: `dst · N + src` of the edges that were added, ascending.
    """

    graph: Graph
    keys: Array

    def marks(self, dst: Tensor, src: Tensor) -> Tensor:
        """Which of the edges were added, bool `[E]`; `dst` and `src` are nodes of the graph."""
        return torch.isin(dst * self.graph.num_nodes + src, torch.from_numpy(self.keys))


def is_undirected(graph: Graph) -> bool:
    """Whether each edge was stored in both directions when the dataset was made."""
    return graph.manifest.policies.get("direction") == "undirected"


def noise_edges(graph: Graph, ratio: float, *, seed: int) -> Added:
    """The graph with `ratio` · E random edges more, their ends drawn evenly from all nodes.

    In an undirected graph they come in pairs, there and back.

    Raises:
        DataError: the graph has not so many pairs of nodes left.
    """
    random, both = np.random.default_rng([seed, 0]), is_undirected(graph)
    dst = random.integers(graph.num_nodes, size=round(ratio * graph.num_edges / (1 + both)))
    src = _sources(graph, dst, random, lambda dst, src: dst != src, unordered=both)
    if both:
        dst, src = np.concatenate([dst, src]), np.concatenate([src, dst])
    return with_edges(graph, dst, src, seed=seed)


def distractors(graph: Graph, count: int, nodes: Array, *, seed: int) -> Added:
    """The graph with `count` neighbours more of each of `nodes`, drawn from the other classes.

    Args:
        graph: with a class a node.
        count: of neighbours, each another node.
        nodes: of known class.
        seed: of the draws.

    Raises:
        DataError: a node has not so many nodes of other classes that are no neighbours yet.
    """
    random, y = np.random.default_rng([seed, 1]), np.asarray(graph.y)
    dst = np.repeat(nodes, count)
    src = _sources(graph, dst, random, lambda dst, src: (y[src] >= 0) & (y[src] != y[dst]))
    return with_edges(graph, dst, src, seed=seed)


def _sources(
    graph: Graph,
    dst: Array,
    random: np.random.Generator,
    accept: Callable[[Array, Array], Array],
    *,
    unordered: bool = False,
) -> Array:
    """A source for each of `dst`: accepted, and each pair once and not in the graph."""
    num_nodes = graph.num_nodes

    def key(one: Array, other: Array) -> Array:
        if unordered:
            one, other = np.minimum(one, other), np.maximum(one, other)
        keys: Array = one * num_nodes + other
        return keys

    taken = np.unique(key(*_edges(graph)))
    found, missing = np.full(len(dst), -1, dtype=np.int64), np.arange(len(dst))
    for _ in range(_ROUNDS):
        if not len(missing):
            return found
        drawn = random.integers(num_nodes, size=len(missing))
        good = np.flatnonzero(accept(dst[missing], drawn))
        keys, first = np.unique(key(dst[missing[good]], drawn[good]), return_index=True)
        fresh = ~np.isin(keys, taken)
        good = good[first[fresh]]
        found[missing[good]] = drawn[good]
        taken, missing = np.union1d(taken, keys), np.flatnonzero(found < 0)
    raise DataError(
        f"{graph.uri}: no room for {len(missing):,} of {len(dst):,} new edges: its nodes have "
        "almost all that they can have"
    )


def _edges(graph: Graph) -> tuple[Array, Array]:
    """Destination and source of each edge, int64."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.store.colptr))
    return dst, graph.store.row.astype(np.int64)


def with_edges(graph: Graph, dst: Array, src: Array, *, seed: int) -> Added:
    """The graph with the edges `src` to `dst`, which it has not; each among its destination's.

    Weights, attributes and times of a new edge are those of one of the graph's, drawn evenly.
    """
    store, own = graph.store, _edges(graph)
    columns = _edge_columns(graph)
    copied = np.zeros(len(dst), dtype=np.int64)
    if graph.num_edges:
        copied = np.random.default_rng([seed, 2]).integers(graph.num_edges, size=len(dst))
    all_dst, all_src = np.concatenate([own[0], dst]), np.concatenate([own[1], src])
    order = np.lexsort((all_src, all_dst))
    columns = columns.take(np.concatenate([np.arange(graph.num_edges), copied])[order])
    colptr = np.zeros(graph.num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(all_dst, minlength=graph.num_nodes), out=colptr[1:])
    changed = copy.copy(graph)
    changed.manifest = graph.manifest.model_copy(update={"num_edges": len(all_dst)})
    changed.store = replace(
        store, colptr=colptr, row=all_src[order].astype(store.row.dtype),
        weight=columns.weight, edge_attr=columns.attr, edge_time=columns.time,
    )  # fmt: skip
    return Added(changed, np.sort(dst * graph.num_nodes + src))


def _edge_columns(graph: Graph) -> EdgeColumns:
    store = graph.store
    names = tuple(graph.manifest.edge_attr_names)
    return EdgeColumns(
        weight=store.weight, attr=store.edge_attr, attr_names=names, time=store.edge_time
    )


def table_of(graph: Graph) -> GraphTable:
    """An open graph as columns in memory, for `data.cache.write_cache`; without original ids."""
    dst, src = _edges(graph)
    store = graph.store
    targets = tuple(
        TargetColumn(target, np.asarray(values))
        for target, values in zip(graph.manifest.targets, store.targets, strict=True)
    )
    nodes = NodeColumns(
        num_nodes=graph.num_nodes, x=_features(graph), targets=targets, split=store.split,
        time=store.node_time,
    )  # fmt: skip
    manifest = graph.manifest
    return GraphTable(
        nodes=nodes, src=src, dst=dst, policies=manifest.policies, counts=manifest.counts,
        edges=_edge_columns(graph),
    )  # fmt: skip


def _features(graph: Graph) -> Features:
    store = graph.store
    if store.x_indptr is not None:
        csr = (store.x_values, store.x_indices, store.x_indptr)
        return sp.csr_matrix(csr, shape=(graph.num_nodes, graph.num_features))
    if store.x is not None and store.x_scale is not None:
        return Quantized(store.x, store.x_scale)
    return store.x
