"""The draws beside the uniform one: with replacement, by weight, LABOR."""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dnformer.data.counter_rng import key_of
from dnformer.errors import ConfigError, DataError
from dnformer.loader.sampler import NeighborSampler

from .helpers import assert_equal, brute_force, drawn, epochs, graphs, some_nodes, star, structure

KEYS = st.integers(0, 2**64 - 1)
WEIGHTS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
KINDS = [
    pytest.param({"replace": True}, id="replace"),
    pytest.param({"sampling": "weighted"}, id="weighted"),
    pytest.param({"sampling": "weighted", "replace": True}, id="weighted-replace"),
    pytest.param({"sampling": "labor"}, id="labor"),
]


def check_edges(graph: Any, sample: Any) -> None:
    """They are the graph's, each from and to the right nodes, grouped by destination."""
    assert graph.store.row[sample.e_id].tolist() == sample.n_id[sample.row].tolist()
    target = np.repeat(np.arange(graph.num_nodes), np.diff(graph.store.colptr))
    assert target[sample.e_id].tolist() == sample.n_id[sample.col].tolist()
    assert (np.diff(sample.col) >= 0).all()
    assert len(set(sample.n_id.tolist())) == len(sample.n_id) == sum(sample.num_sampled_nodes)
    assert len(sample.e_id) == sum(sample.num_sampled_edges)


def of_each_node(graph: Any, sample: Any, num_hops: int) -> list[tuple[int, list[int]]]:
    """(node, edges drawn for it) of all nodes that were expanded."""
    expanded = sample.n_id[: sum(sample.num_sampled_nodes[:num_hops])].tolist()
    return [(node, drawn(sample, node)) for node in expanded]


@given(graph=graphs(), data=st.data(), fan_out=st.integers(-1, 4), key=KEYS)
def test_replaced_draws_are_as_many_as_asked(
    graph: Any, data: st.DataObject, fan_out: int, key: int
) -> None:
    seeds = some_nodes(data, graph)
    sample = NeighborSampler(graph, [fan_out] * 2, replace=True).sample(seeds, key)
    check_edges(graph, sample)
    for node, edges in of_each_node(graph, sample, 2):
        degree = graph.store.colptr[node + 1] - graph.store.colptr[node]
        assert len(edges) == (degree if fan_out < 0 else fan_out * (degree > 0))


def test_replaced_draws_are_uniform_and_independent() -> None:
    table = np.zeros((5, 5))
    for first, second in epochs(star(5), 2, 5000, replace=True):
        table[first, second] += 1
    assert stats.chisquare(table.ravel()).pvalue > 0.001


@given(
    graph=graphs(weight=WEIGHTS),
    data=st.data(),
    fan_out=st.integers(-1, 4),
    key=KEYS,
    replace=st.booleans(),
)
def test_weighted_draws_hold_what_they_promise(
    graph: Any, data: st.DataObject, fan_out: int, key: int, replace: bool
) -> None:
    sampler = NeighborSampler(graph, [fan_out] * 2, sampling="weighted", replace=replace)
    sample = sampler.sample(some_nodes(data, graph), key)
    check_edges(graph, sample)
    weight, colptr = graph.store.weight, graph.store.colptr
    assert (weight[sample.e_id] > 0).all()
    for node, edges in of_each_node(graph, sample, 2):
        possible = int((weight[colptr[node] : colptr[node + 1]] > 0).sum())
        if replace and fan_out >= 0:
            assert len(edges) == fan_out * (possible > 0)
        else:
            assert len(edges) == (possible if fan_out < 0 else min(possible, fan_out))
            assert len(set(edges)) == len(edges)


def weighted_subsets(weight: list[float], fan_out: int) -> dict[frozenset[int], float]:
    """Probability of each subset, drawn one after the other in proportion to what is left."""
    found: Counter[frozenset[int]] = Counter()
    for order in itertools.permutations(range(len(weight)), fan_out):
        left, probability = sum(weight), 1.0
        for position in order:
            probability *= weight[position] / left
            left -= weight[position]
        found[frozenset(order)] += probability
    return {subset: p for subset, p in found.items() if p > 0}


