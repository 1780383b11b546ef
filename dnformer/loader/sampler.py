"""Neighbour sampling: every draw is a function of (key, hop, node).

One thread a batch, no state between batches but scratch memory; cost is linear in what is drawn
(or read, see `Draws`). The result is in the operator's layout: nodes in order of discovery,
edges grouped by destination, counts per hop.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from dnformer.data.counter_rng import key_of
from dnformer.errors import BackendError, ConfigError, DataError
from dnformer.loader import sampler_kernels as kernels
from dnformer.loader import tree_kernels
from dnformer.loader.draws import Draws, Hop, Sampling, Structure
from dnformer.loader.scratch import Scratch

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
        batch: temporal: the seed, 0..S-1, in whose tree each node is, int64 `[N]`; else None.
    """

    n_id: Array
    edge_index: Array
    e_id: Array
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]
    batch: Array | None = None

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


class _Times(NamedTuple):
    """When edges were there.

    Attributes:
        of: times of the edges or, without those, of the nodes.
        of_edges: which of the two.
        of_seeds: times of all nodes, or None.
    """

    of: Array
    of_edges: bool
    of_seeds: Array | None


@final
class NeighborSampler(BaseSampler):  # type: ignore[misc]
    """Draws neighbourhoods of seed nodes; also PyG's `BaseSampler` for its `NodeLoader`.

    Temporal sampling takes only edges up to the seed's time: `store.edge_time` or, where edges
    have none, the `store.node_time` of their sources. Two seeds may have different times, so each
    gets a tree of its own (PyG's `disjoint=True`), in which a node may stand that others have too.

    "labor" draws Poisson samples, whose paper corrects a mean by weights of the edges. An attention
    that is normalised over what was drawn needs none, and none are given.

    Args:
        graph: an open graph, or its structure.
        num_neighbors: fan-out of each hop; -1 takes all neighbours.
        seed: of PyG's entry point, `sample_from_nodes`; `sample` takes a key.
        sampling: "uniform"; "weighted", in proportion to the edges' weights, 0 is never drawn;
            or "labor", whose destinations share neighbours and have `num_neighbors` on average.
        replace: a neighbour may be drawn more than once, each time as an edge of its own.
        temporal: only edges that were there at the seed's time.

    Raises:
        ConfigError: these settings do not go together.
        DataError: the graph has no weights, or no times.
    """

    def __init__(
        self,
        graph: Structure,
        num_neighbors: Sequence[int],
        *,
        seed: int = 0,
        sampling: Sampling = "uniform",
        replace: bool = False,
        temporal: bool = False,
    ) -> None:
        if not num_neighbors or min(num_neighbors) < -1:
            raise ConfigError(f"num_neighbors {list(num_neighbors)}: fan-outs are -1 or more")
        if sampling == "labor" and temporal:
            raise ConfigError(
                "sampling labor saves nodes that destinations share, and temporal trees share "
                "none; use sampling uniform or weighted"
            )
        self.num_neighbors = list(num_neighbors)
        self.num_nodes, self.seed, self.epoch = graph.num_nodes, seed, 0
        self._colptr, self._rows = graph.store.colptr, graph.store.row
        weight = graph.store.weight if sampling == "weighted" else None
        self._weight = np.empty(0, np.float32) if weight is None else weight
        self._draws = Draws(graph, sampling, replace=replace)
        self._times = _times_of(graph) if temporal else None
        self._free: list[Scratch] = []

    def seed_times(self, nodes: Array, given: Array | None = None) -> Array | None:
        """The times of seed nodes, int64: those given, else the graph's; None if not temporal.

        Raises:
            ConfigError: times were given, and sampling is not temporal.
            DataError: they are not one a node, or neither they nor the nodes' times are there.
        """
        if self._times is None:
            if given is not None:
                raise ConfigError("seeds have times, but sampling is not temporal: temporal=True")
            return None
        if given is not None:
            if given.shape != nodes.shape or not np.issubdtype(given.dtype, np.integer):
                raise DataError(
                    f"seed times are {given.dtype} of shape {list(given.shape)}; they must be one "
                    f"integer for each of the {len(nodes)} seeds"
                )
            return given.astype(np.int64)
        if self._times.of_seeds is None:
            raise DataError("the nodes have no times: give input_time, one for each seed")
        times: Array = self._times.of_seeds[nodes]
        return times

    def sample(self, seeds: Array, key: int, time: Array | None = None) -> Sample:
        """The neighbourhood of `seeds`, int64 `[S]`, drawn under a 64-bit `key`.

        Args:
            seeds: distinct, unless temporal.
            key: of all draws.
            time: temporal: of each seed, int64 `[S]`; None: the nodes' own.

        Raises:
            DataError: a seed is no node, stands twice or has no time; or a weight is none.
        """
        self._check(seeds)
        latest = self.seed_times(seeds, time)
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = self._new_scratch()
        try:
            return self._draw(scratch, seeds, key, latest)
        finally:
            self._free.append(scratch)

    def _new_scratch(self) -> Scratch:
        temporal = self._times is not None
        narrow = self._rows.dtype == np.int32 and len(self._rows) < 2**31
        # trees may come to more edges together than the graph has
        dtype = np.int32 if narrow and not temporal else np.int64
        num_nodes = self.num_nodes if self.num_nodes <= _DIRECT_NODES else None
        return Scratch(dtype, num_nodes, trees=temporal)

    def _draw(self, scratch: Scratch, seeds: Array, key: int, latest: Array | None) -> Sample:
        begin, n, e = 0, len(seeds), 0
        n_id, row = scratch.n_id.room(n), scratch.row.room(0)
        n_id[:n] = seeds
        twice = scratch.table.start(n_id, n)
        if twice >= 0:
            raise DataError(
                f"seed node {n_id[twice]} stands twice in one batch; seeds are distinct"
            )
        num_nodes, num_edges = [n], []
        for depth, fan_out in enumerate(self.num_neighbors):
            hop_key = np.uint64(key_of(key, "train", depth))
            frontier = (scratch.first.room(n), scratch.degree.room(n), n_id, begin, n)
            kernels.degrees(self._colptr, n_id, frontier)
            hop = Hop(frontier, fan_out, hop_key, None, self._weight)
            if latest is not None:
                hop = self._in_time(hop, scratch, latest)
            most = self._draws.most(hop.frontier, fan_out)
            e_id, counts = scratch.e_id.room(e + most, keep=e), scratch.counts.room(n, keep=begin)
            stop = self._draws.draw(hop, (e_id, counts, e), scratch)
            if hop.edges is not None:
                tree_kernels.look_up(hop.edges, e_id, e, stop)
            n_id, row = scratch.n_id.room(n + stop - e, keep=n), scratch.row.room(stop, keep=e)
            edges = (e_id, row, counts, e, stop)
            begin, n = n, scratch.table.relabel(self._rows, edges, frontier, n_id, n)
            num_nodes.append(n - begin)
            num_edges.append(stop - e)
            e = stop
        return _emit(scratch, num_nodes, num_edges)

    def _in_time(self, hop: Hop, scratch: Scratch, latest: Array) -> Hop:
        """The hop of those edges that were there at their seeds' times."""
        assert self._times is not None
        assert scratch.trees is not None
        first, degree, n_id, begin, end = hop.frontier
        frontier = (first, degree, scratch.who.room(end), begin, end)
        size = int(kernels.most_edges(frontier, -1, False))
        positions = scratch.admitted.room(size)
        weight = scratch.weight.room(size if len(self._weight) else 0)
        tree_kernels.admit(
            frontier, n_id, (scratch.trees.tree(end), latest),
            (self._rows, self._times.of, self._times.of_edges, self._weight), (positions, weight),
        )  # fmt: skip
        return hop._replace(frontier=frontier, edges=positions, weight=weight)

    def _check(self, seeds: Array) -> None:
        wrong = seeds[(seeds < 0) | (seeds >= self.num_nodes)]
        if len(wrong):
            raise DataError(f"seed node {wrong[0]} is not in 0..{self.num_nodes - 1}")

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """PyG's entry point: the key is (seed, epoch, hash of `index.input_id`)."""
        input_id = torch.arange(len(index.node)) if index.input_id is None else index.input_id
        hashed = 0
        for value in input_id.tolist():
            hashed = key_of(hashed, "train", value)
        key = key_of(self.seed, "train", self.epoch, hashed)
        time = None if index.time is None else index.time.numpy()
        drawn = self.sample(index.node.numpy(), key, time)
        return SamplerOutput(
            node=torch.from_numpy(drawn.n_id),
            row=torch.from_numpy(drawn.row),
            col=torch.from_numpy(drawn.col),
            edge=torch.from_numpy(drawn.e_id),
            batch=None if drawn.batch is None else torch.from_numpy(drawn.batch),
            num_sampled_nodes=drawn.num_sampled_nodes,
            num_sampled_edges=drawn.num_sampled_edges,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not there: link prediction is outside what DNFormer does."""
        raise BackendError("sampling from edges (link prediction) is not supported; use nodes")


def _times_of(graph: Structure) -> _Times:
    store = graph.store
    if store.edge_time is not None:
        return _Times(store.edge_time, True, store.node_time)
    if store.node_time is None:
        raise DataError(
            f"{graph.uri}: neither edges nor nodes have times for temporal sampling; ingest a time "
            "column, or leave out temporal"
        )
    return _Times(store.node_time, False, store.node_time)


def _emit(scratch: Scratch, num_nodes: list[int], num_edges: list[int]) -> Sample:
    n, e, num_targets = sum(num_nodes), sum(num_edges), sum(num_nodes[:-1])
    n_id, edge_index, e_id = (np.empty(shape, np.int64) for shape in ((n,), (2, e), (e,)))
    kernels.emit(
        (scratch.n_id.room(n), scratch.row.room(e), scratch.e_id.room(e)),
        scratch.counts.room(num_targets)[:num_targets],
        (n_id, edge_index, e_id),
    )
    batch = None if scratch.trees is None else scratch.trees.tree(n).astype(np.int64)
    return Sample(n_id, edge_index, e_id, num_nodes, num_edges, batch)
