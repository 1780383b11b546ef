"""A model with rounded logits is the model itself at many bits, and the formula at few."""

import numpy as np
import pytest
import torch

from dnformer.analysis.quantised import quantised, quantised_outputs
from dnformer.analysis.weights import Kept, layer_attention
from dnformer.group import Group
from dnformer.inference import exact_logits
from dnformer.nn import DNFormer

EDGES = [(j, i) for i in range(8) for j in range(0, i + 1, 2)] + [(3, 9), (4, 9), (5, 9)]
MODELS = [{}, {"norm": "pre"}, {"lam": "reparam"}, {"attention": "single"}, {"self_loops": False}]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
    return make_graph(EDGES, x=x, y=[0, 1] * 5, num_classes=2)


def make_model(**options: object) -> DNFormer:
    torch.manual_seed(0)
    model = DNFormer(5, 8, 2, options.pop("layers", 2), 2, **options).double()
    for block in model.blocks:
        for linear in (block.attention.query, block.attention.key):
            torch.nn.init.normal_(linear.weight)
    return model


def test_rounding_is_to_the_nearest_multiple():
    values = torch.tensor([-3.0, -1.4, 0.2, 1.6, 3.0])
    assert quantised(values, torch.tensor(1.0)).tolist() == [-3, -1, 0, 2, 3]
    assert quantised(values, torch.tensor(3.0)).tolist() == [-3, 0, 0, 3, 3]
    assert quantised(torch.zeros(2), torch.tensor(0.0)).tolist() == [0, 0]


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_at_many_bits_it_is_the_model(graph, options):
    model, everyone = make_model(**options), torch.arange(10)
    expected = exact_logits(model, graph, Group())
    many = quantised_outputs(model, graph, everyone, 40)
    torch.testing.assert_close(many, expected, rtol=0, atol=1e-8)
    few = quantised_outputs(model, graph, everyone, 3)
    assert (few - expected).abs().max() > 1e-3


def test_the_model_stays_as_it_is(graph):
    model = make_model().train()
    expected = exact_logits(model, graph, Group())
    quantised_outputs(model, graph, torch.arange(10), 3)
    assert model.training
    assert torch.equal(exact_logits(model, graph, Group()), expected)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_logits_of_each_softmax_are_multiples_of_their_largest(graph, bits):
    model = make_model(layers=1).eval()
    (found,) = layer_attention(model, graph, keep=Kept(logits=True, hidden=True))
    levels, dst, block = 2 ** (bits - 1) - 1, found.dst(), model.blocks[0]

    def rounded(s: torch.Tensor) -> torch.Tensor:
        step = s.abs().max() / levels
        exp = ((s / step).round() * step).exp()
        return exp / exp.new_zeros(10, 2).index_add(0, dst, exp)[dst]

    weight = rounded(found.s1) - found.lam * rounded(found.s2)
    v = block.attention.value(found.hidden).unflatten(-1, (2, -1))
    message = weight.unsqueeze(-1) * v[found.topology.row]
    out = v.new_zeros(10, 2, 4).index_add(0, dst, message).flatten(1)
    h = block.norm1(found.hidden + block.attention.out(out))
    expected = model.classify(block.norm2(h + block.ffn(h)))
    nodes = torch.tensor([9, 2, 7])
    outputs = quantised_outputs(model, graph, nodes, bits)
    torch.testing.assert_close(outputs, expected[nodes], rtol=0, atol=1e-12)
