"""Triton kernels of the backward pass: by destination, by source, lambda's hidden layer, sums.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda hidden
layer, W width of q and k, K that of one branch (D with a lambda, W without). BLOCK edges, HB
heads, BR hidden units at a time; KP and DP are K and D rounded up to powers of two.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from typing import no_type_check

import triton
import triton.language as tl

from dnformer.ops.gpu_common import divisor, gather, hidden_dot, hub, kept, relu, span, squash


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
@no_type_check
def destination_kernel(  # noqa: PLR0913, PLR0915
    colptr, col, q, k, v, u, w, weight, lam_bias, bias, seed, out, second, stats, grad_out,
    grad_q, grad_bias, grad_pre, edges, dst, part, num_rows, num_slots,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, HB: tl.constexpr, BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr, ACC: tl.constexpr, SCALE: tl.constexpr, SQUASH: tl.constexpr,
    THRESHOLD: tl.constexpr, KEEP_SCALE: tl.constexpr,
):  # fmt: skip
    """Grid: (slots + M, blocks of heads). The gradients of q and bias, and what sources need.

    edges is `[E, 1 + B, H]`: the weight of v, and the gradients of the logits. grad_pre `[E, H]` is
    the gradient of what is squashed; dst `[E]` the destination. part is `[slots, H, W]`.
    """
    S: tl.constexpr = 3 if SQUASH != "" else 2
    pid = tl.program_id(0)
    row, first, last = span(pid, colptr, num_rows, num_slots, SEGMENT)
    if row < 0:
        return
    heads = tl.program_id(1) * HB + tl.arange(0, HB)
    head_ok = heads < H
    in_key = tl.arange(0, KP)
    in_value = tl.arange(0, DP)
    key_ok = head_ok[:, None] & (in_key < K)[None, :]
    value_ok = head_ok[:, None] & (in_value < D)[None, :]
    key_at = heads[:, None] * W + in_key[None, :]
    value_at = heads[:, None] * D + in_value[None, :]
    q1 = tl.load(q + row * H * W + key_at, mask=key_ok, other=0.0).to(ACC) * SCALE
    grad = tl.load(grad_out + row * H * D + value_at, mask=value_ok, other=0.0)
    part1 = tl.load(out + row * H * D + value_at, mask=value_ok, other=0.0)
    stats_at = row * (S - 1) * 2 * H + heads
    top1 = tl.load(stats + stats_at, mask=head_ok, other=0.0)
    inverse1 = 1 / divisor(tl.load(stats + stats_at + H, mask=head_ok, other=0.0))
    grad_q1 = tl.zeros([HB, KP], ACC)
    grad_q2 = grad_q1
    if SQUASH != "":
        q2 = tl.load(q + row * H * W + key_at + K, mask=key_ok, other=0.0).to(ACC) * SCALE
        part2 = tl.load(second + row * H * D + value_at, mask=value_ok, other=0.0)
        part1 += part2
        mean2 = tl.sum(grad * part2, 1)
        top2 = tl.load(stats + stats_at + 2 * H, mask=head_ok, other=0.0)
        inverse2 = 1 / divisor(tl.load(stats + stats_at + 3 * H, mask=head_ok, other=0.0))
        pre_bias = tl.load(lam_bias + heads, mask=head_ok, other=0.0).to(ACC)
    mean1 = tl.sum(grad * part1, 1)
    for start in range(first, last, BLOCK):
        edge = (start + tl.arange(0, BLOCK)).to(tl.int64)
        edge_ok = edge < last
        j = tl.load(col + edge, mask=edge_ok, other=0)
        keys_ok = edge_ok[:, None, None] & key_ok[None, :, :]
        ok = edge_ok[:, None] & head_ok[None, :]
        edge_at = edge[:, None] * H + heads[None, :]
        shift = tl.where(edge_ok, 0.0, float("-inf")).to(ACC)[:, None]
        if bias is not None:
            shift += tl.load(bias + edge_at, mask=ok, other=0.0).to(ACC)
        share = tl.full([BLOCK, HB], 1.0, ACC)
        if seed is not None:
            share *= kept(seed, edge, heads, H, THRESHOLD).to(ACC) * KEEP_SCALE
        values = gather(v, j, H * D, value_at, edge_ok[:, None, None] & value_ok[None, :, :], ACC)
        gain = tl.sum(grad[None, :, :] * values, 2) * share
        k1 = gather(k, j, H * W, key_at, keys_ok, ACC)
        a1 = tl.exp(tl.sum(q1[None, :, :] * k1, 2) + shift - top1[None, :]) * inverse1[None, :]
        of_logit1 = a1 * (gain - mean1[None, :])
        grad_q1 += tl.sum(of_logit1[:, :, None] * k1, 0)
        of_bias = of_logit1
        edges_at = edge[:, None] * S * H + heads[None, :]
        tl.store(edges + edges_at + H, of_logit1, mask=ok)
        if SQUASH != "":
            k2 = gather(k, j, H * W, key_at + K, keys_ok, ACC)
            a2 = tl.exp(tl.sum(q2[None, :, :] * k2, 2) + shift - top2[None, :]) * inverse2[None, :]
            pre = hidden_dot(u, w, weight, row, j, heads, edge_ok, head_ok, R, BR, ACC)
            lam, slope = squash(pre + pre_bias[None, :], SQUASH)
            of_logit2 = a2 * (mean2[None, :] - lam * gain)
            grad_q2 += tl.sum(of_logit2[:, :, None] * k2, 0)
            of_bias += of_logit2
            tl.store(edges + edges_at + 2 * H, of_logit2, mask=ok)
            tl.store(grad_pre + edge_at, -a2 * gain * slope, mask=ok)
            a1 -= lam * a2
        tl.store(edges + edges_at, a1 * share, mask=ok)
        if bias is not None:
            tl.store(grad_bias + edge_at, of_bias, mask=ok)
        if dst is not None:
            # each block of heads stores the same
            tl.store(dst + edge, tl.zeros([BLOCK], tl.int64) + row, mask=edge_ok)
    store(grad_q, part, row, pid, num_slots, key_at, key_ok, grad_q1 * SCALE, H * W)
    if SQUASH != "":
        store(grad_q, part, row, pid, num_slots, key_at + K, key_ok, grad_q2 * SCALE, H * W)


@triton.jit
@no_type_check
def store(x, part, row, pid, num_slots, at, ok, value, WIDTH: tl.constexpr):  # noqa: PLR0913
    """Stores a row's sum, or a slot's part of a hub's sum."""
    if pid < num_slots:
        tl.store(part + pid.to(tl.int64) * WIDTH + at, value, mask=ok)
    else:
        tl.store(x + row * WIDTH + at, value, mask=ok)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
