from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from dnformer.data.counter_rng import key_of
from dnformer.errors import ConfigError, DataError
from dnformer.loader.sampler import NeighborSampler, Sample

from .helpers import assert_equal, brute_force, drawn, graphs, star, structure

KEYS = st.integers(0, 2**64 - 1)
TIMES = st.integers(-3, 3)
SETTINGS = [
    pytest.param({}, id="uniform"),
    pytest.param({"replace": True}, id="replace"),
    pytest.param({"sampling": "weighted"}, id="weighted"),
    pytest.param({"sampling": "weighted", "replace": True}, id="weighted-replace"),
]


def edge_times(graph: Any) -> np.ndarray:
    """Of each edge, whichever column they come from."""
    store = graph.store
    return store.node_time[store.row] if store.edge_time is None else store.edge_time


def until(graph: Any, time: int) -> tuple[Any, np.ndarray]:
    """The graph as it was then, and the ids of its edges."""
    store = graph.store
    kept = np.flatnonzero(edge_times(graph) <= time)
    col = np.repeat(np.arange(graph.num_nodes), np.diff(store.colptr))
    edges = list(zip(store.row[kept].tolist(), col[kept].tolist(), strict=True))
    return structure(edges, graph.num_nodes), kept


def tree(sample: Sample, number: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Nodes of a tree, and its edges as (place of the source, place of the destination, id)."""
    assert sample.batch is not None
    places = np.flatnonzero(sample.batch == number)
    local = {int(place): i for i, place in enumerate(places)}
    edges = [
        (local[int(source)], local[int(target)], int(edge))
        for source, target, edge in zip(*sample.edge_index, sample.e_id, strict=True)
        if int(target) in local
    ]
    return sample.n_id[places].tolist(), edges


@given(
    graph=st.one_of(
        graphs(edge_time=TIMES), graphs(node_time=TIMES), graphs(edge_time=TIMES, node_time=TIMES)
    ),
    data=st.data(),
    num_hops=st.integers(1, 3),
    key=KEYS,
)
def test_temporal_trees_are_what_each_seed_could_see(
    graph: Any, data: st.DataObject, num_hops: int, key: int
) -> None:
    node = st.integers(0, graph.num_nodes - 1)
    pairs = data.draw(st.lists(st.tuples(node, TIMES), max_size=5))
    seeds, times = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
    for fan_out in (-1, 25):
        sampler = NeighborSampler(graph, [fan_out] * num_hops, temporal=True)
        sample = sampler.sample(seeds, key, times)
        assert sample.batch is not None
        assert sample.batch[: len(seeds)].tolist() == list(range(len(seeds)))
        assert (np.diff(sample.col) >= 0).all()
        for number, (seed, time) in enumerate(pairs):
            then, edge_ids = until(graph, time)
            expected = brute_force(then, [seed], num_hops)
            n_id, edges = tree(sample, number)
            assert n_id == expected.n_id.tolist()
            assert edges == [
                (row, col, edge_ids[e])
                for row, col, e in zip(*expected.edge_index, expected.e_id, strict=True)
            ]
        by_tree = [brute_force(until(graph, time)[0], [seed], num_hops) for seed, time in pairs]
        for counts in ("num_sampled_nodes", "num_sampled_edges"):
            total = np.sum([getattr(one, counts) for one in by_tree], axis=0)
            assert not pairs or total.tolist() == getattr(sample, counts)


@given(
    graph=graphs(edge_time=TIMES, weight=st.sampled_from([0.0, 1.0, 2.5])),
    data=st.data(),
    fan_out=st.integers(0, 4),
    key=KEYS,
    replace=st.booleans(),
    sampling=st.sampled_from(["uniform", "weighted"]),
)
def test_temporal_draws_are_in_time_and_as_many_as_asked(
    graph: Any, data: st.DataObject, fan_out: int, key: int, replace: bool, sampling: Any
) -> None:
    node = st.integers(0, graph.num_nodes - 1)
    pairs = data.draw(st.lists(st.tuples(node, TIMES), max_size=5))
    seeds, times = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
    sampler = NeighborSampler(
        graph, [fan_out] * 2, sampling=sampling, replace=replace, temporal=True
    )
    sample = sampler.sample(seeds, key, times)
    latest = times[sample.batch]
    assert (graph.store.edge_time[sample.e_id] <= latest[sample.col]).all()
    assert (sample.batch[sample.row] == sample.batch[sample.col]).all()
    assert graph.store.row[sample.e_id].tolist() == sample.n_id[sample.row].tolist()
    weight = graph.store.weight if sampling == "weighted" else np.ones(len(graph.store.row))
    assert (weight[sample.e_id] > 0).all()
    for place in range(sum(sample.num_sampled_nodes[:2])):
        own = slice(*graph.store.colptr[sample.n_id[place] : sample.n_id[place] + 2])
        possible = int(((graph.store.edge_time[own] <= latest[place]) & (weight[own] > 0)).sum())
        edges = sample.e_id[sample.col == place].tolist()
        if replace:
            assert len(edges) == fan_out * (possible > 0)
        else:
            assert len(edges) == len(set(edges)) == min(possible, fan_out)
        assert all(own.start <= edge < own.stop for edge in edges)


def test_temporal_times_default_to_those_of_the_nodes() -> None:
    # 0 -> 1 at time 5, 2 -> 1 at time 7; node 1 was made at time 6
    graph = structure([(0, 1), (2, 1)], 3, edge_time=[5, 7], node_time=[0, 6, 9])
    sampler = NeighborSampler(graph, [-1], temporal=True)
    assert sampler.sample(np.array([1]), 0).e_id.tolist() == [0]
    assert sampler.sample(np.array([1]), 0, np.array([7])).e_id.tolist() == [0, 1]
    # without times of edges, those of the sources count
    graph = structure([(0, 1), (2, 1)], 3, node_time=[0, 6, 9])
    sampler = NeighborSampler(graph, [-1], temporal=True)
    assert sampler.sample(np.array([1]), 0).e_id.tolist() == [0]
    assert sampler.sample(np.array([1]), 0, np.array([9])).e_id.tolist() == [0, 1]


def test_temporal_draws_in_time_are_equally_likely() -> None:
    # 10 of 25 neighbours are there, in no order
    times = np.random.default_rng(0).permutation(25)
    graph, fan_out, num_epochs = star(25, edge_time=times), 3, 4000
    sampler = NeighborSampler(graph, [fan_out], temporal=True)
    counts = np.zeros(25)
    for epoch in range(num_epochs):
        sample = sampler.sample(np.array([0]), key_of(0, "train", epoch), np.array([9]))
        counts[sample.e_id] += 1
    assert counts[times > 9].sum() == 0
    share = fan_out / 10
    statistic = ((counts[times <= 9] - num_epochs * share) ** 2).sum()
    statistic /= num_epochs * share * (1 - share)
    assert stats.chi2.sf(statistic * 9 / 10, 9) > 0.001


def test_temporal_trees_of_one_node_draw_independently() -> None:
    # seeds 0 and 1 reach node 2, which has 6 neighbours
    edges = [(2, 0), (2, 1)] + [(source, 2) for source in range(3, 9)]
    graph = structure(edges, 9, edge_time=[0] * 8)
    sampler, table = NeighborSampler(graph, [1, 1], temporal=True), np.zeros((6, 6))
    for epoch in range(4000):
        key, times = key_of(0, "train", epoch), np.array([1, 1])
        first, second = sampler.sample(np.array([0, 1]), key, times).e_id[2:] - 2
        table[first, second] += 1
    assert stats.chisquare(table.ravel()).pvalue > 0.001


@pytest.mark.parametrize("settings", SETTINGS)
def test_temporal_trees_do_not_depend_on_the_other_seeds_or_threads(
    settings: dict[str, Any],
) -> None:
    rng = np.random.default_rng(0)
    edges = [tuple(edge) for edge in rng.integers(0, 100, (3000, 2)).tolist()]
    graph = structure(edges, 100, edge_time=rng.integers(0, 50, 3000), weight=rng.random(3000))
    sampler = NeighborSampler(graph, [4, 3], temporal=True, **settings)
    # seeds may stand twice
    batches = [(rng.integers(0, 100, 20), key, rng.integers(0, 50, 20)) for key in range(24)]
    expected = [sampler.sample(*batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for a, b in zip(pool.map(lambda batch: sampler.sample(*batch), batches), expected,
                        strict=True):  # fmt: skip
            assert_equal(a, b)
    for (seeds, key, times), whole in zip(batches, expected, strict=True):
        alone = sampler.sample(seeds[3:4], key, times[3:4])
        assert tree(alone, 0) == tree(whole, 3)
    keys = {tuple(sampler.sample(batches[0][0], key, batches[0][2]).e_id) for key in range(5)}
    assert len(keys) == 5


def test_temporal_large_batch_grows_its_table() -> None:
    num_nodes = 3000
    ring = structure(
        [((node + 1) % num_nodes, node) for node in range(num_nodes)],
        num_nodes,
        edge_time=[0] * num_nodes,
    )
    sampler, seeds = NeighborSampler(ring, [-1] * 3, temporal=True), np.arange(num_nodes)
    sample = sampler.sample(seeds, 0, np.zeros(num_nodes, np.int64))
    assert sample.num_sampled_nodes == [num_nodes] * 4
    assert sample.n_id.tolist() == [(i + hop) % num_nodes for hop in range(4) for i in seeds]
    assert sample.batch is not None
    assert sample.batch.tolist() == seeds.tolist() * 4


def test_temporal_without_times_is_refused() -> None:
    with pytest.raises(DataError, match="graph: neither edges nor nodes have times"):
        NeighborSampler(star(3), [2], temporal=True)
    sampler = NeighborSampler(star(3, edge_time=[1, 2, 3]), [2], temporal=True)
    with pytest.raises(DataError, match="the nodes have no times: give input_time"):
        sampler.sample(np.array([0]), 0)
    for wrong in (np.array([1, 2]), np.array([1.5])):
        with pytest.raises(DataError, match="one integer for each of the 1 seeds"):
            sampler.sample(np.array([0]), 0, wrong)


def test_times_without_temporal_are_refused() -> None:
    with pytest.raises(ConfigError, match="sampling is not temporal"):
        NeighborSampler(star(3), [2]).sample(np.array([0]), 0, np.array([1]))
    assert NeighborSampler(star(3), [2]).sample(np.array([0]), 0).batch is None


def test_temporal_pyg_loader_drives_it() -> None:
    graph = structure([(0, 2), (1, 2), (2, 0)], 3, edge_time=[1, 5, 4])
    col = np.repeat(np.arange(3), np.diff(graph.store.colptr))
    edge_index = torch.from_numpy(np.stack([graph.store.row.astype(np.int64), col]))
    time = torch.from_numpy(graph.store.edge_time)
    data = Data(edge_index=edge_index, time=time, num_nodes=3)
    sampler = NeighborSampler(graph, [-1, -1], temporal=True)
    nodes, times = torch.tensor([2, 0, 2]), torch.tensor([4, 4, 0])
    (batch,) = NodeLoader(data, sampler, input_nodes=nodes, input_time=times, batch_size=3)
    assert batch.seed_time.tolist() == times.tolist()
    assert batch.batch[:3].tolist() == [0, 1, 2]
    assert (time[batch.e_id] <= batch.seed_time[batch.batch[batch.edge_index[1]]]).all()
    assert torch.equal(batch.n_id[batch.edge_index], edge_index[:, batch.e_id])
    assert sorted(batch.e_id.tolist()) == [0, 2, 2]
    found = sampler.sample_from_nodes(NodeSamplerInput(None, nodes, times))
    assert torch.equal(found.batch, batch.batch)
    assert drawn(sampler.sample(np.array([2]), 0, np.array([4])), 2) == [2]
