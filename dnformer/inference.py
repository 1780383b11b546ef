"""Exact outputs of a trained model for all nodes: every neighbour, layer by layer.

Each layer runs once over all edges, in ranges of destinations, so the cost is linear in edges and
layers and the memory is that of a few `[N, C]` tensors and one range.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.loader.features import FeatureGather
from dnformer.loader.source import DenseSource
from dnformer.nn import Block, DNFormer
from dnformer.nn.topology import Edges
from dnformer.ops import Topology


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
        return model.classify(exact_embeddings(model, graph, group, limits, source)).cpu()


@torch.no_grad()
def exact_embeddings(
    model: DNFormer,
    graph: Graph,
    group: Group,
    limits: RangeLimits = _LIMITS,
    source: DenseSource | None = None,
) -> Tensor:
    """The last block's outputs `[N, C]` on the model's device, equal on all ranks.

    The ranges are shared out among the ranks. Dense features come from `source`, or straight from
    the store, past the page cache where they do not fit in memory. The model's mode (train or eval)
    is put back as it was.
    """
    with evaluating(model):
        h = _embed(model, graph, group, limits.rows, source)
        for block in model.blocks:
            h = _layer(block, h, model, graph, group, limits)
        return h


def _embed(
    model: DNFormer, graph: Graph, group: Group, max_rows: int, source: DenseSource | None
) -> Tensor:
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


def _layer(
    block: Block, h: Tensor, model: DNFormer, graph: Graph, group: Group, limits: RangeLimits
) -> Tensor:
    projected = block.project(h)
    out = torch.zeros_like(h)
    for number, rows in enumerate(destination_ranges(graph, limits)):
        if number % group.world_size == group.rank:
            edges = _edges(graph, rows, like=h, attributes=model.edge_channels > 0)
            topology, edge_attr = model.with_self_loops(edges, rows.start)
            out[rows] = block.attend_range(h, projected, topology, rows, edge_attr=edge_attr)
    return group.sum_(out)


def destination_ranges(graph: Graph, limits: RangeLimits) -> Iterator[slice]:
    """Ranges that cover all nodes, each within `limits` or a single node."""
    colptr, first = graph.store.colptr, 0
    while first < graph.num_nodes:
        stop = int(np.searchsorted(colptr, colptr[first] + limits.edges, side="right")) - 1
        stop = min(max(stop, first + 1), first + limits.rows, graph.num_nodes)
        yield slice(first, stop)
        first = stop


def _edges(graph: Graph, rows: slice, *, like: Tensor, attributes: bool) -> Edges:
    """The edges that end in `rows`, on the device of `like`, attributes in its dtype."""
    store = graph.store
    colptr = store.colptr[rows.start : rows.stop + 1]
    part = slice(int(colptr[0]), int(colptr[-1]))
    topology = Topology(
        colptr=torch.from_numpy(colptr - colptr[0]).to(like.device),
        row=torch.from_numpy(store.row[part].astype(np.int64)).to(like.device),
    )
    if not attributes:
        return Edges(topology)
    assert store.edge_attr is not None
    # copied: the store's memory is read-only
    return Edges(topology, torch.from_numpy(np.array(store.edge_attr[part])).to(like))