@pytest.mark.parametrize("fan_out", [1, 2, 3])
def test_weighted_draws_are_in_proportion(fan_out: int) -> None:
    weight, num_epochs = [1.0, 2.0, 0.0, 4.0, 0.5], 8000
    draws = epochs(star(5, weight=weight), fan_out, num_epochs, sampling="weighted")
    counts = Counter(frozenset(draw) for draw in draws)
    expected = weighted_subsets(weight, fan_out)
    assert counts.keys() == expected.keys()
    statistic = stats.chisquare(
        [counts[subset] for subset in expected], [num_epochs * p for p in expected.values()]
    )
    assert statistic.pvalue > 0.001


def test_weighted_draws_of_equal_weights_include_all_equally() -> None:
    degree, fan_out, num_epochs = 200, 40, 2000
    graph = star(degree, weight=[0.3] * degree)
    draws = epochs(graph, fan_out, num_epochs, sampling="weighted")
    assert all(len(set(draw)) == fan_out for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=degree)
    share = fan_out / degree
    statistic = ((counts - num_epochs * share) ** 2).sum() / (num_epochs * share * (1 - share))
    assert stats.chi2.sf(statistic * (degree - 1) / degree, degree - 1) > 0.001


def test_weighted_replaced_draws_are_in_proportion_and_independent() -> None:
    weight, num_epochs = np.array([1.0, 2.0, 0.0, 4.0, 0.5]), 8000
    table = np.zeros((5, 5))
    for first, second in epochs(
        star(5, weight=weight), 2, num_epochs, sampling="weighted", replace=True
    ):
        table[first, second] += 1
    expected = num_epochs * np.outer(weight, weight) / weight.sum() ** 2
    assert table[expected == 0].sum() == 0
    assert stats.chisquare(table[expected > 0], expected[expected > 0]).pvalue > 0.001


@pytest.mark.parametrize("replace", [False, True])
def test_weighted_draws_of_far_apart_weights(replace: bool) -> None:
    graph = star(4, weight=[1e-30, 1e30, 0.0, 1e-30])
    draws = epochs(graph, 1, 300, sampling="weighted", replace=replace)
    assert draws == [[1]] * 300


@pytest.mark.parametrize("fan_out", [1, 2, 5, -1])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_weighted_wrong_weight_is_named(wrong: float, replace: bool, fan_out: int) -> None:
    graph = star(3, weight=[1.0, wrong, 1.0])
    sampler = NeighborSampler(graph, [fan_out], sampling="weighted", replace=replace)
    with pytest.raises(DataError, match=rf"edge 1, from node 2, has the weight {wrong}"):
        sampler.sample(np.array([0]), 0)
    assert sampler.sample(np.array([1]), 0).num_sampled_edges == [0]


def test_weighted_without_weights_is_refused() -> None:
    with pytest.raises(DataError, match=r"graph: the edges have no weights.*use sampling uniform"):
        NeighborSampler(star(3), [2], sampling="weighted")


@given(graph=graphs(), data=st.data(), fan_out=st.integers(-1, 4), key=KEYS)
def test_labor_draws_are_the_neighbours_below_their_limit(
    graph: Any, data: st.DataObject, fan_out: int, key: int
) -> None:
    seeds = some_nodes(data, graph)
    sample = NeighborSampler(graph, [fan_out], sampling="labor").sample(seeds, key)
    check_edges(graph, sample)
    assert len(set(sample.e_id.tolist())) == len(sample.e_id)
    colptr, row = graph.store.colptr, graph.store.row
    # bounds of the numbers r, from who was taken and who was not
    low, high = np.zeros(graph.num_nodes), np.ones(graph.num_nodes)
    for node, edges in of_each_node(graph, sample, 1):
        degree = colptr[node + 1] - colptr[node]
        if fan_out < 0 or degree <= fan_out:
            assert edges == list(range(colptr[node], colptr[node + 1]))
            continue
        for edge in range(colptr[node], colptr[node + 1]):
            bound, limit = (high, np.minimum) if edge in edges else (low, np.maximum)
            bound[row[edge]] = limit(bound[row[edge]], fan_out / degree)
    assert (low <= high).all()


