"""What is added to a graph is new, is what was asked for, and changes nothing else."""

import numpy as np
import pytest
import torch

from dnformer.analysis.perturb import distractors, noise_edges, table_of, with_edges
from dnformer.data.cache import write_cache
from dnformer.data.graph import open_graph
from dnformer.data.table import EdgeColumns
from dnformer.errors import DataError

PAIRS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (20, 21)]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    y, split = [0, 1, 2] * 8, [1, 2, 3] * 8
    return make_graph(PAIRS, num_nodes=24, x=x, y=y, num_classes=3, split=split)


@pytest.fixture(scope="module")
def undirected(tmp_path_factory, make_table):
    folder = tmp_path_factory.mktemp("undirected")
    both = PAIRS + [(dst, src) for src, dst in PAIRS]
    table = make_table(both, num_nodes=24, y=[0, 1, 2] * 8, num_classes=3)
    table.policies["direction"] = "undirected"
    write_cache(table, str(folder / "data"), source="test")
    return open_graph(folder / "data", cache_dir=folder / "stores")


def edges_of(graph) -> set[tuple[int, int]]:
    """(source, destination) of each edge; none stands twice."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.store.colptr))
    pairs = list(zip(graph.store.row.tolist(), dst.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == graph.num_edges
    return set(pairs)


@pytest.mark.parametrize("ratio", [0, 0.5, 3])
def test_noise_edges_are_new_and_as_many_as_asked_for(graph, ratio):
    noisy = noise_edges(graph, ratio, seed=0)
    added = edges_of(noisy.graph) - edges_of(graph)
    assert edges_of(noisy.graph) >= edges_of(graph) == set(PAIRS)
    assert len(added) == ratio * graph.num_edges
    assert all(src != dst for src, dst in added)
    for destination in range(24):
        row = noisy.graph.store.row[slice(*noisy.graph.store.colptr[destination:][:2])]
        assert (np.diff(row) > 0).all()


def test_noise_follows_from_the_seed_alone(graph):
    one, again, other = (noise_edges(graph, 2, seed=seed).keys.tolist() for seed in (1, 1, 2))
    assert one == again != other


def test_noise_in_an_undirected_graph_goes_both_ways(undirected):
    noisy = noise_edges(undirected, 1, seed=0).graph
    edges = edges_of(noisy)
    assert edges == {(dst, src) for src, dst in edges}
    assert noisy.num_edges == 2 * undirected.num_edges


def test_marks_are_the_edges_that_were_added(graph):
    noisy = noise_edges(graph, 1, seed=0)
    pairs = sorted(edges_of(noisy.graph))
    src, dst = torch.tensor(pairs).T
    marked = {pair for pair, mark in zip(pairs, noisy.marks(dst, src), strict=True) if mark}
    assert marked == edges_of(noisy.graph) - edges_of(graph)


def test_the_rest_of_the_graph_stays(graph):
    noisy = noise_edges(graph, 1, seed=0).graph
    assert graph.num_edges == len(PAIRS)
    assert noisy.store.x is graph.store.x
    assert noisy.split("test").tolist() == graph.split("test").tolist()
    assert noisy.y.tolist() == graph.y.tolist()


def test_a_graph_without_room_is_refused(make_graph):
    full = make_graph([(i, j) for i in range(3) for j in range(3) if i != j])
    with pytest.raises(DataError, match="no room for 3 of 3 new edges"):
        noise_edges(full, 0.5, seed=0)


@pytest.mark.parametrize("count", [1, 4, 12])
def test_distractors_are_of_other_classes_and_each_is_there_once(graph, count):
    nodes = np.array([0, 3, 21])
    added = distractors(graph, count, nodes, seed=0)
    new = edges_of(added.graph) - edges_of(graph)
    assert sorted(dst for _, dst in new) == np.repeat(nodes, count).tolist()
    assert all(graph.y[src] != graph.y[dst] for src, dst in new)
    assert added.keys.tolist() == sorted(dst * 24 + src for src, dst in new)


def test_more_distractors_than_there_are_nodes_of_other_classes_are_refused(graph):
    # 16 are of other classes, and one of these is a neighbour already
    with pytest.raises(DataError, match="no room for 2 of 17 new edges"):
        distractors(graph, 17, np.array([2]), seed=0)


def test_columns_of_new_edges_are_those_of_other_edges(make_graph):
    attr = np.arange(8, dtype=np.float32).reshape(8, 1)
    columns = EdgeColumns(weight=attr[:, 0] + 10, attr=attr, attr_names=("a",))
    graph = make_graph(PAIRS, num_nodes=24, edge_columns=columns)
    noisy = with_edges(graph, np.array([1, 4]), np.array([5, 4]), seed=0).graph
    dst = np.repeat(np.arange(24), np.diff(noisy.store.colptr))
    own = dict(zip(PAIRS, range(8), strict=True))
    for src, end, value, weight in zip(
        noisy.store.row.tolist(), dst.tolist(), noisy.store.edge_attr[:, 0], noisy.store.weight,
        strict=True,
    ):  # fmt: skip
        assert weight == value + 10
        assert value == own.get((src, end), value)
        assert value in range(8)


@pytest.mark.parametrize("kind", ["dense", "sparse", "int8"])
def test_an_open_graph_as_a_table_is_the_same_dataset(tmp_path, make_table, kind):
    import scipy.sparse as sp

    from dnformer.data.table import Quantized

    values = np.random.default_rng(0).integers(0, 3, size=(24, 3))
    x = {
        "dense": values.astype(np.float32),
        "sparse": sp.csr_matrix(values.astype(np.float32)),
        "int8": Quantized(values.astype(np.int8), np.full(3, 0.5, np.float32)),
    }[kind]
    columns = EdgeColumns(weight=np.arange(8, dtype=np.float32))
    table = make_table(
        PAIRS, x=x, y=[0, 1, 2] * 8, num_classes=3, split=[1, 2, 3] * 8, edge_columns=columns,
        num_nodes=24,
    )  # fmt: skip
    write_cache(table, str(tmp_path / "data"), source="test")
    graph = open_graph(tmp_path / "data", cache_dir=tmp_path / "stores")
    manifest, _ = write_cache(table_of(graph), str(tmp_path / "again"), source="test")
    assert manifest.fingerprint == graph.fingerprint
