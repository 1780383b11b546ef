"""What is measured of one trained model on its graph, as numbers by section, name and place.

Measures of a head are averaged over the nodes with at least `FEWEST` neighbours, then over a
layer's heads, then over layers.

E edges, H heads.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.analysis.contrast import Lambdas, contrast_of, measures, sampled_nodes
from dnformer.analysis.measures import (
    auc_each,
    common_mode_energy,
    kept,
    label_lift,
    outliers,
    relative_weight,
    share_on,
    with_enough_neighbours,
)
from dnformer.analysis.perturb import Added, distractors, noise_edges
from dnformer.analysis.quantised import quantised_outputs
from dnformer.analysis.weights import Kept, LayerAttention, attention_parts, layer_attention
from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import exact_embeddings
from dnformer.nn import DNFormer
from dnformer.training.loss_weights import target_of
from dnformer.training.objectives import METRICS, Objective, main_metric, metrics_of

Array = npt.NDArray[Any]

RATIOS = (0.1, 0.25, 0.5, 1.0)
BITS = (8, 6, 5, 4, 3)
COUNTS = (4, 16, 64)
EVERYWHERE = "all layers"
AREA = "mean over the ratios"
# of the nodes that are looked at, before edges are added: their maps are held at once
_MOST_EDGES = 2_000_000
_ALL = 1 << 62
_QUANTILES = {"5 % quantile": 0.05, "median": 0.5, "95 % quantile": 0.95, "largest": 1.0}


class Key(NamedTuple):
    """What a number is.

    Attributes:
        section: a kind of measure.
        name: the measure.
        place: a layer, a number of bits, a ratio or another circumstance.
    """

    section: str
    name: str
    place: str


Findings: TypeAlias = dict[Key, float]


@final
class Subject:
    """A trained model with all that it is measured with.

    Args:
        model: on the CPU.
        graph: its dataset, with its splits.
        objective: what it is scored by.
        seed: of what is added to the graph, and of the order of permuted labels.
        most_nodes: whose attention is looked at; None: all.
    """

    def __init__(
        self,
        model: DNFormer,
        graph: Graph,
        objective: Objective,
        *,
        seed: int = 0,
        most_nodes: int | None = None,
    ) -> None:
        self.model, self.graph, self.objective, self.seed = model, graph, objective, seed
        # the same nodes of each model, whatever its seed
        self.nodes = sampled_nodes(graph, most_nodes or _ALL, most_edges=_MOST_EDGES)
        self.test = graph.split("test")

    @property
    def has_classes(self) -> bool:
        """Whether each node is of one class: else there is no label lift, for example."""
        return self.graph.target.kind == "class"

    @property
    def metric(self) -> str:
        """The name of the score."""
        return main_metric(metrics_of(self.graph.target))

    def score(self, graph: Graph | None = None) -> float:
        """The metric of the test nodes, all neighbours taken; of another graph with these nodes."""
        return self._metrics(self._outputs(graph or self.graph))[self.metric]

    def quantised_score(self, num_bits: int) -> float:
        """The same with logits of so many bits."""
        outputs = quantised_outputs(self.model, self.graph, self.test, num_bits)
        return self._metrics(outputs)[self.metric]

    def _outputs(self, graph: Graph) -> Tensor:
        (h,) = exact_embeddings(self.model, graph, Group(), [self.test])
        return self.model.classify(h)

    @torch.no_grad()
    def _metrics(self, outputs: Tensor) -> dict[str, float]:
        return self.objective.evaluate(outputs, target_of(self.graph, self.test))

    def harm(self, score: float, before: float) -> float:
        """By how much a score is worse than before."""
        return score - before if METRICS[self.metric].lower_is_better else before - score


def attention_findings(subject: Subject) -> Findings:
    """Common mode, contrast, label lift, lambda and outliers of each layer."""
    keep = Kept(logits=True, hidden=True)
    layers = layer_attention(subject.model, subject.graph, subject.nodes, keep=keep)
    found: list[tuple[Key, float]] = []
    for layer in layers:
        measured = with_enough_neighbours(layer)
        place = f"layer {layer.layer}"
        found += [(Key("attention", name, place), value) for name, value in _contrast(measured)]
        if subject.has_classes:
            y = torch.from_numpy(np.array(subject.graph.y))
            lifts = _lift(measured, y, subject.seed)
            found += [(Key("attention", name, place), value) for name, value in lifts]
            found += [(Key("lambda", name, place), value) for name, value in _auc(measured, y)]
        found += [(Key("lambda", name, place), value) for name, value in _lambda(measured)]
        found += [(Key("outliers", name, place), value) for name, value in _outliers(layer)]
    return with_means(dict(found))


def lambda_spread(subject: Subject) -> list[Lambdas]:
    """How often lambda has which value on the edges of each layer; nothing without lambda."""
    return contrast_of(attention_parts(subject.model, subject.graph, subject.nodes)).lambdas


def with_means(found: Findings) -> Findings:
    """The findings, and the mean over layers of each."""
    of_layers: dict[Key, list[float]] = {}
    for key, value in found.items():
        of_layers.setdefault(key._replace(place=EVERYWHERE), []).append(value)
    return found | {key: float(np.mean(values)) for key, values in of_layers.items()}


def _mean(values: Tensor) -> float:
    """Over nodes that have a number, then over heads."""
    return float(values.double().nanmean(0).mean())


def _contrast(found: LayerAttention) -> Iterator[tuple[str, float]]:
    first, weights = (measures(found.topology, a.double()) for a in (found.a1, found.w))
    yield "common-mode ratio of the first softmax", _mean(first.common_mode)
    yield "common-mode ratio", _mean(weights.common_mode)
    before, after = (
        common_mode_energy(found.topology, a.double()) for a in (found.a1, found.w)
    )  # [M, H]
    yield "common-mode energy", _mean(after)
    yield "common-mode energy, share of the first softmax's (median)", _median(after / before)
    yield "contrast", _mean(weights.contrast)
    yield "normalised entropy", _mean(weights.entropy)


def _median(values: Tensor) -> float:
    """Over nodes, then the mean over heads."""
    return float(values.nanmedian(0).values.mean())


def _lift(found: LayerAttention, y: Tensor, seed: int) -> Iterator[tuple[str, float]]:
    permuted = y.clone()
    known = (y >= 0).nonzero().squeeze(1)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(known)))
    permuted[known] = y[known[order]]
    for name, labels in (("label lift", y), ("label lift, labels permuted", permuted)):
        own = _between_known(found, labels)
        topology, dst, row = kept(found.topology, own), found.dst()[own], found.topology.row[own]
        lift = label_lift(topology, found.w[own].double(), labels[dst] == labels[row])
        yield name, _mean(lift)


def _between_known(found: LayerAttention, y: Tensor) -> Tensor:
    """Which edges join two different nodes of known class, bool `[E]`."""
    dst, row = found.dst(), found.topology.row
    return (dst != row) & (y[dst] >= 0) & (y[row] >= 0)


def _auc(found: LayerAttention, y: Tensor) -> Iterator[tuple[str, float]]:
    if found.lam is not None:
        own = _between_known(found, y)
        same = y[found.dst()[own]] == y[found.topology.row[own]]
        yield "AUC for edges within a class", float(auc_each(found.lam[own], same).mean())


def _lambda(found: LayerAttention) -> Iterator[tuple[str, float]]:
    if found.lam is None:
        return
    lam = found.lam.double()
    mean, std = lam.mean(0), lam.std(0, correction=0)
    yield "mean", float(mean.mean())
    yield "standard deviation over mean", float((std / mean).mean())
    for name, share in _QUANTILES.items():
        yield name, float(np.quantile(lam.numpy(), share, axis=0).mean())


def _outliers(found: LayerAttention) -> Iterator[tuple[str, float]]:
    assert found.s1 is not None
    assert found.hidden is not None
    logits = found.s1 if found.s2 is None else torch.stack([found.s1, found.s2])
    for kind, values in (("logits", logits), ("hidden states", found.hidden)):
        measured = outliers(values)
        yield f"{kind}, largest", measured.top_1
        yield f"{kind}, tenth largest", measured.top_10
        yield f"{kind}, kurtosis", measured.kurtosis


def quantised_findings(subject: Subject) -> Findings:
    """The score with logits of few bits."""
    before = subject.score()
    found = {Key("quantised", subject.metric, "float32"): before}
    for bits in BITS:
        place = f"{bits} bits"
        score = subject.quantised_score(bits)
        found[Key("quantised", subject.metric, place)] = score
        found[Key("quantised", "cost", place)] = subject.harm(score, before)
    return found


def noise_findings(subject: Subject) -> Findings:
    """The score with noise edges in the graph, and how much attention they get."""
    scores, weights = {0.0: subject.score()}, {}
    for ratio in RATIOS:
        noisy = noise_edges(subject.graph, ratio, seed=subject.seed)
        scores[ratio] = subject.score(noisy.graph)
        weights[ratio] = _weight_on_noise(subject, noisy)
    return noise_scores("noise at test", subject, scores) | {
        Key("noise at test", "weight of a noise edge over a true one", ratio_place(ratio)): value
        for ratio, value in weights.items()
    }


def noise_scores(section: str, subject: Subject, scores: dict[float, float]) -> Findings:
    """Scores by ratio of noise edges, and what they lose: each, and on average over the ratios."""
    found: Findings = {}
    for ratio, score in scores.items():
        found[Key(section, subject.metric, ratio_place(ratio))] = score
        if ratio:
            harm = subject.harm(score, scores[0.0])
            found[Key(section, "cost", ratio_place(ratio))] = harm
    harms = [subject.harm(score, scores[0.0]) for score in scores.values()]
    found[Key(section, "cost", AREA)] = float(np.trapezoid(harms, list(scores)))
    return found


def ratio_place(ratio: float) -> str:
    """How many noise edges, in words."""
    return f"{ratio:g} · E" if ratio else "none"


def _weight_on_noise(subject: Subject, noisy: Added) -> float:
    """Relative weight of the edges that were added over that of the graph's, mean over heads."""
    each = []
    for layer in layer_attention(subject.model, noisy.graph, subject.nodes):
        found = with_enough_neighbours(layer)
        dst, row = found.dst(), found.topology.row
        noise = noisy.marks(dst, row)
        weights = found.w.double()
        on_noise = relative_weight(found.topology, weights, noise)
        on_true = relative_weight(found.topology, weights, ~noise & (dst != row))
        each.append(float((on_noise / on_true).mean()))
    return float(np.mean(each))


