"""Kernels of temporal sampling: a tree for each seed, and in it only what was there at its time."""

import numba
import numpy as np

from dnformer.data.counter_rng import GAMMA, derive
from dnformer.ops.prefetch import prefetch

_EDGES_AHEAD = 16
_S32 = np.uint64(32)
# any odd number: it keeps the trees of one node apart in the table
_TREE = np.uint64(0xBF58476D1CE4E5B9)


@numba.njit(nogil=True, cache=True)
def admit(frontier, n_id, trees, graph, admitted):  # type: ignore[no-untyped-def]
    """Makes the frontier one of the edges in time: positions of `admitted` in place of edges.

    Args:
        frontier: of which `first`, `degree` and `who` are changed.
        n_id: nodes of the batch.
        trees: (tree of each node of the batch, latest time of each tree).
        graph: (rows, times, whether they are of edges or of sources, weights or nothing).
        admitted: (edges, their weights), of the degrees' sum; weights stay empty without any.
    """
    first, degree, who, begin, end = frontier
    tree, latest = trees
    rows, times, of_edges, weight = graph
    positions, weights = admitted
    k = np.int64(0)
    for i in range(begin, end):
        start, stop, limit = k, first[i] + degree[i], latest[tree[i]]
        for p in range(first[i], stop):
            if not of_edges and p + _EDGES_AHEAD < stop:
                prefetch(times, np.int64(rows[p + _EDGES_AHEAD]))
            time = times[p] if of_edges else times[rows[p]]
            if time <= limit:
                positions[k] = p
                if weight.shape[0] > 0:
                    weights[k] = weight[p]
                k += 1
        # a node draws anew in each tree, by the tree's seed and time, not by its place
        root = derive(np.uint64(n_id[tree[i]]), np.uint64(limit))
        who[i] = derive(root, np.uint64(n_id[i]))
        first[i], degree[i] = start, k - start


@numba.njit(nogil=True, cache=True)
def look_up(positions, e_id, e, stop):  # type: ignore[no-untyped-def]
    """From positions of `admitted` back to edges."""
    for p in range(e, stop):
        e_id[p] = positions[e_id[p]]


@numba.njit(inline="always")
def _slot(mask, node, tree):  # type: ignore[no-untyped-def]
    value = np.uint64(node) + np.uint64(tree) * _TREE
    return np.int64((value * GAMMA) >> _S32) & mask


@numba.njit(nogil=True, cache=True)
def seed_trees(table, n_id, tree, n):  # type: ignore[no-untyped-def]
    """Empties the table and enters the nodes n_id[:n] of their trees, all different."""
    table[:] = 0
    mask = table.shape[0] - 1
    for i in range(n):
        p = _slot(mask, n_id[i], tree[i])
        while table[p] != 0:
            p = (p + 1) & mask
        table[p] = i + 1


@numba.njit(nogil=True, cache=True)
def relabel_trees(rows, edges, frontier, nodes, table):  # type: ignore[no-untyped-def]
    """As `sampler_kernels.relabel_hash`, of pairs: a source is in the tree of its destination."""
    e_id, row, counts, e, _ = edges
    _, _, _, begin, end = frontier
    n_id, tree, n = nodes
    mask = table.shape[0] - 1
    for i in range(begin, end):
        for p in range(e, e + counts[i]):
            node = rows[e_id[p]]
            place = _slot(mask, node, tree[i])
            found = table[place]
            while found != 0 and (n_id[found - 1] != node or tree[found - 1] != tree[i]):
                place = (place + 1) & mask
                found = table[place]
            if found == 0:
                n_id[n], tree[n] = node, tree[i]
                n += 1
                found = n
                table[place] = found
            row[p] = found - 1
        e += counts[i]
    return n
