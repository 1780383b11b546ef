"""Measures of attention on the edges, of lambda, and of how large the largest numbers are.

For weights w over the n neighbours of a node, with s their sum:

    common-mode energy  s² / n, exactly 1 / n of a softmax, (1 - c)² / n where lambda is c
    share on some       sum of |w| on those edges over the sum of |w| on all
    label lift          share on neighbours of the node's own class, less their share of neighbours
    relative weight     n |w| / sum of |w|, 1 on each edge where all weigh the same

`contrast` has the common-mode ratio, contrast and entropy.

M destinations, E edges, H heads.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnformer.analysis.contrast import FEWEST
from dnformer.analysis.weights import LayerAttention
from dnformer.errors import DataError
from dnformer.ops import Topology
from dnformer.training.scores import roc_auc

_TENTH = 10


def with_enough_neighbours(found: LayerAttention) -> LayerAttention:
    """The attention of the destinations with at least `FEWEST` neighbours, self-loops included.

    Raises:
        DataError: there are none.
    """
    counts = found.topology.colptr.diff()
    keep = counts >= FEWEST
    if not keep.any():
        raise DataError(f"no node has {FEWEST} neighbours, so there is nothing to measure")
    edges = keep[found.topology.dst()]
    colptr = torch.cat([counts.new_zeros(1), counts[keep].cumsum(0)])
    columns = ("a1", "a2", "lam", "w", "s1", "s2")
    per_edge: dict[str, Any] = {
        name: None if (values := getattr(found, name)) is None else values[edges]
        for name in columns
    }
    topology = Topology(colptr, found.topology.row[edges])
    return found._replace(nodes=found.nodes[keep], topology=topology, **per_edge)


def sums(topology: Topology, values: Tensor) -> Tensor:
    """The sum of `values` `[E, ..]` over the edges of each destination, `[M, ..]`."""
    out = values.new_zeros(topology.num_dst, *values.shape[1:])
    return out.index_add(0, topology.dst(), values)


def kept(topology: Topology, edges: Tensor) -> Topology:
    """The same destinations with some of their edges (bool `[E]`)."""
    counts = sums(topology, edges.long())
    colptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Topology(colptr, topology.row[edges])


def common_mode_energy(topology: Topology, weights: Tensor) -> Tensor:
    """s² / n of each destination and head `[M, H]`; NaN without an edge."""
    n = topology.colptr.diff().unsqueeze(-1)  # [M, 1]
    return sums(topology, weights).square() / n


def share_on(topology: Topology, weights: Tensor, some: Tensor) -> Tensor:
    """The share of |w| on the edges `some` (bool `[E]`), `[M, H]`; NaN where all weights are 0."""
    size = weights.abs()
    return sums(topology, size * some.unsqueeze(-1)) / sums(topology, size)


def label_lift(topology: Topology, weights: Tensor, same: Tensor) -> Tensor:
    """How much more of |w| lies on neighbours of the same class than if all weighed the same.

    Args:
        topology: edges between nodes of known class.
        weights: `[E, H]`.
        same: whether both ends of an edge have one class, bool `[E]`.

    Returns:
        `[M, H]`, between -1 and 1; NaN where all weights are 0.
    """
    evenly = share_on(topology, torch.ones_like(weights), same)
    return share_on(topology, weights, same) - evenly


def relative_weight(topology: Topology, weights: Tensor, some: Tensor) -> Tensor:
    """The mean of n |w| / sum of |w| over the edges `some` (bool `[E]`), of each head `[H]`.

    That is |w| against the mean |w| of the edge's own node, so that hubs, whose weights are small,
    count as any node. NaN where there are no such edges.
    """
    size = weights.abs()
    n = topology.colptr.diff().unsqueeze(-1)
    relative = size * (n / sums(topology, size))[topology.dst()]
    return relative[some].nanmean(0)


def auc_each(values: Tensor, positive: Tensor) -> Tensor:
    """ROC-AUC of each column of `values` `[E, H]` for the edges `positive` (bool `[E]`), `[H]`.

    NaN where all or none are.
    """
    if positive.all() or not positive.any():
        return values.new_full((values.shape[1],), torch.nan)
    return torch.tensor([roc_auc(column, positive) for column in values.T])


class Outliers(NamedTuple):
    """How far the largest of some numbers stand out.

    Attributes:
        top_1: the largest absolute value.
        top_10: the tenth largest.
        kurtosis: E (x - mean)^4 / var², 3 of a normal distribution; NaN where all are equal.
    """

    top_1: float
    top_10: float
    kurtosis: float


def outliers(values: Tensor) -> Outliers:
    """Of all entries of `values`, of which there is at least one."""
    x = values.double().flatten()
    largest = x.abs().topk(min(_TENTH, len(x))).values
    deviation = x - x.mean()
    variance = deviation.square().mean()
    kurtosis = deviation.pow(4).mean() / variance.square()
    return Outliers(float(largest[0]), float(largest[-1]), float(kurtosis))
