"""How outputs come about: layer by layer, of the whole graph at once, or by sampling."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.config import RunConfig
from dnformer.data.graph import Graph
from dnformer.errors import ConfigError
from dnformer.group import Group
from dnformer.inference import Layers, Mapped, RangeLimits, reach_of
from dnformer.inference.exact import Nodes
from dnformer.inference.outputs import ExactOutputs
from dnformer.inference.reach import Reach
from dnformer.loader import NeighborLoader
from dnformer.loader.source import DenseSource
from dnformer.nn import DNFormer
from dnformer.nn.attention import Projected
from dnformer.nn.node_model import NodeModel
from dnformer.training.loop import seed_logits

Array = npt.NDArray[Any]

# what a range of destinations and the parts that are being written take beside the tables
_BUFFERS = 160 << 20


class Made(NamedTuple):
    """Outputs of S nodes.

    Attributes:
        logits: `[S, K]`.
        extra: by name of the column, what layers gave, `[S, C]`.
    """

    logits: Tensor
    extra: dict[str, Tensor]


class Room(NamedTuple):
    """What computing may take: bytes of memory, and a local folder for the rest."""

    memory: int
    folder: Path


class Computing(ABC):
    """Gives outputs of nodes; `prepare` is called once, before, and by all ranks.

    Attributes:
        num_done: nodes and edges that will be done, over all ranks.
    """

    num_done: int

    @abstractmethod
    def prepare(self) -> None:
        """What is done once for all nodes."""

    @abstractmethod
    def outputs(self, nodes: Nodes) -> Made:
        """Outputs of `nodes`, ascending, by this rank alone."""


class Work(NamedTuple):
    """What there is to compute with.

    Attributes:
        model: in evaluation mode.
        config: of its run.
        graph: the nodes and edges.
        group: this worker and the others.
        room: memory and disk.
        told: of the nodes and edges that were done.
    """

    model: NodeModel
    config: RunConfig
    graph: Graph
    group: Group
    room: Room
    told: Callable[[int], None]


@final
class LayerByLayer(Computing):
    """Exact outputs of a DNFormer, each layer once over the edges that are needed.

    Args:
        work: what there is to compute with.
        wanted: the nodes that will be asked for; None: all.
        embeddings: give `embedding`, the last block's output.
        layers: give `layer_0`, the first block's input, to `layer_L`, the last one's output.
    """

    def __init__(self, work: Work, wanted: Array | None, *, embeddings: bool, layers: bool) -> None:
        self._work, self._embeddings, self._keep = work, embeddings, layers
        self._model = cast(DNFormer, work.model)
        store, num_layers = work.graph.store, len(self._model.blocks)
        self._reach = Reach(None, [None] * (num_layers - 1))
        if wanted is not None:
            self._reach = reach_of(store.colptr, store.row, wanted, num_layers)
        self.num_done = self._estimate(wanted)
        arrays = (store.colptr, store.row, store.edge_attr, store.x, store.x_indptr,
                  store.x_indices, store.x_values)  # fmt: skip
        space = Mapped(work.room.folder, max(work.room.memory - _BUFFERS, 0), arrays)
        self._layers = Layers(
            self._model, work.graph, work.group, RangeLimits(), space, self._reach.base, work.told
        )
        self._rows: list[Tensor] = []
        self._projected: Projected | None = None

    def _estimate(self, wanted: Array | None) -> int:
        """Nodes and edges that `told` will be told of, over all ranks."""
        graph, colptr = self._work.graph, self._work.graph.store.colptr

        def size(nodes: Array | None) -> int:
            if nodes is None:
                return graph.num_nodes + graph.num_edges
            return len(nodes) + int((colptr[nodes + 1] - colptr[nodes]).sum())

        base = self._reach.base
        embedded = graph.num_nodes if base is None else len(base)
        return embedded + sum(map(size, self._reach.layers)) + size(wanted)

    @torch.no_grad()
    def prepare(self) -> None:
        """All layers but the last."""
        features = self._work.graph.store.x
        source = None
        if features is not None:
            cache = self._work.config.cache
            source = DenseSource(features, self._work.graph.store.x_scale, reads=cache.reads,
                                 readers=cache.readers)  # fmt: skip
        h = self._layers.embed(source)
        *blocks, last = self._model.blocks
        self._rows = [h]
        for block, nodes in zip(blocks, self._reach.layers, strict=True):
            h = self._layers.layer(block, h, nodes)
            self._rows = [*self._rows, h] if self._keep else [h]
        self._projected = self._layers.project(last, h)

    @torch.no_grad()
    def outputs(self, nodes: Nodes) -> Made:
        """The last layer, and what others gave for the same nodes."""
        assert self._projected is not None
        last = self._model.blocks[-1]
        h = self._layers.run_alone(last, self._rows[-1], self._projected, nodes)
        extra = {"embedding": h} if self._embeddings else {}
        if self._keep:
            at = torch.from_numpy(self._layers.at(nodes))
            extra |= {f"layer_{i}": rows[at] for i, rows in enumerate(self._rows)}
            extra[f"layer_{len(self._rows)}"] = h
        return Made(self._model.classify(h), extra)


@final
class AtOnce(Computing):
    """Exact outputs of any model, by one forward pass of the whole graph in memory."""

    def __init__(self, work: Work) -> None:
        self._work, self._logits = work, torch.empty(0)
        graph = work.graph
        need = _least_bytes(graph, work.config)
        if need > work.room.memory:
            raise ConfigError(
                f"model {work.config.model.name} sees the whole graph at once, which takes "
                f"{need >> 20:,} MiB at least, and {work.room.memory >> 20:,} MiB may be taken; "
                "raise the memory limit, or predict with --mode sampled where the model can"
            )
        self.num_done = graph.num_nodes + graph.num_edges

    @torch.no_grad()
    def prepare(self) -> None:
        """The forward pass."""
        work = self._work
        everyone = torch.arange(work.graph.num_nodes)
        (self._logits,) = ExactOutputs(work.model, work.graph, work.group)([everyone])
        work.told(self.num_done)

    def outputs(self, nodes: Nodes) -> Made:
        """Those of the pass."""
        return Made(self._logits[torch.as_tensor(np.asarray(nodes))], {})


def _least_bytes(graph: Graph, config: RunConfig) -> int:
    """Features, edges, and two layers of the nodes."""
    store = graph.store
    features = graph.num_nodes * graph.num_features * 4
    if store.x_values is not None:
        features = 8 * len(store.x_values)
    layers = 2 * 4 * graph.num_nodes * (config.model.hidden + graph.num_classes)
    return features + 16 * graph.num_edges + layers


@final
class Sampled(Computing):
    """Outputs from neighbours as they were sampled in training, of the stream of predictions."""

    def __init__(self, work: Work, wanted: Array | None) -> None:
        self._work = work
        self.num_done = work.graph.num_nodes if wanted is None else len(wanted)

    def prepare(self) -> None:
        """Nothing to do."""

    def outputs(self, nodes: Nodes) -> Made:
        """Batch by batch; the same for the same nodes."""
        alone = self._work._replace(group=Group())
        return Made(sampled_logits(alone, np.asarray(nodes)), {})


@torch.no_grad()
def sampled_logits(work: Work, nodes: Array) -> Tensor:
    """Outputs `[S, K]` of `nodes` from sampled neighbours, equal on all ranks."""
    options, model = work.config.loader, work.model
    loader = NeighborLoader(
        work.graph, nodes, num_neighbors=options.fan_out(work.config.model.layers),
        batch_size=options.batch_size, seed=work.config.seed, shuffle=False, stream="predict",
        sampler=options.sampler, sampling=options.sampling, replace=options.replace,
        temporal=options.temporal, sparse=model.sparse_input, threads=options.threads,
        prefetch=options.prefetch, degrees=model.uses_degrees,
    )  # fmt: skip
    group, dtype = work.group, next(model.parameters()).dtype
    found = torch.zeros(0)
    for batch in loader.draws(range(group.rank, len(loader), group.world_size)):
        logits = seed_logits(model, batch, dtype)
        if not len(found):
            found = logits.new_zeros(len(nodes), logits.shape[1])
        found[batch.input_id] = logits
        work.told(len(logits))
    return group.sum_(found)
