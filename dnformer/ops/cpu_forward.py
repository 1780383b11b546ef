# mypy: allow-untyped-defs
"""The forward kernel of the CPU: online softmax of both branches over the edges of a task.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer (padded to a multiple of 8), W width of q and k, B branches (2 with a lambda).
"""

import functools
import math
from typing import Any, NamedTuple

import numba
import numpy as np

from dnformer.ops.cpu_kernels import (
    JIT,
    TILE,
    Shape,
    compiled,
    dropout_factors,
    exponentials,
    lambda_and_slope,
    multiply,
    row_logits,
    scale_logits,
    tile_end,
)
from dnformer.ops.cpu_math import exp_negative
from dnformer.ops.vector import (
    gather_hidden,
    gather_sum,
    gather_sum_pair,
    rows_fill,
    rows_max,
    rows_subtract,
    rows_sum,
    scaled,
    subtract,
)


class Found(NamedTuple):
    """The outputs of forward, and those of the pieces of hubs.

    Attributes:
        out: `[M·H·D]`.
        second: likewise, or empty.
        stats: `[M·2B·H]`: for each branch the largest logits, then the sums.
        sums: `[pieces·2·H·D]`, of each branch before division.
        piece_stats: `[pieces·2B·H]`.
    """

    out: Any
    second: Any
    stats: Any
    sums: Any
    piece_stats: Any


@numba.njit(inline="always")
def _raise_largest(stats, base, s, o, n, again, before, sums, first_sum, heads, both, width):
    """One branch of the online softmax: the largest logits so far, subtracted from `s`.

    Where a row goes on (`again`) and a larger logit turns up, its sums so far shrink.
    """
    if again:
        before[:heads] = stats[base : base + heads]
        rows_max(stats, base, s, o, n, heads)
        for h in range(heads):
            if stats[base + h] != before[h]:
                shrink = exp_negative(before[h] - stats[base + h])
                stats[base + both + h] *= shrink
                scaled(sums, first_sum + h * width, sums, first_sum + h * width, shrink, width)
    else:
        # not -inf: a bias of -inf hides an edge, and -inf - -inf would be NaN
        stats[base : base + heads] = np.finfo(s.dtype).min
        stats[base + both : base + both + heads] = 0
        rows_max(stats, base, s, o, n, heads)
    rows_subtract(s, o, n, stats, base, heads)


@numba.njit(inline="always")
def _add_values(sums, s1, s2, o, x, p, n, heads, size, width, branches):
    """Adds the values of the edges p to p + n of a row, weighted by `s1`, and by `s2`."""
    for h in range(heads):
        ix = h * width
        if branches == 2:
            gather_sum_pair(
                sums, ix, size + ix, s1, s2, o + h, heads, x.v, ix, size, x.row, p, n, width
            )
        else:
            gather_sum(sums, ix, s1, o + h, heads, x.v, ix, size, x.row, p, n, width)


@numba.njit(inline="always")
def _finish(found, i, sums, heads, both, size, width):
    """Destination i's row of the outputs from its sums."""
    base = i * 2 * both + both
    for h in range(heads):
        o = i * size + h * width
        scaled(found.out, o, sums, h * width, 1 / found.stats[base + h], width)
        if both > heads:
            over = 1 / found.stats[base + heads + h]
            scaled(found.second, o, sums, size + h * width, over, width)
            subtract(found.out, o, found.second, o, width)


