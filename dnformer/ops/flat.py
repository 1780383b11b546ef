"""The operator as torch sees it: flat lists of tensors, registered once, a backend for each device.

`ops.diff_attention` calls `attend`. A backend is a module with `forward` and `backward` on the
tuples below. `ops.cpu` and `ops.gpu` are the two.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer, W width of q and k: 2D with a lambda, any without. B branches: 2 with a lambda, 1
without.
"""

from typing import NamedTuple

from torch import Tensor


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
            first branch's part is `out + second`; `[0, H, D]` without a lambda.
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
