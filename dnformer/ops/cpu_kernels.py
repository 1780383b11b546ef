"""The CPU kernels of the operator: forward, backward by destination, backward by source.

Each is compiled for one `Shape`, runs one task of a plan (`ops.plan`), serially and without the
GIL, and writes only what is that task's. All arrays are flat.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer (padded to a multiple of 8), W width of q and k, B branches (2 with a lambda).
"""

import functools
import math
from typing import Any, NamedTuple

import numba
import numpy as np

from dnformer.ops.cpu_math import exp_negative, is_kept, log1p_unit
from dnformer.ops.vector import (
    add_products,
    gather_copy,
    gather_dots,
    gather_hidden,
    gather_sum,
    gather_sum_pair,
    masked_sum,
    rows_fill,
    rows_max,
    rows_multiply,
    rows_spread,
    rows_subtract,
    rows_sum,
    scaled,
    subtract,
)

# NaN and infinity keep their meaning: a loss that is not finite has to show
_JIT = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "reassoc"},
}


class Shape(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        heads: H.
        width: W.
        value_width: D.
        hidden: R, a multiple of 8.
        branches: B.
    """

    heads: int
    width: int
    value_width: int
    hidden: int
    branches: int


class Nodes(NamedTuple):
    """The inputs: `flat.Inputs` as flat arrays, with empty ones where there is None."""

    colptr: Any
    row: Any
    q: Any
    k: Any
    v: Any
    u: Any
    w: Any
    weight: Any
    lam_bias: Any
    bias: Any


class Mode(NamedTuple):
    """What else the kernels are to do, decided once for a tile of edges.

    Attributes:
        squash: one of `SQUASHES` by its place.
        bias: whether there is one.
        dropout: whether there is one; then
        key: mix(seed),
        threshold: the least number that is kept, and
        scale: 1 / (1 - p), in the dtype of the inputs.
    """

    squash: Any
    bias: Any
    dropout: Any
    key: Any
    threshold: Any
    scale: Any


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


# edges whose logits are worked on together: enough for vectors, few enough for the cache
_TILE = 64
SQUASHES = ("softplus", "sigmoid", "identity")
_SIGMOID, _IDENTITY = 1, 2


@numba.njit(inline="always")
def _lambda_and_slope(pre, lam_bias, lam, slope, n, squash, hidden):
    """lambda of `pre + lam_bias` and the derivative, into their arrays."""
    zero, one = pre.dtype.type(0), pre.dtype.type(1)
    for x in range(n):
        pre[x] = pre[x] + lam_bias[x] if hidden > 0 else lam_bias[x]
    if squash == _IDENTITY:
        for x in range(n):
            lam[x] = pre[x]
            slope[x] = one
    else:
        for x in range(n):
            positive = pre[x] > zero
            small = exp_negative(-abs(pre[x]))
            upper = one / (one + small)
            sigmoid = upper if positive else small * upper
            if squash == _SIGMOID:
                lam[x] = sigmoid
                slope[x] = sigmoid * (one - sigmoid)
            else:
                lam[x] = (pre[x] if positive else zero) + log1p_unit(small)
                slope[x] = sigmoid


@numba.njit(inline="always")
def _tile_end(colptr, i, p, last_row, last_edge, tile):
    """Where a tile that begins with edge p of row i ends: its last + 1 row and edge.

    It holds whole rows, or a part of one that is longer than a tile.
    """
    stop = min(colptr[i + 1], last_edge)
    if stop - p > tile:
        return i + 1, p + tile
    j = i + 1
    while j < last_row and colptr[j + 1] - p <= tile:
        j += 1
    return j, min(colptr[j], last_edge)


@numba.njit(inline="always")
def _scale(s, many, scale, bias, first, with_bias):
    if with_bias:
        for y in range(many):
            s[y] = s[y] * scale + bias[first + y]
    else:
        for y in range(many):
            s[y] *= scale


@numba.njit(inline="always")
def _exp(s, many):
    for y in range(many):
        s[y] = exp_negative(s[y])


@numba.njit(inline="always")
def _raise_largest(stats, base, s, o, n, again, sums, first_sum, heads, both, width):
    """One branch of the online softmax: the largest logits so far, subtracted from `s`.

    Where a row goes on (`again`) with a larger logit, its sums so far shrink.
    """
    if again:
        before = stats[base : base + heads].copy()
        rows_max(stats, base, s, o, n, heads)
        for h in range(heads):
            if stats[base + h] != before[h]:
                shrink = exp_negative(before[h] - stats[base + h])
                stats[base + both + h] *= shrink
                scaled(sums, first_sum + h * width, sums, first_sum + h * width, shrink, width)
    else:
        for h in range(heads):
            stats[base + h] = -np.inf
            stats[base + both + h] = 0
        rows_max(stats, base, s, o, n, heads)
    rows_subtract(s, o, n, stats, base, heads)


@numba.njit(inline="always")
def _keep(kept, mode, first, many):
    """Dropout's factors of the weights from `first` on: 0 or 1 / (1 - p)."""
    for y in range(many):
        kept[y] = mode.scale if is_kept(mode.key, first + y, mode.threshold) else 0


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


def _compiled(kernel: Any, shape: Shape) -> Any:
    """The kernel under a name of its own.

    numba names machine code by the function and a counter of the process, so two shapes that
    different processes compiled could have one name, and loaded from the cache one would run for
    the other.
    """
    kernel.__qualname__ += "_" + "_".join(str(int(value)) for value in (*shape, _TILE))
    return numba.njit(**_JIT)(kernel)


@functools.cache
def forward_kernel(shape: Shape) -> Any:
    """`kernel(tasks, t, nodes, mode, found)` runs row t of the plan's tasks."""
    heads, width, value_width, hidden, branches = shape
    part, size = width // branches, heads * value_width
    stride, both = heads * width, branches * heads
    root, tile = 1 / math.sqrt(part), _TILE

    def forward(tasks, t, x, mode, found):
        dtype = x.q.dtype
        scale = dtype.type(root)
        s1, s2 = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        pre, lam = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        slope, kept = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        lam_bias, sums = np.empty(tile * heads, dtype), np.empty(2 * size, dtype)
        no_bits = np.empty(0, np.uint8)
        i, last_row, slot = tasks[t, 0], tasks[t, 1], tasks[t, 4]
        p, last_edge = tasks[t, 2], tasks[t, 3]
        stats, moved = found.stats, 0
        if slot >= 0:
            stats, moved = found.piece_stats, slot - i
        if branches == 2:
            rows_fill(lam_bias, 0, tile, x.lam_bias, 0, heads)
        began = p
        while i < last_row:
            next_row, stop = _tile_end(x.colptr, i, p, last_row, last_edge, tile)
            many = (stop - p) * heads
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n = (b - p) * heads, e - b
                for h in range(heads):
                    ix = h * width
                    gather_dots(
                        s1, o + h, heads, x.q, j * stride + ix, x.k, ix, stride, x.row, b, n, part
                    )
                    if branches == 2:
                        ix += part
                        gather_dots(
                            s2, o + h, heads, x.q, j * stride + ix, x.k, ix, stride, x.row, b, n,
                            part,
                        )  # fmt: skip
                if hidden > 0:
                    gather_hidden(
                        pre, o, no_bits, 0, x.weight, x.u, j * hidden, x.w, x.row, b, n, heads,
                        hidden, 0,
                    )  # fmt: skip
            _scale(s1, many, scale, x.bias, p * heads, mode.bias)
            if branches == 2:
                _scale(s2, many, scale, x.bias, p * heads, mode.bias)
                _lambda_and_slope(pre, lam_bias, lam, slope, many, mode.squash, hidden)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, base = (b - p) * heads, e - b, (j + moved) * 2 * both
                again = b > x.colptr[j] and b > began
                _raise_largest(stats, base, s1, o, n, again, sums, 0, heads, both, value_width)
                if branches == 2:
                    _raise_largest(
                        stats, base + heads, s2, o, n, again, sums, size, heads, both, value_width
                    )
            _exp(s1, many)
            if branches == 2:
                _exp(s2, many)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, base = (b - p) * heads, e - b, (j + moved) * 2 * both + both
                rows_sum(stats, base, s1, o, n, heads)
                if branches == 2:
                    rows_sum(stats, base + heads, s2, o, n, heads)
            if branches == 2:
                for y in range(many):
                    s2[y] *= lam[y]
            if mode.dropout:
                _keep(kept, mode, p * heads, many)
                for y in range(many):
                    s1[y] *= kept[y]
                if branches == 2:
                    for y in range(many):
                        s2[y] *= kept[y]
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n = (b - p) * heads, e - b
                if b == x.colptr[j] or b == began:
                    sums[:] = 0
                for h in range(heads):
                    ix = h * value_width
                    if branches == 2:
                        gather_sum_pair(
                            sums, ix, size + ix, s1, s2, o + h, heads, x.v, ix, size, x.row, b, n,
                            value_width,
                        )  # fmt: skip
                    else:
                        gather_sum(
                            sums, ix, s1, o + h, heads, x.v, ix, size, x.row, b, n, value_width
                        )
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

    return _compiled(forward, shape)


class Gradients(NamedTuple):
    """What the backward kernels write.

    Attributes:
        q, u, k, v, w: of the inputs.
        bias: of the input, or empty.
        coefs: `[E, 2B, H]` for the pass by source: gradients of the logits (scaled), dropped
            weight, gradient of lambda before its squash.
        bits: `[E, R / 8]` which hidden units are above 0.
        weight: `[T, H, R]` a part of the gradient from each task.
        lam_bias: `[T, H]` likewise.
        pieces: `[pieces, ..]` the rows of hubs: q and u, or k, v and w, one after the other.
    """

    q: Any
    u: Any
    k: Any
    v: Any
    w: Any
    bias: Any
    coefs: Any
    bits: Any
    weight: Any
    lam_bias: Any
    pieces: Any


@functools.cache
def backward_dst_kernel(shape: Shape) -> Any:
    """`kernel(tasks, t, nodes, mode, found, grad_out, grads)`: gradients of q, u and the bias."""
    heads, width, value_width, hidden, branches = shape
    part, size = width // branches, heads * value_width
    stride, both = heads * width, branches * heads
    root, tile, per_edge = 1 / math.sqrt(part), _TILE, 2 * branches * heads
    num_bytes, piece_size = hidden // 8, heads * width + hidden

    def backward_dst(tasks, t, x, mode, found, grad_out, grads):
        dtype = x.q.dtype
        scale = dtype.type(root)
        s1, s2 = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        pre, lam = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        slope, kept = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        g, t1, t2 = (
            np.empty(tile * heads, dtype),
            np.empty(tile * heads, dtype),
            np.empty(tile * heads, dtype),
        )
        lam_bias, over = np.empty(tile * heads, dtype), np.empty(both, dtype)
        shared, above = np.empty(2 * heads, dtype), np.empty(heads * hidden, dtype)
        own = np.empty(1, np.int64)
        i, last_row, slot = tasks[t, 0], tasks[t, 1], tasks[t, 4]
        p, last_edge = tasks[t, 2], tasks[t, 3]
        began = p
        if branches == 2:
            rows_fill(lam_bias, 0, tile, x.lam_bias, 0, heads)
        grads.weight[t * heads * hidden : (t + 1) * heads * hidden] = 0
        grads.lam_bias[t * heads : (t + 1) * heads] = 0
        while i < last_row:
            next_row, stop = _tile_end(x.colptr, i, p, last_row, last_edge, tile)
            many = (stop - p) * heads
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, own[0] = (b - p) * heads, e - b, j
                if n <= 0:
                    continue
                for h in range(heads):
                    ix = h * width
                    gather_dots(
                        s1, o + h, heads, x.q, j * stride + ix, x.k, ix, stride, x.row, b, n, part
                    )
                    if branches == 2:
                        ix += part
                        gather_dots(
                            s2, o + h, heads, x.q, j * stride + ix, x.k, ix, stride, x.row, b, n,
                            part,
                        )  # fmt: skip
                    ix = h * value_width
                    start = j * size + ix
                    gather_dots(
                        g, o + h, heads, grad_out, start, x.v, ix, size, x.row, b, n, value_width
                    )
                    gather_dots(
                        shared, h, 0, grad_out, start, found.out, ix, size, own, 0, 1, value_width
                    )
                    if branches == 2:
                        gather_dots(
                            shared, heads + h, 0, grad_out, start, found.second, ix, size, own, 0,
                            1, value_width,
                        )  # fmt: skip
                        shared[h] += shared[heads + h]
                rows_fill(t1, o, n, shared, 0, heads)
                if branches == 2:
                    rows_fill(t2, o, n, shared, heads, heads)
                if hidden > 0:
                    gather_hidden(
                        pre, o, grads.bits, b * num_bytes, x.weight, x.u, j * hidden, x.w, x.row,
                        b, n, heads, hidden, 1,
                    )  # fmt: skip
            _scale(s1, many, scale, x.bias, p * heads, mode.bias)
            if branches == 2:
                _scale(s2, many, scale, x.bias, p * heads, mode.bias)
                _lambda_and_slope(pre, lam_bias, lam, slope, many, mode.squash, hidden)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, base = (b - p) * heads, e - b, j * 2 * both
                rows_subtract(s1, o, n, found.stats, base, heads)
                if branches == 2:
                    rows_subtract(s2, o, n, found.stats, base + heads, heads)
            _exp(s1, many)
            if branches == 2:
                _exp(s2, many)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n, base = (b - p) * heads, e - b, j * 2 * both + both
                for h in range(both):
                    over[h] = 1 / found.stats[base + h]
                rows_multiply(s1, o, n, over, 0, heads)
                if branches == 2:
                    rows_multiply(s2, o, n, over, heads, heads)
            if mode.dropout:
                _keep(kept, mode, p * heads, many)
                for y in range(many):
                    g[y] *= kept[y]
            if branches == 2:
                for y in range(many):
                    weight = s1[y] - lam[y] * s2[y]
                    s1[y] *= g[y] - t1[y]
                    pre[y] = -s2[y] * g[y] * slope[y]
                    s2[y] *= t2[y] - lam[y] * g[y]
                    g[y] = weight
            else:
                for y in range(many):
                    weight = s1[y]
                    s1[y] *= g[y] - t1[y]
                    g[y] = weight
            if mode.dropout:
                for y in range(many):
                    g[y] *= kept[y]
            if mode.bias:
                for y in range(many):
                    grads.bias[p * heads + y] = s1[y]
                if branches == 2:
                    for y in range(many):
                        grads.bias[p * heads + y] += s2[y]
            for y in range(many):
                s1[y] *= scale
            start, n = p * per_edge, stop - p
            if branches == 2:
                for y in range(many):
                    s2[y] *= scale
                rows_spread(grads.coefs, start + 2 * heads, per_edge, s2, 0, n, heads)
                rows_spread(grads.coefs, start + 3 * heads, per_edge, pre, 0, n, heads)
                rows_sum(grads.lam_bias, t * heads, pre, 0, n, heads)
            rows_spread(grads.coefs, start, per_edge, s1, 0, n, heads)
            rows_spread(grads.coefs, start + heads, per_edge, g, 0, n, heads)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n = (b - p) * heads, e - b
                to_q, to_u, iq, iu = grads.q, grads.u, j * stride, j * hidden
                if slot >= 0:
                    to_q, to_u = grads.pieces, grads.pieces
                    iq, iu = slot * piece_size, slot * piece_size + stride
                if b == x.colptr[j] or b == began:
                    to_q[iq : iq + stride] = 0
                    above[:] = 0
                for h in range(heads):
                    ix = h * width
                    gather_sum(to_q, iq + ix, s1, o + h, heads, x.k, ix, stride, x.row, b, n, part)
                    if branches == 2:
                        ix += part
                        gather_sum(
                            to_q, iq + ix, s2, o + h, heads, x.k, ix, stride, x.row, b, n, part
                        )
                    if hidden > 0:
                        masked_sum(
                            above,
                            h * hidden,
                            grads.bits,
                            b * num_bytes,
                            pre,
                            o + h,
                            heads,
                            n,
                            hidden,
                        )
                if hidden > 0 and e >= min(x.colptr[j + 1], last_edge):
                    to_u[iu : iu + hidden] = 0
                    for h in range(heads):
                        ix = h * hidden
                        add_products(to_u, iu, x.weight, ix, above, ix, hidden)
                        add_products(
                            grads.weight,
                            t * heads * hidden + ix,
                            x.u,
                            j * hidden,
                            above,
                            ix,
                            hidden,
                        )
            i, p = (next_row, stop) if stop >= min(x.colptr[next_row], last_edge) else (i, stop)

    return _compiled(backward_dst, shape)


@functools.cache
def backward_src_kernel(shape: Shape) -> Any:
    """`kernel(tasks, t, nodes, rowptr, edge, col, grad_out, grads)`: gradients of k, v and w."""
    heads, width, value_width, hidden, branches = shape
    part, size = width // branches, heads * value_width
    stride, tile, per_edge = heads * width, _TILE, 2 * branches * heads
    num_bytes, piece_size = hidden // 8, heads * width + size + hidden

    def backward_src(tasks, t, x, rowptr, edge, col, grad_out, grads):
        dtype = x.q.dtype
        coefs, bits = np.empty(tile * per_edge, dtype), np.empty(tile * num_bytes, np.uint8)
        above = np.empty(heads * hidden, dtype)
        num_edges, slot = len(x.row), tasks[t, 4]
        grads.weight[t * heads * hidden : (t + 1) * heads * hidden] = 0
        for j in range(tasks[t, 0], tasks[t, 1]):
            start, stop = rowptr[j], rowptr[j + 1]
            to_k, to_v, to_w = grads.k, grads.v, grads.w
            ik, iv, iw = j * stride, j * size, j * hidden
            if slot >= 0:
                start, stop = tasks[t, 2], tasks[t, 3]
                to_k, to_v, to_w = grads.pieces, grads.pieces, grads.pieces
                ik = slot * piece_size
                iv, iw = ik + stride, ik + stride + size
            to_k[ik : ik + stride] = 0
            to_v[iv : iv + size] = 0
            above[:] = 0
            # ids ascend: from the first one that this graph does not have, none is its own
            while stop > start and edge[stop - 1] >= num_edges:
                stop -= 1
            for p in range(start, stop, tile):
                n = min(tile, stop - p)
                gather_copy(coefs, 0, per_edge, grads.coefs, per_edge, edge, p, n, per_edge)
                for h in range(heads):
                    ix = h * width
                    gather_sum(to_k, ik + ix, coefs, h, per_edge, x.q, ix, stride, col, p, n, part)
                    if branches == 2:
                        ix += part
                        gather_sum(
                            to_k, ik + ix, coefs, 2 * heads + h, per_edge, x.q, ix, stride, col, p,
                            n, part,
                        )  # fmt: skip
                    ix = h * value_width
                    gather_sum(
                        to_v, iv + ix, coefs, heads + h, per_edge, grad_out, ix, size, col, p, n,
                        value_width,
                    )  # fmt: skip
                if hidden > 0:
                    gather_copy(bits, 0, num_bytes, grads.bits, num_bytes, edge, p, n, num_bytes)
                    for h in range(heads):
                        masked_sum(
                            above, h * hidden, bits, 0, coefs, 3 * heads + h, per_edge, n, hidden
                        )
            if hidden > 0:
                to_w[iw : iw + hidden] = 0
                for h in range(heads):
                    ix = h * hidden
                    add_products(to_w, iw, x.weight, ix, above, ix, hidden)
                    add_products(
                        grads.weight, t * heads * hidden + ix, x.w, j * hidden, above, ix, hidden
                    )

    return _compiled(backward_src, shape)


@numba.njit(**_JIT)
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


@numba.njit(**_JIT)
def add_pieces(hubs, pieces, piece_size, offset, out, width):
    """The hubs' rows of a gradient: `width` numbers from `offset` on, summed over the pieces."""
    for y in range(len(hubs)):
        start = hubs[y, 0] * width
        out[start : start + width] = 0
        for slot in range(hubs[y, 1], hubs[y, 2]):
            for d in range(width):
                out[start + d] += pieces[slot * piece_size + offset + d]


@numba.njit(**_JIT)
def add_tasks(parts, out):
    """The sum of the tasks' parts, in order."""
    size = len(out)
    for t in range(len(parts) // size):
        for x in range(size):
            out[x] += parts[t * size + x]