@no_type_check
def source_kernel(  # noqa: PLR0913
    ptr, rowptr, edge, col, q, grad_out, edges, grad_k, grad_v, part_k, part_v,
    num_rows, num_slots,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, HB: tl.constexpr, BLOCK: tl.constexpr, SEGMENT: tl.constexpr,
    ACC: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Grid: (slots + N, blocks of heads). The gradients of k and v.

    A source's edges lie at rowptr in the transposed index; ptr counts those there are in this
    graph. part_k is `[slots, H, W]`, part_v `[slots, H, D]`.
    """
    S: tl.constexpr = 2 if K == W else 3
    pid = tl.program_id(0)
    row, first, last = span(pid, ptr, num_rows, num_slots, SEGMENT)
    if row < 0:
        return
    shift = tl.load(rowptr + row).to(tl.int64) - tl.load(ptr + row).to(tl.int64)
    heads = tl.program_id(1) * HB + tl.arange(0, HB)
    head_ok = heads < H
    in_key = tl.arange(0, KP)
    in_value = tl.arange(0, DP)
    key_ok = head_ok[:, None] & (in_key < K)[None, :]
    value_ok = head_ok[:, None] & (in_value < D)[None, :]
    key_at = heads[:, None] * W + in_key[None, :]
    value_at = heads[:, None] * D + in_value[None, :]
    grad_k1 = tl.zeros([HB, KP], ACC)
    grad_k2 = grad_k1
    grad_v_row = tl.zeros([HB, DP], ACC)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        at_ok = at < last
        i = tl.load(col + shift + at, mask=at_ok, other=0).to(tl.int64)
        e = tl.load(edge + shift + at, mask=at_ok, other=0).to(tl.int64)
        ok = at_ok[:, None] & head_ok[None, :]
        keys_ok = at_ok[:, None, None] & key_ok[None, :, :]
        edges_at = (e * S * H)[:, None] + heads[None, :]
        share = tl.load(edges + edges_at, mask=ok, other=0.0)
        values_ok = at_ok[:, None, None] & value_ok[None, :, :]
        grad = gather(grad_out, i, H * D, value_at, values_ok, ACC)
        grad_v_row += tl.sum(share[:, :, None] * grad, 0)
        of_logit = tl.load(edges + edges_at + H, mask=ok, other=0.0)
        q_i = gather(q, i, H * W, key_at, keys_ok, ACC)
        grad_k1 += tl.sum(of_logit[:, :, None] * q_i, 0)
        if S == 3:
            of_logit = tl.load(edges + edges_at + 2 * H, mask=ok, other=0.0)
            q_i = gather(q, i, H * W, key_at + K, keys_ok, ACC)
            grad_k2 += tl.sum(of_logit[:, :, None] * q_i, 0)
    store(grad_v, part_v, row, pid, num_slots, value_at, value_ok, grad_v_row, H * D)
    store(grad_k, part_k, row, pid, num_slots, key_at, key_ok, grad_k1 * SCALE, H * W)
    if S == 3:
        store(grad_k, part_k, row, pid, num_slots, key_at + K, key_ok, grad_k2 * SCALE, H * W)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
@no_type_check
def hidden_kernel(  # noqa: PLR0913
    ptr, rowptr, edge, col, own, other, weight, grad_pre, grad, part, num_rows, num_slots,
    H: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid: (slots + rows, blocks of R). The gradient of u by destination, that of w by source.

    `own` is u or w and `other` the other one. By destination edge is None: positions are the
    edges themselves. part is `[slots, R]`.
    """
    pid = tl.program_id(0)
    row, first, last = span(pid, ptr, num_rows, num_slots, SEGMENT)
    if row < 0:
        return
    shift = tl.load(rowptr + row).to(tl.int64) - tl.load(ptr + row).to(tl.int64)
    r = tl.program_id(1) * BR + tl.arange(0, BR)
    r_ok = r < R
    own_row = tl.load(own + row * R + r, mask=r_ok, other=0.0).to(ACC)
    total = tl.zeros([BR], ACC)
    for start in range(first, last, BLOCK):
        at = start + tl.arange(0, BLOCK)
        at_ok = at < last
        e = (at + shift).to(tl.int64)
        node = tl.load(col + e, mask=at_ok, other=0).to(tl.int64)
        if edge is not None:
            e = tl.load(edge + e, mask=at_ok, other=0).to(tl.int64)
        other_at = (node * R)[:, None] + r[None, :]
        ok = at_ok[:, None] & r_ok[None, :]
        hidden = own_row[None, :] + tl.load(other + other_at, mask=ok, other=0.0).to(ACC)
        of_hidden = tl.zeros([BLOCK, BR], ACC)
        for h in range(H):
            of_pre = tl.load(grad_pre + e * H + h, mask=at_ok, other=0.0)
            factor = tl.load(weight + h * R + r, mask=r_ok, other=0.0).to(ACC)
            of_hidden += of_pre[:, None] * factor[None, :]
        total += tl.sum(tl.where(hidden > 0, of_hidden, 0.0), 0)
    store(grad, part, row, pid, num_slots, r, r_ok, total, R)


@triton.jit(do_not_specialize=["num_edges", "edges_each"])
@no_type_check
def weight_kernel(  # noqa: PLR0913
    dst, col, u, w, grad_pre, part, num_edges, edges_each,
    H: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, HB: tl.constexpr, BLOCK: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Grid: (parts, blocks of heads, blocks of R). The gradient of lambda's weight, in parts.

    A part is `edges_each` edges, whatever their rows: `[parts, H, R]`.
    """
    pid = tl.program_id(0)
    heads = tl.program_id(1) * HB + tl.arange(0, HB)
    head_ok = heads < H
    r = tl.program_id(2) * BR + tl.arange(0, BR)
    r_ok = r < R
    first = pid.to(tl.int64) * edges_each
    last = tl.minimum(first + edges_each, num_edges)
    total = tl.zeros([HB, BR], ACC)
    for start in range(first, last, BLOCK):
        edge = (start + tl.arange(0, BLOCK)).to(tl.int64)
        edge_ok = edge < last
        i = tl.load(dst + edge, mask=edge_ok, other=0).to(tl.int64)
        j = tl.load(col + edge, mask=edge_ok, other=0)
        ok = edge_ok[:, None] & r_ok[None, :]
        u_i = tl.load(u + (i * R)[:, None] + r[None, :], mask=ok, other=0.0).to(ACC)
        w_j = tl.load(w + (j * R)[:, None] + r[None, :], mask=ok, other=0.0).to(ACC)
        of_pre_at = edge[:, None] * H + heads[None, :]
        of_pre_ok = edge_ok[:, None] & head_ok[None, :]
        of_pre = tl.load(grad_pre + of_pre_at, mask=of_pre_ok, other=0.0)
        total += tl.sum(of_pre[:, :, None] * relu(u_i + w_j)[:, None, :], 0)
    at = (pid.to(tl.int64) * H + heads)[:, None] * R + r[None, :]
    tl.store(part + at, total, mask=head_ok[:, None] & r_ok[None, :])


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def sum_kernel(  # noqa: PLR0913
    ptr, part, x, num_rows, WIDTH: tl.constexpr, BW: tl.constexpr, BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Grid: (ranges, blocks of WIDTH). A hub's row of x: the sum of its slots, in order."""
    pid = tl.program_id(0)
    row, first_range, first_slot = hub(pid, ptr, num_rows, SEGMENT)
    if row < 0:
        return
    at = tl.program_id(1) * BW + tl.arange(0, BW)
    at_ok = at < WIDTH
    total = tl.zeros([BW], ACC)
    for start in range(first_range, pid + 1, BLOCK):
        range_ = (start + tl.arange(0, BLOCK)).to(tl.int64)
        slot = tl.where(range_ == first_range, first_slot, 2 * range_)
        ok = (range_ <= pid)[:, None] & at_ok[None, :]
        rows = tl.load(part + (slot * WIDTH)[:, None] + at[None, :], mask=ok, other=0.0)
        total += tl.sum(rows, 0)
    tl.store(x + row * WIDTH + at, total, mask=at_ok)


@triton.jit(do_not_specialize=["num_rows", "num_edges"])
@no_type_check
def count_kernel(
    rowptr, edge, count, num_rows, num_edges, STEPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid: (blocks of N). How many of a source's edges come before `num_edges`, by bisection."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_ok = row < num_rows
    first = tl.load(rowptr + row, mask=row_ok, other=0).to(tl.int64)
    low = first
    high = tl.load(rowptr + row + 1, mask=row_ok, other=0).to(tl.int64)
    for _ in range(STEPS):
        middle = (low + high) // 2
        searching = low < high
        e = tl.load(edge + middle, mask=searching, other=0).to(tl.int64)
        before = searching & (e < num_edges)
        high = tl.where(searching & (e >= num_edges), middle, high)
        low = tl.where(before, middle + 1, low)
    tl.store(count + row, low - first, mask=row_ok)
