"""Mini-batches as a pure function of (seed, stream, epoch, index), prepared ahead by threads.

The loader has no state to save: whoever asks for micro-batch `index` of an epoch gets the same.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, Protocol, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from dnformer.data.counter_rng import STREAMS, key_of, permutation
from dnformer.data.graph import Graph
from dnformer.errors import ConfigError, DataError
from dnformer.loader.features import FeatureGather
from dnformer.loader.pyg_lib import PygLibSampler
from dnformer.loader.sampler import NeighborSampler, Sample

Stream = Literal["train", "val", "predict"]


class Sampler(Protocol):
    """What a sampler backend offers."""

    def sample(self, seeds: npt.NDArray[Any], key: int) -> Sample:
        """The neighbourhood of `seeds` under `key`."""


class Loader(Protocol):
    """What the training loop asks of a loader."""

    seconds: dict[str, float]

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose batches come next."""

    def __len__(self) -> int:
        """Micro-batches of an epoch."""

    def num_seeds(self, index: int) -> int:
        """Seed nodes of micro-batch `index`; 0 past the end."""

    def key(self, index: int) -> int:
        """The 64-bit key of micro-batch `index` of this epoch."""

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        """The micro-batches `indices` of this epoch, in that order."""


@final
class NeighborLoader:
    """Neighbour-sampled mini-batches of a graph, as PyG `Data`.

    A batch holds `x` `[N, F]`, `y` `[N]`, `n_id` `[N]`, `e_id` `[E]`, `batch_size` (the seeds are
    the first nodes), `edge_index` (a col-sorted `EdgeIndex` of size (N, N)), `input_id` (positions
    in `input_nodes`), `seed_rows`, `num_sampled_nodes` and `num_sampled_edges`.

    Args:
        graph: an open graph.
        input_nodes: seed nodes, distinct, int64.
        num_neighbors: fan-out of each hop; -1 takes all neighbours.
        batch_size: seeds of a batch; the last one may be shorter.
        seed: of order and draws.
        shuffle: a new order of the seeds each epoch; False: as given.
        stream: separates the draws of training, validation and prediction.
        sampler: "dnformer", or "pyg-lib", whose draws are not reproducible.
        sparse: sparse features as `torch.sparse_csr` (DNFormer takes them); False: dense.
        threads: threads that sample and gather.
        prefetch: batches prepared ahead.
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
        sparse: bool = False,
        threads: int = 2,
        prefetch: int = 4,
    ) -> None:
        if min(batch_size, threads, prefetch) < 1:
            raise ConfigError("batch_size, threads and prefetch are 1 or more")
        self._graph, self._input_nodes = graph, _check_nodes(input_nodes, graph.num_nodes)
        self._batch_size, self._seed, self._shuffle = batch_size, seed, shuffle
        self._stream, self._threads, self._prefetch = stream, threads, prefetch
        self._sampler: Sampler = (
            NeighborSampler(graph, num_neighbors)
            if sampler == "dnformer"
            else PygLibSampler(graph, num_neighbors)
        )
        self._gather = _features(graph, sparse=sparse, keep=2 * (threads + prefetch))
        self.seconds = {"sample": 0.0, "gather": 0.0}
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
        return len(self._positions(index))

    def _positions(self, index: int) -> npt.NDArray[np.int64]:
        return self._order[index * self._batch_size : (index + 1) * self._batch_size]

    def key(self, index: int) -> int:
        """The 64-bit key of micro-batch `index` of this epoch."""
        return key_of(self._seed, self._stream, self._epoch, index)

    def __iter__(self) -> Iterator[Data]:
        return self.draws(range(len(self)))

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        """The micro-batches `indices` of this epoch in that order, drawn ahead by the threads."""
        wanted = iter(indices)
        pending: deque[Future[tuple[Data, float, float]]] = deque()
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
                    batch, sample_s, gather_s = pending.popleft().result()
                    self.seconds["sample"] += sample_s
                    self.seconds["gather"] += gather_s
                    yield batch
            finally:
                for future in pending:
                    future.cancel()

    def _draw(
        self, index: int, order: npt.NDArray[np.int64], epoch: int
    ) -> tuple[Data, float, float]:
        start = time.perf_counter()
        positions = order[index * self._batch_size : (index + 1) * self._batch_size]
        key = key_of(self._seed, self._stream, epoch, index)
        drawn = self._sampler.sample(self._input_nodes[positions], key)
        sampled = time.perf_counter()
        batch = _block(self._graph, self._gather, drawn, positions)
        return batch, sampled - start, time.perf_counter() - sampled


def _block(
    graph: Graph, gather: FeatureGather, drawn: Sample, positions: npt.NDArray[np.int64]
) -> Data:
    num_nodes = len(drawn.n_id)
    edge_index = EdgeIndex(
        torch.from_numpy(drawn.edge_index),
        sparse_size=(num_nodes, num_nodes),
        sort_order="col",
    )
    return Data(
        x=gather.rows(drawn.n_id),
        y=torch.from_numpy(graph.y[drawn.n_id]) if graph.has_target else None,
        edge_index=edge_index,
        n_id=torch.from_numpy(drawn.n_id),
        e_id=torch.from_numpy(drawn.e_id),
        input_id=torch.from_numpy(positions.copy()),
        batch_size=len(positions),
        seed_rows=torch.arange(len(positions)),
        num_sampled_nodes=drawn.num_sampled_nodes,
        num_sampled_edges=drawn.num_sampled_edges,
    )


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
        nodes = _check_nodes(input_nodes, graph.num_nodes)
        everyone = np.arange(graph.num_nodes)
        store = graph.store
        col = np.repeat(everyone, np.diff(store.colptr))
        edge_index = EdgeIndex(
            torch.from_numpy(np.stack([store.row.astype(np.int64), col])),
            sparse_size=(graph.num_nodes, graph.num_nodes),
            sort_order="col",
        )
        self._batch = Data(
            x=_features(graph, sparse=sparse, keep=0).rows(everyone),
            y=torch.from_numpy(graph.y.copy()) if graph.has_target else None,
            edge_index=edge_index,
            seed_rows=torch.from_numpy(nodes),
            batch_size=len(nodes),
        )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose keys come next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return 1

    def num_seeds(self, index: int) -> int:
        """All input nodes for micro-batch 0; 0 past the end."""
        return int(self._batch.batch_size) if index == 0 else 0

    def key(self, index: int) -> int:
        """The 64-bit key of micro-batch `index` of this epoch."""
        return key_of(self._seed, "train", self._epoch, index)

    def __iter__(self) -> Iterator[Data]:
        return self.draws(range(1))

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        """The one batch, for each of `indices`."""
        for _ in indices:
            yield self._batch


def _features(graph: Graph, *, sparse: bool, keep: int) -> FeatureGather:
    if graph.manifest.features == "none":
        raise DataError(
            f"{graph.uri}: the dataset has no features, and a model needs some; ingest it with "
            "a node table that has feature columns"
        )
    return FeatureGather(graph.store, graph.num_features, sparse=sparse, keep=keep)


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
