"""Differential local attention in plain PyTorch: the executable definition of the operator.

It is there to be read and to be compared with. It gathers a row for each edge, so it takes
O(E·C) memory, and its gradients are autograd's.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer, B branches. Edges are grouped by destination.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from dnformer.ops.dropout import keep_mask
from dnformer.ops.types import QK, Dropout, EdgeWeights, Lambda, Topology

_SQUASH: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": functional.softplus,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def diff_attention(
    graph: Topology,
    qk: QK,
    v: Float[Tensor, "N H D"],
    lam: Lambda | None,
    *,
    bias: Float[Tensor, "E H"] | None = None,
    dropout: Dropout | None = None,
) -> Float[Tensor, "M H D"]:
    """`ops.diff_attention` on any device, without its checks; the inputs are taken as right."""
    weight = edge_weights(graph, qk, lam, bias=bias).weight  # [E, H]
    if dropout is not None:
        keep = keep_mask(dropout, num_edges=graph.num_edges, num_heads=v.shape[1])
        weight = weight * keep * (1 / (1 - dropout.p))
    message = weight.unsqueeze(-1) * v.to(weight.dtype).index_select(0, graph.row)  # [E, H, D]
    out = message.new_zeros(graph.num_dst, *v.shape[1:]).index_add(0, graph.dst(), message)
    return out.to(v.dtype)


def edge_weights(
    graph: Topology, qk: QK, lam: Lambda | None, *, bias: Float[Tensor, "E H"] | None = None
) -> EdgeWeights:
    """The attention maps: float64 for float64 queries, float32 for any other."""
    dst = graph.dst()
    logits = edge_logits(graph, qk, num_branches=1 if lam is None else 2, bias=bias)
    a = _softmax(logits.flatten(1), dst, graph.num_dst).view_as(logits)
    a1 = a[..., 0]
    if lam is None:
        return EdgeWeights(a1, None, None, a1)
    a2, lam_edge = a[..., 1], _edge_lambda(lam, dst, graph.row, a.dtype)
    return EdgeWeights(a1, a2, lam_edge, a1 - lam_edge * a2)


def edge_logits(
    graph: Topology, qk: QK, *, num_branches: int, bias: Float[Tensor, "E H"] | None = None
) -> Float[Tensor, "E H B"]:
    """The logits of each branch, bias included, in the dtype of the attention maps."""
    dtype = torch.float64 if qk.q.dtype == torch.float64 else torch.float32
    q, k = qk.q.to(dtype).index_select(0, graph.dst()), qk.k.to(dtype).index_select(0, graph.row)
    product, width = q * k, q.shape[2] // num_branches
    product = product.view(*product.shape[:2], num_branches, width)
    logits = product.sum(-1) / math.sqrt(width)
    return logits if bias is None else logits + bias.to(dtype).unsqueeze(-1)


def _softmax(
    logits: Float[Tensor, "E P"], dst: Int64[Tensor, "E"], num_dst: int
) -> Float[Tensor, "E P"]:
    """Softmax over the edges of each destination; a constant added to a row changes nothing."""
    fixed = logits.detach()
    index = dst.unsqueeze(-1).expand_as(fixed)
    top = fixed.new_full((num_dst, fixed.shape[1]), -math.inf)
    top = top.scatter_reduce(0, index, fixed, "amax")  # [M, P]
    exp = (logits - top.index_select(0, dst)).exp()
    total = exp.new_zeros(num_dst, exp.shape[1]).index_add(0, dst, exp)  # [M, P]
    return exp / total.index_select(0, dst)


def _edge_lambda(
    lam: Lambda, dst: Int64[Tensor, "E"], row: Int64[Tensor, "E"], dtype: torch.dtype
) -> Float[Tensor, "E H"]:
    u, w, weight, bias = (t.to(dtype) for t in (lam.u, lam.w, lam.weight, lam.bias))
    hidden = (u.index_select(0, dst) + w.index_select(0, row)).relu()  # [E, R]
    # no matrix product: autocast would take it to 16 bits
    return _SQUASH[lam.squash]((hidden.unsqueeze(1) * weight).sum(-1) + bias)
