"""Kernels of the other draws: with replacement, by weight, LABOR. See `sampler_kernels` for words.

By weight and in LABOR all edges of a node are read: cost is linear in degrees, not in fan-outs.
"""

import math

import numba
import numpy as np

from dnformer.data.counter_rng import GAMMA, below, derive, mix
from dnformer.ops.prefetch import prefetch

_S11, _S32 = np.uint64(11), np.uint64(32)
_SCALE = 2.0**-53
# nodes whose lists are asked for ahead of their turn; the rest of a list is read in order
_AHEAD = 8


@numba.njit(inline="always")
def _ask(values, first, i, end):  # type: ignore[no-untyped-def]
    if i + _AHEAD < end:
        prefetch(values, np.int64(first[i + _AHEAD]))


@numba.njit(nogil=True, cache=True)
def draw_replaced(frontier, fan_out, key, edges):  # type: ignore[no-untyped-def]
    """`fan_out` neighbours of each node that has any, each of all of them."""
    first, degree, who, begin, end = frontier
    e_id, counts, e = edges
    for i in range(begin, end):
        count = degree[i]
        if fan_out >= 0 and count > 0:
            count = fan_out
            stream = derive(key, np.uint64(who[i]))
            for c in range(count):
                x = below(mix(stream + np.uint64(c) * GAMMA), degree[i])
                e_id[e + c] = first[i] + x
        else:
            for c in range(count):
                e_id[e + c] = first[i] + c
        counts[i] = count
        e += count
    return e


@numba.njit(inline="always")
def _unit(draw):  # type: ignore[no-untyped-def]
    """A uint64 `draw` as a float64 in [0, 1)."""
    return np.float64(draw >> _S11) * _SCALE


@numba.njit(inline="always")
def _is_weight(w):  # type: ignore[no-untyped-def]
    return w >= 0 and w < np.inf  # NaN is neither


@numba.njit
def _sink(keys, places, size):  # type: ignore[no-untyped-def]
    """Restores a heap, largest key first, whose root is new."""
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            return
        if child + 1 < size and keys[child + 1] > keys[child]:
            child += 1
        if keys[child] <= keys[i]:
            return
        keys[i], keys[child] = keys[child], keys[i]
        places[i], places[child] = places[child], places[i]
        i = child


