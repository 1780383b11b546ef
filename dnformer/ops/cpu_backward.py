# mypy: allow-untyped-defs
"""The backward kernels of the CPU: one pass by destination, one by source.

The maps are computed anew; nothing was kept for an edge. `ops/README.md` derives the gradients.

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
from dnformer.ops.vector import (
    add_products,
    gather_copy,
    gather_dots,
    gather_hidden,
    gather_sum,
    masked_sum,
    rows_fill,
    rows_spread,
    rows_subtract,
    rows_sum,
)


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


@numba.njit(inline="always")
def _means_of_rows(t1, t2, s1, s2, g, lam, shared, colptr, i, next_row, p, many, heads, branches):
    """On each edge its row's `t1 = sum of a_1 g` and `t2 = sum of a_2 lambda g`."""
    for y in range(many):
        t1[y] = s1[y] * g[y]
    if branches == 2:
        for y in range(many):
            t2[y] = s2[y] * lam[y] * g[y]
    for j in range(i, next_row):
        o, n = (colptr[j] - p) * heads, colptr[j + 1] - colptr[j]
        shared[:] = 0
        rows_sum(shared, 0, t1, o, n, heads)
        rows_fill(t1, o, n, shared, 0, heads)
        if branches == 2:
            rows_sum(shared, heads, t2, o, n, heads)
            rows_fill(t2, o, n, shared, heads, heads)


@numba.njit(inline="always")
def _means_of_long_row(t1, t2, shared, own, found, grad_out, i, n, heads, size, width, branches):
    """The same for n edges of row i, from its outputs: <grad, out + second> and <grad, second>."""
    own[0] = i
    for h in range(heads):
        ix = h * width
        start = i * size + ix
        gather_dots(shared, h, 0, grad_out, start, found.out, ix, size, own, 0, 1, width)
        if branches == 2:
            second = heads + h
            gather_dots(
                shared, second, 0, grad_out, start, found.second, ix, size, own, 0, 1, width
            )
            shared[h] += shared[second]
    rows_fill(t1, 0, n, shared, 0, heads)
    if branches == 2:
        rows_fill(t2, 0, n, shared, heads, heads)


@numba.njit(inline="always")
def _edge_gradients(s1, s2, g, pre, lam, slope, t1, t2, many, branches):
    """From maps in `s1` and `s2` and `g` to gradients of logits and lambda, and the weight."""
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


@numba.njit(inline="always")
def _keep_coefs(grads, t, s1, s2, g, pre, p, n, scale, mode, heads, per_edge, branches):
    """What the pass by source needs of the edges p to p + n; the gradient of the bias."""
    many, start = n * heads, p * per_edge
    if mode.bias:
        for y in range(many):
            grads.bias[p * heads + y] = s1[y] + s2[y] if branches == 2 else s1[y]
    for y in range(many):
        s1[y] *= scale
    rows_spread(grads.coefs, start, per_edge, s1, 0, n, heads)
    rows_spread(grads.coefs, start + heads, per_edge, g, 0, n, heads)
    if branches == 2:
        for y in range(many):
            s2[y] *= scale
        rows_spread(grads.coefs, start + 2 * heads, per_edge, s2, 0, n, heads)
        rows_spread(grads.coefs, start + 3 * heads, per_edge, pre, 0, n, heads)
        rows_sum(grads.lam_bias, t * heads, pre, 0, n, heads)


@numba.njit(inline="always")
def _hidden_gradients(out, o, weight, first, own, j, above, factors, heads, hidden):
    """From `above`, sums over a row's active units: the row's gradient, and its part of W2's."""
    out[o : o + hidden] = 0
    for h in range(heads):
        ix = h * hidden
        add_products(out, o, factors, ix, above, ix, hidden)
        add_products(weight, first + ix, own, j * hidden, above, ix, hidden)


