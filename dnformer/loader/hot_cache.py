"""The rows that sampling meets most, kept in memory.

Nodes are ranked by how many batches of an epoch are expected to touch them: its seeds, then what
each hop draws from those that the one before touched. In-degree says nothing about a directed
graph, where a node is met as a source; and out-degree ranks the neighbours of much-met nodes no
higher than those of others. The hit rates are in bench/LOG.md.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types
from numba.extending import intrinsic

from dnformer.data.store import Store

Array = npt.NDArray[Any]


class Visits(NamedTuple):
    """The epoch to rank for: seed nodes, fan-out of each hop, seeds of a batch."""

    seeds: Array
    fan_out: Sequence[int]
    batch_size: int


def expected_visits(store: Store, visits: Visits) -> Array:
    """About how many batches of an epoch touch each node, float32 `[N]`.

    One pass over the edges a hop; four such arrays of memory.
    """
    num_batches = np.float32(-(-len(visits.seeds) // visits.batch_size))
    touched = np.zeros(len(store.colptr) - 1, np.float32)
    touched[visits.seeds] = 1
    total = touched.copy()
    for fan_out in visits.fan_out:
        drawn = np.zeros_like(touched)
        _draw(store.colptr, store.row, fan_out, touched, drawn)
        # a batch touches a node once, however often it draws it
        touched = num_batches * -np.expm1(-drawn / num_batches)
        total += touched
    return total


@numba.njit(nogil=True, cache=True)
def _draw(colptr, row, fan_out, touched, drawn):  # type: ignore[no-untyped-def]
    """Adds how often the neighbours of `touched` nodes are drawn."""
    for i in range(touched.shape[0]):
        degree = colptr[i + 1] - colptr[i]
        if touched[i] == 0 or degree == 0:
            continue
        share = touched[i]
        if 0 <= fan_out < degree:
            share *= np.float32(fan_out / degree)
        for e in range(colptr[i], colptr[i + 1]):
            drawn[row[e]] += share


def hottest(scores: Array, count: int) -> Array:
    """The `count` nodes of highest score that is not 0, ascending; of equal ones the first."""
    if count <= 0:
        return np.empty(0, np.int64)
    least = np.float32(0)
    if count < len(scores):
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = scores > least
    if least > 0:
        chosen[np.flatnonzero(scores == least)[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


@intrinsic
def _num_ones(context, word):  # type: ignore[no-untyped-def]
    """Bits set in a word."""
    signature = types.uint64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return signature, generate


@numba.njit(nogil=True, cache=True)
def _find(words, ids, slots):  # type: ignore[no-untyped-def]
    hits, one = 0, np.uint64(1)
    for i in range(ids.shape[0]):
        bits, before = words[ids[i] >> 6, 0], words[ids[i] >> 6, 1]
        bit = np.uint64(ids[i] & 63)
        if (bits >> bit) & one:
            slots[i] = np.int64(before + _num_ones(bits & ((one << bit) - one)))
            hits += 1
        else:
            slots[i] = -1
    return hits


@final
class SlotIndex:
    """Where the rows of chosen nodes lie: a bit for each node, and the count before each 64.

    A look-up reads 16 bytes; the whole takes a quarter of a byte for each node of the graph.

    Args:
        nodes: the chosen ones, ascending; the row of nodes[s] lies in slot s.
        num_nodes: N.
    """

    def __init__(self, nodes: Array, num_nodes: int) -> None:
        self.nodes = nodes
        self._words = np.zeros((-(-num_nodes // 64), 2), np.uint64)
        np.bitwise_or.at(
            self._words[:, 0], nodes >> 6, np.uint64(1) << (nodes & 63).astype(np.uint64)
        )
        counts = np.bincount(nodes >> 6, minlength=len(self._words))
        self._words[:, 1] = np.cumsum(counts) - counts

    def find(self, ids: Array) -> tuple[Array, int]:
        """The slot of each node, -1 where it is not chosen, int64; and how many are."""
        slots = np.empty(len(ids), np.int64)
        return slots, int(_find(self._words, ids, slots))
