"""Explains predictions of a run's best model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.config import StorageConfig
from dnformer.data.graph import Graph
from dnformer.errors import ConfigError
from dnformer.explain.find import find_nodes, ids_of
from dnformer.explain.meaning import Meaning, Score
from dnformer.explain.neighbours import Attended, Heads, Hop, Neighbour, Side, hops_of
from dnformer.explain.trace import trace
from dnformer.group import Group
from dnformer.inference import Layers, evaluating, reach_of
from dnformer.loader.features import FeatureGather
from dnformer.nn import DNFormer
from dnformer.training.trained import open_trained

Array = npt.NDArray[Any]

_BY_ITSELF = StorageConfig()
_DEFAULT_HOPS = 2
_FEATURES = 5


class NodeFacts(NamedTuple):
    """What is known of a node.

    Attributes:
        id: its original id.
        label: the true class, labels or numbers; None where they are not known.
        prediction: what the model says, likewise.
        degree: its neighbours in the graph, those whose edges end in it.
        features: (number, value) of those that are largest by value, not 0, largest first.
        num_features: how many are not 0.
    """

    id: str | int
    label: Any
    prediction: Any
    degree: int
    features: list[tuple[int, float]]
    num_features: int


class Explanation(NamedTuple):
    """Why the model says of one node what it says.

    Attributes:
        node: an index of the graph.
        values: the probability of each class or label, or the numbers.
        score: what neighbours push up or down.
        hops: from the node outwards.
        facts: of every node that is shown, by index.
    """

    node: int
    values: dict[str, float]
    score: Score
    hops: list[Hop]
    facts: dict[int, NodeFacts]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: nodes by their original ids."""
        own = self.facts[self.node]
        return {
            **_facts(own),
            "values": self.values,
            "score": self.score._asdict(),
            "hops": [
                {
                    "hop": hop.number,
                    "layer": hop.layer,
                    "nodes_not_followed": hop.left_out,
                    "nodes": [self._attended(attended) for attended in hop.nodes],
                }
                for hop in self.hops
            ],
        }

    def _attended(self, attended: Attended) -> dict[str, Any]:
        return {
            "id": self.facts[attended.node].id,
            "push": attended.push,
            "kept": self._side(attended.kept, attended.node),
            "subtracted": self._side(attended.subtracted, attended.node),
        }

    def _side(self, side: Side, node: int) -> dict[str, Any]:
        return {
            "count": side.total,
            "weight": side.weight,
            "shown": [self._neighbour(neighbour, node) for neighbour in side.shown],
        }

    def _neighbour(self, neighbour: Neighbour, node: int) -> dict[str, Any]:
        return {
            **_facts(self.facts[neighbour.node]),
            "itself": neighbour.node == node,
            "w": _values(neighbour.w),
            "a1": _values(neighbour.a1),
            "a2": _values(neighbour.a2),
            "lambda": _values(neighbour.lam),
            "share": neighbour.share,
            "push": neighbour.push,
        }


def _facts(facts: NodeFacts) -> dict[str, Any]:
    features = [{"number": number, "value": value} for number, value in facts.features]
    return {**facts._asdict(), "features": features}


def _values(heads: Heads | None) -> dict[str, Any] | None:
    return None if heads is None else {"mean": heads.mean, "heads": heads.each}


class Explanations(NamedTuple):
    """Explanations of nodes of one run.

    Attributes:
        run: its folder.
        data: the dataset's URI.
        target: the name of what is predicted.
        kind: "class", "multilabel" or "regression".
        layers: of the model.
        heads: of each layer.
        top: neighbours of each side that are shown, and nodes of a hop that are followed.
        nodes: one for each node that was asked for.
    """

    run: str
    data: str
    target: str
    kind: str
    layers: int
    heads: int
    top: int
    nodes: list[Explanation]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "nodes": [node.as_dict() for node in self.nodes]}


