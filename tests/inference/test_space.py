"""Rows in files and tables in memory hold the same numbers, wherever they lie."""

import errno
import gc

import numpy as np
import pytest
import torch

from dnformer.group import Group
from dnformer.inference import Layers, Mapped, RangeLimits, exact_logits, reach_of
from dnformer.nn import DNFormer

EDGES = [(1, 0), (2, 0), (3, 0), (5, 0), (0, 1), (2, 1), (1, 2), (0, 3), (5, 5), (3, 5), (6, 7)]


@pytest.fixture(params=[120])
def graph(make_graph, request):
    n = request.param
    x = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    return make_graph(EDGES, num_nodes=n, x=x, y=[0, 1] * (n // 2), num_classes=2)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return DNFormer(5, 8, 2, 3, 2).double().eval()


def last_layer(layers: Layers, reach_layers: list) -> torch.Tensor:
    h = layers.embed()
    *blocks, last = layers.model.blocks
    for block, nodes in zip(blocks, reach_layers, strict=True):
        h = layers.layer(block, h, nodes)
    return layers.model.classify(
        layers.run_alone(last, h, layers.project(last, h), np.array([0, 5]))
    )


@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["mapped", "held"])
@torch.no_grad()
def test_layers_in_files_are_the_same_to_the_last_bit(graph, model, tmp_path, budget):
    limits = RangeLimits(edges=3, rows=1)  # so many ranges that pages are given back on the way
    store = graph.store
    space = Mapped(tmp_path, budget, [store.x, store.row, None])
    layers = Layers(model, graph, Group(), limits, space)
    found = last_layer(layers, [None, None])
    expected = last_layer(layers._replace(space=Layers._field_defaults["space"]), [None, None])
    assert torch.equal(found, expected)
    logits = exact_logits(model, graph, Group(), limits)
    torch.testing.assert_close(found, logits[[0, 5]], rtol=0, atol=1e-12)
    assert list(tmp_path.iterdir()) == []


def test_reach_is_the_nodes_of_each_hop(graph):
    store = graph.store
    reach = reach_of(store.colptr, store.row, np.array([7]), 2)
    assert reach.base.tolist() == [6, 7]
    assert [nodes.tolist() for nodes in reach.layers] == [[6, 7]]
    reach = reach_of(store.colptr, store.row, np.array([3]), 2)
    assert reach.base.tolist() == [0, 1, 2, 3, 5]
    assert [nodes.tolist() for nodes in reach.layers] == [[0, 3]]


@pytest.mark.parametrize("graph", [40], indirect=True)
def test_reach_of_most_nodes_is_all_of_them(graph):
    store = graph.store
    assert reach_of(store.colptr, store.row, np.arange(30), 2).base is None
    # the first hop is small, the next one is not
    reach = reach_of(store.colptr, store.row, np.array([3]), 5)
    assert reach.base is None
    assert reach.layers[-1].tolist() == [0, 3]


@torch.no_grad()
def test_layers_of_a_reach_are_those_of_the_graph(graph, model):
    reach = reach_of(graph.store.colptr, graph.store.row, np.array([0, 5]), 3)
    assert reach.base is not None
    found = last_layer(Layers(model, graph, Group(), base=reach.base), reach.layers)
    expected = exact_logits(model, graph, Group())[[0, 5]]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_mapped_rows_are_zero_and_freed_with_their_tensor(tmp_path):
    space = Mapped(tmp_path, budget=0)
    rows = space.rows(1000, torch.empty(0, 3, dtype=torch.float64))
    assert rows.shape == (1000, 3)
    assert not rows.any()
    rows[5] = 7
    space.done()
    assert rows.sum() == 21
    assert len(space._streams) == 1
    del rows
    gc.collect()
    assert len(space._streams) == 0
    assert space.rows(0, torch.empty(0, 3)).shape == (0, 3)


def test_full_disk_is_named_before_anything_is_written(tmp_path, monkeypatch):
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OSError, match="give --temp-dir with more room") as error:
        Mapped(tmp_path, budget=0).rows(1 << 20, torch.empty(0, 8))
    assert error.value.filename == str(tmp_path)
    assert "(32 MiB for a layer)" in str(error.value)
