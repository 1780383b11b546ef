"""What has to be computed where only some nodes are asked for: their neighbours, hop by hop."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# where a layer needs more of the nodes than this, the search for them saves less than it costs
_SHARE = 0.25


class Reach(NamedTuple):
    """The nodes of which outputs are needed.

    Attributes:
        base: of the input projection, ascending; None: all. Rows of layers are of these.
        layers: of each block but the last, ascending, each within the one before.
    """

    base: Array | None
    layers: list[Array | None]


def reach_of(colptr: Array, row: Array, nodes: Array, num_layers: int) -> Reach:
    """What `nodes` need of a model with `num_layers` blocks.

    Args:
        colptr: of the graph, `[N+1]`.
        row: source of each edge, `[E]`.
        nodes: that are asked for.
        num_layers: of the model.
    """
    found: Array | None = np.unique(nodes)
    levels: list[Array | None] = []
    for _ in range(num_layers):
        found = None if found is None else _with_sources(colptr, row, found)
        levels.insert(0, found)
    base, *layers = levels
    return Reach(base, layers)


def _with_sources(colptr: Array, row: Array, nodes: Array) -> Array | None:
    """`nodes` and their in-neighbours; None where that may be most of the graph."""
    first, end = colptr[nodes], colptr[nodes + 1]
    num_nodes, counts = len(colptr) - 1, end - first
    if len(nodes) + int(counts.sum()) > max(_SHARE * num_nodes, 1):
        return None
    starts = np.cumsum(counts) - counts
    edges = np.repeat(first - starts, counts) + np.arange(counts.sum())
    return np.union1d(nodes, row[edges].astype(np.int64))
