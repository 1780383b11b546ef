"""The sampler's kernels: degrees of a frontier, uniform draws, local ids, the result.

All are serial and run without the GIL. A kernel goes through a frontier's edges in blocks and asks
the memory for what the next step reads: on a graph larger than the cache, waiting for one
reading after the other is most of a plain sampler's time.

A frontier is (first, degree, who, begin, end): of node i of the batch, begin <= i < end, the
neighbours are `degree[i]` edges from `first[i]` on, and `who[i]` names it among the random numbers.
A drawing kernel writes edges to `e_id` from `e` on, how many to `counts[i]`, and gives the new `e`.
"""

import numba
import numpy as np

from dnformer.data.counter_rng import GAMMA, below, derive, mix
from dnformer.ops.prefetch import prefetch

# nodes and edges that are asked for ahead of their turn: enough for a line to come from memory
_NODES_AHEAD = 16
_EDGES_AHEAD = 32
# edges whose places in the table are asked for together; their lines fit in the first cache
_BLOCK = 256
# up to this fan-out a scan of the picked positions, after a filter, beats a hash set
_SCAN = 32
# bits of the word that tells which positions were picked
_WORD = 64

_0, _1, _63 = np.uint64(0), np.uint64(1), np.uint64(63)
_S32 = np.uint64(32)


@numba.njit(nogil=True, cache=True)
def degrees(colptr, n_id, frontier):  # type: ignore[no-untyped-def]
    """Fills in the frontier's first and degree."""
    first, degree, _, begin, end = frontier
    for i in range(begin, end):
        if i + _NODES_AHEAD < end:
            prefetch(colptr, np.int64(n_id[i + _NODES_AHEAD]))
        node = n_id[i]
        first[i] = colptr[node]
        degree[i] = colptr[node + 1] - colptr[node]


@numba.njit(nogil=True, cache=True)
def most_edges(frontier, fan_out, replace):  # type: ignore[no-untyped-def]
    """The most edges that are drawn from the frontier; fan-out -1 takes all of a node."""
    _, degree, _, begin, end = frontier
    total = np.int64(0)
    for i in range(begin, end):
        if fan_out < 0 or (degree[i] < fan_out and not replace):
            total += degree[i]
        elif degree[i] > 0:
            total += fan_out
    return total


@numba.njit(inline="always")
def _pick_bits(picked, e, first, count, degree, stream):  # type: ignore[no-untyped-def]
    """`first` + Floyd's subset of `count` of 0..degree-1, degree <= 64, in picked[e:e + count].

    Bentley, Floyd, "A Sample of Brilliance", CACM 1987. One word holds what was picked.
    """
    seen = _0
    for c in range(count):
        top = degree - count + c
        x = below(mix(stream + np.uint64(c) * GAMMA), top + 1)
        x = top if (seen >> np.uint64(x)) & _1 else x
        seen |= _1 << np.uint64(x)
        picked[e + c] = first + x


@numba.njit(inline="always")
def _pick_scan(picked, e, first, count, degree, stream):  # type: ignore[no-untyped-def]
    """The same subset for any degree: a word of hashes says when a scan is needed."""
    seen = _0
    for c in range(count):
        top = degree - count + c
        x = below(mix(stream + np.uint64(c) * GAMMA), top + 1)
        if (seen >> (np.uint64(x) & _63)) & _1:
            for z in range(c):
                if picked[e + z] == first + x:
                    x = top
                    break
        seen |= _1 << (np.uint64(x) & _63)
        picked[e + c] = first + x


@numba.njit
def _pick_hash(picked, e, first, count, degree, stream):  # type: ignore[no-untyped-def]
    """The same subset in time linear in `count`."""
    capacity = np.int64(4)
    while capacity < 2 * count:
        capacity *= 2
    mask = capacity - 1
    seen = np.full(capacity, -1, np.int64)
    for c in range(count):
        top = degree - count + c
        x = below(mix(stream + np.uint64(c) * GAMMA), top + 1)
        p = _slot(mask, x)
        while seen[p] != x and seen[p] != -1:
            p = (p + 1) & mask
        if seen[p] == x:
            x = top
            p = _slot(mask, x)
            while seen[p] != -1:
                p = (p + 1) & mask
        seen[p] = x
        picked[e + c] = first + x


