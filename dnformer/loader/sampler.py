"""Uniform neighbour sampling without replacement: every draw is a function of (key, hop, node).

One thread a batch, no state between batches but scratch memory; the result is in the operator's
layout: nodes in order of discovery, edges grouped by destination, counts per hop.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, final

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from dnformer.data.counter_rng import GAMMA, below, derive, key_of, mix
from dnformer.data.graph import Graph
from dnformer.errors import BackendError, ConfigError, DataError

Array = npt.NDArray[Any]

# up to this fan-out a linear scan of the picked positions beats a hash set
_SCAN = 32
_EMPTY = -1


class Sample(NamedTuple):
    """A sampled neighbourhood.

    Attributes:
        n_id: global node ids in order of discovery, seeds first, int64 `[N]`.
        row: local source of each edge, int64 `[E]`.
        col: local destination, int64 `[E]`, ascending.
        e_id: global edge ids (positions in the graph's CSC), int64 `[E]`.
        num_sampled_nodes: seeds, then nodes first met in each hop, `[hops + 1]`.
        num_sampled_edges: edges drawn in each hop, `[hops]`.
    """

    n_id: Array
    row: Array
    col: Array
    e_id: Array
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]


@numba.njit(inline="always")
def _slot(table, mask, node):  # type: ignore[no-untyped-def]
    """Where `node` is, or would go, in the open-addressing table of (node, local id) pairs."""
    p = np.int64((np.uint64(node) * GAMMA) >> np.uint64(32)) & mask
    while table[p, 0] != node and table[p, 0] != _EMPTY:
        p = (p + 1) & mask
    return p


@numba.njit(inline="always")
def _pick_scan(picked, count, degree, stream):  # type: ignore[no-untyped-def]
    """Floyd's subset of `count` of 0..degree-1 in picked[:count] (Bentley, Floyd, CACM 1987)."""
    for c in range(count):
        top = degree - count + c
        x = below(mix(stream + np.uint64(c) * GAMMA), top + 1)
        for z in range(c):
            if picked[z] == x:
                x = top
                break
        picked[c] = x


@numba.njit
def _pick_hash(picked, count, degree, stream):  # type: ignore[no-untyped-def]
    """The same subset in time linear in `count`."""
    capacity = np.int64(4)
    while capacity < 2 * count:
        capacity *= 2
    mask = capacity - 1
    seen = np.full((capacity, 1), _EMPTY, np.int64)
    for c in range(count):
        top = degree - count + c
        x = below(mix(stream + np.uint64(c) * GAMMA), top + 1)
        p = _slot(seen, mask, x)
        if seen[p, 0] == x:
            x = top
            p = _slot(seen, mask, x)
        seen[p, 0] = x
        picked[c] = x


@numba.njit(nogil=True, cache=True)
def _hop_bound(colptr, n_id, begin, end, fan_out):  # type: ignore[no-untyped-def]
    """Edges that a hop from n_id[begin:end] will draw, and the most of one node."""
    total, most = np.int64(0), np.int64(0)
    for i in range(begin, end):
        degree = colptr[n_id[i] + 1] - colptr[n_id[i]]
        count = degree if fan_out < 0 else min(degree, fan_out)
        total += count
        most = max(most, count)
    return total, most


@numba.njit(nogil=True, cache=True)
def _rehash(table, n_id, n):  # type: ignore[no-untyped-def]
    mask = table.shape[0] - 1
    for i in range(n):
        p = _slot(table, mask, n_id[i])
        if table[p, 0] != _EMPTY:
            return i
        table[p, 0], table[p, 1] = n_id[i], i
    return -1


@numba.njit(nogil=True, cache=True)
def _hop(graph, draw, frontier, nodes, edges, picked):  # type: ignore[no-untyped-def]
    """Draws one hop from n_id[begin:end]; returns the new number of nodes and edges."""
    colptr, rows = graph
    fan_out, key = draw
    begin, end, n = frontier
    table, n_id = nodes
    row, col, e_id, e = edges
    mask = table.shape[0] - 1
    for i in range(begin, end):
        node = n_id[i]
        first = colptr[node]
        degree = colptr[node + 1] - first
        count = degree
        if 0 <= fan_out < degree:
            count = fan_out
            stream = derive(key, np.uint64(node))
            if count <= _SCAN:
                _pick_scan(picked, count, degree, stream)
            else:
                _pick_hash(picked, count, degree, stream)
        for c in range(count):
            position = first + (picked[c] if count < degree else c)
            source = np.int64(rows[position])
            p = _slot(table, mask, source)
            if table[p, 0] == _EMPTY:
                table[p, 0], table[p, 1] = source, n
                n_id[n] = source
                n += 1
            row[e], col[e], e_id[e] = table[p, 1], i, position
            e += 1
    return n, e


class _Scratch(threading.local):
    """A hash table for each thread, kept between batches."""

    def __init__(self) -> None:
        self._table = np.empty((1024, 2), np.int64)

    def cleared(self, num_nodes: int) -> Array:
        """An empty table that `num_nodes` nodes fill by half at most."""
        capacity = 1024
        while capacity < 2 * num_nodes:
            capacity *= 2
        if len(self._table) < capacity:
            self._table = np.empty((capacity, 2), np.int64)
        table = self._table[:capacity]
        table[:, 0] = _EMPTY
        return table


@final
class NeighborSampler(BaseSampler):  # type: ignore[misc]
    """Draws neighbourhoods of seed nodes; also PyG's `BaseSampler` for its `NodeLoader`.

    Args:
        graph: an open graph.
        num_neighbors: fan-out of each hop; -1 takes all neighbours.
        seed: of PyG's entry point, `sample_from_nodes`; `sample` takes a key.
    """

    def __init__(self, graph: Graph, num_neighbors: Sequence[int], *, seed: int = 0) -> None:
        if not num_neighbors or min(num_neighbors) < -1:
            raise ConfigError(f"num_neighbors {list(num_neighbors)}: fan-outs are -1 or more")
        self.num_neighbors = list(num_neighbors)
        self.num_nodes, self.seed, self.epoch = graph.num_nodes, seed, 0
        self._graph = (graph.store.colptr, graph.store.row)
        self._scratch = _Scratch()

    def sample(self, seeds: Array, key: int) -> Sample:
        """The neighbourhood of distinct `seeds`, int64 `[S]`, drawn under a 64-bit `key`.

        Raises:
            DataError: a seed is no node, or stands twice.
        """
        self._check(seeds)
        n_id, n = np.ascontiguousarray(seeds, dtype=np.int64), len(seeds)
        table = self._scratch.cleared(2 * n)
        twice = _rehash(table, n_id, n)
        if twice >= 0:
            raise DataError(
                f"seed node {n_id[twice]} stands twice in one batch; seeds are distinct"
            )
        row, col, e_id = (np.empty(0, np.int64) for _ in range(3))
        num_nodes, num_edges, begin, e = [n], [], 0, 0
        for hop, fan_out in enumerate(self.num_neighbors):
            total, most = _hop_bound(self._graph[0], n_id, begin, n, fan_out)
            n_id = _grown(n_id[:n], min(n + total, self.num_nodes))
            row, col, e_id = (_grown(array, e + total) for array in (row, col, e_id))
            if len(table) < 2 * len(n_id):
                table = self._scratch.cleared(len(n_id))
                _rehash(table, n_id, n)
            end, e = _hop(
                self._graph, (fan_out, np.uint64(key_of(key, "train", hop))), (begin, n, n),
                (table, n_id), (row, col, e_id, e), np.empty(most, np.int64),
            )  # fmt: skip
            begin, n = n, end
            num_nodes.append(n - begin)
            num_edges.append(total)
        return Sample(n_id[:n], row, col, e_id, num_nodes, num_edges)

    def _check(self, seeds: Array) -> None:
        wrong = seeds[(seeds < 0) | (seeds >= self.num_nodes)]
        if len(wrong):
            raise DataError(f"seed node {wrong[0]} is not in 0..{self.num_nodes - 1}")

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """PyG's entry point: the key is (seed, epoch, hash of `index.input_id`)."""
        if index.time is not None:
            raise BackendError("temporal sampling (input_time) is not supported; leave it out")
        input_id = torch.arange(len(index.node)) if index.input_id is None else index.input_id
        hashed = 0
        for value in input_id.tolist():
            hashed = key_of(hashed, "train", value)
        drawn = self.sample(index.node.numpy(), key_of(self.seed, "train", self.epoch, hashed))
        n_id, row, col, e_id = (torch.from_numpy(array) for array in drawn[:4])
        return SamplerOutput(
            node=n_id,
            row=row,
            col=col,
            edge=e_id,
            num_sampled_nodes=drawn.num_sampled_nodes,
            num_sampled_edges=drawn.num_sampled_edges,
            metadata=(index.input_id, None),
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not there: link prediction is outside what DNFormer does."""
        raise BackendError("sampling from edges (link prediction) is not supported; use nodes")


def _grown(array: Array, size: int) -> Array:
    result = np.empty(size, array.dtype)
    result[: len(array)] = array
    return result
