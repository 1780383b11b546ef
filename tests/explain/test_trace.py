"""What a trace says is what the model computes: outputs, weights, terms and their effects."""

from functools import partial

import numpy as np
import pytest
import torch

from dnformer.analysis.weights import layer_attention
from dnformer.explain.neighbours import hops_of
from dnformer.explain.trace import trace

from ..attention import lively_model

# node 4 has no neighbour, node 5 a self-loop, node 0 is a small hub
EDGES = [(1, 0), (2, 0), (3, 0), (5, 0), (0, 1), (2, 1), (1, 2), (0, 3), (5, 5), (3, 5)]
MODELS = [
    {},
    {"norm": "pre"},
    {"lam": "reparam"},
    {"head_norm": True, "self_loops": False},
    {"attention": "single"},
]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    return make_graph(EDGES, x=x, y=[0, 1, 2, 0, 1, 2], num_classes=3)


make_model = partial(lively_model, 5, 3)


def score(logits: torch.Tensor) -> torch.Tensor:
    return logits[0] - 2 * logits[1].square()


def forward(model, graph, change=None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(Outputs of all nodes, what each layer's attention gave); `change` is (layer, node, term)."""
    seen = []

    def keep(module, args, out):
        if change is not None and change[0] == len(seen):
            out = out.clone()
            out[change[1]] += change[2]
        seen.append(out)
        return out

    handles = [block.attention.out.register_forward_hook(keep) for block in model.blocks]
    edge_index = torch.tensor(sorted(EDGES, key=lambda edge: edge[::-1])).T
    with torch.no_grad():
        out = model.eval()(torch.from_numpy(np.array(graph.store.x)).double(), edge_index)
    for handle in handles:
        handle.remove()
    return out, seen


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_trace_is_what_the_model_computes(graph, options):
    model = make_model(**options).train()
    found = trace(model, graph, 0, score)
    assert model.training
    out, attended = forward(model, graph)
    torch.testing.assert_close(found.logits, out[0], rtol=0, atol=1e-12)
    assert not found.logits.requires_grad
    for layer, known, mixed in zip(
        found.layers, layer_attention(model, graph), attended, strict=True
    ):
        edges = layer.edges(0)
        own = known.dst() == 0
        assert edges.row.tolist() == known.topology.row[own].tolist()
        for given, expected in zip(
            edges.weights, (known.a1, known.a2, known.lam, known.w), strict=True
        ):
            assert (given is None) == (expected is None)
            if given is not None:
                torch.testing.assert_close(given, expected[own], rtol=0, atol=1e-12)
        terms = layer.terms(edges, np.arange(len(edges.row)))
        torch.testing.assert_close(terms.out.sum(0), mixed[0], rtol=0, atol=1e-12)
        assert float(terms.share.sum()) == pytest.approx(1, abs=1e-12)
        assert float(terms.push.sum()) == pytest.approx(edges.push, abs=1e-12)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_push_is_the_effect_of_a_little_more_of_the_term(graph, options):
    model = make_model(**options)
    found, step = trace(model, graph, 0, score), 1e-6
    # in the first layer, what a neighbour of the node attends to
    for number, node in ((0, 0), (0, 1), (1, 0)):
        layer = found.layers[number]
        edges = layer.edges(node)
        terms = layer.terms(edges, np.arange(len(edges.row)))
        for term, push in zip(terms.out, terms.push, strict=True):
            more, less = (
                score(forward(model, graph, (number, node, sign * step * term))[0][0])
                for sign in (1, -1)
            )
            assert float(push) == pytest.approx(float((more - less) / (2 * step)), abs=1e-7)


def test_trace_computes_only_what_the_node_depends_on(make_graph):
    chain = [(i + 1, i) for i in range(20)]  # node i has the neighbour i + 1 alone
    x = np.random.default_rng(0).normal(size=(21, 5)).astype(np.float32)
    graph = make_graph(chain, x=x, y=[0] * 21, num_classes=3)
    found = trace(make_model(), graph, 7, score)
    assert found.layers[1].edges(7).row.tolist() == [8, 7]
    assert found.layers[0].edges(8).row.tolist() == [9, 8]
    assert [len(layer._hidden) for layer in found.layers] == [3, 3]


@pytest.mark.parametrize("top", [1, 2, 9])
def test_hops_show_the_strongest_of_each_side_and_follow_the_strongest(graph, top):
    model = make_model(lam="fixed", lambda_init=1.0)
    layers = trace(model, graph, 0, score).layers
    first, second = hops_of(layers, 0, hops=2, top=top)
    assert (first.number, first.layer, second.number, second.layer) == (1, 2, 2, 1)
    (own,) = first.nodes
    weights = layers[1].edges(0).weights.weight.mean(1)
    row = layers[1].edges(0).row
    for side, sign in ((own.kept, 1), (own.subtracted, -1)):
        order = sorted(
            (float(-sign * w), int(node)) for w, node in zip(weights, row, strict=True)
            if sign * w > 0
        )  # fmt: skip
        assert side.total == len(order) > 0
        assert [each.node for each in side.shown] == [node for _, node in order[:top]]
        assert side.left_out == max(len(order) - top, 0)
        assert side.weight == pytest.approx(-sign * sum(w for w, _ in order))
        rest = -sign * sum(w for w, _ in order[top:])
        assert side.weight_left_out == pytest.approx(rest, abs=1e-12)
    strongest = sorted(own.shown, key=lambda each: -abs(each.w.mean))[:top]
    assert [each.node for each in second.nodes] == [each.node for each in strongest]
    assert second.left_out == len(own.shown) - len(strongest)


def test_node_without_neighbours_has_none_to_show(graph):
    model = make_model(self_loops=False)
    (hop,) = hops_of(trace(model, graph, 4, score).layers, 4, hops=1, top=3)
    (own,) = hop.nodes
    assert own.shown == []
    assert own.push == 0
