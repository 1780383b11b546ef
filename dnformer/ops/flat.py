# mypy: allow-untyped-defs
"""The operator as torch sees it: flat lists of tensors, registered once, a backend for each device.

`ops.diff_attention` calls `attend`. A backend is a module with `forward` and `backward` on the
tuples below. `ops.cpu` and `ops.gpu` are the two.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer, W width of q and k: 2D with a lambda, any without. B branches: 2 with a lambda, 1
without.
"""

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnformer.errors import BackendError
from dnformer.ops.transpose import transpose
from dnformer.ops.types import Topology, Transposed


class Inputs(NamedTuple):
    """What `forward` takes. The tensors are contiguous.

    q, k, v, u and w are of one dtype; weight, lam_bias and bias of the same, or of float32 where
    that is a narrower one.

    Attributes:
        colptr: `[M+1]` int64.
        row: `[E]` int64.
        q: `[M, H, W]`.
        k: `[N, H, W]`.
        v: `[N, H, D]`.
        u: `[M, R]`, like the next three None without a lambda; R may be 0.
        w: `[N, R]`.
        weight: `[H, R]`.
        lam_bias: `[H]`.
        bias: `[E, H]`, or None.
        seed: of dropout, a 0-d int64 tensor on the device; None for no dropout.
        p: of dropout.
        squash: "softplus", "sigmoid" or "identity"; "" without a lambda.
    """

    colptr: Tensor
    row: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor | None
    w: Tensor | None
    weight: Tensor | None
    lam_bias: Tensor | None
    bias: Tensor | None
    seed: Tensor | None
    p: float
    squash: str


class Outputs(NamedTuple):
    """What `forward` gives, in float64 for float64 inputs and in float32 for any other.

    Attributes:
        out: `[M, H, D]`.
        second: `[M, H, D]`, what the second branch took off `out` (after dropout), so that the
            first branch's part is `out + second`; `[0, H, D]` without a lambda. A backend may
            leave 0 what its own backward does not read.
        stats: `[M, 2·B, H]`: of each branch the largest logit and the sum of exp(logit - largest),
            where a destination has neighbours.
    """

    out: Tensor
    second: Tensor
    stats: Tensor


class Grads(NamedTuple):
    """The gradients, each in shape and dtype of its input; None where the input is None."""

    q: Tensor
    k: Tensor
    v: Tensor
    u: Tensor | None
    w: Tensor | None
    weight: Tensor | None
    lam_bias: Tensor | None
    bias: Tensor | None


def attend(x: Inputs, transposed: Transposed | None) -> Tensor:
    """The operator's output `[M, H, D]`, in float64 for float64 inputs, else in float32.

    It can be differentiated once. Without a transposed index the backward pass makes one.
    """
    index = transposed or (None, None, None)
    out: Tensor = _attention(*x[:2], *index, *x[2:])[0]
    return out


def _backend(device: torch.device) -> Any:
    """The module with `forward` and `backward` for the device."""
    if device.type == "cpu":
        return import_module("dnformer.ops.cpu")
    if device.type != "cuda":
        raise BackendError(f"attention runs on cpu and cuda, not on {device.type}: move the model")
    try:
        return import_module("dnformer.ops.gpu")
    except ModuleNotFoundError as error:
        raise BackendError(
            f"attention on {device} needs {error.name}, which is not installed: "
            "it comes with torch's CUDA build, or by `pip install triton`"
        ) from None


@torch.library.custom_op("dnformer::diff_attention", mutates_args=())
def _attention(  # noqa: PLR0913 - torch's operators take no tuples
    colptr: Tensor,
    row: Tensor,
    rowptr: Tensor | None,
    edge: Tensor | None,
    col: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor | None,
    w: Tensor | None,
    weight: Tensor | None,
    lam_bias: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    p: float,
    squash: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """`Outputs`; the transposed index is for the backward pass."""
    tensors = _contiguous(colptr, row, q, k, v, u, w, weight, lam_bias, bias, seed)
    return tuple(_backend(v.device).forward(Inputs._make([*tensors, p, squash])))


@_attention.register_fake
def _(  # noqa: PLR0913
    colptr, row, rowptr, edge, col, q, k, v, u, w, weight, lam_bias, bias, seed, p, squash
):
    num_dst, num_heads, _width = q.shape
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    branches = 2 if squash else 1
    return (
        q.new_empty(num_dst, num_heads, v.shape[2], dtype=dtype),
        q.new_empty(num_dst if squash else 0, num_heads, v.shape[2], dtype=dtype),
        q.new_empty(num_dst, 2 * branches, num_heads, dtype=dtype),
    )


@torch.library.custom_op("dnformer::diff_attention_backward", mutates_args=())
def _attention_backward(  # noqa: PLR0913
    grad_out: Tensor,
    out: Tensor,
    second: Tensor,
    stats: Tensor,
    colptr: Tensor,
    row: Tensor,
    rowptr: Tensor | None,
    edge: Tensor | None,
    col: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor | None,
    w: Tensor | None,
    weight: Tensor | None,
    lam_bias: Tensor | None,
    bias: Tensor | None,
    seed: Tensor | None,
    p: float,
    squash: str,
) -> list[Tensor]:
    """`Grads` without what is None."""
    tensors = _contiguous(colptr, row, q, k, v, u, w, weight, lam_bias, bias, seed)
    x = Inputs._make([*tensors, p, squash])
    if rowptr is None or edge is None or col is None:
        transposed = transpose(Topology(x.colptr, x.row), k.shape[0])
    else:
        transposed = Transposed(rowptr, edge, col)
    outputs = Outputs(out, second, stats)
    grads = _backend(v.device).backward(x, transposed, outputs, grad_out.contiguous())
    return [grad for grad in grads if grad is not None]


@_attention_backward.register_fake
def _(  # noqa: PLR0913
    grad_out, out, second, stats, colptr, row, rowptr, edge, col, q, k, v, u, w, weight, lam_bias,
    bias, seed, p, squash,
):  # fmt: skip
    inputs = (q, k, v, u, w, weight, lam_bias, bias)
    return [x.new_empty(x.shape) for x in inputs if x is not None]


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, ctx.p, ctx.squash = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad_out: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    found = iter(_attention_backward(grad_out, *saved, ctx.p, ctx.squash))
    # after out, second and stats: 5 of the graph, then the inputs with gradients, seed, p, squash
    grads = [None if x is None else next(found) for x in saved[8:16]]
    return (*(None,) * 5, *grads, None, None, None)


_attention.register_autograd(_backward, setup_context=_setup_context)


def _contiguous(*tensors: Tensor | None) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]
