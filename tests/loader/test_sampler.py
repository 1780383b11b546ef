import itertools
import math
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NodeSamplerInput

from dnformer.data.counter_rng import key_of
from dnformer.data.graph import Graph
from dnformer.errors import BackendError, ConfigError, DataError
from dnformer.loader.sampler import (
    _DIRECT_NODES,
    NeighborSampler,
    Sample,
)
from dnformer.loader.sampler_kernels import _pick_bits, _pick_hash, _pick_scan
from dnformer.loader.scratch import DirectTable, HashTable

from .helpers import assert_equal, brute_force, drawn, epochs, graphs, some_nodes, star, structure

# 0 has four neighbours, one of them twice and itself; 6 is isolated; 5 only points elsewhere
EDGES = [(0, 0), (1, 0), (1, 0), (2, 0), (3, 1), (0, 1), (4, 2), (5, 3), (2, 4)]
NUM_NODES = 7


@given(graph=graphs(), data=st.data(), num_hops=st.integers(1, 3), key=st.integers(0, 2**64 - 1))
def test_sample_of_all_neighbours_is_the_brute_force_one(
    graph: Any, data: st.DataObject, num_hops: int, key: int
) -> None:
    seeds = some_nodes(data, graph)
    expected = brute_force(graph, seeds.tolist(), num_hops)
    for fan_out in (-1, 25):
        assert_equal(NeighborSampler(graph, [fan_out] * num_hops).sample(seeds, key), expected)


@given(
    graph=graphs(),
    data=st.data(),
    fan_outs=st.lists(st.integers(-1, 4), min_size=1, max_size=3),
    key=st.integers(0, 2**64 - 1),
)
def test_sample_holds_what_it_promises(
    graph: Any, data: st.DataObject, fan_outs: list[int], key: int
) -> None:
    seeds = some_nodes(data, graph)
    sample = NeighborSampler(graph, fan_outs).sample(seeds, key)
    n_id, (row, col), e_id, num_nodes, num_edges, _ = sample
    # the nodes: seeds first, each once, counted per hop
    assert n_id[: len(seeds)].tolist() == seeds.tolist()
    assert len(set(n_id.tolist())) == len(n_id) == sum(num_nodes)
    assert len(num_nodes) == len(fan_outs) + 1
    # every edge is one of the graph, none is drawn twice
    assert len(row) == len(col) == len(e_id) == sum(num_edges)
    assert graph.store.row[e_id].tolist() == n_id[row].tolist()
    target = np.repeat(np.arange(graph.num_nodes), np.diff(graph.store.colptr))
    assert target[e_id].tolist() == n_id[col].tolist()
    assert len(set(e_id.tolist())) == len(e_id)
    # grouped by destination; each one has as many as it can have
    assert (np.diff(col) >= 0).all()
    degree = np.diff(graph.store.colptr)[n_id]
    node_ends = np.cumsum(num_nodes)
    fan_out_of = np.repeat([*fan_outs, 0], num_nodes)
    wanted = np.where(fan_out_of < 0, degree, np.minimum(degree, fan_out_of))
    assert np.bincount(col, minlength=len(n_id)).tolist() == wanted.tolist()
    # a hop's edges lie among the nodes known at its end, and find the new ones in order
    edge_ends = np.cumsum([0, *num_edges])
    for hop in range(len(fan_outs)):
        sources = row[edge_ends[hop] : edge_ends[hop + 1]]
        assert (sources < node_ends[hop + 1]).all()
        new = list(dict.fromkeys(sources[sources >= node_ends[hop]].tolist()))
        assert new == list(range(node_ends[hop], node_ends[hop + 1]))


@given(graph=graphs(), data=st.data(), key=st.integers(0, 2**64 - 1))
def test_sample_fewer_hops_are_a_prefix(graph: Any, data: st.DataObject, key: int) -> None:
    seeds = some_nodes(data, graph)
    long = NeighborSampler(graph, [2, 1, 3]).sample(seeds, key)
    short = NeighborSampler(graph, [2, 1]).sample(seeds, key)
    num_nodes, num_edges = sum(short.num_sampled_nodes), sum(short.num_sampled_edges)
    cut = Sample(
        long.n_id[:num_nodes],
        long.edge_index[:, :num_edges],
        long.e_id[:num_edges],
        long.num_sampled_nodes[:-1],
        long.num_sampled_edges[:-1],
    )
    assert_equal(short, cut)


