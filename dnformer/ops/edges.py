"""Sums of products over the edges of a graph, with their gradients, in plain PyTorch.

Each gathers a few edges at a time: no tensor of E x D or E x R is allocated, and what a chunk
gathered is still in cache when it is used. On whole tensors the same operations spend most of
their time on mapping fresh memory: three to four times slower for E = 200,000, H = 2, D = 32. On
CPU the sums over edges run in a fixed order, whatever the number of threads (within a matrix
product the order is the BLAS library's).

E edges, H heads, R width of the lambda hidden layer. P is the number of products an edge has
(heads, or heads x branches), D the width of each.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable

# About a core's share of the cache on CPU: with less, threads wait for each other more often.
# A GPU needs fewer and longer kernels
_CPU_CHUNK_BYTES = 2**21
_GPU_CHUNK_BYTES = 2**26


def edge_dot(
    x: Float[Tensor, "A P D"],
    y: Float[Tensor, "B P D"],
    i: Int64[Tensor, "E"],
    j: Int64[Tensor, "E"],
) -> Float[Tensor, "E P"]:
    """`<x[i_e, p], y[j_e, p]>` for each edge e and product p."""
    out: Tensor = _EdgeDot.apply(x, y, i, j)  # type: ignore[no-untyped-call]
    return out


def edge_sum(
    weight: Float[Tensor, "E P"],
    y: Float[Tensor, "B P D"],
    i: Int64[Tensor, "E"],
    j: Int64[Tensor, "E"],
    num_rows: int,
) -> Float[Tensor, "{num_rows} P D"]:
    """The sum of `weight[e, p] · y[j_e, p]` over the edges with `i_e = i`, for each row i."""
    out: Tensor = _EdgeSum.apply(weight, y, i, j, num_rows)  # type: ignore[no-untyped-call]
    return out


def edge_hidden(
    u: Float[Tensor, "A R"],
    w: Float[Tensor, "B R"],
    weight: Float[Tensor, "H R"],
    i: Int64[Tensor, "E"],
    j: Int64[Tensor, "E"],
) -> Float[Tensor, "E H"]:
    """`weight · relu(u[i_e] + w[j_e])` for each edge e: a hidden layer that is never stored."""
    out: Tensor = _EdgeHidden.apply(u, w, weight, i, j)  # type: ignore[no-untyped-call]
    return out


class _EdgeDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, i, j)
        p, d = x.shape[1:]
        x_rows, y_rows = x.flatten(1), y.flatten(1)
        out = x.new_empty(i.numel(), p)
        for part in _chunks(i.numel(), y_rows):
            product = x_rows.index_select(0, i[part]).mul_(y_rows.index_select(0, j[part]))
            torch.sum(product.view(-1, p, d), dim=-1, out=out[part])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, i, j = ctx.saved_tensors
        grad_x = edge_sum(grad, y, i, j, x.shape[0]) if ctx.needs_input_grad[0] else None
        grad_y = edge_sum(grad, x, j, i, y.shape[0]) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y, None, None


class _EdgeSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, y: Tensor, i: Tensor, j: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(weight, y, i, j)
        p, d = y.shape[1:]
        y_rows = y.flatten(1)
        out = y.new_zeros(num_rows, p * d)
        for part in _chunks(i.numel(), y_rows):
            gathered = y_rows.index_select(0, j[part]).view(-1, p, d)
            message = gathered.mul_(weight[part].unsqueeze(-1))  # [chunk, P, D]
            out.index_add_(0, i[part], message.view(-1, p * d))
        return out.view(num_rows, p, d)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, y, i, j = ctx.saved_tensors
        # an expanded gradient, as that of sum(), gathers several times slower
        grad = grad.contiguous()
        grad_weight = edge_dot(grad, y, i, j) if ctx.needs_input_grad[0] else None
        grad_y = edge_sum(weight, grad, j, i, y.shape[0]) if ctx.needs_input_grad[1] else None
        return grad_weight, grad_y, None, None, None


class _EdgeHidden(torch.autograd.Function):
    # autocast is off around mm: the dtypes are the caller's choice

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, weight: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ctx.save_for_backward(u, w, weight, i, j)
        out = u.new_empty(i.numel(), weight.shape[0])
        with torch.autocast(u.device.type, enabled=False):
            for part in _chunks(i.numel(), u):
                hidden = u.index_select(0, i[part]).add_(w.index_select(0, j[part])).relu_()
                torch.mm(hidden, weight.t(), out=out[part])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, w, weight, i, j = ctx.saved_tensors
        grad_u, grad_w, grad_weight = (torch.zeros_like(t) for t in (u, w, weight))
        with torch.autocast(u.device.type, enabled=False):
            for part in _chunks(i.numel(), u):
                hidden = u.index_select(0, i[part]).add_(w.index_select(0, j[part])).relu_()
                grad_weight.addmm_(grad[part].t(), hidden)
                grad_hidden = torch.mm(grad[part], weight).mul_(hidden > 0)  # [chunk, R]
                grad_u.index_add_(0, i[part], grad_hidden)
                grad_w.index_add_(0, j[part], grad_hidden)
        return grad_u, grad_w, grad_weight, None, None


def _chunks(num_edges: int, rows: Tensor) -> Iterator[slice]:
    budget = _CPU_CHUNK_BYTES if rows.device.type == "cpu" else _GPU_CHUNK_BYTES
    step = max(1, budget // max(1, rows.shape[1] * rows.element_size()))
    for start in range(0, num_edges, step):
        yield slice(start, start + step)
