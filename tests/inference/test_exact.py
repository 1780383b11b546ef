"""Layer-wise inference equals a full forward pass, in ranges of any size and shared among ranks."""

import numpy as np
import pytest
import torch

from dnformer.data.table import EdgeColumns
from dnformer.group import Group
from dnformer.inference import (
    RangeLimits,
    destination_ranges,
    evaluating,
    exact_embeddings,
    exact_logits,
)
from dnformer.loader import FullLoader
from dnformer.loader.source import DenseSource
from dnformer.nn import DNFormer

# node 4 has no neighbour, node 5 a self-loop, node 0 is a small hub
EDGES = [(1, 0), (2, 0), (3, 0), (5, 0), (0, 1), (2, 1), (1, 2), (0, 3), (5, 5), (3, 5)]


@pytest.fixture(params=["dense", "sparse"])
def graph(request, make_graph):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    if request.param == "sparse":
        import scipy.sparse as sp

        x = sp.csr_matrix(x * (x > 0))
    return make_graph(EDGES, x=x, y=[0, 1, 2, 0, 1, 2], num_classes=3)


def make_model(**options: object) -> DNFormer:
    torch.manual_seed(0)
    return DNFormer(5, 8, 3, 2, 2, **options).double()


def full_forward(model: DNFormer, graph) -> torch.Tensor:
    batch = next(iter(FullLoader(graph, torch.arange(6), sparse=True)))
    with torch.no_grad():
        return model.eval()(batch.x.to(torch.float64), batch.edge_index)


@pytest.mark.parametrize("options", [{}, {"norm": "pre"}, {"self_loops": False}], ids=str)
@pytest.mark.parametrize(("edges", "rows"), [(1, 6), (3, 6), (100, 2), (100, 100)])
def test_exact_logits_equal_a_full_forward_pass(graph, options, edges, rows):
    model = make_model(**options)
    logits = exact_logits(model, graph, Group(), RangeLimits(edges, rows))
    torch.testing.assert_close(logits, full_forward(model, graph), rtol=0, atol=1e-12)


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize(("edges", "rows"), [(1, 6), (3, 6), (100, 2)])
def test_exact_logits_take_edge_attributes_by_ranges(make_graph, self_loops, edges, rows):
    random = np.random.default_rng(0)
    x, attr = (random.normal(size=(n, 5)).astype(np.float32) for n in (6, 10))
    columns = EdgeColumns(attr=attr, attr_names=("a", "b", "c", "d", "e"))
    graph = make_graph(EDGES, x=x, y=[0] * 6, num_classes=3, edge_columns=columns)
    assert graph.num_edge_features == 5
    model = make_model(edge_channels=5, self_loops=self_loops)
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.edge.weight)
    logits = exact_logits(model, graph, Group(), RangeLimits(edges, rows))
    batch = next(iter(FullLoader(graph, torch.arange(6))))
    with torch.no_grad():
        expected = model.eval()(
            batch.x.double(), batch.edge_index, edge_attr=batch.edge_attr.double()
        )
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hot", [[], [0, 3]], ids=str)
def test_exact_logits_of_features_read_from_their_file_are_the_same(make_graph, hot):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float16)
    graph, model = make_graph(EDGES, x=x, y=[0, 1, 2, 0, 1, 2], num_classes=3), make_model()
    source = DenseSource(graph.store.x, reads="direct", readers=2)
    source.keep_hot(np.array(hot, dtype=np.int64))
    logits = exact_logits(model, graph, Group(), RangeLimits(rows=4), source)
    assert torch.equal(logits, exact_logits(model, graph, Group(), RangeLimits(rows=4)))


@pytest.mark.parametrize("options", [{}, {"norm": "pre"}], ids=str)
def test_exact_embeddings_are_what_the_classifier_takes(graph, options):
    model = make_model(**options).train()
    (h,) = exact_embeddings(model, graph, Group(), [torch.arange(6)], RangeLimits(3, 6))
    assert h.shape == (6, 8)
    assert model.training
    assert not h.requires_grad
    logits = exact_logits(model, graph, Group(), RangeLimits(3, 6))
    assert torch.equal(model.classify(h), logits)


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize(("edges", "rows"), [(1, 6), (4, 2), (100, 100)])
def test_exact_embeddings_of_some_nodes_are_theirs(graph, self_loops, edges, rows):
    model, limits = make_model(self_loops=self_loops), RangeLimits(edges, rows)
    sets = [torch.tensor(nodes, dtype=torch.int64) for nodes in ([0, 2, 1, 3], [5, 0, 4], [0], [])]
    found = exact_embeddings(model, graph, Group(), sets, limits)
    (everything,) = exact_embeddings(model, graph, Group(), [torch.arange(6)], limits)
    for nodes, h in zip(sets, found, strict=True):
        torch.testing.assert_close(h, everything[nodes], rtol=0, atol=1e-12)
        # in no bit dependent on what else is asked for
        (alone,) = exact_embeddings(model, graph, Group(), [nodes], limits)
        assert torch.equal(h, alone)


def test_evaluating_puts_the_mode_back_after_an_error():
    model, inside = make_model().train(), []

    def fail():
        inside.append(model.training)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), evaluating(model):
        fail()
    assert inside == [False]
    assert model.training


@pytest.mark.parametrize("training", [True, False])
def test_exact_logits_use_no_dropout_and_leave_the_mode_alone(graph, training):
    model = make_model().train(training)
    first, second = (exact_logits(model, graph, Group()) for _ in range(2))
    assert torch.equal(first, second)
    assert model.training is training


@pytest.mark.parametrize("edges", [1, 2, 3, 100])
def test_destination_ranges_cover_each_node_once(graph, edges):
    degree = np.diff(graph.store.colptr)
    covered = []
    colptr, limits = graph.store.colptr, RangeLimits(edges, rows=4)
    for rows in destination_ranges(colptr, np.arange(6), limits):
        nodes = range(rows.start, rows.stop)
        assert len(nodes) == 1 or (degree[rows].sum() <= edges and len(nodes) <= 4)
        covered += nodes
    assert covered == list(range(6))
