"""The operator: differential attention over the edges of a graph, behind one entry.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer. Edges are grouped by destination.
"""

from jaxtyping import Float
from torch import Tensor

from dnformer.ops.checks import check_inputs
from dnformer.ops.flat import Inputs, attend
from dnformer.ops.reference import edge_logits, edge_weights
from dnformer.ops.transpose import transpose
from dnformer.ops.types import QK, Dropout, EdgeWeights, Lambda, Topology, Transposed

__all__ = [
    "QK",
    "Dropout",
    "EdgeWeights",
    "Lambda",
    "Topology",
    "Transposed",
    "diff_attention",
    "edge_logits",
    "edge_weights",
    "transpose",
]


def diff_attention(
    graph: Topology,
    qk: QK,
    v: Float[Tensor, "N H D"],
    lam: Lambda | None,
    *,
    bias: Float[Tensor, "E H"] | None = None,
    dropout: Dropout | None = None,
) -> Float[Tensor, "M H D"]:
    """Values of the neighbours, weighted by the difference of two softmaxes.

        s_r(i,j,h) = <q_r(i,h), k_r(j,h)> / sqrt(D) + bias(i,j,h)            r = 1, 2
        a_r(i,·,h) = softmax of s_r over the neighbours j of i
        w(i,j,h)   = a_1 - lambda(i,j,h) · a_2
        out(i,h)   = sum over j of drop(w(i,j,h)) · v(j,h)

    A destination without neighbours gives 0. float32 and narrower inputs are accumulated in
    float32, float64 in float64; the result has the dtype of `v`.

    Args:
        graph: edges grouped by destination.
        qk: both branches in halves of the last axis, 2D wide; without a lambda one branch of any
            width W, scaled by 1 / sqrt(W).
        v: values of the source nodes.
        lam: how lambda is computed; None for one plain softmax, w = a_1.
        bias: added to the logits of both branches; in the dtype of `v`, or in float32.
        dropout: drops weights after the subtraction, one mask for both branches.

    Raises:
        DataError: a shape, a dtype or a device is wrong.
        ConfigError: the squash function or the share of dropout is not one there is.
    """
    check_inputs(graph, qk, v, lam, bias=bias, dropout=dropout)
    seed, p = (None, 0.0) if dropout is None else (dropout.seed, dropout.p)
    u, w, weight, lam_bias, squash = lam or (None, None, None, None, "")
    inputs = Inputs(
        graph.colptr, graph.row, qk.q, qk.k, v, u, w, weight, lam_bias, bias, seed, p, squash
    )
    return attend(inputs, graph.transposed).to(v.dtype)