@numba.njit
def _rise(keys, places, i):  # type: ignore[no-untyped-def]
    """Restores it when the number at `i`, its end, is new."""
    while i > 0 and keys[(i - 1) // 2] < keys[i]:
        parent = (i - 1) // 2
        keys[i], keys[parent] = keys[parent], keys[i]
        places[i], places[parent] = places[parent], places[i]
        i = parent


@numba.njit
def _offer(heap, size, most, value, place):  # type: ignore[no-untyped-def]
    """Adds to a heap of the `most` smallest values; gives its new size."""
    keys, places = heap
    if size < most:
        keys[size], places[size] = value, place
        _rise(keys, places, size)
        return size + 1
    if value < keys[0]:
        keys[0], places[0] = value, place
        _sink(keys, places, size)
    return size


@numba.njit
def _take_all(places, weight, out):  # type: ignore[no-untyped-def]
    """How many of places[0]..places[1] - 1 weigh something; they go to `out`."""
    e_id, e = out
    count = np.int64(0)
    for p in range(places[0], places[1]):
        if not _is_weight(weight[p]):
            return -1 - p
        if weight[p] > 0:
            e_id[e + count] = p
            count += 1
    return count


@numba.njit
def _take_some(places, weight, stream, most, heap, out):  # type: ignore[no-untyped-def]
    """The same, `most` of them by their weights."""
    keys, found = heap
    e_id, e = out
    size = np.int64(0)
    for p in range(places[0], places[1]):
        w = np.float64(weight[p])
        if not _is_weight(w):
            return -1 - p
        u = _unit(mix(stream + np.uint64(p - places[0]) * GAMMA))
        # -log(1 - u) >= u: on long lists most need no logarithm
        if w > 0 and most > 0 and (size < most or u < keys[0] * w):
            size = _offer(heap, size, most, -math.log(1.0 - u) / w, p)
    for c in range(size):
        e_id[e + c] = found[c]
    return size


@numba.njit(nogil=True, cache=True)
def draw_weighted(frontier, weight, fan_out, key, edges, heap):  # type: ignore[no-untyped-def]
    """`fan_out` different neighbours, one after the other in proportion to the weights left.

    Efraimidis, Spirakis, "Weighted random sampling with a reservoir", 2006 (A-Res): the smallest
    of -log(u) / weight, u uniform for each edge. Weight 0 is never drawn.

    Args:
        frontier: whose positions are those of `weight`.
        weight: float32.
        fan_out: of this hop; -1 takes all edges of a weight above 0.
        key: of this hop.
        edges: what is drawn.
        heap: memory for `fan_out` float64 and as many int64.

    Returns:
        The new `e`; -1 - p where the weight at p is negative, infinite or NaN.
    """
    first, degree, who, begin, end = frontier
    e_id, counts, e = edges
    for i in range(begin, end):
        _ask(weight, first, i, end)
        places = (first[i], first[i] + degree[i])
        if fan_out < 0 or degree[i] <= fan_out:
            count = _take_all(places, weight, (e_id, e))
        else:
            stream = derive(key, np.uint64(who[i]))
            count = _take_some(places, weight, stream, fan_out, heap, (e_id, e))
        if count < 0:
            return count
        counts[i] = count
        e += count
    return e


@numba.njit(nogil=True, cache=True)
def draw_weighted_replaced(frontier, weight, fan_out, key, edges, sums):  # type: ignore[no-untyped-def]
    """`fan_out` neighbours, each in proportion to all weights, by their running sums.

    `fan_out` is 0 or more, and `sums` float64 has room for the largest degree; else as
    `draw_weighted`. Nothing is drawn where all weights are 0.
    """
    first, degree, who, begin, end = frontier
    e_id, counts, e = edges
    for i in range(begin, end):
        _ask(weight, first, i, end)
        stream = derive(key, np.uint64(who[i]))
        total, last = 0.0, -1
        for c in range(degree[i]):
            w = np.float64(weight[first[i] + c])
            if not _is_weight(w):
                return -1 - (first[i] + c)
            total += w
            sums[c] = total
            last = c if w > 0 else last
        counts[i] = fan_out if last >= 0 else 0
        for c in range(counts[i]):
            goal = _unit(mix(stream + np.uint64(c) * GAMMA)) * total
            # the first sum above the goal is never that of a weight of 0; rounding may leave none
            x = np.searchsorted(sums[: last + 1], goal, side="right")
            e_id[e + c] = first[i] + min(x, last)
        e += counts[i]
    return e


@numba.njit(nogil=True, cache=True)
def draw_labor(frontier, rows, fan_out, key, edges):  # type: ignore[no-untyped-def]
    """Each neighbour t of a node s whose number r(t) <= fan_out / degree(s), the same r for all s.

    LABOR-0 of Balin, Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023: a node that is drawn for
    one destination is more likely to be drawn for others. Counts vary, `fan_out` is their mean.
    """
    first, degree, _, begin, end = frontier
    e_id, counts, e = edges
    for i in range(begin, end):
        _ask(rows, first, i, end)
        count = degree[i]
        if 0 <= fan_out < count:
            count = 0
            limit = np.uint64(fan_out) << _S32
            for p in range(first[i], first[i] + degree[i]):
                r = derive(key, np.uint64(rows[p])) >> _S32
                if r * np.uint64(degree[i]) < limit:
                    e_id[e + count] = p
                    count += 1
        else:
            for c in range(count):
                e_id[e + c] = first[i] + c
        counts[i] = count
        e += count
    return e
