"""Attention given edge by edge is what the layers compute, and the formula of the paper."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from dnformer.analysis.weights import Kept, attention_parts, layer_attention
from dnformer.data.table import EdgeColumns
from dnformer.errors import DataError
from dnformer.inference import RangeLimits

from ..attention import lively_model

# node 4 has no neighbour, node 5 a self-loop, node 0 is a small hub
EDGES = [(1, 0), (2, 0), (3, 0), (5, 0), (0, 1), (2, 1), (1, 2), (0, 3), (5, 5), (3, 5)]
MODELS = [
    {},
    {"norm": "pre"},
    {"self_loops": False},
    {"lam": "head"},
    {"lam": "reparam"},
    {"attention": "single"},
    {"attention": "single_wide"},
]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    return make_graph(EDGES, x=x, y=[0, 1, 2, 0, 1, 2], num_classes=3)


make_model = partial(lively_model, 5, 3)


def row_sums(values: torch.Tensor, found) -> torch.Tensor:
    out = values.new_zeros(len(found.nodes), values.shape[1])
    return out.index_add(0, found.topology.dst(), values)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_layer_attention_is_the_formula(graph, options):
    model = make_model(**options).train()
    layers = layer_attention(model, graph, keep=Kept(logits=True, hidden=True))
    assert [found.layer for found in layers] == [1, 2]
    assert model.training
    for found, block in zip(layers, model.blocks, strict=True):
        attention, (dst, row) = block.attention, (found.dst(), found.topology.row)
        h = block.norm1(found.hidden) if block.pre else found.hidden
        q, k = (part(h).unflatten(-1, (2, -1)) for part in (attention.query, attention.key))
        width = q.shape[2] if found.a2 is None else 4
        s1 = (q[dst, :, :width] * k[row, :, :width]).sum(-1) / math.sqrt(width)
        torch.testing.assert_close(found.s1, s1)
        has_neighbour = found.topology.colptr.diff() > 0
        one = torch.ones(int(has_neighbour.sum()), 2, dtype=torch.float64)
        exp = found.s1.exp()
        torch.testing.assert_close(found.a1, exp / row_sums(exp, found)[found.topology.dst()])
        torch.testing.assert_close(row_sums(found.a1, found)[has_neighbour], one)
        if found.a2 is None:
            assert found.lam is None
            assert found.s2 is None
            assert torch.equal(found.w, found.a1)
            continue
        torch.testing.assert_close(row_sums(found.a2, found)[has_neighbour], one)
        s2 = (q[dst, :, 4:] * k[row, :, 4:]).sum(-1) / 2
        torch.testing.assert_close(found.s2, s2)
        assert torch.equal(found.w, found.a1 - found.lam * found.a2)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_weighted_values_are_what_the_layer_computes(graph, options):
    model = make_model(**options).eval()
    layers = layer_attention(model, graph, keep=Kept(hidden=True))
    outputs = [found.hidden for found in layers[1:]]
    for found, block, after in zip(layers[:-1], model.blocks[:-1], outputs, strict=True):
        h, attention = found.hidden, block.attention
        v = attention.value(block.norm1(h) if block.pre else h).unflatten(-1, (2, -1))
        message = found.w.unsqueeze(-1) * v[found.topology.row]
        o = v.new_zeros(6, *v.shape[1:]).index_add(0, found.dst(), message)
        if attention.norm is not None:
            o = attention.norm(o) * attention.scale
        h = h + attention.out(o.flatten(1))
        if block.pre:
            h = h + block.ffn(block.norm2(h))
        else:
            h = block.norm1(h)
            h = block.norm2(h + block.ffn(h))
        torch.testing.assert_close(after, h, rtol=0, atol=1e-12)


def test_attention_of_a_node_computes_only_what_it_depends_on(make_graph):
    chain = [(i + 1, i) for i in range(20)]  # node i has the neighbour i + 1 alone
    x = np.random.default_rng(0).normal(size=(21, 5)).astype(np.float32)
    graph, model = make_graph(chain, x=x, y=[0] * 21, num_classes=3), make_model()
    keep = Kept(hidden=True)
    found = layer_attention(model, graph, torch.tensor([7]), keep=keep)
    everything = layer_attention(model, graph, keep=keep)
    for one, whole in zip(found, everything, strict=True):
        assert one.base.tolist() == [7, 8, 9]
        assert one.topology.row.tolist() == [8, 7]
        assert whole.base is None
        needed = [7, 8, 9] if one.layer == 1 else [7, 8]
        torch.testing.assert_close(one.hidden[: len(needed)], whole.hidden[needed])
        torch.testing.assert_close(one.w, whole.w[whole.dst() == 7])


def test_attention_of_some_nodes_is_theirs_in_the_order_asked_for(graph):
    model, nodes = make_model(), torch.tensor([5, 4, 0])
    everything = layer_attention(model, graph)
    for found, whole in zip(layer_attention(model, graph, nodes), everything, strict=True):
        assert found.nodes.tolist() == [5, 4, 0]
        assert found.topology.colptr.tolist() == [0, 2, 3, 8]  # node 5 has its own loop
        assert found.topology.row.tolist() == [3, 5, 4, 1, 2, 3, 5, 0]
        assert found.dst().tolist() == [5, 5, 4, 0, 0, 0, 0, 0]
        of = torch.cat([(whole.dst() == node).nonzero().squeeze(1) for node in nodes])
        torch.testing.assert_close(found.w, whole.w[of], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.lam, whole.lam[of], rtol=0, atol=1e-12)
        assert found.s1 is None
        assert found.hidden is None


@pytest.mark.parametrize(("edges", "rows"), [(1, 6), (3, 6), (100, 2)])
def test_attention_parts_keep_to_the_limits(graph, edges, rows):
    model, covered = make_model().train(), {1: [], 2: []}
    expected = {found.layer: found for found in layer_attention(model, graph)}
    for part in attention_parts(model, graph, limits=RangeLimits(edges, rows)):
        assert model.training
        assert torch.is_grad_enabled()
        loops = int((part.topology.row == part.dst()).sum())
        few = len(part.nodes) <= rows and part.topology.num_edges - loops <= edges
        assert few or len(part.nodes) == 1
        covered[part.layer] += part.nodes.tolist()
        whole = expected[part.layer]
        of = torch.isin(whole.dst(), part.nodes)
        torch.testing.assert_close(part.w, whole.w[of], rtol=0, atol=1e-12)
    assert covered == {1: list(range(6)), 2: list(range(6))}


def test_logits_hold_the_edge_bias(make_graph):
    random = np.random.default_rng(0)
    x, attr = (random.normal(size=(n, 5)).astype(np.float32) for n in (6, 10))
    columns = EdgeColumns(attr=attr, attr_names=("a", "b", "c", "d", "e"))
    graph = make_graph(EDGES, x=x, y=[0] * 6, num_classes=3, edge_columns=columns)
    model = make_model(edge_channels=5)
    plain = layer_attention(model, graph, keep=Kept(logits=True))[0]
    for block in model.blocks:
        torch.nn.init.constant_(block.attention.edge.weight, 1.0)
    biased = layer_attention(model, graph, keep=Kept(logits=True))[0]
    own = biased.topology.row != biased.dst()
    own[(biased.topology.row == 5) & (biased.dst() == 5)] = True
    bias = torch.ones(len(own), dtype=torch.float64)
    stored = torch.from_numpy(graph.store.edge_attr.astype(np.float64))
    bias[own] = stored.sum(-1)
    expected = bias.unsqueeze(-1).expand(-1, 2)
    torch.testing.assert_close(biased.s1 - plain.s1, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(biased.s2 - plain.s2, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [([0, 6], "no node 6: the graph has nodes 0 to 5"), ([-1], "no node -1"), ([], "no node is")],
)
def test_nodes_that_there_are_not_are_refused(graph, nodes, says):
    with pytest.raises(DataError, match=says):
        layer_attention(make_model(), graph, torch.tensor(nodes, dtype=torch.int64))
