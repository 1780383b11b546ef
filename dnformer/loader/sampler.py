"""Uniform neighbour sampling without replacement: every draw is a function of (key, hop, node).

One thread a batch, no state between batches but scratch memory; the result is in the operator's
layout: nodes in order of discovery, edges grouped by destination, counts per hop.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from dnformer.data.counter_rng import key_of
from dnformer.data.graph import Graph
from dnformer.errors import BackendError, ConfigError, DataError
from dnformer.loader import sampler_kernels as kernels

Array = npt.NDArray[Any]

# up to 64 MiB a thread a table has a place for each node; beyond, one for each node of a batch
_DIRECT_NODES = 2**23


class Sample(NamedTuple):
    """A sampled neighbourhood.

    Attributes:
        n_id: global node ids in order of discovery, seeds first, int64 `[N]`.
        edge_index: local source and destination of each edge, int64 `[2, E]`, contiguous,
            destinations ascending.
        e_id: global edge ids (positions in the graph's CSC), int64 `[E]`.
        num_sampled_nodes: seeds, then nodes first met in each hop, `[hops + 1]`.
        num_sampled_edges: edges drawn in each hop, `[hops]`.
    """

    n_id: Array
    edge_index: Array
    e_id: Array
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]

    @property
    def row(self) -> Array:
        """Local source of each edge, `[E]`."""
        row: Array = self.edge_index[0]
        return row

    @property
    def col(self) -> Array:
        """Local destination of each edge, `[E]`."""
        col: Array = self.edge_index[1]
        return col


class _Table(Protocol):
    """Which local id a node has in this batch."""

    def start(self, n_id: Array, n: int) -> int:
        """A new batch with the nodes n_id[:n]; the place of one that stands twice, or -1."""

    def relabel(self, rows: Array, edges: tuple[Any, ...], n_id: Array, n: int) -> int:
        """Local ids of the edges' sources; new nodes go to `n_id`. Gives their number."""


@final
class _DirectTable:
    """A place for each node of the graph: the fastest, O(N) memory, cleared only once."""

    def __init__(self, num_nodes: int) -> None:
        self._table, self._stamp = np.zeros(num_nodes, np.int64), 0

    def start(self, n_id: Array, n: int) -> int:
        self._stamp += 1 << 32
        return int(kernels.seed_direct(self._table, self._stamp, n_id, n))

    def relabel(self, rows: Array, edges: tuple[Any, ...], n_id: Array, n: int) -> int:
        return int(kernels.relabel_direct(rows, edges, (n_id, n), self._table, self._stamp))


@final
class _HashTable:
    """Two places for each node of a batch, whatever the graph's size."""

    def __init__(self, dtype: Any) -> None:
        self._memory = _Growing(dtype)
        self._table = self._memory.room(0)

    def start(self, n_id: Array, n: int) -> int:
        capacity = 1024
        while capacity < 2 * n:
            capacity *= 2
        self._table = self._memory.room(capacity)[:capacity]
        return int(kernels.seed_hash(self._table, n_id, n))

    def relabel(self, rows: Array, edges: tuple[Any, ...], n_id: Array, n: int) -> int:
        *_, e, stop = edges
        if len(self._table) < 2 * (n + stop - e):
            capacity = 2 * len(self._table)
            while capacity < 2 * (n + stop - e):
                capacity *= 2
            self._table = self._memory.room(capacity)[:capacity]
            kernels.seed_hash(self._table, n_id, n)
        return int(kernels.relabel_hash(rows, edges, (n_id, n), self._table))


@final
class _Growing:
    """An array that grows; what is in it may be kept."""

    def __init__(self, dtype: Any) -> None:
        self._array = np.empty(0, dtype)

    def room(self, size: int, *, keep: int = 0) -> Array:
        """The array with `size` numbers or more, of which the first `keep` are as they were."""
        if len(self._array) < size:
            array = np.empty(size + size // 4, self._array.dtype)
            array[:keep] = self._array[:keep]
            self._array = array
        return self._array


@final
class _Scratch:
    """What a batch is made in, kept for the next one; one thread has it at a time."""

    def __init__(self, dtype: Any, table: _Table) -> None:
        self.table = table
        self.first, self.degree = _Growing(np.int64), _Growing(np.int64)
        self.n_id, self.row, self.e_id, self.counts = (_Growing(dtype) for _ in range(4))


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
        self._colptr, self._rows = graph.store.colptr, graph.store.row
        self._free: list[_Scratch] = []

    def sample(self, seeds: Array, key: int) -> Sample:
        """The neighbourhood of distinct `seeds`, int64 `[S]`, drawn under a 64-bit `key`.

        Raises:
            DataError: a seed is no node, or stands twice.
        """
        self._check(seeds)
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = self._new_scratch()
        try:
            return self._draw(scratch, seeds, key)
        finally:
            self._free.append(scratch)

    def _new_scratch(self) -> _Scratch:
        narrow = self._rows.dtype == np.int32 and len(self._rows) < 2**31
        dtype = np.int32 if narrow else np.int64
        direct = self.num_nodes <= _DIRECT_NODES
        return _Scratch(dtype, _DirectTable(self.num_nodes) if direct else _HashTable(dtype))

    def _draw(self, scratch: _Scratch, seeds: Array, key: int) -> Sample:
        begin, n, e = 0, len(seeds), 0
        n_id, row, counts = scratch.n_id.room(n), scratch.row.room(0), scratch.counts.room(0)
        n_id[:n] = seeds
        twice = scratch.table.start(n_id, n)
        if twice >= 0:
            raise DataError(
                f"seed node {n_id[twice]} stands twice in one batch; seeds are distinct"
            )
        num_nodes, num_edges = [n], []
        for hop, fan_out in enumerate(self.num_neighbors):
            frontier = (scratch.first.room(n), scratch.degree.room(n), n_id, begin, n)
            most = kernels.degrees(self._colptr, n_id, frontier, fan_out)
            e_id, counts = scratch.e_id.room(e + most, keep=e), scratch.counts.room(n, keep=begin)
            hop_key = np.uint64(key_of(key, "train", hop))
            stop = kernels.draw_uniform(frontier, fan_out, hop_key, (e_id, counts, e))
            n_id, row = scratch.n_id.room(n + stop - e, keep=n), scratch.row.room(stop, keep=e)
            begin, n = n, scratch.table.relabel(self._rows, (e_id, row, e, stop), n_id, n)
            num_nodes.append(n - begin)
            num_edges.append(stop - e)
            e = stop
        return _emit(scratch, num_nodes, num_edges)

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
        return SamplerOutput(
            node=torch.from_numpy(drawn.n_id),
            row=torch.from_numpy(drawn.row),
            col=torch.from_numpy(drawn.col),
            edge=torch.from_numpy(drawn.e_id),
            num_sampled_nodes=drawn.num_sampled_nodes,
            num_sampled_edges=drawn.num_sampled_edges,
            metadata=(index.input_id, None),
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not there: link prediction is outside what DNFormer does."""
        raise BackendError("sampling from edges (link prediction) is not supported; use nodes")


def _emit(scratch: _Scratch, num_nodes: list[int], num_edges: list[int]) -> Sample:
    n, e, num_targets = sum(num_nodes), sum(num_edges), sum(num_nodes[:-1])
    n_id, edge_index, e_id = (np.empty(shape, np.int64) for shape in ((n,), (2, e), (e,)))
    kernels.emit(
        (scratch.n_id.room(n), scratch.row.room(e), scratch.e_id.room(e)),
        scratch.counts.room(num_targets)[:num_targets],
        (n_id, edge_index, e_id),
    )
    return Sample(n_id, edge_index, e_id, num_nodes, num_edges)