def explain(
    run: str,
    nodes: Sequence[str],
    *,
    hops: int | None = None,
    top: int = 5,
    reached: StorageConfig = _BY_ITSELF,
) -> Explanations:
    """Which neighbours the best model of a run kept and which it subtracted, for some nodes.

    Only what the nodes shown depend on is computed.

    Args:
        run: its folder.
        nodes: original ids.
        hops: how far from a node; None: 2, or 1 where the model has one layer.
        top: at least 1; kept and subtracted neighbours shown of each node, and nodes followed.
        reached: how stores are reached.

    Raises:
        CheckpointError: there is no run, or it has no best weights (yet).
        ConfigError: the model has fewer layers than `hops`, or no attention that can be read.
        DataError: there is no such node, or the dataset is gone.
    """
    trained = open_trained(run, reached)
    model = trained.dnformer()
    num_layers = len(model.blocks)
    hops = min(_DEFAULT_HOPS, num_layers) if hops is None else hops
    if not 1 <= hops <= num_layers or top < 1:
        raise ConfigError(f"hops = {hops} and top = {top}: the model has {num_layers} layers, so "
                          f"hops are 1 to {num_layers}; top is at least 1")  # fmt: skip
    found = find_nodes(trained.config.data.uri, trained.manifest, nodes)
    graph = trained.graph()
    meaning = Meaning(trained.target, trained.units)
    return Explanations(
        run=trained.run,
        data=graph.uri,
        target=trained.target.name,
        kind=trained.target.kind,
        layers=num_layers,
        heads=model.blocks[0].attention.heads,
        top=top,
        nodes=[explained(model, graph, meaning, node, hops=hops, top=top) for node in found],
    )


def explained(
    model: DNFormer, graph: Graph, meaning: Meaning, node: int, *, hops: int, top: int
) -> Explanation:
    """The explanation of one node, an index of the graph."""
    traced = trace(model, graph, node, meaning.score)
    found = hops_of(traced.layers, node, hops=hops, top=top)
    return Explanation(
        node=node,
        values=meaning.values(traced.logits),
        score=meaning.scored(traced.logits),
        hops=found,
        facts=_facts_of(model, graph, meaning, _shown(found)),
    )


def _shown(hops: Sequence[Hop]) -> Array:
    attended = [each for hop in hops for each in hop.nodes]
    neighbours = [neighbour.node for each in attended for neighbour in each.shown]
    return np.unique([*(each.node for each in attended), *neighbours])


def _facts_of(
    model: DNFormer, graph: Graph, meaning: Meaning, nodes: Array
) -> dict[int, NodeFacts]:
    """Of `nodes`, ascending."""
    ids = ids_of(graph.uri, graph.manifest, nodes)
    predicted = meaning.predicted(outputs(model, graph, nodes))
    degree = graph.store.colptr[nodes + 1] - graph.store.colptr[nodes]
    gather = FeatureGather(graph.store, graph.num_features)
    found = {}
    for place, node in enumerate(nodes.tolist()):
        features, count = _telling(gather.rows(np.array([node]))[0])
        found[node] = NodeFacts(ids[node], meaning.label(graph.y[node]), predicted[place],
                                int(degree[place]), features, count)  # fmt: skip
    return found


@torch.no_grad()
def outputs(model: DNFormer, graph: Graph, nodes: Array) -> Tensor:
    """The exact outputs `[S, K]` of `nodes`, ascending; only what they depend on is computed."""
    *blocks, last = model.blocks
    reach = reach_of(graph.store.colptr, graph.store.row, nodes, len(model.blocks))
    layers = Layers(model, graph, Group(), base=reach.base)
    with evaluating(model):
        h = layers.embed()
        for block, wanted in zip(blocks, reach.layers, strict=True):
            h = layers.layer(block, h, wanted)
        return model.classify(layers.run(last, h, layers.project(last, h), nodes))


def _telling(x: Tensor) -> tuple[list[tuple[int, float]], int]:
    """(The features that are largest by value, how many are not 0)."""
    there = torch.nonzero(x).flatten()
    order = x[there].abs().argsort(descending=True, stable=True)[:_FEATURES]
    return [(int(number), float(x[number])) for number in there[order]], len(there)