def test_sample_draws_of_a_node_do_not_depend_on_the_other_seeds() -> None:
    graph = structure([(source, node) for node in range(4) for source in range(8)], 8)
    sampler = NeighborSampler(graph, [3])
    for key in range(20):
        alone = [drawn(sampler.sample(np.array([node]), key), node) for node in range(4)]
        for seeds in itertools.permutations(range(4)):
            sample = sampler.sample(np.array(seeds), key)
            assert [drawn(sample, node) for node in range(4)] == alone


def test_sample_is_a_function_of_the_key() -> None:
    sampler = NeighborSampler(star(20), [5])
    first = sampler.sample(np.array([0]), 7)
    assert sampler.sample(np.array([0]), 8).e_id.tolist() != first.e_id.tolist()
    assert_equal(sampler.sample(np.array([0]), 7), first)
    assert_equal(NeighborSampler(star(20), [5]).sample(np.array([0]), 7), first)


def test_sample_is_pinned() -> None:
    sample = NeighborSampler(structure(EDGES, NUM_NODES), [2, 1]).sample(np.array([0, 4]), 1)
    assert sample.n_id.tolist() == [0, 4, 1, 2]
    assert sample.e_id.tolist() == [0, 1, 8, 4, 6]


def test_sample_hops_draw_independently() -> None:
    # the same node as seed and as a neighbour: two other draws under one key
    graph = structure([(source, 0) for source in range(1, 9)] + [(0, 9)], 10)
    as_seed = NeighborSampler(graph, [1]).sample
    as_neighbour = NeighborSampler(graph, [-1, 1]).sample
    same = sum(
        drawn(as_seed(np.array([0]), key), 0) == drawn(as_neighbour(np.array([9]), key), 0)
        for key in range(800)
    )
    # Binomial(800, 1/8): mean 100, deviation 9.4
    assert 65 <= same <= 135


@pytest.mark.parametrize(
    ("degree", "fan_out"),
    [
        pytest.param(7, 1, id="one"),
        pytest.param(10, 3, id="word"),
        pytest.param(64, 40, id="word-at-its-limit"),
        pytest.param(65, 7, id="scan-from-its-limit"),
        pytest.param(200, 32, id="scan"),
        pytest.param(200, 33, id="hash-from-its-limit"),
        pytest.param(200, 64, id="hash"),
    ],
)
def test_sample_draws_every_neighbour_equally_often(degree: int, fan_out: int) -> None:
    num_epochs = 4000
    draws = epochs(star(degree), fan_out, num_epochs)
    assert all(len(set(draw)) == fan_out for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=degree)
    share = fan_out / degree
    # draws of one epoch exclude each other: the counts' covariance is (n-1)/n of independence
    statistic = ((counts - num_epochs * share) ** 2).sum() / (num_epochs * share * (1 - share))
    assert stats.chi2.sf(statistic * (degree - 1) / degree, degree - 1) > 0.001


@pytest.mark.parametrize(("degree", "fan_out"), [(5, 2), (6, 3), (5, 4)])
def test_sample_draws_every_subset_equally_often(degree: int, fan_out: int) -> None:
    num_subsets = math.comb(degree, fan_out)
    counts = Counter(frozenset(d) for d in epochs(star(degree), fan_out, 300 * num_subsets))
    assert len(counts) == num_subsets
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_sample_draws_of_two_nodes_are_independent() -> None:
    graph = structure([(source, node) for node in range(2) for source in range(2, 6)], 6)
    sampler, table = NeighborSampler(graph, [1]), np.zeros((4, 4))
    for epoch in range(4000):
        sample = sampler.sample(np.array([0, 1]), key_of(0, "train", epoch, 0))
        table[sample.e_id[0], sample.e_id[1] - 4] += 1
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_sample_draws_of_successive_keys_are_independent() -> None:
    draws = [draw[0] for draw in epochs(star(4), 1, 8001)]
    table = np.zeros((4, 4))
    np.add.at(table, (draws[:-1:2], draws[1::2]), 1)
    assert stats.chi2_contingency(table).pvalue > 0.001


@given(
    first=st.integers(0, 9),
    count=st.integers(0, 70),
    more=st.integers(1, 100),
    stream=st.integers(0, 2**64 - 1),
)
def test_pickers_pick_the_same_subset(first: int, count: int, more: int, stream: int) -> None:
    degree, found = count + more, []
    for pick in (_pick_scan, _pick_hash, *([_pick_bits] if degree <= 64 else [])):
        picked = np.full(count + 5, -1)
        pick(picked, 3, first, count, degree, np.uint64(stream))
        assert picked[:3].tolist() == [-1] * 3
        assert picked[3 + count :].tolist() == [-1] * 2
        found.append(picked[3 : 3 + count].tolist())
    assert all(picked == found[0] for picked in found)
    assert len(set(found[0])) == count
    assert set(found[0]) <= set(range(first, first + degree))