@functools.cache
def backward_dst_kernel(shape: Shape) -> Any:
    """`kernel(tasks, t, nodes, mode, found, grad_out, grads)`: gradients of q, u and the bias."""
    heads, width, value_width, hidden, branches = shape
    part, size = width // branches, heads * value_width
    stride, both = heads * width, branches * heads
    root, tile, per_edge = 1 / math.sqrt(part), TILE, 2 * branches * heads
    num_bytes, piece_size = hidden // 8, heads * width + hidden

    def backward_dst(tasks, t, x, mode, found, grad_out, grads):
        dtype = x.q.dtype
        scale = dtype.type(root)
        s1, s2 = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        pre, lam = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        slope, kept = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        g, lam_bias = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        t1, t2 = np.empty(tile * heads, dtype), np.empty(tile * heads, dtype)
        over, shared = np.empty(both, dtype), np.empty(2 * heads, dtype)
        above, own = np.empty(heads * hidden, dtype), np.empty(1, np.int64)
        i, last_row, slot = tasks[t, 0], tasks[t, 1], tasks[t, 4]
        p, last_edge = tasks[t, 2], tasks[t, 3]
        began = p
        to_q, to_u = grads.q, grads.u
        if slot >= 0:
            to_q, to_u = grads.pieces, grads.pieces
        if branches == 2:
            rows_fill(lam_bias, 0, tile, x.lam_bias, 0, heads)
        grads.weight[t * heads * hidden : (t + 1) * heads * hidden] = 0
        grads.lam_bias[t * heads : (t + 1) * heads] = 0
        while i < last_row:
            next_row, stop, alone = tile_end(x.colptr, i, p, last_row, last_edge, slot, tile)
            many = (stop - p) * heads
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n = (b - p) * heads, e - b
                row_logits(s1, s2, o, x, j, b, n, heads, width, stride, part, branches)
                for h in range(heads):
                    ix = h * value_width
                    start = j * size + ix
                    gather_dots(
                        g, o + h, heads, grad_out, start, x.v, ix, size, x.row, b, n, value_width
                    )
                if hidden > 0:
                    gather_hidden(
                        pre, o, grads.bits, b * num_bytes, x.weight, x.u, j * hidden, x.w, x.row,
                        b, n, heads, hidden, 1,
                    )  # fmt: skip
            scale_logits(s1, many, scale, x.bias, p * heads, mode.bias)
            if branches == 2:
                scale_logits(s2, many, scale, x.bias, p * heads, mode.bias)
                lambda_and_slope(pre, lam_bias, lam, slope, many, mode.squash, hidden)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, base = (b - p) * heads, j * 2 * both
                rows_subtract(s1, o, e - b, found.stats, base, heads)
                if branches == 2:
                    rows_subtract(s2, o, e - b, found.stats, base + heads, heads)
            exponentials(s1, many)
            if branches == 2:
                exponentials(s2, many)
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, base = (b - p) * heads, (2 * j + 1) * both
                softmax_rows(s1, s2, over, found.stats, base, o, e - b, heads, branches)
            if mode.dropout:
                dropout_factors(kept, mode, p * heads, many)
                multiply(g, kept, many)
            if alone:
                _means_of_long_row(
                    t1, t2, shared, own, found, grad_out, i, stop - p, heads, size, value_width,
                    branches,
                )  # fmt: skip
            else:
                _means_of_rows(
                    t1, t2, s1, s2, g, lam, shared, x.colptr, i, next_row, p, many, heads, branches
                )
            _edge_gradients(s1, s2, g, pre, lam, slope, t1, t2, many, branches)
            if mode.dropout:
                multiply(g, kept, many)
            _keep_coefs(
                grads, t, s1, s2, g, pre, p, stop - p, scale, mode, heads, per_edge, branches
            )
            for j in range(i, next_row):
                b, e = max(x.colptr[j], p), min(x.colptr[j + 1], stop)
                o, n = (b - p) * heads, e - b
                iq, iu = j * stride, j * hidden
                if slot >= 0:
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
                            above, h * hidden, grads.bits, b * num_bytes, pre, o + h, heads, n,
                            hidden,
                        )  # fmt: skip
                if hidden > 0 and e >= min(x.colptr[j + 1], last_edge):
                    first = t * heads * hidden
                    _hidden_gradients(
                        to_u, iu, grads.weight, first, x.u, j, above, x.weight, heads, hidden
                    )
            if stop < min(x.colptr[next_row], last_edge):
                next_row = i
            i, p = next_row, stop

    return compiled(backward_dst, shape)


@functools.cache
def backward_src_kernel(shape: Shape) -> Any:
    """`kernel(tasks, t, nodes, rowptr, edge, col, grad_out, grads)`: gradients of k, v and w."""
    heads, width, value_width, hidden, branches = shape
    part, size = width // branches, heads * value_width
    stride, tile, per_edge = heads * width, TILE, 2 * branches * heads
    num_bytes, piece_size = hidden // 8, heads * width + size + hidden

    def backward_src(tasks, t, x, rowptr, edge, col, grad_out, grads):
        dtype = x.q.dtype
        coefs, bits = np.empty(tile * per_edge, dtype), np.empty(tile * num_bytes, np.uint8)
        above = np.empty(heads * hidden, dtype)
        num_edges, slot = len(x.row), tasks[t, 4]
        grads.weight[t * heads * hidden : (t + 1) * heads * hidden] = 0
        to_k, to_v, to_w = grads.k, grads.v, grads.w
        if slot >= 0:
            to_k, to_v, to_w = grads.pieces, grads.pieces, grads.pieces
        for j in range(tasks[t, 0], tasks[t, 1]):
            start, stop = rowptr[j], rowptr[j + 1]
            ik, iv, iw = j * stride, j * size, j * hidden
            if slot >= 0:
                start, stop = tasks[t, 2], tasks[t, 3]
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
                gather_copy(coefs, grads.coefs, edge, p, n, per_edge)
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
                    gather_copy(bits, grads.bits, edge, p, n, num_bytes)
                    for h in range(heads):
                        masked_sum(
                            above, h * hidden, bits, 0, coefs, 3 * heads + h, per_edge, n, hidden
                        )
            if hidden > 0:
                first = t * heads * hidden
                _hidden_gradients(
                    to_w, iw, grads.weight, first, x.w, j, above, x.weight, heads, hidden
                )

    return compiled(backward_src, shape)


@numba.njit(**JIT)
def add_pieces(hubs, pieces, piece_size, offset, out, width):
    """The hubs' rows of a gradient: `width` numbers from `offset` on, summed over the pieces."""
    for y in range(len(hubs)):
        start = hubs[y, 0] * width
        out[start : start + width] = 0
        for slot in range(hubs[y, 1], hubs[y, 2]):
            for d in range(width):
                out[start + d] += pieces[slot * piece_size + offset + d]


@numba.njit(**JIT)
def add_tasks(parts, out):
    """The sum of the tasks' parts, in order."""
    size = len(out)
    for t in range(len(parts) // size):
        for x in range(size):
            out[x] += parts[t * size + x]
