"""How a node's neighbours are drawn: uniformly, by weight, or by LABOR's shared numbers."""

from typing import Any, Literal, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from dnformer.data.store import Store
from dnformer.errors import ConfigError, DataError
from dnformer.loader import draw_kernels
from dnformer.loader import sampler_kernels as kernels
from dnformer.loader.scratch import Frontier, Scratch

Array = npt.NDArray[Any]
Sampling = Literal["uniform", "weighted", "labor"]


class Structure(Protocol):
    """What a sampler reads of a graph."""

    @property
    def uri(self) -> str:
        """Named in errors."""

    @property
    def num_nodes(self) -> int:
        """N."""

    @property
    def store(self) -> Store:
        """Its arrays; features and labels are not read."""


class Hop(NamedTuple):
    """What is drawn from.

    Attributes:
        frontier: nodes, and their edges as positions.
        fan_out: edges of each node, -1 for all.
        key: of the hop.
        edges: the edge at each position; None where they are the same.
        weight: of the edge at each position, or nothing.
    """

    frontier: Frontier
    fan_out: int
    key: np.uint64
    edges: Array | None
    weight: Array


@final
class Draws:
    """One way of drawing; all of them are functions of (key, hop, node).

    Args:
        graph: an open graph, or its structure.
        sampling: "uniform", "weighted" (in proportion to `store.weight`) or "labor".
        replace: each draw from all neighbours.
    """

    def __init__(self, graph: Structure, sampling: Sampling, *, replace: bool) -> None:
        if sampling not in ("uniform", "weighted", "labor"):
            raise ConfigError(f"sampling {sampling!r} is not one of uniform, weighted, labor")
        if sampling == "labor" and replace:
            raise ConfigError("sampling labor takes a neighbour or not; leave out replace")
        if sampling == "weighted" and graph.store.weight is None:
            raise DataError(
                f"{graph.uri}: the edges have no weights for sampling weighted; ingest a weight "
                "column, or use sampling uniform"
            )
        self._sampling, self._replace, self._rows = sampling, replace, graph.store.row

    def most(self, frontier: Frontier, fan_out: int) -> int:
        """No more edges than these are drawn from the frontier."""
        at_most = -1 if self._sampling == "labor" else fan_out
        return int(kernels.most_edges(frontier, at_most, self._replace))

    def draw(self, hop: Hop, out: tuple[Array, Array, int], scratch: Scratch) -> int:
        """Draws the hop to `out`, (positions, counts, e); gives the new `e`.

        Raises:
            DataError: a weight is negative, infinite or NaN.
        """
        frontier, fan_out, key, *_ = hop
        if self._sampling == "weighted":
            return self._weighted(hop, out, scratch)
        if self._sampling == "labor":
            return int(draw_kernels.draw_labor(frontier, self._rows, fan_out, key, out))
        if self._replace:
            return int(draw_kernels.draw_replaced(frontier, fan_out, key, out))
        return int(kernels.draw_uniform(frontier, fan_out, key, out))

    def _weighted(self, hop: Hop, out: tuple[Array, Array, int], scratch: Scratch) -> int:
        frontier, fan_out, key, edges, weight = hop
        _, degree, _, begin, end = frontier
        if self._replace and fan_out >= 0:
            sums = scratch.keys.room(int(degree[begin:end].max(initial=0)))
            stop = draw_kernels.draw_weighted_replaced(frontier, weight, fan_out, key, out, sums)
        else:
            heap = scratch.keys.room(max(fan_out, 0)), scratch.places.room(max(fan_out, 0))
            stop = draw_kernels.draw_weighted(frontier, weight, fan_out, key, out, heap)
        if stop < 0:
            position = -1 - int(stop)
            edge = position if edges is None else int(edges[position])
            raise DataError(
                f"edge {edge}, from node {self._rows[edge]}, has the weight {weight[position]}; "
                "weights are 0 or more, and finite: correct the weight column and ingest again"
            )
        return int(stop)
