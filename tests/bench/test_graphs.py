import numpy as np
import pytest

from dnformer.bench import graphs
from dnformer.bench.graphs import Csc

MADE = {
    "uniform": graphs.uniform(50, 200),
    "regular": graphs.regular(50, 4),
    "star_in": graphs.star_in(50, 200),
    "star_out": graphs.star_out(50, 200),
    "power_law": graphs.power_law(50, 200),
}


def in_degree(graph: Csc) -> list[int]:
    return np.diff(graph.colptr).tolist()


def out_degree(graph: Csc) -> list[int]:
    return np.bincount(graph.row, minlength=graph.num_src).tolist()


@pytest.mark.parametrize("graph", MADE.values(), ids=MADE)
def test_graph_is_grouped_by_destination(graph):
    assert (graph.num_src, graph.num_dst, graph.num_edges) == (50, 50, 200)
    assert (graph.colptr[0], graph.colptr[-1]) == (0, 200)
    assert min(in_degree(graph)) >= 0
    assert 0 <= graph.row.min() <= graph.row.max() < 50
    assert graph.topology("cpu").num_edges == 200


def test_regular_has_the_same_degree_in_both_directions():
    assert in_degree(MADE["regular"]) == out_degree(MADE["regular"]) == [4] * 50


def test_star_has_its_hub_on_one_side():
    hub = [200] + [0] * 49
    assert in_degree(MADE["star_in"]) == out_degree(MADE["star_out"]) == hub
    assert out_degree(MADE["star_in"]) == in_degree(MADE["star_out"]) == [4] * 50


def test_power_law_has_hubs_among_destinations():
    graph = graphs.power_law(10_000, 100_000)
    # the largest group of the cubed uniform is its first: 10,000^(-1/3) of all edges
    assert max(in_degree(graph)) == pytest.approx(100_000 * 10_000 ** (-1 / 3), rel=0.05)
    assert max(out_degree(graph)) < 50


def test_thinned_keeps_every_second_edge_in_place():
    graph = Csc("", np.array([0, 1, 1, 4, 5]), np.array([3, 0, 1, 2, 0]), 4)
    thin = graph.thinned()
    # kept are the edges 0, 2 and 4, of destinations 0, 2 and 3
    assert thin.row.tolist() == [3, 1, 0]
    assert thin.colptr.tolist() == [0, 1, 1, 2, 3]
    assert thin.num_src == 4


def test_block_has_fewer_destinations_than_sources_and_edges_of_the_graph(make_graph):
    # a path: node i + 1 leads to node i
    graph = make_graph([(i + 1, i) for i in range(30)])
    block = graphs.block(graph, [2, 2], 4)
    # 4 seeds, their neighbours and those' neighbours, each one at most
    assert block.num_edges <= 8
    assert 4 < block.num_dst < block.num_src <= 12
    assert block.colptr[-1] == block.num_edges
    assert max(in_degree(block)) == 1


def test_open_or_make_ingests_a_graph_of_its_own(tmp_path):
    made = graphs.open_or_make(None, tmp_path, num_nodes=40, num_edges=300)
    assert (made.num_nodes, made.num_edges) == (40, 300)
    found = graphs.whole(made.uri, cache_dir=tmp_path / "stores")
    again = graphs.power_law(40, 300)
    assert found.colptr.tolist() == again.colptr.tolist()
    assert sorted(found.row) == sorted(again.row)
    assert found.name == "power-law"
