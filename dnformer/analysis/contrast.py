"""How far attention tells neighbours apart: common mode, contrast and entropy of weights, lambda.

For weights w over the n neighbours of a node, with s their sum:

    common-mode ratio   s² / (n Σ w²), 1 where all are equal, 0 where they add up to nothing
    contrast            n · std(w)
    entropy             H(|w| / Σ|w|) / log n, 1 where all are equal

They are means over the nodes with at least `FEWEST` neighbours, self-loops included.

M destinations, E edges, H heads.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.analysis.weights import LayerAttention
from dnformer.data.graph import Graph
from dnformer.ops import Topology

Array = npt.NDArray[Any]

# of two, weights differ or not; below, every measure is a constant
FEWEST = 3
# lambda is counted in bins of this width, up to the last one, which has all above
_BIN, _BINS = 0.005, 2000


class Measures(NamedTuple):
    """Of weights over the edges of M destinations, each `[M, H]`."""

    common_mode: Tensor
    contrast: Tensor
    entropy: Tensor


def measures(topology: Topology, weights: Tensor) -> Measures:
    """The measures of `weights` `[E, H]`, of the destinations with at least one edge.

    Where all weights are 0 the common-mode ratio is 0 and the entropy NaN; of one edge the entropy
    is NaN, too.
    """
    counts = topology.colptr.diff()
    n = counts[counts > 0].unsqueeze(-1).to(weights.dtype)  # [M, 1]
    place = torch.repeat_interleave(torch.arange(len(n), device=n.device), counts[counts > 0])

    def total(values: Tensor) -> Tensor:
        return values.new_zeros(len(n), values.shape[1]).index_add(0, place, values)

    s, squares, size = total(weights), total(weights.square()), total(weights.abs())
    p = weights.abs() / size[place]
    # where p is 0 there is nothing to add
    entropy = -total(torch.where(p > 0, p * p.log(), 0)) / n.log()
    deviation = (weights - (s / n)[place]).square()
    return Measures(
        common_mode=torch.where(squares > 0, s.square() / (n * squares), 0),
        contrast=n * (total(deviation) / n).sqrt(),
        entropy=torch.where((size > 0) & (n > 1), entropy, torch.nan),
    )


class HeadContrast(NamedTuple):
    """One head of one layer.

    Attributes:
        layer: from 1.
        head: from 1.
        nodes: that were measured.
        first: means of the measures of the first softmax: common mode, contrast, entropy.
        weights: likewise of the weights; the same as `first` without a second softmax.
        lam: mean, standard deviation, least and greatest lambda over edges; None without one.
    """

    layer: int
    head: int
    nodes: int
    first: tuple[float, float, float]
    weights: tuple[float, float, float]
    lam: tuple[float, float, float, float] | None


class Lambdas(NamedTuple):
    """How often lambda has which value on the edges of a layer, all heads together.

    Attributes:
        layer: from 1.
        edges: of bins `[b, b + width)`, from 0 on.
        width: of a bin.
        above: the edges with more than the last bin holds.
    """

    layer: int
    edges: Array
    width: float
    above: int


class Contrast(NamedTuple):
    """What was found of all layers; `lambdas` is empty without a second softmax."""

    heads: list[HeadContrast]
    lambdas: list[Lambdas]


@final
class _Layer:
    """Sums over the parts of a layer."""

    def __init__(self, layer: int, heads: int) -> None:
        self.layer, self.heads = layer, heads
        self.nodes = 0
        self.sums = torch.zeros(2, 3, heads, dtype=torch.float64)
        self.counted = torch.zeros(2, 3, heads, dtype=torch.float64)
        self.edges, self.lam = 0, torch.zeros(2, heads, dtype=torch.float64)
        self.least = torch.full((heads,), torch.inf, dtype=torch.float64)
        self.most = -self.least
        self.bins = np.zeros(_BINS + 1, dtype=np.int64)

    def add(self, part: LayerAttention) -> None:
        """Adds a part of the layer."""
        enough = part.topology.colptr.diff() >= FEWEST
        enough = enough[part.topology.colptr.diff() > 0]
        self.nodes += int(enough.sum())
        for place, weights in enumerate((part.a1, part.w)):
            for number, values in enumerate(measures(part.topology, weights.double())):
                told = values[enough]
                self.sums[place, number] += told.nansum(0).cpu()
                self.counted[place, number] += (~told.isnan()).sum(0).cpu()
        if part.lam is not None and len(part.lam):
            self._add_lambda(part.lam.double().cpu())

    def _add_lambda(self, lam: Tensor) -> None:
        self.edges += len(lam)
        self.lam += torch.stack([lam.sum(0), lam.square().sum(0)])
        self.least = torch.minimum(self.least, lam.amin(0))
        self.most = torch.maximum(self.most, lam.amax(0))
        bins = (lam / _BIN).long().clamp(0, _BINS).flatten()
        self.bins += np.bincount(bins.numpy(), minlength=_BINS + 1)

    def found(self) -> list[HeadContrast]:
        """A row a head."""
        means = self.sums / self.counted  # [2, 3, H]
        return [
            HeadContrast(
                self.layer, head + 1, self.nodes,
                _triple(means[0, :, head]), _triple(means[1, :, head]), self._lambda(head),
            )
            for head in range(self.heads)
        ]  # fmt: skip

    def _lambda(self, head: int) -> tuple[float, float, float, float] | None:
        if not self.edges:
            return None
        mean, square = (self.lam[:, head] / self.edges).tolist()
        spread = max(square - mean * mean, 0.0) ** 0.5
        return mean, spread, float(self.least[head]), float(self.most[head])

    def lambdas(self) -> Lambdas:
        """How its lambda is spread."""
        return Lambdas(self.layer, self.bins[:-1], _BIN, int(self.bins[-1]))


def _triple(values: Tensor) -> tuple[float, float, float]:
    first, second, third = values.tolist()
    return first, second, third


def contrast_of(parts: Iterable[LayerAttention]) -> Contrast:
    """The measures of each head of each layer, over the parts that `attention_parts` gives."""
    layers: dict[int, _Layer] = {}
    for part in parts:
        layers.setdefault(part.layer, _Layer(part.layer, part.w.shape[1])).add(part)
    heads = [row for layer in layers.values() for row in layer.found()]
    return Contrast(heads, [layer.lambdas() for layer in layers.values() if layer.edges])


def sampled_nodes(graph: Graph, most_nodes: int, *, most_edges: int, seed: int = 0) -> Tensor:
    """Some nodes, drawn evenly: at most so many, with at most so many edges in all (or one node).

    Ascending; all of the graph's where they are few enough.
    """
    degree = np.diff(graph.store.colptr)
    drawn = np.random.default_rng(seed).permutation(graph.num_nodes)[:most_nodes]
    few = np.cumsum(degree[drawn]) <= most_edges
    few[:1] = True
    return torch.from_numpy(np.sort(drawn[few]))
