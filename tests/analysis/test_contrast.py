"""Measures of attention against their definitions, by hand and one node at a time."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from dnformer.analysis.contrast import contrast_of, measures, sampled_nodes
from dnformer.analysis.weights import attention_parts, layer_attention
from dnformer.inference import RangeLimits
from dnformer.ops import Topology

from ..attention import lively_model

EDGES = [(j, i) for i in range(8) for j in range(i + 1)] + [(0, 9)]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
    return make_graph(EDGES, x=x, y=[0, 1] * 5, num_classes=2)


make_model = partial(lively_model, 5, 2)


def test_measures_of_equal_opposite_and_single_weights():
    topology = Topology(torch.tensor([0, 3, 3, 5, 6]), torch.zeros(6, dtype=torch.int64))
    weights = torch.tensor([[0.2], [0.2], [0.2], [0.5], [-0.5], [1.0]], dtype=torch.float64)
    found = measures(topology, weights)
    torch.testing.assert_close(found.common_mode, torch.tensor([[1.0], [0.0], [1.0]]).double())
    torch.testing.assert_close(found.contrast, torch.tensor([[0.0], [1.0], [0.0]]).double())
    assert found.entropy[:2].squeeze().tolist() == pytest.approx([1, 1])
    assert math.isnan(found.entropy[2])


def test_measures_of_weights_that_are_all_zero():
    topology = Topology(torch.tensor([0, 3]), torch.zeros(3, dtype=torch.int64))
    found = measures(topology, torch.zeros(3, 1, dtype=torch.float64))
    assert found.common_mode.item() == 0
    assert found.contrast.item() == 0
    assert math.isnan(found.entropy)


@pytest.mark.parametrize("options", [{}, {"attention": "single"}, {"self_loops": False}], ids=str)
def test_contrast_is_the_mean_over_nodes_with_three_neighbours(graph, options):
    model = make_model(**options)
    found = contrast_of(attention_parts(model, graph, limits=RangeLimits(7, 3)))
    rows = {(row.layer, row.head): row for row in found.heads}
    assert list(rows) == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for layer in layer_attention(model, graph):
        colptr = layer.topology.colptr.tolist()
        groups = [(a, b) for a, b in pairwise(colptr) if b - a >= 3]
        for head in range(2):
            row = rows[layer.layer, head + 1]
            assert row.nodes == len(groups)
            for means, values in ((row.first, layer.a1), (row.weights, layer.w)):
                each = [by_hand(values[a:b, head].numpy()) for a, b in groups]
                assert means == pytest.approx(np.mean(each, axis=0))
            if layer.lam is None:
                assert row.lam is None
                assert row.first == row.weights
            else:
                lam = layer.lam[:, head].numpy()
                expected = (lam.mean(), lam.std(), lam.min(), lam.max())
                assert row.lam == pytest.approx(expected)


def by_hand(w: np.ndarray) -> tuple[float, float, float]:
    n, p = len(w), np.abs(w) / np.abs(w).sum()
    return w.sum() ** 2 / (n * (w**2).sum()), n * w.std(), -(p * np.log(p)).sum() / np.log(n)


def test_lambdas_are_counted_by_value(graph):
    model = make_model()
    found = contrast_of(attention_parts(model, graph)).lambdas
    for lambdas, layer in zip(found, layer_attention(model, graph), strict=True):
        ends = np.append(np.arange(len(lambdas.edges) + 1) * lambdas.width, np.inf)
        expected, _ = np.histogram(layer.lam.numpy(), ends)
        # a value at the border of two bins may be rounded into either
        assert np.abs(np.append(lambdas.edges, lambdas.above) - expected).sum() <= 2
        assert lambdas.edges.sum() + lambdas.above == layer.lam.numel()


def test_contrast_without_second_softmax_has_no_lambdas(graph):
    assert contrast_of(attention_parts(make_model(attention="single"), graph)).lambdas == []


def test_sampled_nodes_keep_to_nodes_and_edges(graph):
    assert sampled_nodes(graph, 100, most_edges=1000).tolist() == list(range(10))
    few = sampled_nodes(graph, 4, most_edges=1000)
    assert few.tolist() == sorted(set(few.tolist()))
    assert len(few) == 4
    degree = np.diff(graph.store.colptr)
    some = sampled_nodes(graph, 100, most_edges=12)
    assert 0 < degree[some.numpy()].sum() <= 12
    assert len(sampled_nodes(graph, 100, most_edges=0)) >= 1
    assert few.tolist() != sampled_nodes(graph, 4, most_edges=1000, seed=1).tolist()
