"""What the Triton kernels share: who works on which edges, lambda, the dropout mask, softmax steps.

A program has one row (a destination, or a source in the transposed index) and a block of heads.
A row of more than SEGMENT edges, a hub, is cut where multiples of SEGMENT lie, counted over all
edges: a range of SEGMENT edges then meets two hubs at most, that of its first edge and that of
its last. So each range has two slots, and the slots' programs come before the rows'. Nothing is
planned ahead: no table, and no wait for the GPU to learn how large the hubs are.

E edges, H heads, R width of the lambda hidden layer. BLOCK edges, HB heads at a time.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from typing import no_type_check

import triton
import triton.language as tl

# `no_type_check` keeps jaxtyping's import hook off what Triton compiles from its source


@triton.jit
@no_type_check
def find(ptr, num_rows, position):
    """The row that holds `position`, by bisection; `num_rows` where it lies behind them all."""
    low = position * 0
    high = low + num_rows
    while low < high:
        middle = (low + high) // 2
        after = tl.load(ptr + middle + 1).to(tl.int64) > position
        low = tl.where(after, low, middle + 1)
        high = tl.where(after, middle, high)
    return low


@triton.jit
@no_type_check
def span(pid, ptr, num_rows, num_slots, SEGMENT: tl.constexpr):
    """Program `pid`'s row and where its edges begin and end; row -1 where it has no work."""
    begin = (pid // 2).to(tl.int64) * SEGMENT
    is_slot = pid < num_slots
    if is_slot:
        row = find(ptr, num_rows, begin + (pid % 2) * (SEGMENT - 1))
    else:
        row = (pid - num_slots).to(tl.int64)
    exists = row < num_rows
    first = tl.load(ptr + row, mask=exists, other=0).to(tl.int64)
    last = tl.load(ptr + row + 1, mask=exists, other=0).to(tl.int64)
    is_hub = last - first > SEGMENT
    works = exists & (is_hub == is_slot)
    if is_slot:
        # a hub that holds the range's first edge as well is the other slot's
        works = works & ((pid % 2 == 0) | (first > begin))
        first = tl.maximum(first, begin)
        last = tl.minimum(last, begin + SEGMENT)
    return tl.where(works, row, -1), first, last


@triton.jit
@no_type_check
def hub(pid, ptr, num_rows, SEGMENT: tl.constexpr):
    """The hub whose last range is `pid`, with its first range and slot; row -1 for none."""
    row = find(ptr, num_rows, pid.to(tl.int64) * SEGMENT)
    exists = row < num_rows
    first = tl.load(ptr + row, mask=exists, other=0).to(tl.int64)
    last = tl.load(ptr + row + 1, mask=exists, other=0).to(tl.int64)
    is_hub = (last - first > SEGMENT) & ((last - 1) // SEGMENT == pid)
    first_range = first // SEGMENT
    first_slot = 2 * first_range + (first > first_range * SEGMENT).to(tl.int64)
    return tl.where(is_hub, row, -1), first_range, first_slot


@triton.jit
@no_type_check
def gather(x, index, stride, offset, mask, ACC: tl.constexpr):
    """Tiles `[BLOCK, HB, width]` of the rows `index`, 0 where masked."""
    at = (index * stride)[:, None, None] + offset[None, :, :]
    return tl.load(x + at, mask=mask, other=0.0).to(ACC)


@triton.jit
@no_type_check
def mix(z):
    """SplitMix64's finaliser, on uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
@no_type_check
def kept(seed, edge, heads, H: tl.constexpr, THRESHOLD: tl.constexpr):
    """Which weights dropout keeps, `[BLOCK, HB]`: the contract of `types.Dropout`."""
    counter = edge.to(tl.int64)[:, None] * H + heads[None, :] + 1
    state = mix(tl.load(seed).to(tl.uint64, bitcast=True))
    bits = mix(state + counter.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15) >> 40
    return bits.to(tl.int64) >= THRESHOLD


@triton.jit
@no_type_check
def hidden_dot(  # noqa: PLR0913
    u, w, weight, row, j, heads, edge_ok, head_ok,
    R: tl.constexpr, BR: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """`weight · relu(u_row + w_j)`, `[BLOCK, HB]`, BR units of the hidden layer at a time."""
    total = tl.zeros([j.shape[0], heads.shape[0]], ACC)
    for start in range(0, R, BR):
        r = start + tl.arange(0, BR)
        r_ok = r < R
        u_row = tl.load(u + row * R + r, mask=r_ok, other=0.0).to(ACC)
        w_at = (j * R)[:, None] + r[None, :]
        w_j = tl.load(w + w_at, mask=edge_ok[:, None] & r_ok[None, :], other=0.0).to(ACC)
        weight_at = (heads * R)[:, None] + r[None, :]
        factor = tl.load(weight + weight_at, mask=head_ok[:, None] & r_ok[None, :], other=0.0)
        hidden = relu(u_row[None, :] + w_j)
        total += tl.sum(hidden[:, None, :] * factor.to(ACC)[None, :, :], axis=2)
    return total


@triton.jit
@no_type_check
def relu(x):
    """NaN stays NaN: a loss that is not finite is to be seen."""
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
@no_type_check
def squash(x, SQUASH: tl.constexpr):
    """Lambda and its derivative."""
    y = tl.exp(-tl.abs(x))
    if SQUASH == "identity":
        value = x
        slope = tl.zeros_like(x) + 1
    elif SQUASH == "sigmoid":
        value = tl.where(x >= 0, 1.0, y) / (1 + y)
        slope = y / ((1 + y) * (1 + y))
    else:
        value = relu(x) + log1p(y)
        slope = tl.where(x >= 0, 1.0, y) / (1 + y)
    return value, slope


@triton.jit
@no_type_check
def log1p(y):
    """log(1 + y) for 0 <= y <= 1: 2 atanh(y / (2 + y)), to the last bits of float64.

    Triton has it only in libdevice, which its interpreter lacks; log(1 + y) itself loses a small y.
    """
    z = y / (2 + y)
    square = z * z  # at most 1/9
    series = tl.zeros_like(y)
    for i in tl.static_range(17):
        series = series * square + 1.0 / (33 - 2 * i)
    return 2 * z * series


@triton.jit
@no_type_check
def softmax_step(top, total, acc, logit, count, share, rows):
    """One step of online softmax over the first axis of `logit` `[BLOCK, HB]`.

    Returns the largest logit so far, the sum of count · exp(logit - largest), both `[HB]`, and
    that of share · exp(logit - largest) · rows, `[HB, DP]`.
    """
    new_top = tl.maximum(top, tl.max(logit, 0))
    # where all so far are -inf: -inf - -inf is NaN
    fixed = finite_top(new_top)
    scale = tl.exp(top - fixed)
    exp = tl.exp(logit - fixed[None, :])
    total = total * scale + tl.sum(exp * count, 0)
    acc = acc * scale[:, None] + tl.sum((exp * share)[:, :, None] * rows, 0)
    return new_top, total, acc


@triton.jit
@no_type_check
def finite_top(top):
    """0 for the largest logit of a row without any."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
@no_type_check
def divisor(total):
    """1 for the sum of a row without edges; NaN stays NaN."""
    return tl.where(total == 0, 1.0, total)
