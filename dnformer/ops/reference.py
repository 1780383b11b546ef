"""Differential local attention in plain PyTorch: the executable definition of the operator.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer. Edges are grouped by destination. Memory beyond inputs and outputs is O(E·H), and
float32 copies of narrower inputs.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from dnformer.ops.dropout import keep_mask
from dnformer.ops.edges import edge_dot, edge_hidden, edge_sum
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
    out = edge_sum(weight, v.to(weight.dtype), graph.dst(), graph.row, graph.num_dst)
    return out.to(v.dtype)


def edge_weights(
    graph: Topology, qk: QK, lam: Lambda | None, *, bias: Float[Tensor, "E H"] | None = None
) -> EdgeWeights:
    """The attention maps: float64 for float64 queries, float32 for any other."""
    dtype = torch.float64 if qk.q.dtype == torch.float64 else torch.float32
    dst = graph.dst()
    num_heads, num_branches = qk.q.shape[1], 1 if lam is None else 2
    q, k = (_branches(t.to(dtype), num_branches) for t in qk)  # [M, H·B, D], [N, H·B, D]
    logits = edge_dot(q, k, dst, graph.row) / math.sqrt(q.shape[2])  # [E, H·B]
    logits = logits.view(-1, num_heads, num_branches)  # [E, H, B]
    if bias is not None:
        logits = logits + bias.to(dtype).unsqueeze(-1)
    a = _softmax(logits.flatten(1), dst, graph.num_dst).view_as(logits)
    a1 = a[..., 0]
    if lam is None:
        return EdgeWeights(a1, None, None, a1)
    a2, lam_edge = a[..., 1], _edge_lambda(lam, dst, graph.row, dtype)
    return EdgeWeights(a1, a2, lam_edge, a1 - lam_edge * a2)


def _branches(t: Tensor, num_branches: int) -> Tensor:
    num_nodes, num_heads, width = t.shape
    return t.reshape(num_nodes, num_heads * num_branches, width // num_branches)


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
    return _SQUASH[lam.squash](edge_hidden(u, w, weight, dst, row) + bias)