def distractor_findings(subject: Subject) -> Findings:
    """The share of attention on neighbours of other classes that were attached to each node."""
    found: Findings = {}
    if not subject.has_classes:
        return found
    y = np.asarray(subject.graph.y)
    nodes = subject.nodes.numpy()
    nodes = nodes[y[nodes] >= 0]
    for count in _possible(y, COUNTS):
        added = distractors(subject.graph, count, nodes, seed=subject.seed)
        shares = list(_share_of_added(subject, added, torch.from_numpy(nodes)))
        for place, share, evenly in shares:
            at = f"{count} a node, {place}"
            found[Key("distractors", "share of attention", at)] = share
            found[Key("distractors", "over that of equal weights", at)] = share / evenly
        at = f"{count} a node, {EVERYWHERE}"
        found[Key("distractors", "share of attention", at)] = float(
            np.mean([share for _, share, _ in shares])
        )
        found[Key("distractors", "over that of equal weights", at)] = float(
            np.mean([share / evenly for _, share, evenly in shares])
        )
    return found


def _possible(y: Array, counts: Sequence[int]) -> list[int]:
    """Those of `counts` for which every class has twice as many nodes outside of it."""
    sizes = np.bincount(y[y >= 0])
    return [count for count in counts if 2 * count <= sizes.sum() - sizes.max()]


def _share_of_added(
    subject: Subject, added: Added, nodes: Tensor
) -> Iterator[tuple[str, float, float]]:
    """(layer, share of |w| on what was added, their share of the neighbours)."""
    for layer in layer_attention(subject.model, added.graph, nodes):
        marks = added.marks(layer.dst(), layer.topology.row)
        share, evenly = (
            share_on(layer.topology, weights.double(), marks)
            for weights in (layer.w, torch.ones_like(layer.w))
        )
        yield f"layer {layer.layer}", _mean(share), _mean(evenly)
