"""Triton kernels of the forward pass: online softmax of both branches; the parts of hubs joined.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda hidden
layer, W width of q and k, K that of one branch (D with a lambda, W without). BLOCK edges, HB
heads, BR hidden units at a time; KP and DP are K and D rounded up to powers of two.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from typing import no_type_check

import triton
import triton.language as tl

from dnformer.ops.gpu_common import (
    divisor,
    finite_top,
    gather,
    hidden_dot,
    hub,
    kept,
    softmax_step,
    span,
    squash,
)


@triton.jit(do_not_specialize=["num_rows", "num_slots"])
@no_type_check
def attend_kernel(  # noqa: PLR0913, PLR0915
    colptr, col, q, k, v, u, w, weight, lam_bias, bias, seed,
    out, second, stats, part_acc, part_stats, num_rows, num_slots,
    H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, R: tl.constexpr, BR: tl.constexpr, HB: tl.constexpr, BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr, ACC: tl.constexpr, SCALE: tl.constexpr, SQUASH: tl.constexpr,
    THRESHOLD: tl.constexpr, KEEP_SCALE: tl.constexpr,
):  # fmt: skip
    """Grid: (slots + M, blocks of heads). A row's result, or a slot's sums for `join_kernel`.

    part_acc is `[slots, H, B·D]`, part_stats `[slots, 2·B, H]`.
    """
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
    top1 = tl.full([HB], float("-inf"), ACC)
    total1 = tl.zeros([HB], ACC)
    acc1 = tl.zeros([HB, DP], ACC)
    top2, total2, acc2 = top1, total1, acc1
    if SQUASH != "":
        q2 = tl.load(q + row * H * W + key_at + K, mask=key_ok, other=0.0).to(ACC) * SCALE
        pre_bias = tl.load(lam_bias + heads, mask=head_ok, other=0.0).to(ACC)
    for start in range(first, last, BLOCK):
        edge = start + tl.arange(0, BLOCK)
        edge_ok = edge < last
        j = tl.load(col + edge, mask=edge_ok, other=0)
        keys_ok = edge_ok[:, None, None] & key_ok[None, :, :]
        shift = tl.where(edge_ok, 0.0, float("-inf")).to(ACC)[:, None]
        if bias is not None:
            bias_at = edge[:, None].to(tl.int64) * H + heads[None, :]
            bias_ok = edge_ok[:, None] & head_ok[None, :]
            shift += tl.load(bias + bias_at, mask=bias_ok, other=0.0).to(ACC)
        share = tl.full([BLOCK, HB], 1.0, ACC)
        if seed is not None:
            share *= kept(seed, edge, heads, H, THRESHOLD).to(ACC) * KEEP_SCALE
        values = gather(v, j, H * D, value_at, edge_ok[:, None, None] & value_ok[None, :, :], ACC)
        logit = tl.sum(q1[None, :, :] * gather(k, j, H * W, key_at, keys_ok, ACC), 2) + shift
        top1, total1, acc1 = softmax_step(top1, total1, acc1, logit, 1.0, share, values)
        if SQUASH != "":
            pre = hidden_dot(u, w, weight, row, j, heads, edge_ok, head_ok, R, BR, ACC)
            lam, _ = squash(pre + pre_bias[None, :], SQUASH)
            k2 = gather(k, j, H * W, key_at + K, keys_ok, ACC)
            logit = tl.sum(q2[None, :, :] * k2, 2) + shift
            top2, total2, acc2 = softmax_step(top2, total2, acc2, logit, 1.0, lam * share, values)
    if pid < num_slots:
        keep_slot(part_acc, part_stats, pid, top1, total1, acc1, heads, in_value, H, D, SQUASH, 0)
        if SQUASH != "":
            keep_slot(
                part_acc, part_stats, pid, top2, total2, acc2, heads, in_value, H, D, SQUASH, 1
            )
    else:
        finish(
            out, second, stats, row, top1, total1, acc1, top2, total2, acc2, heads, in_value,
            H, D, SQUASH,
        )  # fmt: skip


@triton.jit
@no_type_check
def keep_slot(  # noqa: PLR0913
    part_acc, part_stats, slot, top, total, acc, heads, in_value,
    H: tl.constexpr, D: tl.constexpr, SQUASH: tl.constexpr, BRANCH: tl.constexpr,
):  # fmt: skip
    """Stores one branch of a segment."""
    B: tl.constexpr = 2 if SQUASH != "" else 1
    slot = slot.to(tl.int64)
    head_ok = heads < H
    stats_at = (slot * 2 * B + 2 * BRANCH) * H + heads
    tl.store(part_stats + stats_at, top, mask=head_ok)
    tl.store(part_stats + stats_at + H, total, mask=head_ok)
    acc_at = (slot * H + heads)[:, None] * B * D + BRANCH * D + in_value[None, :]
    tl.store(part_acc + acc_at, acc, mask=head_ok[:, None] & (in_value < D)[None, :])


@triton.jit
@no_type_check
def finish(  # noqa: PLR0913
    out, second, stats, row, top1, total1, acc1, top2, total2, acc2, heads, in_value,
    H: tl.constexpr, D: tl.constexpr, SQUASH: tl.constexpr,
):  # fmt: skip
    """Stores a row's results."""
    B: tl.constexpr = 2 if SQUASH != "" else 1
    head_ok = heads < H
    ok = head_ok[:, None] & (in_value < D)[None, :]
    at = (row * H + heads)[:, None] * D + in_value[None, :]
    stats_at = row * 2 * B * H + heads
    tl.store(stats + stats_at, finite_top(top1), mask=head_ok)
    tl.store(stats + stats_at + H, total1, mask=head_ok)
    result = acc1 / divisor(total1)[:, None]
    if SQUASH != "":
        tl.store(stats + stats_at + 2 * H, finite_top(top2), mask=head_ok)
        tl.store(stats + stats_at + 3 * H, total2, mask=head_ok)
        taken = acc2 / divisor(total2)[:, None]
        tl.store(second + at, taken, mask=ok)
        result -= taken
    tl.store(out + at, result, mask=ok)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def join_kernel(  # noqa: PLR0913
    colptr, part_acc, part_stats, out, second, stats, num_rows,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HB: tl.constexpr, BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr, ACC: tl.constexpr, SQUASH: tl.constexpr,
):  # fmt: skip
    """Grid: (ranges, blocks of heads). The results of a hub from its slots, in ascending order."""
    B: tl.constexpr = 2 if SQUASH != "" else 1
    pid = tl.program_id(0)
    row, first_range, first_slot = hub(pid, colptr, num_rows, SEGMENT)
    if row < 0:
        return
    heads = tl.program_id(1) * HB + tl.arange(0, HB)
    head_ok = heads < H
    in_value = tl.arange(0, DP)
    value_ok = head_ok[:, None] & (in_value < D)[None, :]
    value_at = heads[:, None] * B * D + in_value[None, :]
    top1 = tl.full([HB], float("-inf"), ACC)
    total1 = tl.zeros([HB], ACC)
    acc1 = tl.zeros([HB, DP], ACC)
    top2, total2, acc2 = top1, total1, acc1
    for start in range(first_range, pid + 1, BLOCK):
        part = (start + tl.arange(0, BLOCK)).to(tl.int64)
        part_ok = part <= pid
        slot = tl.where(part == first_range, first_slot, 2 * part)
        ok = part_ok[:, None] & head_ok[None, :]
        rows_ok = part_ok[:, None, None] & value_ok[None, :, :]
        stats_at = (slot * 2 * B * H)[:, None] + heads[None, :]
        logit = tl.load(part_stats + stats_at, mask=ok, other=float("-inf"))
        count = tl.load(part_stats + stats_at + H, mask=ok, other=0.0)
        rows = gather(part_acc, slot, H * B * D, value_at, rows_ok, ACC)
        top1, total1, acc1 = softmax_step(top1, total1, acc1, logit, count, 1.0, rows)
        if SQUASH != "":
            logit = tl.load(part_stats + stats_at + 2 * H, mask=ok, other=float("-inf"))
            count = tl.load(part_stats + stats_at + 3 * H, mask=ok, other=0.0)
            rows = gather(part_acc, slot, H * B * D, value_at + D, rows_ok, ACC)
            top2, total2, acc2 = softmax_step(top2, total2, acc2, logit, count, 1.0, rows)
    finish(
        out, second, stats, row, top1, total1, acc1, top2, total2, acc2, heads, in_value,
        H, D, SQUASH,
    )  # fmt: skip
