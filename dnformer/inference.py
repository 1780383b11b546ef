"""Exact outputs of a trained model for all nodes: every neighbour, layer by layer.

Each layer runs once over all edges, the last one over those of the nodes that are asked for, in
ranges of destinations. So the cost is linear in edges and layers, and the memory is that of a few
`[N, C]` tensors and one range.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.loader.features import FeatureGather
from dnformer.loader.source import DenseSource
from dnformer.nn import Block, DNFormer
from dnformer.nn.attention import Projected
from dnformer.nn.topology import Edges
from dnformer.ops import Topology

Array = npt.NDArray[Any]


class RangeLimits(NamedTuple):
    """Bounds of one range of nodes, and so of the memory of what is computed at a time."""

    # small enough that workers share them evenly, also those of a graph of 30,000 nodes
    edges: int = 1 << 16
    rows: int = 1 << 12


_LIMITS = RangeLimits()


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
    sets = [each.numpy() for each in nodes]
    with evaluating(model):
        h = embed_all(model, graph, group, limits.rows, source)
        *blocks, last = model.blocks
        layers = Layers(model, graph, group, limits)
        everything = np.arange(graph.num_nodes)
        for block in blocks:
            h = layers.run(block, h, block.project(h, 0), everything)
        projected = last.project(h, 0)
        return [layers.run(last, h, projected, each) for each in sets]


def embed_all(
    model: DNFormer, graph: Graph, group: Group, max_rows: int, source: DenseSource | None
) -> Tensor:
    """The first block's input `[N, C]` of all nodes, in ranges shared among the ranks."""
    weight = next(model.parameters())
    gather = FeatureGather(
        graph.store, graph.num_features, sparse=model.sparse_input, source=source
    )
    h = torch.zeros(graph.num_nodes, model.hidden_channels, dtype=weight.dtype,
                    device=weight.device)  # fmt: skip
    for number, first in enumerate(range(0, graph.num_nodes, max_rows)):
        if number % group.world_size == group.rank:
            ids = np.arange(first, min(first + max_rows, graph.num_nodes))
            x = gather.rows(ids).to(weight.device)
            h[first : first + len(ids)] = model.embed(x.to(weight.dtype))
    return group.sum_(h)


class Layers(NamedTuple):
    """Runs blocks range by range, over the ranks."""

    model: DNFormer
    graph: Graph
    group: Group
    limits: RangeLimits

    def run(self, block: Block, h: Tensor, projected: Projected, nodes: Array) -> Tensor:
        """The outputs of `nodes`; `h` and `projected` are of all nodes."""
        out = h.new_zeros(len(nodes), h.shape[1])
        ranges = destination_ranges(self.graph.store.colptr, nodes, self.limits)
        for number, part in enumerate(ranges):
            if number % self.group.world_size == self.group.rank:
                topology, edge_attr = self.edges(nodes[part], like=h)
                ids = torch.from_numpy(nodes[part]).to(h.device)
                out[part] = block.attend_some(h[ids], projected, topology, edge_attr)
        return self.group.sum_(out)

    def edges(self, nodes: Array, *, like: Tensor) -> Edges:
        """The edges that end in `nodes` as blocks take them: with loops, where the model has them.

        Destinations are counted from 0; on the device of `like`, attributes in its dtype.
        """
        edges = _edges_into(self.graph, nodes, like=like, attributes=self.model.edge_channels > 0)
        return self.model.with_self_loops(edges, torch.from_numpy(nodes).to(like.device))


def destination_ranges(colptr: Array, nodes: Array, limits: RangeLimits) -> Iterator[slice]:
    """Ranges that cover `nodes`, each within `limits` or a single node."""
    ends, first = np.cumsum(colptr[nodes + 1] - colptr[nodes]), 0
    while first < len(nodes):
        before = ends[first - 1] if first else 0
        stop = int(np.searchsorted(ends, before + limits.edges, side="right"))
        stop = min(max(stop, first + 1), first + limits.rows)
        yield slice(first, min(stop, len(nodes)))
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
