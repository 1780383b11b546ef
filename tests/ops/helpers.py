"""What the operator's tests share: tolerances, gradients, a dense twin, small literal graphs."""

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dnformer.ops import QK, Dropout, Lambda, Topology

ORACLES = Path(__file__).parents[2].parent / "shared" / "oracles" / "diff_attention.npz"

# relative and absolute, against the same computation in a wider type
TOLERANCE = {
    torch.float64: (1e-10, 1e-11),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}

# 5 destinations, 7 sources: none, one, four, two (one of them twice) and one neighbours
GRAPH = Topology(
    colptr=torch.tensor([0, 0, 1, 5, 7, 8]), row=torch.tensor([3, 0, 1, 5, 6, 2, 2, 4])
)


def close(actual: Tensor, expected: Tensor) -> None:
    """Asserts equality within the tolerance of `actual`'s dtype."""
    rtol, atol = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


def grads(
    function: Callable[..., Tensor], inputs: dict[str, Tensor], grad_out: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """`function(**inputs)` and the gradient of each input for `grad_out` (default: 1, 2, ..)."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    out = function(**leaves)
    if grad_out is None:
        grad_out = torch.arange(1.0, out.numel() + 1).view_as(out).to(out) / out.numel()
    found = torch.autograd.grad(out, list(leaves.values()), grad_out)
    return out.detach(), dict(zip(leaves, found, strict=True))


def random_inputs(
    graph: Topology = GRAPH,
    *,
    num_src: int = 7,
    heads: int = 2,
    width: int = 3,
    hidden: int = 4,
    single: int = 0,
    bias: bool = False,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """The operator's tensors from a fixed seed; without a lambda where q is `single` wide."""
    generator = torch.Generator().manual_seed(0)
    key = single or 2 * width
    shapes: dict[str, tuple[int, ...]] = {
        "q": (graph.num_dst, heads, key),
        "k": (num_src, heads, key),
        "v": (num_src, heads, width),
    }
    if not single:
        shapes |= {"u": (graph.num_dst, hidden), "w": (num_src, hidden)}
        shapes |= {"weight": (heads, hidden), "lam_bias": (heads,)}
    if bias:
        shapes["bias"] = (graph.num_edges, heads)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in shapes.items()
    }


def attend(
    op: Callable[..., Tensor],
    *,
    graph: Topology = GRAPH,
    squash: str = "softplus",
    dropout: Dropout | None = None,
) -> Callable[..., Tensor]:
    """An implementation of the operator as a function of the named tensors of `random_inputs`."""

    def function(
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        u: Tensor | None = None,
        w: Tensor | None = None,
        weight: Tensor | None = None,
        lam_bias: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        lam = None if u is None else Lambda(u, w, weight, lam_bias, squash)
        return op(graph, QK(q, k), v, lam, bias=bias, dropout=dropout)

    return function


def dense(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    w: Tensor,
    weight: Tensor,
    lam_bias: Tensor,
    bias: Tensor | None = None,
    graph: Topology = GRAPH,
) -> Tensor:
    """The definition one destination at a time, with softplus."""
    rows = []
    for i, (start, stop) in enumerate(zip(graph.colptr[:-1], graph.colptr[1:], strict=True)):
        j = graph.row[start:stop]
        q1, q2 = q[i].chunk(2, dim=-1)
        k1, k2 = k[j].chunk(2, dim=-1)
        shift = 0 if bias is None else bias[start:stop]
        s1 = (k1 * q1).sum(-1) / math.sqrt(v.shape[-1]) + shift
        s2 = (k2 * q2).sum(-1) / math.sqrt(v.shape[-1]) + shift
        lam = torch.log1p(torch.exp((u[i] + w[j]).clamp(min=0) @ weight.T + lam_bias))
        share = s1.softmax(0) - lam * s2.softmax(0)
        rows.append((share.unsqueeze(-1) * v[j]).sum(0))
    return torch.stack(rows)
