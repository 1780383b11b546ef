"""Mini-batches as a pure function of (seed, stream, epoch, index), prepared ahead by threads.

The loader has no state to save: whoever asks for micro-batch `index` of an epoch gets the same.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from dnformer.data.counter_rng import STREAMS, key_of, permutation
from dnformer.data.graph import Graph
from dnformer.errors import ConfigError, DataError
from dnformer.loader.buffers import BufferPool
from dnformer.loader.degrees import degrees_of
from dnformer.loader.draws import Sampling
from dnformer.loader.features import ColumnGather, FeatureGather
from dnformer.loader.pyg_lib import PygLibSampler
from dnformer.loader.sampler import NeighborSampler, Sample
from dnformer.loader.source import Access, Cached
from dnformer.loader.transfer import DeviceGather, hand_over, move, side_stream

Stream = Literal["train", "val", "predict"]
_CPU = torch.device("cpu")


class Sampler(Protocol):
    """What a sampler backend offers."""

    def seed_times(
        self, nodes: npt.NDArray[Any], given: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any] | None:
        """Times of seed nodes, where sampling is temporal."""

    def sample(
        self, seeds: npt.NDArray[Any], key: int, time: npt.NDArray[Any] | None = None
    ) -> Sample:
        """The neighbourhood of `seeds` under `key`, as it was at their times."""


class Loader(Protocol):
    """What the training loop asks of a loader."""

    seconds: dict[str, float]
    counts: dict[str, int]

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose batches come next."""

    def __len__(self) -> int:
        """Micro-batches of an epoch."""

    def num_seeds(self, index: int) -> int:
        """Seed nodes of micro-batch `index`; 0 past the end."""

    def positions(self, index: int) -> npt.NDArray[np.int64]:
        """Where the seeds of micro-batch `index` stand among the input nodes; `input_id` there."""

    def key(self, index: int) -> int:
        """The 64-bit key of micro-batch `index` of this epoch."""

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        """The micro-batches `indices` of this epoch, in that order."""