@given(data=st.data(), num_nodes=st.integers(1, 3000))
def test_tables_give_the_same_local_ids(data: st.DataObject, num_nodes: int) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    tables = (DirectTable(num_nodes), HashTable(np.int32))
    for _ in range(3):  # the same tables for all batches
        seeds = rng.permutation(num_nodes)[: data.draw(st.integers(0, num_nodes))]
        num_edges = data.draw(st.integers(0, 5000))
        rows = rng.integers(0, num_nodes, num_edges).astype(np.int32)
        e_id = rng.permutation(num_edges)
        none = np.empty(0, np.int64)  # neither table reads the frontier
        frontier = (none, none, none, 0, len(seeds))
        found = []
        for table in tables:
            n_id, row = np.full(len(seeds) + num_edges, -1), np.full(num_edges, -1)
            n_id[: len(seeds)] = seeds
            assert table.start(n_id, len(seeds)) == -1
            n = table.relabel(rows, (e_id, row, none, 0, num_edges), frontier, n_id, len(seeds))
            assert n_id[:n][row].tolist() == rows[e_id].tolist()
            assert n_id[:n].tolist() == list(dict.fromkeys([*seeds, *rows[e_id]]))
            found.append((n, n_id.tolist(), row.tolist()))
        assert found[0] == found[1]


def test_sample_is_the_same_on_a_graph_too_large_for_a_direct_table() -> None:
    edges = [tuple(edge) for edge in np.random.default_rng(0).integers(0, 500, (5000, 2)).tolist()]
    small, large = structure(edges, 500), structure(edges, 500)
    large.num_nodes = _DIRECT_NODES + 1
    for key in range(3):
        seeds = np.random.default_rng(key).permutation(500)[:50]
        expected = NeighborSampler(small, [5, -1]).sample(seeds, key)
        assert_equal(NeighborSampler(large, [5, -1]).sample(seeds, key), expected)
    with pytest.raises(DataError, match="seed node 3 stands twice"):
        NeighborSampler(large, [5]).sample(np.array([3, 4, 3]), 0)


def test_sample_of_wide_ids_is_the_same() -> None:
    wide, narrow = (structure(EDGES, NUM_NODES) for _ in range(2))
    wide.store = replace(wide.store, row=wide.store.row.astype(np.int64))
    for key in range(10):
        seeds = np.array([0, 4])
        expected = NeighborSampler(narrow, [2, 1]).sample(seeds, key)
        assert_equal(NeighborSampler(wide, [2, 1]).sample(seeds, key), expected)


def test_sample_large_batch_after_a_small_one() -> None:
    num_nodes = 5000
    ring = structure([((node + 1) % num_nodes, node) for node in range(num_nodes)], num_nodes)
    sampler = NeighborSampler(ring, [-1, -1])
    assert_equal(sampler.sample(np.array([3]), 0), brute_force(ring, [3], 2))
    seeds = np.arange(0, num_nodes, 2)
    sample = sampler.sample(seeds, 0)
    assert sample.num_sampled_nodes == [2500, 2500, 0]
    assert sample.n_id[2500:].tolist() == (seeds + 1).tolist()
    # and is small again for the next one
    assert_equal(sampler.sample(np.array([3]), 0), brute_force(ring, [3], 2))


def test_sample_after_an_error_is_the_same() -> None:
    sampler, seeds = NeighborSampler(star(20), [5]), np.array([0, 3])
    expected = sampler.sample(seeds, 7)
    with pytest.raises(DataError, match="stands twice"):
        sampler.sample(np.array([3, 0, 3]), 7)
    assert_equal(sampler.sample(seeds, 7), expected)


