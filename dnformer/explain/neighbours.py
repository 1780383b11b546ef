"""Which neighbours the model kept and which it subtracted, hop by hop along the strongest ones.

E edges of a node, H heads.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dnformer.explain.trace import Edges, Layer

Array = npt.NDArray[Any]


class Heads(NamedTuple):
    """A value of an edge in each head, and their mean."""

    mean: float
    each: list[float]


class Neighbour(NamedTuple):
    """An edge, as the node at its end uses it.

    Attributes:
        node: the neighbour, as an index of the graph.
        w: the weight of its values, a1 - lambda · a2.
        a1: first softmax.
        a2: second softmax; None with one softmax alone.
        lam: lambda; None likewise.
        share: its part of what attention gives the node, as `Terms` has it.
        push: likewise, on the score of the node that is explained.
    """

    node: int
    w: Heads
    a1: Heads
    a2: Heads | None
    lam: Heads | None
    share: float
    push: float


class Side(NamedTuple):
    """The neighbours with a positive mean weight, or those with a negative one.

    Attributes:
        total: how many there are.
        weight: sum of their mean weights.
        shown: the strongest of them, strongest first.
    """

    total: int
    weight: float
    shown: list[Neighbour]

    @property
    def left_out(self) -> int:
        """How many are not shown."""
        return self.total - len(self.shown)

    @property
    def weight_left_out(self) -> float:
        """The sum of their mean weights."""
        return self.weight - sum(neighbour.w.mean for neighbour in self.shown)


class Attended(NamedTuple):
    """A node and what it attends to in one layer.

    Attributes:
        node: an index of the graph.
        kept: neighbours that it adds.
        subtracted: neighbours that it takes away.
        push: first-order effect of all its neighbours, shown or not, on the score.
    """

    node: int
    kept: Side
    subtracted: Side
    push: float

    @property
    def shown(self) -> list[Neighbour]:
        """Of both sides, kept ones first."""
        return [*self.kept.shown, *self.subtracted.shown]


class Hop(NamedTuple):
    """Nodes so many steps away, minus one, and what they attend to.

    Attributes:
        number: 1 for the neighbours of the node itself.
        layer: of the model, from 1; the last one is hop 1.
        nodes: the node itself, or the strongest of those that the hop before shows.
        left_out: how many of these are not followed.
    """

    number: int
    layer: int
    nodes: list[Attended]
    left_out: int


def hops_of(layers: Sequence[Layer], node: int, *, hops: int, top: int) -> list[Hop]:
    """The strongest neighbours of `node`, theirs, and so on.

    Of each node, at most `top` kept and `top` subtracted neighbours are shown; the `top` strongest
    of a hop, by the product of |w| along the way from the node, are followed further.

    Args:
        layers: of the trace of `node`.
        node: an index of the graph.
        hops: at most as many as there are layers.
        top: at least 1.
    """
    strength, found, left_out = {node: 1.0}, [], 0
    for number, layer in enumerate(reversed(layers[len(layers) - hops :]), start=1):
        nodes = [_attended(layer, each, top) for each in strength]
        found.append(Hop(number, layer.number, nodes, left_out))
        strongest: dict[int, float] = {}
        for attended in nodes:
            for neighbour in attended.shown:
                along = strength[attended.node] * abs(neighbour.w.mean)
                strongest[neighbour.node] = max(along, strongest.get(neighbour.node, 0.0))
        left_out = max(len(strongest) - top, 0)
        strength = dict(sorted(strongest.items(), key=lambda each: (-each[1], each[0]))[:top])
    return found


def _attended(layer: Layer, node: int, top: int) -> Attended:
    edges = layer.edges(node)
    mean = edges.weights.weight.mean(dim=1).numpy()
    kept, subtracted = (
        _side(layer, edges, mean, np.flatnonzero(of), top) for of in (mean > 0, mean < 0)
    )
    return Attended(node, kept, subtracted, edges.push)


def _side(layer: Layer, edges: Edges, mean: Array, of: Array, top: int) -> Side:
    # of equal weights, the first node
    chosen = of[np.lexsort((edges.row[of], -np.abs(mean[of])))[:top]]
    a1, a2, lam, w = edges.weights
    _, share, push = layer.terms(edges, chosen)
    shown = [
        Neighbour(int(edges.row[edge]), _heads(w[edge]), _heads(a1[edge]), _maybe(a2, edge),
                  _maybe(lam, edge), float(share[place]), float(push[place]))
        for place, edge in enumerate(chosen.tolist())
    ]  # fmt: skip
    return Side(len(of), float(mean[of].sum()), shown)


def _heads(values: Tensor) -> Heads:
    return Heads(float(values.mean()), values.tolist())


def _maybe(values: Tensor | None, edge: int) -> Heads | None:
    return None if values is None else _heads(values[edge])
