"""The layers of a model over all of a graph's edges, in ranges of destinations.

Each layer runs once over all edges, the last one over those of the nodes that are asked for. So the
cost is linear in edges and layers, and the memory is that of a few `[N, C]` tensors, which need not
be in memory, and one range.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dnformer.data.graph import Graph
from dnformer.data.threads import in_threads
from dnformer.group import Group
from dnformer.inference.space import Memory, Space
from dnformer.loader.features import FeatureGather
from dnformer.loader.source import DenseSource
from dnformer.nn import Block, DNFormer
from dnformer.nn.attention import Projected
from dnformer.nn.topology import Edges
from dnformer.ops import Topology

Array = npt.NDArray[Any]
# all nodes need no array of their numbers
Nodes: TypeAlias = Array | range

# ranges after which a space may forget what was gone through, some 64 MB
_DONE_EVERY = 64
# of a sum over the ranks, so that mapped rows are not all in memory
_SUM_BYTES = 64 << 20


class RangeLimits(NamedTuple):
    """Bounds of one range of nodes, and so of the memory of what is computed at a time."""

    # small enough that workers share them evenly, also those of a graph of 30,000 nodes
    edges: int = 1 << 16
    rows: int = 1 << 12


_LIMITS = RangeLimits()
_MEMORY = Memory()


def _silent(done: int) -> None:
    pass


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and the mode that it was in afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@torch.no_grad()
def exact_logits(
    model: DNFormer,
    graph: Graph,
    group: Group,
    limits: RangeLimits = _LIMITS,
    source: DenseSource | None = None,
) -> Tensor:
    """Outputs `[N, K]` on the CPU, equal on all ranks; `exact_embeddings` says the rest."""
    with evaluating(model):
        nodes = [torch.arange(graph.num_nodes)]
        (h,) = exact_embeddings(model, graph, group, nodes, limits, source)
        return model.classify(h).cpu()


@torch.no_grad()
def exact_embeddings(
    model: DNFormer,
    graph: Graph,
    group: Group,
    nodes: Sequence[Tensor],
    limits: RangeLimits = _LIMITS,
    source: DenseSource | None = None,
) -> list[Tensor]:
    """The last block's outputs `[S, C]` of each of some sets of nodes, equal on all ranks.

    Each set is computed by itself, so that its outputs do not depend on the others in any bit; the
    blocks before are computed once, and for all nodes.

    The ranges are shared out among the ranks. Dense features come from `source`, or straight from
    the store, past the page cache where they do not fit in memory. The model's mode (train or eval)
    is put back as it was.
    """
    with evaluating(model):
        layers = Layers(model, graph, group, limits)
        h = layers.embed(source)
        *blocks, last = model.blocks
        for block in blocks:
            h = layers.layer(block, h)
        projected = layers.project(last, h)
        return [layers.run(last, h, projected, each.numpy()) for each in nodes]


class Layers(NamedTuple):
    """Runs blocks range by range, shared among the ranks, which all call it at the same points.

    The bits of what comes out depend on the limits and on the nodes that are asked for, not on
    ranks or space.

    Attributes:
        model: in evaluation mode, on the device of the group.
        graph: its edges and features.
        group: this worker and the others.
        limits: of a range.
        space: where the rows of layers lie.
        base: the nodes that layers have a row of, ascending; None: all.
        told: of the nodes and edges that were done.
    """

    model: DNFormer
    graph: Graph
    group: Group
    limits: RangeLimits = _LIMITS
    space: Space = _MEMORY
    base: Array | None = None
    told: Callable[[int], None] = _silent

    @property
    def nodes(self) -> Nodes:
        """Those that layers have a row of."""
        return range(self.graph.num_nodes) if self.base is None else self.base

    def embed(self, source: DenseSource | None = None) -> Tensor:
        """The first block's input, a row of each node of `nodes`.

        Args:
            source: of dense features; None: the store.
        """
        weight = next(self.model.parameters())
        gather = FeatureGather(
            self.graph.store, self.graph.num_features, sparse=self.model.sparse_input, source=source
        )
        out = self.space.rows(len(self.nodes), weight.new_empty(0, self.model.hidden_channels))
        mine = self._share(_blocks(len(self.nodes), self.limits.rows))
        for part, x in in_threads(
            lambda part: (part, gather.rows(_ids(self.nodes[part]))), mine, 1
        ):
            out[part] = self.model.embed(x.to(weight.device).to(weight.dtype))
            self._step(part.start // self.limits.rows, len(x))
        return self._summed(out)

    def layer(self, block: Block, h: Tensor, nodes: Array | None = None) -> Tensor:
        """The block's outputs: rows as in `h`, set for `nodes`, some of those; None: all."""
        projected, wanted = self.project(block, h), self.nodes if nodes is None else nodes
        out = self.space.rows(len(h), h)
        for _, at, rows in self._outputs(block, h, projected, wanted, self._share):
            out[at] = rows
        return self._summed(out)

    def run(self, block: Block, h: Tensor, projected: Projected, nodes: Nodes) -> Tensor:
        """The outputs `[S, C]` of `nodes`; `h` and `projected` are of the layer before."""
        out = h.new_zeros(len(nodes), h.shape[1])
        for part, _, rows in self._outputs(block, h, projected, nodes, self._share):
            out[part] = rows
        return self._summed(out)

    def run_alone(self, block: Block, h: Tensor, projected: Projected, nodes: Nodes) -> Tensor:
        """The same, all computed by this rank, without the others."""
        found = [rows for _, _, rows in self._outputs(block, h, projected, nodes, iter)]
        return torch.cat(found) if found else h[:0]

    def project(self, block: Block, h: Tensor) -> Projected:
        """All that the block needs of its sources, which have a row each in `h`."""
        like = block.project(h[:0], 0)
        k, v, w = self.space.tables(len(h), (like.k, like.v, like.w))
        for number, part in enumerate(_blocks(len(h), self.limits.rows)):
            made = block.project(h[part], 0)
            k[part], v[part], w[part] = made.k, made.v, made.w
            self._step(number, 0)
        return like._replace(k=k, v=v, w=w)

    def edges(self, nodes: Array, *, like: Tensor) -> Edges:
        """The edges that end in `nodes` as blocks take them: with loops, where the model has them.

        Destinations are counted from 0, sources are rows of a layer; on the device of `like`,
        attributes in its dtype.
        """
        edges = _edges_into(self.graph, nodes, like=like, attributes=self.model.edge_channels > 0)
        if self.base is not None:
            row = torch.from_numpy(self.at(edges.topology.row.cpu().numpy())).to(like.device)
            edges = edges._replace(topology=edges.topology._replace(row=row))
        return self.model.with_self_loops(edges, torch.from_numpy(self.at(nodes)).to(like.device))

    def at(self, nodes: Nodes) -> Array:
        """The rows of `nodes` in a layer."""
        ids = _ids(nodes)
        return ids if self.base is None else np.searchsorted(self.base, ids)

    def _outputs(
        self,
        block: Block,
        h: Tensor,
        projected: Projected,
        nodes: Nodes,
        share: Callable[[Iterator[slice]], Iterator[slice]],
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(positions in `nodes`, rows of a layer, outputs) of ranges of `nodes`."""

        def prepare(part: slice) -> tuple[slice, Tensor, Edges]:
            ids = _ids(nodes[part])
            return part, torch.from_numpy(self.at(ids)).to(h.device), self.edges(ids, like=h)

        parts = share(destination_ranges(self.graph.store.colptr, nodes, self.limits))
        for number, (part, at, edges) in enumerate(in_threads(prepare, parts, 1)):
            yield part, at, block.attend_some(h[at], projected, *edges)
            self._step(number, self._size(nodes[part]))

    def _size(self, nodes: Nodes) -> int:
        """Nodes, and edges of the graph that end in them."""
        ids, colptr = _ids(nodes), self.graph.store.colptr
        return len(ids) + int((colptr[ids + 1] - colptr[ids]).sum())

    def _share(self, parts: Iterable[slice]) -> Iterator[slice]:
        return islice(parts, self.group.rank, None, self.group.world_size)

    def _step(self, number: int, done: int) -> None:
        if number % _DONE_EVERY == _DONE_EVERY - 1:
            self.space.done()
        self.told(done)

    def _summed(self, out: Tensor) -> Tensor:
        """Rows that one rank has set and the others left 0, on all ranks, bit for bit."""
        if self.group.world_size > 1:
            # as integers: 0.0 added to -0.0 would be 0.0
            bits = out.view(torch.int32 if out.element_size() == 4 else torch.int64)
            row_bytes = max(out.shape[1] * out.element_size(), 1)
            for part in _blocks(len(out), max(_SUM_BYTES // row_bytes, 1)):
                self.group.sum_(bits[part])
                self.space.done()
        return out


def _blocks(num_rows: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size))


def _ids(nodes: Nodes) -> Array:
    return np.arange(nodes.start, nodes.stop) if isinstance(nodes, range) else nodes


def destination_ranges(colptr: Array, nodes: Nodes, limits: RangeLimits) -> Iterator[slice]:
    """Ranges that cover `nodes`, each within `limits` or a single node."""
    first = 0
    while first < len(nodes):
        ids = _ids(nodes[first : first + limits.rows])
        ends = np.cumsum(colptr[ids + 1] - colptr[ids])
        stop = first + max(1, int(np.searchsorted(ends, limits.edges, side="right")))
        yield slice(first, stop)
        first = stop


def _edges_into(graph: Graph, nodes: Array, *, like: Tensor, attributes: bool) -> Edges:
    """The edges that end in `nodes`, on the device of `like`, attributes in its dtype."""
    store = graph.store
    first, end = store.colptr[nodes], store.colptr[nodes + 1]
    colptr = np.zeros(len(nodes) + 1, dtype=np.int64)
    np.cumsum(end - first, out=colptr[1:])
    part: slice | Array = slice(int(first[0]), int(end[-1]))
    if (np.diff(nodes) != 1).any():
        part = np.repeat(first - colptr[:-1], end - first) + np.arange(colptr[-1])
    topology = Topology(
        colptr=torch.from_numpy(colptr).to(like.device),
        row=torch.from_numpy(store.row[part].astype(np.int64)).to(like.device),
    )
    if not attributes:
        return Edges(topology)
    assert store.edge_attr is not None
    # copied: the store's memory is read-only
    return Edges(topology, torch.from_numpy(np.array(store.edge_attr[part])).to(like))