def test_sample_from_many_threads_is_the_same() -> None:
    rng = np.random.default_rng(0)
    graph = structure([tuple(edge) for edge in rng.integers(0, 500, (5000, 2)).tolist()], 500)
    sampler = NeighborSampler(graph, [5, 5])
    batches = [(rng.permutation(500)[:50], key) for key in range(64)]
    expected = [sampler.sample(*batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(
            pool.map(lambda batch: sampler.sample(*batch), batches), expected, strict=True
        ):
            assert_equal(found, wanted)


def test_sample_without_seeds_is_empty() -> None:
    sample = NeighborSampler(star(3), [2, 2]).sample(np.array([], dtype=np.int64), 0)
    assert [len(array) for array in (sample.n_id, *sample.edge_index, sample.e_id)] == [0] * 4
    assert (sample.num_sampled_nodes, sample.num_sampled_edges) == ([0, 0, 0], [0, 0])


def test_sample_fan_out_zero_draws_nothing() -> None:
    sample = NeighborSampler(star(3), [0]).sample(np.array([0]), 0)
    assert (sample.num_sampled_nodes, sample.num_sampled_edges) == ([1, 0], [0])


def test_sample_leaves_the_seeds_alone() -> None:
    seeds = np.array([2, 0])
    sample = NeighborSampler(star(3), [-1]).sample(seeds, 0)
    sample.n_id[:] = 9
    assert seeds.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        pytest.param([0, 1, 0], "seed node 0 stands twice", id="twice"),
        pytest.param([0, 7], r"seed node 7 is not in 0\.\.6", id="past-the-end"),
        pytest.param([-1], "seed node -1 is not in", id="negative"),
    ],
)
def test_sample_wrong_seeds_are_named(seeds: list[int], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        NeighborSampler(structure(EDGES, NUM_NODES), [2]).sample(np.array(seeds), 0)


@pytest.mark.parametrize("num_neighbors", [[], [5, -2]], ids=["none", "below"])
def test_sampler_wrong_fan_outs_are_refused(num_neighbors: list[int]) -> None:
    with pytest.raises(ConfigError, match="fan-outs are -1 or more"):
        NeighborSampler(star(3), num_neighbors)


@pytest.fixture(scope="module")
def opened(make_graph: Callable[..., Graph]) -> Graph:
    x = [[float(node), 1.0] for node in range(NUM_NODES)]
    y = [node % 2 for node in range(NUM_NODES)]
    return make_graph(EDGES, num_nodes=NUM_NODES, x=x, y=y, num_classes=2)


def as_data(graph: Graph) -> Data:
    """The graph as PyG has it, edges in our order, so that edge ids are the same."""
    col = np.repeat(np.arange(graph.num_nodes), np.diff(graph.store.colptr))
    return Data(
        x=torch.from_numpy(graph.store.x.copy()),
        y=torch.from_numpy(graph.store.targets[0].copy()),
        edge_index=torch.from_numpy(np.stack([graph.store.row.astype(np.int64), col])),
        edge_attr=torch.arange(graph.num_edges),
    )


def test_sample_from_nodes_pyg_loader_drives_it(opened: Graph) -> None:
    data = as_data(opened)
    sampler = NeighborSampler(opened, [2, 2], seed=3)
    loader = NodeLoader(data, sampler, input_nodes=torch.tensor([6, 0, 4]), batch_size=2)
    batches = list(loader)
    assert [batch.input_id.tolist() for batch in batches] == [[0, 1], [2]]
    assert [batch.n_id[: batch.batch_size].tolist() for batch in batches] == [[6, 0], [4]]
    for batch in batches:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
    again = list(loader)
    assert all(torch.equal(a.e_id, b.e_id) for a, b in zip(batches, again, strict=True))


def test_sample_from_nodes_draws_change_with_seed_epoch_and_input_id() -> None:
    graph = star(30)

    def e_id(seed: int, epoch: int, input_id: list[int] | None) -> list[int]:
        sampler = NeighborSampler(graph, [5], seed=seed)
        sampler.epoch = epoch
        ids = None if input_id is None else torch.tensor(input_id)
        drawn: list[int] = sampler.sample_from_nodes(
            NodeSamplerInput(input_id=ids, node=torch.tensor([0]))
        ).edge.tolist()
        return drawn

    found = [e_id(0, 0, [0]), e_id(1, 0, [0]), e_id(0, 1, [0]), e_id(0, 0, [1])]
    assert len({tuple(draw) for draw in found}) == 4
    assert e_id(0, 0, None) == found[0]


def test_sample_from_nodes_trains_a_pyg_model(opened: Graph) -> None:
    torch.manual_seed(0)
    loader = NodeLoader(as_data(opened), NeighborSampler(opened, [-1]), batch_size=4)
    model = SAGEConv(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(5):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert sum(losses[-2:]) < sum(losses[:2])


def test_sample_from_nodes_with_times_needs_temporal() -> None:
    given_time = NodeSamplerInput(input_id=None, node=torch.tensor([0]), time=torch.tensor([1]))
    with pytest.raises(ConfigError, match="seeds have times, but sampling is not temporal"):
        NeighborSampler(star(3), [2]).sample_from_nodes(given_time)


def test_sample_from_edges_is_refused() -> None:
    with pytest.raises(BackendError, match="link prediction"):
        NeighborSampler(star(3), [2]).sample_from_edges(None)