@final
class NeighborLoader:
    """Neighbour-sampled mini-batches of a graph, as PyG `Data`.

    A batch holds `x` `[N, F]`, `y` `[N]`, `n_id` `[N]`, `e_id` `[E]`, `batch_size` (the seeds are
    the first nodes), `edge_index` (a col-sorted `EdgeIndex` of size (N, N)), `input_id` (positions
    in `input_nodes`), `seed_rows`, `num_sampled_nodes` and `num_sampled_edges`; and `edge_attr`
    `[E, A]` where the graph has some. `seconds` and `counts` (feature rows, those of them that
    were hot, bytes read from the store) add up over the batches that were handed out.

    Args:
        graph: an open graph.
        input_nodes: seed nodes, distinct, int64.
        num_neighbors: fan-out of each hop; -1 takes all neighbours.
        batch_size: seeds of a batch; the last one may be shorter.
        seed: of order and draws.
        shuffle: a new order of the seeds each epoch; False: as given.
        stream: separates the draws of training, validation and prediction.
        sampler: "dnformer", or "pyg-lib", whose draws are not reproducible.
        sampling: "uniform", "weighted" or "labor"; this and the next two as in `NeighborSampler`.
        replace: a neighbour may be drawn more than once.
        temporal: only what was there at the seed's time; a batch then has `batch` `[N]`, the seed
            in whose tree each node is.
        input_time: temporal: the times of `input_nodes`; None: those of the graph's nodes.
        sparse: sparse features as `torch.sparse_csr` (DNFormer takes them); False: dense.
        raw: `x` as it is stored, float16 or int8, and `x_scale`, for `decode`; False: float32.
        degrees: a batch has `degree` int64 `[N]`, how many neighbours each node has in the whole
            graph, itself not counted.
        threads: threads that sample and gather.
        prefetch: batches prepared ahead.
        features: where dense features come from (`open_source`); None: no hot rows.
        device: where batches go, ahead of their use.
    """

    def __init__(  # noqa: PLR0913 - PyG's loader takes as many; a config object would hide them
        self,
        graph: Graph,
        input_nodes: Tensor | npt.NDArray[np.int64],
        *,
        num_neighbors: Sequence[int],
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        stream: Stream = "train",
        sampler: Literal["dnformer", "pyg-lib"] = "dnformer",
        sampling: Sampling = "uniform",
        replace: bool = False,
        temporal: bool = False,
        input_time: Tensor | npt.NDArray[np.int64] | None = None,
        sparse: bool = False,
        raw: bool = False,
        degrees: bool = False,
        threads: int = 2,
        prefetch: int = 4,
        features: Cached | None = None,
        device: torch.device = _CPU,
    ) -> None:
        if min(batch_size, threads, prefetch) < 1:
            raise ConfigError("batch_size, threads and prefetch are 1 or more")
        self._graph, self._input_nodes = graph, _check_nodes(input_nodes, graph.num_nodes)
        self._batch_size, self._seed, self._shuffle = batch_size, seed, shuffle
        self._stream, self._threads, self._prefetch = stream, threads, prefetch
        make = NeighborSampler if sampler == "dnformer" else PygLibSampler
        self._sampler: Sampler = make(
            graph, num_neighbors, sampling=sampling, replace=replace, temporal=temporal
        )
        given = None if input_time is None else np.asarray(input_time)
        self._times = self._sampler.seed_times(self._input_nodes, given)
        self._device = device
        pool = partial(BufferPool, 2 * (threads + prefetch), pinned=device.type == "cuda")
        self._parts = _Parts(graph, pool, features, sparse=sparse, raw=raw, degrees=degrees)
        self.seconds = {"sample": 0.0, "gather": 0.0}
        self.counts = _no_counts()
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose batches come next."""
        self._epoch = epoch
        key = key_of(self._seed, "order", STREAMS[self._stream], epoch)
        n = len(self._input_nodes)
        self._order = permutation(n, key) if self._shuffle else np.arange(n)

    def __len__(self) -> int:
        return -(-len(self._input_nodes) // self._batch_size)

    def num_seeds(self, index: int) -> int:
        """Seed nodes of micro-batch `index`; 0 past the end."""
        return len(self.positions(index))

    def positions(self, index: int) -> npt.NDArray[np.int64]:
        """Where the seeds of micro-batch `index` stand in `input_nodes`; none past the end."""
        return self._order[index * self._batch_size : (index + 1) * self._batch_size]

    def key(self, index: int) -> int:
        """The 64-bit key of micro-batch `index` of this epoch."""
        return key_of(self._seed, self._stream, self._epoch, index)

    def __iter__(self) -> Iterator[Data]:
        return self.draws(range(len(self)))

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        """The micro-batches `indices` of this epoch in that order, drawn ahead by the threads."""
        wanted = iter(indices)
        pending: deque[Future[_Drawn]] = deque()
        # the order of this epoch, also if set_epoch is called while batches are still drawn
        plan = (self._order, self._epoch)
        with ThreadPoolExecutor(self._threads, "dnformer-loader") as pool:
            try:
                while True:
                    ahead = self._threads + self._prefetch - len(pending)
                    for index in itertools.islice(wanted, ahead):
                        pending.append(pool.submit(self._draw, index, *plan))
                    if not pending:
                        return
                    drawn = pending.popleft().result()
                    self._count(drawn)
                    hand_over(drawn.batch, self._device)
                    batch = drawn.batch
                    del drawn  # a batch that nobody holds gives its memory back
                    yield batch
            finally:
                for future in pending:
                    future.cancel()

    def _count(self, drawn: "_Drawn") -> None:
        self.seconds["sample"] += drawn.sample_s
        self.seconds["gather"] += drawn.gather_s
        for name, count in drawn.access._asdict().items():
            self.counts[name] += count

    def _draw(self, index: int, order: npt.NDArray[np.int64], epoch: int) -> "_Drawn":
        start = time.perf_counter()
        positions = order[index * self._batch_size : (index + 1) * self._batch_size]
        key = key_of(self._seed, self._stream, epoch, index)
        times = None if self._times is None else self._times[positions]
        sample = self._sampler.sample(self._input_nodes[positions], key, times)
        sampled = time.perf_counter()
        with side_stream(self._device):
            on_host, access = self._parts.block(sample, positions)
            batch = move(on_host, self._device) if self._device.type != "cpu" else on_host
        return _Drawn(batch, access, sampled - start, time.perf_counter() - sampled)


class _Drawn(NamedTuple):
    batch: Data
    access: Access
    sample_s: float
    gather_s: float


def _no_counts() -> dict[str, int]:
    return dict.fromkeys(Access._fields, 0)


@final
class _Parts:
    """What becomes of a sample: everything that a batch has of its nodes and edges."""

    def __init__(
        self,
        graph: Graph,
        pool: Callable[[], BufferPool],
        features: Cached | None,
        *,
        sparse: bool,
        raw: bool,
        degrees: bool,
    ) -> None:
        self._store = graph.store if degrees else None
        hot = features.on_device if features else None
        batches = features.pool if features else pool()
        gather = _features(graph, batches, features, sparse=sparse, raw=raw or hot is not None)
        self._x = gather if hot is None else DeviceGather(gather, hot, raw=raw)
        self._scale = gather.scale if raw else None
        self._y = ColumnGather(graph.y, pool()) if graph.has_target else None
        edge_attr = graph.store.edge_attr
        self._edge_attr = None if edge_attr is None else ColumnGather(edge_attr, pool())

    def block(self, sample: Sample, positions: npt.NDArray[np.int64]) -> tuple[Data, Access]:
        """The batch of a sample whose seeds stand at `positions`, and what its features took."""
        num_nodes = len(sample.n_id)
        edge_index = EdgeIndex(
            torch.from_numpy(sample.edge_index),
            sparse_size=(num_nodes, num_nodes),
            sort_order="col",
        )
        x, access = self._x.take(sample.n_id)
        optional = {"x_scale": self._scale}
        if self._edge_attr is not None:
            optional["edge_attr"] = self._edge_attr.rows(sample.e_id)
        if self._store is not None:
            degree = degrees_of(sample.n_id, self._store.colptr, self._store.row)
            optional["degree"] = torch.from_numpy(degree)
        if sample.batch is not None:
            optional["batch"] = torch.from_numpy(sample.batch)
        batch = Data(
            x=x,
            y=self._y.rows(sample.n_id) if self._y else None,
            edge_index=edge_index,
            n_id=torch.from_numpy(sample.n_id),
            e_id=torch.from_numpy(sample.e_id),
            input_id=torch.from_numpy(positions.copy()),
            batch_size=len(positions),
            seed_rows=torch.arange(len(positions)),
            num_sampled_nodes=sample.num_sampled_nodes,
            num_sampled_edges=sample.num_sampled_edges,
            **{name: value for name, value in optional.items() if value is not None},
        )
        return batch, access


@final
class FullLoader:
    """The whole graph as the one batch of each epoch; `seed_rows` are the input nodes.

    Args:
        graph: an open graph; its arrays are copied to memory.
        input_nodes: nodes of the loss, distinct, int64.
        seed: of the keys.
        sparse: sparse features as `torch.sparse_csr`; False: dense.
    """

    def __init__(
        self,
        graph: Graph,
        input_nodes: Tensor | npt.NDArray[np.int64],
        *,
        seed: int = 0,
        sparse: bool = False,
    ) -> None:
        self._seed, self._epoch = seed, 0
        self.seconds = {"sample": 0.0, "gather": 0.0}
        self.counts = _no_counts()
        nodes = _check_nodes(input_nodes, graph.num_nodes)
        everyone = np.arange(graph.num_nodes)
        store = graph.store
        col = np.repeat(everyone, np.diff(store.colptr))
        edge_index = EdgeIndex(
            torch.from_numpy(np.stack([store.row.astype(np.int64), col])),
            sparse_size=(graph.num_nodes, graph.num_nodes),
            sort_order="col",
        )
        gather = _features(graph, BufferPool(0), None, sparse=sparse, raw=False)
        optional = {}
        if store.edge_attr is not None:
            optional["edge_attr"] = torch.from_numpy(store.edge_attr.copy())
        self._batch = Data(
            x=gather.rows(everyone),
            y=torch.from_numpy(graph.y.copy()) if graph.has_target else None,
            edge_index=edge_index,
            seed_rows=torch.from_numpy(nodes),
            input_id=torch.arange(len(nodes)),
            batch_size=len(nodes),
            **optional,
        )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose keys come next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return 1

    def num_seeds(self, index: int) -> int:
        """All input nodes for micro-batch 0; 0 past the end."""
        return int(self._batch.batch_size) if index == 0 else 0

    def positions(self, index: int) -> npt.NDArray[np.int64]:
        """All for micro-batch 0; none past the end."""
        return np.arange(self.num_seeds(index))

    def key(self, index: int) -> int:
        """The 64-bit key of micro-batch `index` of this epoch."""
        return key_of(self._seed, "train", self._epoch, index)

    def __iter__(self) -> Iterator[Data]:
        return self.draws(range(1))

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        """The one batch, for each of `indices`."""
        for _ in indices:
            yield self._batch


def _features(
    graph: Graph, pool: BufferPool, features: Cached | None, *, sparse: bool, raw: bool
) -> FeatureGather:
    if graph.manifest.features == "none":
        raise DataError(
            f"{graph.uri}: the dataset has no features, and a model needs some; ingest it with "
            "a node table that has feature columns"
        )
    return FeatureGather(
        graph.store,
        graph.num_features,
        sparse=sparse,
        raw=raw,
        pool=pool,
        source=features.source if features else None,
    )


def _check_nodes(
    input_nodes: Tensor | npt.NDArray[np.int64], num_nodes: int
) -> npt.NDArray[np.int64]:
    given = input_nodes.numpy() if isinstance(input_nodes, Tensor) else np.asarray(input_nodes)
    if given.size == 0:
        raise DataError("input_nodes is empty; give at least one seed node")
    if given.ndim != 1 or not np.issubdtype(given.dtype, np.integer):
        raise DataError(
            "input_nodes must be a list of node indices; found "
            f"{given.dtype} of shape {list(given.shape)}"
        )
    nodes = given.astype(np.int64)
    wrong = nodes[(nodes < 0) | (nodes >= num_nodes)]
    if len(wrong):
        raise DataError(f"input node {wrong[0]} is not in 0..{num_nodes - 1}")
    once, count = np.unique(nodes, return_counts=True)
    if len(once) < len(nodes):
        raise DataError(f"input node {once[count > 1][0]} stands more than once in input_nodes")
    return nodes