@numba.njit(nogil=True, cache=True)
def draw_uniform(frontier, fan_out, key, edges):  # type: ignore[no-untyped-def]
    """`fan_out` different neighbours of each node, or all where it has no more."""
    first, degree, who, begin, end = frontier
    e_id, counts, e = edges
    for i in range(begin, end):
        count = degree[i]
        if 0 <= fan_out < count:
            count = fan_out
            stream = derive(key, np.uint64(who[i]))
            if degree[i] <= _WORD:
                _pick_bits(e_id, e, first[i], count, degree[i], stream)
            elif count <= _SCAN:
                _pick_scan(e_id, e, first[i], count, degree[i], stream)
            else:
                _pick_hash(e_id, e, first[i], count, degree[i], stream)
        else:
            for c in range(count):
                e_id[e + c] = first[i] + c
        counts[i] = count
        e += count
    return e


@numba.njit(inline="always")
def _slot(mask, value):  # type: ignore[no-untyped-def]
    """Where `value` goes first in a table of mask + 1 places."""
    return np.int64((np.uint64(value) * GAMMA) >> _S32) & mask


@numba.njit(nogil=True, cache=True)
def seed_direct(table, stamp, n_id, n):  # type: ignore[no-untyped-def]
    """Enters the seeds n_id[:n]; gives the place of one that was there before, or -1."""
    for i in range(n):
        if table[n_id[i]] >= stamp:
            return i
        table[n_id[i]] = stamp | i
    return -1


@numba.njit(nogil=True, cache=True)
def relabel_direct(rows, edges, nodes, table, stamp):  # type: ignore[no-untyped-def]
    """Local ids of the sources of e_id[e:stop] to `row`, new ones to `n_id`; gives the new `n`.

    `edges` is (e_id, row, counts, e, stop), `nodes` (n_id, n).
    `table[node]` is stamp | local id, or less than `stamp` where this batch hasn't met the node:
    a new batch takes a higher stamp, and nothing is cleared.
    """
    e_id, row, _, e, stop = edges
    n_id, n = nodes
    for block in range(e, stop, _BLOCK):
        end = min(block + _BLOCK, stop)
        for p in range(block, end):
            if p + _EDGES_AHEAD < stop:
                prefetch(rows, np.int64(e_id[p + _EDGES_AHEAD]))
            row[p] = rows[e_id[p]]
            prefetch(table, np.int64(row[p]))
        for p in range(block, end):
            node = row[p]
            found = table[node]
            if found < stamp:
                found = stamp | n
                table[node] = found
                n_id[n] = node
                n += 1
            row[p] = found - stamp
    return n


@numba.njit(nogil=True, cache=True)
def seed_hash(table, n_id, n):  # type: ignore[no-untyped-def]
    """Empties the table and enters n_id[:n]; gives the place of one that stands twice, or -1."""
    table[:] = 0
    mask = table.shape[0] - 1
    for i in range(n):
        p = _slot(mask, n_id[i])
        while table[p] != 0:
            if n_id[table[p] - 1] == n_id[i]:
                return i
            p = (p + 1) & mask
        table[p] = i + 1
    return -1


@numba.njit(nogil=True, cache=True)
def relabel_hash(rows, edges, nodes, table):  # type: ignore[no-untyped-def]
    """The same with an open-addressing table of local ids + 1, 0 where it is empty."""
    e_id, row, _, e, stop = edges
    n_id, n = nodes
    mask = table.shape[0] - 1
    for block in range(e, stop, _BLOCK):
        end = min(block + _BLOCK, stop)
        for p in range(block, end):
            if p + _EDGES_AHEAD < stop:
                prefetch(rows, np.int64(e_id[p + _EDGES_AHEAD]))
            row[p] = rows[e_id[p]]
            prefetch(table, _slot(mask, row[p]))
        for p in range(block, end):
            node = row[p]
            place = _slot(mask, node)
            found = table[place]
            while found != 0 and n_id[found - 1] != node:
                place = (place + 1) & mask
                found = table[place]
            if found == 0:
                n_id[n] = node
                n += 1
                found = n
                table[place] = found
            row[p] = found - 1
    return n


@numba.njit(nogil=True, cache=True)
def emit(scratch, counts, out):  # type: ignore[no-untyped-def]
    """The batch from scratch memory to int64 arrays of its own: n_id, [row, col], e_id."""
    n_id, row, e_id = scratch
    out_n_id, out_edge_index, out_e_id = out
    for i in range(out_n_id.shape[0]):
        out_n_id[i] = n_id[i]
    for p in range(out_e_id.shape[0]):
        out_e_id[p] = e_id[p]
    for p in range(out_e_id.shape[0]):
        out_edge_index[0, p] = row[p]
    p = 0
    for i in range(counts.shape[0]):
        for _ in range(counts[i]):
            out_edge_index[1, p] = i
            p += 1
