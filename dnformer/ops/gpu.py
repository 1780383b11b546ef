"""The operator on a GPU: plans and launches the Triton kernels behind `flat`'s contract.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer, W width of q and k: 2D with a lambda, any without. B branches: 2 with a lambda, 1
without.

Every sum is taken in an order that depends on the graph alone: the same bits in every run. No
launch waits for the GPU.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dnformer.ops import gpu_backward, gpu_forward
from dnformer.ops.flat import Grads, Inputs, Outputs
from dnformer.ops.types import Transposed

# A row of more edges is cut. There are two slots to a range of so many edges, each of up to
# 2D + 4 floats a head (2 · 260 · 4 / 512 = 4 bytes an edge and head where D is 128): in shorter
# ones they would take more than what edges need anyway
SEGMENT = 512
# Edges a program loads at a time; half of it where rows are short on average: `attend_kernel` is
# 1016 instructions for such a block and 1656 for a whole one (sm_90, H = 2, D = R = 32, bfloat16)
_BLOCK = 16
# heads x width that a program holds: a block of edges is then at most 4096 numbers
_TILE = 256
# programs that share the gradient of lambda's weight, each with its own [H, R]
_MAX_PARTS = 1024
_ROWS_COUNTED = 256


class _Plan(NamedTuple):
    """Sizes and choices of one call, functions of shapes and dtypes alone."""

    heads: int
    width: int
    key: int
    value: int
    hidden: int
    heads_block: int
    segment: int
    dtype: torch.dtype
    squash: str
    p: float

    @property
    def branches(self) -> int:
        """B."""
        return 2 if self.squash else 1

    @property
    def acc(self) -> Any:
        """What sums are taken in."""
        return tl.float64 if self.dtype == torch.float64 else tl.float32

    @property
    def tile_width(self) -> int:
        """The wider of q's, k's branches and v, in a tile."""
        return _padded(max(self.key, self.value))

    @property
    def hidden_block(self) -> int:
        """Units of lambda's hidden layer at a time, beside a block of heads."""
        return min(_padded(self.hidden), _TILE // self.heads_block)

    def ranges(self, num_edges: int) -> int:
        """How many ranges edges are cut at, none where no row can be longer than one."""
        return _cdiv(num_edges, self.segment) if num_edges > self.segment else 0

    def grid(self, num_rows: int, num_edges: int, num_blocks: int) -> tuple[int, int]:
        """A program for each slot of a range and each row, times blocks."""
        return (2 * self.ranges(num_edges) + num_rows, num_blocks)

    def head_blocks(self) -> int:
        """How many blocks of heads there are."""
        return _cdiv(self.heads, self.heads_block)

    def options(self, tile: int) -> dict[str, Any]:
        """How Triton compiles a kernel that loads `tile` numbers of a tensor at a time."""
        # 32 floats to a thread: registers suffice at widths up to 128. Fusion is the default
        # until Triton 3.10, and a warning where it is not asked for
        warps = tile * self.dtype.itemsize // 4096
        return {"num_warps": min(8, max(1, warps)), "enable_fp_fusion": True}

    def value_args(self, block: int) -> dict[str, Any]:
        """What a kernel on v is compiled for."""
        return {
            "H": self.heads,
            "D": self.value,
            "DP": _padded(self.value),
            "HB": self.heads_block,
            "BLOCK": block,
            "SEGMENT": self.segment,
            "ACC": self.acc,
            **self.options(block * self.heads_block * self.tile_width),
        }

    def key_args(self, block: int) -> dict[str, Any]:
        """What a kernel on q, k and v is compiled for."""
        return self.value_args(block) | {
            "W": self.width,
            "K": self.key,
            "KP": _padded(self.key),
            "SCALE": 1 / math.sqrt(self.key),
        }

    def weight_args(self, block: int) -> dict[str, Any]:
        """What a kernel that computes attention weights is compiled for."""
        return self.key_args(block) | {
            "R": self.hidden,
            "BR": self.hidden_block,
            "SQUASH": self.squash,
            "THRESHOLD": math.ceil(self.p * 2**24),
            "KEEP_SCALE": 1 / (1 - self.p),
            **self.options(block * self.heads_block * max(self.tile_width, self.hidden_block)),
        }


class _Index(NamedTuple):
    """Edges grouped by destination or by source.

    Attributes:
        ptr: where each row's edges begin, counted in this graph: from 0 to E.
        start: where they begin in `edge` and `col`, which may be a larger graph's.
        edge: the edge at a position; None where that is the position itself.
        col: the node at the other end.
    """

    ptr: Tensor
    start: Tensor
    edge: Tensor | None
    col: Tensor


def forward(x: Inputs, *, segment: int = SEGMENT) -> Outputs:
    """The operator's result and what `backward` needs of it.

    Args:
        x: on a CUDA device.
        segment: edges of a row that a program takes at most.
    """
    plan = _plan(x, segment)
    num_dst, num_edges = x.q.shape[0], x.row.numel()
    num_ranges, branches = plan.ranges(num_edges), plan.branches
    out = _empty(plan, x, num_dst, plan.heads, plan.value)
    second = _empty(plan, x, num_dst if x.squash else 0, plan.heads, plan.value)
    stats = _empty(plan, x, num_dst, 2 * branches, plan.heads)
    if num_dst == 0:
        return Outputs(out, second, stats)
    part_acc = _empty(plan, x, 2 * num_ranges, plan.heads, branches * plan.value)
    part_stats = _empty(plan, x, 2 * num_ranges, 2 * branches, plan.heads)
    with torch.cuda.device_of(x.v):  # type: ignore[no-untyped-call]
        gpu_forward.attend_kernel[plan.grid(num_dst, num_edges, plan.head_blocks())](
            *x[:11], out, second, stats, part_acc, part_stats,
            num_dst, 2 * num_ranges, **plan.weight_args(_block(num_edges, num_dst)),
        )  # fmt: skip
        if num_ranges:
            gpu_forward.join_kernel[(num_ranges, plan.head_blocks())](
                x.colptr, part_acc, part_stats, out, second, stats, num_dst,
                SQUASH=x.squash, **plan.value_args(_BLOCK),
            )  # fmt: skip
    return Outputs(out, second, stats)


def backward(
    x: Inputs,
    transposed: Transposed,
    outputs: Outputs,
    grad_out: Tensor,
    *,
    segment: int = SEGMENT,
) -> Grads:
    """The gradient of each input.

    Args:
        x: what `forward` took.
        transposed: the same edges by source, or those of a graph that these are the first of.
        outputs: what `forward` gave.
        grad_out: `[M, H, D]` in the dtype of `outputs.out`.
        segment: edges of a row that a program takes at most.
    """
    plan = _plan(x, segment)
    grad_out = grad_out.contiguous()
    grad_u, grad_w, grad_weight, grad_lam_bias = None, None, None, None
    with torch.cuda.device_of(x.v):  # type: ignore[no-untyped-call]
        by_source = _by_source(x, transposed)
        grad_q, grad_bias, edge_grads = _destination_grads(plan, x, outputs, grad_out)
        if x.squash:
            grad_u, grad_w, grad_weight, grad_lam_bias = _lambda_grads(
                plan, x, by_source, edge_grads
            )
        grad_k, grad_v = _source_grads(plan, x, by_source, grad_out, edge_grads.attention)
    return Grads(grad_q, grad_k, grad_v, grad_u, grad_w, grad_weight, grad_lam_bias, grad_bias)


class _EdgeGrads(NamedTuple):
    """What the destinations' pass leaves on the edges: 16 bytes an edge and head, and dst.

    Attributes:
        attention: `[E, 1 + B, H]`, the weight of v and the gradients of the logits.
        pre: `[E, H]`, the gradient of what is squashed to lambda; empty without one.
        dst: `[E]`, the destination; None where nobody asks.
    """

    attention: Tensor
    pre: Tensor
    dst: Tensor | None


def _destination_grads(
    plan: _Plan, x: Inputs, outputs: Outputs, grad_out: Tensor
) -> tuple[Tensor, Tensor | None, _EdgeGrads]:
    num_dst, num_edges = x.q.shape[0], x.row.numel()
    num_slots = 2 * plan.ranges(num_edges)
    grad_q = torch.empty_like(x.q)
    grad_bias = None if x.bias is None else torch.empty_like(x.bias)
    part = _empty(plan, x, num_slots, plan.heads, plan.width)
    edges = _EdgeGrads(
        attention=_empty(plan, x, num_edges, 1 + plan.branches, plan.heads),
        pre=_empty(plan, x, num_edges if x.squash else 0, plan.heads),
        dst=torch.empty_like(x.row, dtype=_index_dtype(num_dst)) if plan.hidden else None,
    )
    if num_dst:
        gpu_backward.destination_kernel[plan.grid(num_dst, num_edges, plan.head_blocks())](
            *x[:11], *outputs, grad_out, grad_q, grad_bias, edges.pre, edges.attention, edges.dst,
            part, num_dst, num_slots, **plan.weight_args(_block(num_edges, num_dst)),
        )  # fmt: skip
        _join(plan, x.colptr, part, grad_q, num_edges)
    return grad_q, grad_bias, edges


def _source_grads(
    plan: _Plan, x: Inputs, index: _Index, grad_out: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor]:
    num_src, num_edges = x.v.shape[0], x.row.numel()
    num_slots = 2 * plan.ranges(num_edges)
    grad_k, grad_v = torch.empty_like(x.k), torch.empty_like(x.v)
    part_k = _empty(plan, x, num_slots, plan.heads, plan.width)
    part_v = _empty(plan, x, num_slots, plan.heads, plan.value)
    if num_src:
        gpu_backward.source_kernel[plan.grid(num_src, num_edges, plan.head_blocks())](
            *index, x.q, grad_out, edges, grad_k, grad_v, part_k, part_v,
            num_src, num_slots, **plan.key_args(_block(num_edges, num_src)),
        )  # fmt: skip
        _join(plan, index.ptr, part_k, grad_k, num_edges)
        _join(plan, index.ptr, part_v, grad_v, num_edges)
    return grad_k, grad_v


def _lambda_grads(
    plan: _Plan, x: Inputs, by_source: _Index, edges: _EdgeGrads
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of u, w, weight and lam_bias."""
    assert x.u is not None
    assert x.w is not None
    assert x.weight is not None
    assert x.lam_bias is not None
    by_destination = _Index(x.colptr, x.colptr, None, x.row)
    grad_u = _hidden_grad(plan, by_destination, x.u, x.w, x.weight, edges.pre)
    grad_w = _hidden_grad(plan, by_source, x.w, x.u, x.weight, edges.pre)
    grad_weight = _weight_grad(plan, x, x.weight, edges)
    return grad_u, grad_w, grad_weight, edges.pre.sum(0).to(x.lam_bias.dtype)


def _hidden_grad(
    plan: _Plan, index: _Index, own: Tensor, other: Tensor, weight: Tensor, pre: Tensor
) -> Tensor:
    """The gradient of `own`, which is u or w; `other` is the other one."""
    num_rows, num_edges = own.shape[0], pre.shape[0]
    num_slots = 2 * plan.ranges(num_edges)
    grad = torch.empty_like(own)
    part = pre.new_empty(num_slots, plan.hidden)
    if grad.numel():
        block, width = _block(num_edges, num_rows), min(_padded(plan.hidden), _TILE)
        grid = plan.grid(num_rows, num_edges, _cdiv(plan.hidden, width))
        gpu_backward.hidden_kernel[grid](
            *index, own, other, weight, pre, grad, part, num_rows, num_slots,
            H=plan.heads, R=plan.hidden, BR=width, BLOCK=block, SEGMENT=plan.segment,
            ACC=plan.acc, **plan.options(block * width),
        )  # fmt: skip
        _join(plan, index.ptr, part, grad, num_edges)
    return grad


def _weight_grad(plan: _Plan, x: Inputs, weight: Tensor, edges: _EdgeGrads) -> Tensor:
    num_edges, width = x.row.numel(), plan.hidden_block
    if not num_edges or not plan.hidden:
        return torch.zeros_like(weight)
    # at least a segment each: then the parts take no more than R / 128 bytes an edge and head
    edges_each = _BLOCK * _cdiv(max(plan.segment, _cdiv(num_edges, _MAX_PARTS)), _BLOCK)
    num_parts = _cdiv(num_edges, edges_each)
    part = edges.pre.new_empty(num_parts, plan.heads, plan.hidden)
    gpu_backward.weight_kernel[(num_parts, plan.head_blocks(), _cdiv(plan.hidden, width))](
        edges.dst, x.row, x.u, x.w, edges.pre, part, num_edges, edges_each,
        H=plan.heads, R=plan.hidden, BR=width, HB=plan.heads_block, BLOCK=_BLOCK, ACC=plan.acc,
        **plan.options(_BLOCK * plan.heads_block * width),
    )  # fmt: skip
    return part.sum(0).to(weight.dtype)


def _join(plan: _Plan, ptr: Tensor, part: Tensor, x: Tensor, num_edges: int) -> None:
    """Sums the slots of hubs to their rows of x."""
    num_ranges, width = plan.ranges(num_edges), x[0].numel()
    block = min(_padded(width), _TILE)
    if num_ranges:
        gpu_backward.sum_kernel[(num_ranges, _cdiv(width, block))](
            ptr, part, x, x.shape[0], WIDTH=width, BW=block, BLOCK=_BLOCK, SEGMENT=plan.segment,
            ACC=plan.acc, **plan.options(_BLOCK * block),
        )  # fmt: skip


def _by_source(x: Inputs, transposed: Transposed) -> _Index:
    """The transposed index; where it is a larger graph's, with this graph's part of each row."""
    rowptr, edge, col = transposed
    num_src, num_edges = x.v.shape[0], x.row.numel()
    if edge.numel() == num_edges:
        return _Index(rowptr, rowptr, edge, col)
    count = x.row.new_empty(num_src)
    if num_src:
        gpu_backward.count_kernel[(_cdiv(num_src, _ROWS_COUNTED),)](
            rowptr, edge, count, num_src, num_edges, STEPS=edge.numel().bit_length(),
            BLOCK=_ROWS_COUNTED, enable_fp_fusion=True,
        )  # fmt: skip
    ptr = x.row.new_zeros(num_src + 1)
    torch.cumsum(count, 0, out=ptr[1:])
    return _Index(ptr, rowptr, edge, col)


def _plan(x: Inputs, segment: int) -> _Plan:
    _, heads, width = x.q.shape
    value = x.v.shape[2]
    key = value if x.squash else width
    block = triton.next_power_of_2(heads)
    while block > 1 and block * _padded(max(key, value)) > _TILE:
        block //= 2
    return _Plan(
        heads=heads,
        width=width,
        key=key,
        value=value,
        hidden=0 if x.weight is None else x.weight.shape[1],
        heads_block=block,
        segment=segment,
        dtype=torch.float64 if x.v.dtype == torch.float64 else torch.float32,
        squash=x.squash,
        p=0.0 if x.seed is None else x.p,
    )


def _empty(plan: _Plan, x: Inputs, *shape: int) -> Tensor:
    return x.v.new_empty(shape, dtype=plan.dtype)


def _padded(width: int) -> int:
    """What a tile of `width` takes: blocks are powers of two."""
    return max(8, int(triton.next_power_of_2(width)))


def _block(num_edges: int, num_rows: int) -> int:
    """How many edges a program loads at a time."""
    return _BLOCK if num_edges > _BLOCK // 2 * num_rows else _BLOCK // 2


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _index_dtype(size: int) -> torch.dtype:
    return torch.int32 if size < 2**31 else torch.int64
