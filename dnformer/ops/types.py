"""What the operator takes: small tuples of tensors, shared by every implementation of it.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer. Edges are grouped by destination.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor


class Transposed(NamedTuple):
    """The same edges grouped by source: where the gradients of keys and values are summed.

    It may be that of a larger graph that this one's edges are the first of: then sources beyond
    the N and edges beyond the E are passed over. int32 where all indices fit, else int64.

    Attributes:
        rowptr: where each source's edges begin.
        edge: positions in `Topology.row`, ascending within a source.
        col: the destination of each.
    """

    rowptr: Int[Tensor, "N+1"]
    edge: Int[Tensor, "E"]
    col: Int[Tensor, "E"]


class Topology(NamedTuple):
    """Edges grouped by destination: `row[colptr[i]:colptr[i + 1]]` are destination i's neighbours.

    Attributes:
        colptr: where each destination's edges begin, from 0 to E.
        row: the neighbour's index among the N sources.
        transposed: the same edges by source; None where the backward pass is to make it.
    """

    colptr: Int64[Tensor, "M+1"]
    row: Int64[Tensor, "E"]
    transposed: Transposed | None = None

    @property
    def num_dst(self) -> int:
        """M."""
        return self.colptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return self.row.numel()

    def dst(self) -> Int64[Tensor, "E"]:
        """The destination of each edge, computed anew in O(E)."""
        index = torch.arange(self.num_dst, device=self.row.device)
        return torch.repeat_interleave(index, self.colptr.diff(), output_size=self.num_edges)


class QK(NamedTuple):
    """Queries and keys. The two branches of differential attention are halves of the last axis.

    With a lambda the last axis is 2D, branch one first; without one it is a single branch of any
    width W.
    """

    q: Float[Tensor, "M H W"]
    k: Float[Tensor, "N H W"]


class Lambda(NamedTuple):
    """lambda(i, j) = squash(weight · relu(u_i + w_j) + bias), one value for each edge and head.

    R may be 0: then lambda(h) = squash(bias_h) whatever the nodes, with u `[M, 0]`, w `[N, 0]`.

    Attributes:
        u: the destination's part of the hidden layer, its bias included.
        w: the neighbour's part.
        weight: hidden layer to heads; in the dtype of `u`, or in float32.
        bias: one for each head, in the dtype of `weight`.
        squash: "softplus", "sigmoid" or "identity".
    """

    u: Float[Tensor, "M R"]
    w: Float[Tensor, "N R"]
    weight: Float[Tensor, "H R"]
    bias: Float[Tensor, "H"]
    squash: str


class Dropout(NamedTuple):
    """Dropout of attention weights: one mask for each edge and head, a pure function of its key.

    Every implementation gives these very bits. All arithmetic is on unsigned 64-bit integers,
    modulo 2^64, with logical shifts; `e` is the edge's position in `Topology.row`, `h` the head
    out of H:

        mix(z):  z = (z xor (z >> 30)) · 0xBF58476D1CE4E5B9
                 z = (z xor (z >> 27)) · 0x94D049BB133111EB
                 return z xor (z >> 31)
        bits(e, h) = mix(mix(seed) + (e · H + h + 1) · 0x9E3779B97F4A7C15) >> 40
        keep(e, h) = bits(e, h) >= ceil(p · 2^24)

    that is, a uniform of 24 bits is at least p. A kept weight is multiplied by 1 / (1 - p).
    The mask does not depend on E: a prefix of the edges has a prefix of the mask.
    `mix` is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
    generators", 2014).

    Attributes:
        p: share of weights set to zero, 0 <= p < 1.
        seed: a 0-d tensor, so that another seed is no reason to compile anew.
    """

    p: float
    seed: Int64[Tensor, ""]


class EdgeWeights(NamedTuple):
    """The attention maps on the edges, before dropout, in the dtype they are computed in.

    Attributes:
        a1: first softmax.
        a2: second softmax; None without a lambda.
        lam: lambda; None without a lambda.
        weight: a1 - lam · a2; a1 itself without a lambda.
    """

    a1: Float[Tensor, "E H"]
    a2: Float[Tensor, "E H"] | None
    lam: Float[Tensor, "E H"] | None
    weight: Float[Tensor, "E H"]
