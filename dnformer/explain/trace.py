"""How one node's output came about: every layer over what the node depends on, with gradients.

B nodes that the node depends on, M of them that a layer computes, E edges, H heads, D head width,
C = H·D channels, K outputs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import Layers, evaluating, reach_of
from dnformer.nn import Block, DNFormer
from dnformer.nn.attention import DiffAttention, Projected
from dnformer.ops import EdgeWeights

Array = npt.NDArray[Any]


class Mixed(NamedTuple):
    """What a layer's attention gave its M destinations.

    Attributes:
        out: O, after the heads were mixed, `[M, C]`.
        raw: o of each head before its norm, `[M, H, D]`; None where heads have no norm.
    """

    out: Tensor
    raw: Tensor | None


class Terms(NamedTuple):
    """What some edges bring to their destination, each value for each of them.

    Attributes:
        out: the term of each edge `[E, C]`; over all edges of a node they add up to O.
        share: the part of O that the edge's term makes up along O; 1 over all edges of a node.
        push: first-order effect of the term on the score; over all edges that of O.
    """

    out: Tensor
    share: Tensor
    push: Tensor


class Edges(NamedTuple):
    """All edges that end in one node, in one layer.

    Attributes:
        node: the destination, as an index of the graph.
        row: the neighbours `[E]`, as indices of the graph; the node itself, where it has a loop.
        weights: both softmaxes, lambda and w, `[E, H]` each.
        push: first-order effect of all its edges together on the score.
    """

    node: int
    row: Array
    weights: EdgeWeights
    push: float


class Layer:
    """One layer of a traced computation.

    Args:
        number: its place in the model, from 1.
        block: the layer itself.
        layers: what the node depends on.
        hidden: the layer's input, a row of each of `layers`.
        projected: of all these as sources.
        nodes: the destinations that the layer computes, ascending.
        mixed: what their attention gave.
        gradient: of the score by `mixed.out`, `[M, C]`.
    """

    def __init__(  # noqa: PLR0913 - what a layer is made of
        self,
        number: int,
        block: Block,
        layers: Layers,
        *,
        hidden: Tensor,
        projected: Projected,
        nodes: Array,
        mixed: Mixed,
        gradient: Tensor,
    ) -> None:
        self.number = number
        self._block, self._layers, self._hidden = block, layers, hidden
        self._projected, self._nodes, self._mixed = projected, nodes, mixed
        self._gradient = gradient

    @torch.no_grad()
    def edges(self, node: int) -> Edges:
        """The edges that end in `node`, one of those that the layer computes."""
        layers, nodes = self._layers, np.array([node])
        edges = layers.edges(nodes, like=self._hidden)
        placed = self._block.with_destinations(self._projected, self._hidden[layers.at(nodes)])
        weights = self._block.attention.edge_weights(placed, *edges)
        row = edges.topology.row.numpy()
        at = self._at(node)
        push = float(self._mixed.out[at] @ self._gradient[at])
        return Edges(node, row if layers.base is None else layers.base[row], weights, push)

    @torch.no_grad()
    def terms(self, edges: Edges, chosen: Array) -> Terms:
        """What the edges at the positions `chosen` bring."""
        at, attention = self._at(edges.node), self._block.attention
        own = edges.weights.weight[chosen].unsqueeze(-1)  # [E, H, 1]
        values = self._projected.v[self._layers.at(edges.row[chosen])]
        heads = own * values * _normed(attention, self._mixed.raw, at)
        terms = attention.out(heads.to(values.dtype).flatten(1))  # [E, C]
        out = self._mixed.out[at]
        return Terms(terms, share=terms @ out / (out @ out), push=terms @ self._gradient[at])

    def _at(self, node: int) -> int:
        return int(np.searchsorted(self._nodes, node))


def _normed(attention: DiffAttention, raw: Tensor | None, at: int) -> Tensor | float:
    """By what the norm of a head multiplies it, `[H, D]`, at the value that it has."""
    if raw is None or attention.norm is None:
        return 1.0
    mean = raw[at].square().mean(-1, keepdim=True)
    eps = attention.norm.eps
    assert eps is not None
    return torch.rsqrt(mean + eps) * attention.norm.weight * attention.scale


class Trace(NamedTuple):
    """The computation of one node.

    Attributes:
        logits: its outputs `[K]`.
        layers: from the first to the last.
    """

    logits: Tensor
    layers: list[Layer]


def trace(model: DNFormer, graph: Graph, node: int, score: Callable[[Tensor], Tensor]) -> Trace:
    """The exact computation of `node`, every neighbour taken, and the gradients of its score.

    It takes memory for what the node depends on, that is at most all of the graph, layer by layer.

    Args:
        model: on the CPU; its mode is put back as it was.
        graph: with its features.
        node: an index of the graph.
        score: a number of the outputs `[K]`.
    """
    colptr, blocks = graph.store.colptr, model.blocks
    reach = reach_of(colptr, graph.store.row, np.array([node]), len(blocks))
    layers = Layers(model, graph, Group(), base=reach.base)
    everyone = np.arange(graph.num_nodes)
    computed = [everyone if nodes is None else nodes for nodes in reach.layers]
    computed.append(np.array([node]))
    inputs, seen = [], []
    with evaluating(model):
        with torch.no_grad():
            h = layers.embed()
        for block, nodes in zip(blocks, computed, strict=True):
            at, projected = torch.from_numpy(layers.at(nodes)), block.project(h, 0)
            with _watched(block.attention) as found:
                out = block.attend_some(h[at], projected, *layers.edges(nodes, like=h))
            inputs.append((h, projected))
            seen.append(Mixed(*found))
            h = h.new_zeros(h.shape).index_copy(0, at, out)
        logits = model.classify(out)[0]
    gradients = torch.autograd.grad(score(logits), [mixed.out for mixed in seen])
    return Trace(
        logits.detach(),
        [
            Layer(number, block, layers, hidden=hidden, projected=projected, nodes=nodes,
                  mixed=mixed, gradient=gradient)
            for number, (block, (hidden, projected), nodes, mixed, gradient) in enumerate(
                zip(blocks, inputs, computed, seen, gradients, strict=True), start=1
            )
        ],
    )  # fmt: skip


@contextmanager
def _watched(attention: DiffAttention) -> Iterator[list[Any]]:
    """Fills a list with what `Mixed` has, while the layer runs once."""
    found: list[Any] = [None, None]

    def keep_out(module: object, args: object, out: Tensor) -> None:
        found[0] = out

    def keep_raw(module: object, args: tuple[Tensor]) -> None:
        found[1] = args[0]

    handles = [attention.out.register_forward_hook(keep_out)]
    if attention.norm is not None:
        handles.append(attention.norm.register_forward_pre_hook(keep_raw))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
