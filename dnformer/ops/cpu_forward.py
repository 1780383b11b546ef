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
    softmax_rows,
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
        second: likewise, or empty; set only for rows longer than a tile.
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
def _whole_rows(
    found, x, s1, s2, lam, kept, over, mode, i, next_row, p, many, heads, size, width, branches
):
    """The outputs of the rows i to next_row from their logits."""
    both = branches * heads
    for j in range(i, next_row):
        o, n, base = (x.colptr[j] - p) * heads, x.colptr[j + 1] - x.colptr[j], j * 2 * both
        # not -inf: a bias of -inf hides an edge, and -inf - -inf would be NaN
        found.stats[base : base + both] = np.finfo(s1.dtype).min
        found.stats[base + both : base + 2 * both] = 0
        rows_max(found.stats, base, s1, o, n, heads)
        rows_subtract(s1, o, n, found.stats, base, heads)
        if branches == 2:
            rows_max(found.stats, base + heads, s2, o, n, heads)
            rows_subtract(s2, o, n, found.stats, base + heads, heads)
    exponentials(s1, many)
    if branches == 2:
        exponentials(s2, many)
    for j in range(i, next_row):
        o, n, base = (x.colptr[j] - p) * heads, x.colptr[j + 1] - x.colptr[j], j * 2 * both + both
        rows_sum(found.stats, base, s1, o, n, heads)
        if branches == 2:
            rows_sum(found.stats, base + heads, s2, o, n, heads)
        softmax_rows(s1, s2, over, found.stats, base, o, n, heads, branches)
    if branches == 2:
        for y in range(many):
            s1[y] -= lam[y] * s2[y]
    if mode.dropout:
        dropout_factors(kept, mode, p * heads, many)
        multiply(s1, kept, many)
    for j in range(i, next_row):
        b, n = x.colptr[j], x.colptr[j + 1] - x.colptr[j]
        found.out[j * size : (j + 1) * size] = 0
        for h in range(heads):
            ix = h * width
            o = (b - p) * heads + h
            gather_sum(found.out, j * size + ix, s1, o, heads, x.v, ix, size, x.row, b, n, width)


@numba.njit(inline="always")
def _raise_largest(stats, base, s, n, goes_on, before, sums, first_sum, heads, both, width):
    """One branch of the online softmax: the row's largest logits so far, subtracted from `s`.

    Where a larger one turns up, the row's sums so far shrink.
    """
    if goes_on:
        before[:heads] = stats[base : base + heads]
        rows_max(stats, base, s, 0, n, heads)
        for h in range(heads):
            if stats[base + h] != before[h]:
                shrink = exp_negative(before[h] - stats[base + h])
                stats[base + both + h] *= shrink
                scaled(sums, first_sum + h * width, sums, first_sum + h * width, shrink, width)
    else:
        stats[base : base + heads] = np.finfo(s.dtype).min
        stats[base + both : base + both + heads] = 0
        rows_max(stats, base, s, 0, n, heads)
    rows_subtract(s, 0, n, stats, base, heads)
    exponentials(s, n * heads)
    rows_sum(stats, base + both, s, 0, n, heads)


@numba.njit(inline="always")
def _part_of_row(
    sums, stats, base, x, s1, s2, lam, kept, before, mode, goes_on, p, n, heads, size, width,
    branches,
):  # fmt: skip
    """Adds the edges p to p + n to a row's sums: of each branch, before division."""
    both, many = branches * heads, n * heads
    if not goes_on:
        sums[:] = 0
    _raise_largest(stats, base, s1, n, goes_on, before, sums, 0, heads, both, width)
    if branches == 2:
        base += heads
        _raise_largest(stats, base, s2, n, goes_on, before, sums, size, heads, both, width)
        multiply(s2, lam, many)
    if mode.dropout:
        dropout_factors(kept, mode, p * heads, many)
        multiply(s1, kept, many)
        if branches == 2:
            multiply(s2, kept, many)
    for h in range(heads):
        ix = h * width
        if branches == 2:
            gather_sum_pair(
                sums, ix, size + ix, s1, s2, h, heads, x.v, ix, size, x.row, p, n, width
            )
        else:
            gather_sum(sums, ix, s1, h, heads, x.v, ix, size, x.row, p, n, width)


@numba.njit(inline="always")
def _finish(found, i, sums, heads, size, width, branches):
    """A long row's outputs from its sums."""
    base = (2 * i + 1) * branches * heads
    for h in range(heads):
        o = i * size + h * width
        scaled(found.out, o, sums, h * width, 1 / found.stats[base + h], width)
        if branches == 2:
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
        sums, over, no_bits = (
            np.empty(2 * size, dtype),
            np.empty(both, dtype),
            np.empty(0, np.uint8),
        )
        i, last_row, slot = tasks[t, 0], tasks[t, 1], tasks[t, 4]
        p, last_edge = tasks[t, 2], tasks[t, 3]
        began = p
        if branches == 2:
            rows_fill(lam_bias, 0, tile, x.lam_bias, 0, heads)
        while i < last_row:
            next_row, stop, alone = tile_end(x.colptr, i, p, last_row, last_edge, slot, tile)
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
            if alone:
                goes_on = p > began and p > x.colptr[i]
                stats, base = found.stats, i * 2 * both
                if slot >= 0:
                    stats, base = found.piece_stats, slot * 2 * both
                _part_of_row(
                    sums, stats, base, x, s1, s2, lam, kept, before, mode, goes_on, p, stop - p,
                    heads, size, value_width, branches,
                )  # fmt: skip
                if stop < min(x.colptr[i + 1], last_edge):
                    next_row = i
                elif slot >= 0:
                    found.sums[slot * 2 * size : (slot + 1) * 2 * size] = sums
                else:
                    _finish(found, i, sums, heads, size, value_width, branches)
            else:
                _whole_rows(
                    found, x, s1, s2, lam, kept, over, mode, i, next_row, p, many, heads, size,
                    value_width, branches,
                )  # fmt: skip
            i, p = next_row, stop

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