def test_labor_takes_each_neighbour_alone_with_the_same_probability() -> None:
    degree, fan_out, num_epochs = 20, 5, 4000
    draws = epochs(star(degree), fan_out, num_epochs, sampling="labor")
    share = fan_out / degree
    counts = np.bincount(list(itertools.chain(*draws)), minlength=degree)
    statistic = ((counts - num_epochs * share) ** 2).sum() / (num_epochs * share * (1 - share))
    assert stats.chi2.sf(statistic, degree) > 0.001
    # how many are taken is binomial: the neighbours' numbers are independent
    sizes = np.bincount([len(draw) for draw in draws], minlength=degree + 1)
    expected = num_epochs * stats.binom.pmf(np.arange(degree + 1), degree, share)
    common = expected > 5
    found, expected = (np.append(a[common], a[~common].sum()) for a in (sizes, expected))
    assert stats.chisquare(found, expected).pvalue > 0.001


def test_labor_touches_fewer_nodes_than_uniform_draws() -> None:
    # 30 nodes with the same 40 neighbours
    edges = [(source, node) for node in range(30) for source in range(30, 70)]
    graph, seeds, found = structure(edges, 70), np.arange(30), {}
    for sampling in ("uniform", "labor"):
        sampler = NeighborSampler(graph, [4], sampling=sampling)
        samples = [sampler.sample(seeds, key_of(0, "train", epoch)) for epoch in range(200)]
        found[sampling] = np.mean(
            [(len(s.n_id) - 30, s.num_sampled_edges[0] / 30) for s in samples], axis=0
        )
    # as many neighbours on average; 40 (1 - 0.9^30) = 38.3 distinct ones against 4
    assert found["uniform"][1] == 4
    assert found["labor"].tolist() == pytest.approx([4, 4], rel=0.15)
    assert found["uniform"][0] > 37


def test_labor_takes_the_same_of_equal_neighbourhoods_and_others_in_the_next_hop() -> None:
    edges = [(source, node) for node in (0, 1) for source in range(3, 23)] + [(0, 2), (1, 2)]
    graph, key = structure(edges, 23), 5
    sampler = NeighborSampler(graph, [-1, 6], sampling="labor")
    sample = NeighborSampler(graph, [6], sampling="labor").sample(np.array([0, 1]), key)
    first, second = ([e % 20 for e in drawn(sample, node)] for node in (0, 1))
    assert first == second != []
    assert [e % 20 for e in drawn(sampler.sample(np.array([2]), key), 0)] != first


@pytest.mark.parametrize("settings", KINDS)
def test_draws_of_all_neighbours_are_the_brute_force_ones(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    edges = [tuple(edge) for edge in rng.integers(0, 50, (200, 2)).tolist()]
    graph = structure(edges, 50, weight=np.full(200, 0.5))
    sampler = NeighborSampler(graph, [-1, -1], **settings)
    assert_equal(sampler.sample(np.array([3, 0]), 1), brute_force(graph, [3, 0], 2))


@pytest.mark.parametrize("settings", KINDS)
def test_draws_are_functions_of_key_and_node_for_any_threads(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    edges = [tuple(edge) for edge in rng.integers(0, 300, (6000, 2)).tolist()]
    graph = structure(edges, 300, weight=rng.random(6000))
    sampler = NeighborSampler(graph, [5, 5], **settings)
    batches = [(rng.permutation(300)[:30], key) for key in range(48)]
    expected = [sampler.sample(*batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: sampler.sample(*batch), batches))
    again = NeighborSampler(graph, [5, 5], **settings)
    for batch, a, b in zip(batches, found, expected, strict=True):
        assert_equal(a, b)
        assert_equal(again.sample(*batch), b)
        # the first hop of a seed is the same without the others
        seed, key = int(batch[0][0]), batch[1]
        assert drawn(again.sample(np.array([seed]), key), seed) == drawn(b, seed)
    assert len({tuple(sampler.sample(batches[0][0], key).e_id) for key in range(5)}) == 5


def test_sampler_settings_that_do_not_go_together_are_refused() -> None:
    graph = star(3, edge_time=[1, 2, 3])
    for settings, message in (
        ({"sampling": "labor", "replace": True}, "leave out replace"),
        ({"sampling": "labor", "temporal": True}, "use sampling uniform or weighted"),
        ({"sampling": "best"}, "'best' is not one of uniform, weighted, labor"),
    ):
        with pytest.raises(ConfigError, match=message):
            NeighborSampler(graph, [2], **settings)
