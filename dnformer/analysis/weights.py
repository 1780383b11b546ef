"""Attention of a trained DNFormer on a graph, exact and layer by layer: softmaxes, lambda, weights.

Each layer's input is computed once, for all that the destinations depend on, as `inference` does
it; the attention maps are given in ranges of destinations, so that the memory is that of a few
`[B, C]` tensors and one range.

N nodes, M destinations asked for, B nodes that they depend on, E edges that end in them, H heads,
C channels.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.errors import DataError
from dnformer.group import Group
from dnformer.inference import (
    Layers,
    RangeLimits,
    Reach,
    destination_ranges,
    evaluating,
    reach_of,
)
from dnformer.loader.source import DenseSource
from dnformer.nn import Block, DNFormer
from dnformer.nn.attention import Projected
from dnformer.ops import Topology

Array = npt.NDArray[Any]

_LIMITS = RangeLimits()
# fields of LayerAttention with a row an edge
_PER_EDGE = ("a1", "a2", "lam", "w", "s1", "s2")


class LayerAttention(NamedTuple):
    """Attention of one layer over the edges of some destinations, in evaluation mode: no dropout.

    w = a1 - lam · a2, and a_r is the softmax of s_r over the edges of each destination.

    Attributes:
        layer: its place in the model, from 1.
        nodes: the destinations `[M]`, as indices of the graph.
        topology: `colptr [M+1]`, and `row [E]`, the neighbours as indices of the graph; as the
            block saw them, with the self-loops that the model adds.
        a1: first softmax `[E, H]`.
        a2: second softmax `[E, H]`; None with `attention: single` and `single_wide`.
        lam: lambda `[E, H]`; None likewise.
        w: the weights of the values `[E, H]`; a1 itself without a second softmax.
        s1: logits of the first softmax `[E, H]`, edge bias included, where asked for.
        s2: logits of the second softmax `[E, H]`, likewise; None without one.
        hidden: the layer's input `[B, C]`, where asked for; all of a layer's parts share it.
        base: the nodes `[B]` that `hidden` has rows of, ascending; all that this or a later layer
            needs, or None: each of the graph's.
    """

    layer: int
    nodes: Tensor
    topology: Topology
    a1: Tensor
    a2: Tensor | None
    lam: Tensor | None
    w: Tensor
    s1: Tensor | None = None
    s2: Tensor | None = None
    hidden: Tensor | None = None
    base: Tensor | None = None

    def dst(self) -> Tensor:
        """The destination of each edge `[E]`, as an index of the graph."""
        return self.nodes[self.topology.dst()]


class Kept(NamedTuple):
    """What is given beside the weights."""

    logits: bool = False
    hidden: bool = False


_WEIGHTS_ALONE = Kept()


@torch.no_grad()
def attention_parts(
    model: DNFormer,
    graph: Graph,
    nodes: Tensor | None = None,
    *,
    keep: Kept = _WEIGHTS_ALONE,
    limits: RangeLimits = _LIMITS,
    source: DenseSource | None = None,
) -> Iterator[LayerAttention]:
    """Attention layer by layer from the first, each layer's destinations in ranges.

    Args:
        model: its mode, training or not, is put back after each part.
        graph: all of a node's neighbours in it are attended over.
        nodes: the destinations, each once, in any order; None: all nodes.
        keep: what is given beside the weights.
        limits: bounds of a range; a destination with more edges is a range of its own.
        source: where dense features come from; None: the store.

    Raises:
        DataError: a destination is no node of the graph.
    """
    wanted = np.arange(graph.num_nodes) if nodes is None else nodes.cpu().numpy()
    _check_nodes(wanted, graph)
    colptr, num_layers = graph.store.colptr, len(model.blocks)
    reach = Reach(None, [None] * (num_layers - 1))
    if nodes is not None:
        reach = reach_of(colptr, graph.store.row, wanted, num_layers)
    layers = Layers(model, graph, Group(), limits, base=reach.base)
    with evaluating(model):
        h = layers.embed(source)
    for layer, block in enumerate(model.blocks, start=1):
        with evaluating(model):
            projected = layers.project(block, h)
        for part in destination_ranges(colptr, wanted, limits):
            with evaluating(model):
                found = _attention(layers, block, h, projected, wanted[part], keep)
            yield found._replace(layer=layer)
        if layer < num_layers:
            with evaluating(model):
                h = layers.layer(block, h, reach.layers[layer - 1])


def layer_attention(
    model: DNFormer,
    graph: Graph,
    nodes: Tensor | None = None,
    *,
    keep: Kept = _WEIGHTS_ALONE,
    source: DenseSource | None = None,
) -> list[LayerAttention]:
    """Attention of each layer over all edges of `nodes` at once; see `attention_parts`.

    It takes some 4·E·H numbers a layer: for what fits in memory.
    """
    parts: list[list[LayerAttention]] = [[] for _ in model.blocks]
    for part in attention_parts(model, graph, nodes, keep=keep, source=source):
        parts[part.layer - 1].append(part)
    return [_joined(of_layer) for of_layer in parts]


def _check_nodes(wanted: Array, graph: Graph) -> None:
    if not wanted.size:
        raise DataError("no node is asked for: give at least one")
    wrong = wanted[(wanted < 0) | (wanted >= graph.num_nodes)]
    if wrong.size:
        raise DataError(f"no node {wrong[0]}: the graph has nodes 0 to {graph.num_nodes - 1}")


def _attention(
    layers: Layers, block: Block, h: Tensor, projected: Projected, nodes: Array, keep: Kept
) -> LayerAttention:
    """Attention of `nodes`; `h` and `projected` have the rows of `layers`."""
    base = layers.base
    edges = layers.edges(nodes, like=h)
    at = torch.from_numpy(nodes if base is None else np.searchsorted(base, nodes)).to(h.device)
    placed = block.with_destinations(projected, h[at])
    weights = block.attention.edge_weights(placed, *edges)
    s1 = s2 = None
    if keep.logits:
        s1, s2 = (*block.attention.edge_logits(placed, *edges).unbind(-1), None)[:2]
    known = None if base is None else torch.from_numpy(base).to(h.device)
    row = edges.topology.row if known is None else known[edges.topology.row]
    found = LayerAttention(
        0, torch.from_numpy(nodes).to(h.device), Topology(edges.topology.colptr, row), *weights
    )
    found = found._replace(s1=s1, s2=s2)
    return found._replace(hidden=h, base=known) if keep.hidden else found


def _joined(parts: list[LayerAttention]) -> LayerAttention:
    """The parts of one layer as one."""
    first = parts[0]
    counts = torch.cat([part.topology.colptr.diff() for part in parts])
    colptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    topology = Topology(colptr, torch.cat([part.topology.row for part in parts]))
    per_edge: dict[str, Any] = {
        name: _cat([getattr(part, name) for part in parts]) for name in _PER_EDGE
    }
    nodes = torch.cat([part.nodes for part in parts])
    return first._replace(nodes=nodes, topology=topology, **per_edge)


def _cat(parts: list[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None