@functools.cache
def forward_kernel(shape: Shape) -> Any:
    """`kernel(tasks, t, nodes, mode, found)` runs row t of the plan's tasks."""
    heads, width, value_width, hidden, branches = shape
    part, size = width // branches, heads * value_width
    stride, both = heads * width, branches * heads
    root, tile = 1 / math.sqrt(part), TILE

    def forward(tasks, t, x, mode, found):
        dtype = x.q.dtype
        scale = dtype.type(root)
        s1, s2 = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        pre, lam = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        slope, kept = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        lam_bias, before = np.empty(tile * heads, dtype), np.empty(heads, dtype)
        sums, no_bits = np.empty(2 * size, dtype), np.empty(0, np.uint8)
        i, last_row, slot = tasks[t, 0], tasks[t, 1], tasks[t, 4]
        p, last_edge = tasks[t, 2], tasks[t, 3]
        began = p
        # a row's largest logits and sums are kept where they are given back
        stats, moved = found.stats, 0
        if slot >= 0:
            stats, moved = found.piece_stats, slot - i
        if branches == 2:
            rows_fill(lam_bias, 0, tile, x.lam_bias, 0, heads)
        while i < last_row:
            next_row, stop = tile_end(x.colptr, i, p, last_row, last_edge, tile)
            many = (stop - p) * heads
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n = (b - p) * heads, e - b
                row_logits(s1, s2, o, x, j, b, n, heads, width, stride, part, branches)
                if hidden > 0:
                    gather_hidden(
                        pre, o, no_bits, 0, x.weight, x.u, j * hidden, x.w, x.row, b, n, heads,
                        hidden, 0,
                    )  # fmt: skip
            scale_logits(s1, many, scale, x.bias, p * heads, mode.bias)
            if branches == 2:
                scale_logits(s2, many, scale, x.bias, p * heads, mode.bias)
                lambda_and_slope(pre, lam_bias, lam, slope, many, mode.squash, hidden)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, base = (b - p) * heads, e - b, (j + moved) * 2 * both
                again = b > x.colptr[j] and b > began
                _raise_largest(
                    stats, base, s1, o, n, again, before, sums, 0, heads, both, value_width
                )
                if branches == 2:
                    base += heads
                    _raise_largest(
                        stats, base, s2, o, n, again, before, sums, size, heads, both, value_width
                    )
            exponentials(s1, many)
            if branches == 2:
                exponentials(s2, many)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, base = (b - p) * heads, e - b, (j + moved) * 2 * both + both
                rows_sum(stats, base, s1, o, n, heads)
                if branches == 2:
                    rows_sum(stats, base + heads, s2, o, n, heads)
            if branches == 2:
                multiply(s2, lam, many)
            if mode.dropout:
                dropout_factors(kept, mode, p * heads, many)
                multiply(s1, kept, many)
                if branches == 2:
                    multiply(s2, kept, many)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                if b == x.colptr[j] or b == began:
                    sums[:] = 0
                o = (b - p) * heads
                _add_values(sums, s1, s2, o, x, b, e - b, heads, size, value_width, branches)
                if e < min(x.colptr[j + 1], last_edge):
                    continue
                if slot >= 0:
                    found.sums[slot * 2 * size : (slot + 1) * 2 * size] = sums
                elif x.colptr[j] == x.colptr[j + 1]:
                    found.out[j * size : (j + 1) * size] = 0
                    if branches == 2:
                        found.second[j * size : (j + 1) * size] = 0
                else:
                    _finish(found, j, sums, heads, both, size, value_width)
            i, p = (next_row, stop) if stop >= min(x.colptr[next_row], last_edge) else (i, stop)

    return compiled(forward, shape)


@numba.njit(**JIT)
def merge_outputs(hubs, y, found, heads, branches, width):
    """Row y of the plan's hubs: its pieces' softmax sums to one row of the outputs."""
    i, first, last = hubs[y]
    size, both = heads * width, branches * heads
    found.out[i * size : (i + 1) * size] = 0
    if branches == 2:
        found.second[i * size : (i + 1) * size] = 0
    for h in range(both):
        base = i * 2 * both + h
        high = found.piece_stats[first * 2 * both + h]
        for slot in range(first + 1, last):
            high = max(high, found.piece_stats[slot * 2 * both + h])
        total = found.out.dtype.type(0)
        to = found.out if h < heads else found.second
        start = i * size + (h % heads) * width
        for slot in range(first, last):
            piece = slot * 2 * both + h
            shrink = math.exp(found.piece_stats[piece] - high)
            total += found.piece_stats[piece + both] * shrink
            source = slot * 2 * size + h * width
            for d in range(width):
                to[start + d] += found.sums[source + d] * shrink
        for d in range(width):
            to[start + d] /= total
        found.stats[base], found.stats[base + both] = high, total
    if branches == 2:
        for d in range(i * size, (i + 1) * size):
            found.out[d] -= found.second[d]
