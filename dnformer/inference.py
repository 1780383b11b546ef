"""Exact outputs of a trained model for all nodes: every neighbour, layer by layer.

Each layer runs once over all edges, in ranges of destinations, so the cost is linear in edges and
layers and the memory is that of a few `[N, C]` tensors and one range.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.loader.features import FeatureGather
from dnformer.nn import DNFormer
from dnformer.ops import Topology

# of one range: bounds the memory of its edges' intermediate values
_MAX_EDGES = 1 << 18
_MAX_ROWS = 1 << 15


@torch.no_grad()
def exact_logits(model: DNFormer, graph: Graph, group: Group) -> Tensor:
    """Outputs `[N, K]` on the CPU, equal on all ranks; the ranges are shared out among them.

    The model's mode (train or eval) is put back as it was.
    """
    training = model.training
    model.eval()
    try:
        h = _embed(model, graph, group)
        for layer in range(len(model.blocks)):
            h = _layer(model, layer, h, graph, group)
        return model.classify(h).cpu()
    finally:
        model.train(training)


def _embed(model: DNFormer, graph: Graph, group: Group) -> Tensor:
    weight = next(model.parameters())
    gather = FeatureGather(graph.store, graph.num_features, sparse=model.sparse_input, keep=2)
    h = torch.zeros(graph.num_nodes, model.hidden_channels, dtype=weight.dtype,
                    device=weight.device)  # fmt: skip
    for number, first in enumerate(range(0, graph.num_nodes, _MAX_ROWS)):
        if number % group.world_size == group.rank:
            ids = np.arange(first, min(first + _MAX_ROWS, graph.num_nodes))
            x = gather.rows(ids).to(weight.device)
            h[first : first + len(ids)] = model.embed(x.to(weight.dtype))
    return group.sum_(h)


def _layer(model: DNFormer, layer: int, h: Tensor, graph: Graph, group: Group) -> Tensor:
    block = model.blocks[layer]
    projected = block.project(h)
    out = torch.zeros_like(h)
    for number, rows in enumerate(_ranges(graph)):
        if number % group.world_size == group.rank:
            topology = model.with_self_loops(_topology(graph, rows, h.device), rows.start)
            out[rows] = block.attend_range(h, projected, topology, rows)
    return group.sum_(out)


def _ranges(graph: Graph) -> Iterator[slice]:
    """Destination ranges of at most `_MAX_EDGES` edges, or one node."""
    colptr, first = graph.store.colptr, 0
    while first < graph.num_nodes:
        stop = int(np.searchsorted(colptr, colptr[first] + _MAX_EDGES, side="right")) - 1
        stop = min(max(stop, first + 1), first + _MAX_ROWS, graph.num_nodes)
        yield slice(first, stop)
        first = stop


def _topology(graph: Graph, rows: slice, device: torch.device) -> Topology:
    colptr = graph.store.colptr[rows.start : rows.stop + 1]
    row = graph.store.row[colptr[0] : colptr[-1]].astype(np.int64)
    return Topology(
        colptr=torch.from_numpy(colptr - colptr[0]).to(device),
        row=torch.from_numpy(row).to(device),
    )
