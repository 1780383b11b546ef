from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dnformer.loader.hot_cache import SlotIndex, Visits, expected_visits, hottest


def store(edges: list[tuple[int, int]], num_nodes: int) -> Any:
    """The structure of (src, dst) pairs."""
    pairs = np.array(sorted(edges, key=lambda edge: edge[::-1]), dtype=np.int32).reshape(-1, 2)
    degree = np.bincount(pairs[:, 1], minlength=num_nodes)
    colptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return SimpleNamespace(colptr=colptr, row=pairs[:, 0].copy())


def visits(seeds: list[int], fan_out: list[int], batch_size: int = 1) -> Visits:
    return Visits(np.array(seeds, dtype=np.int64), fan_out, batch_size)


def test_expected_visits_counts_seeds_once() -> None:
    scores = expected_visits(store([(0, 1)], 3), visits([2, 1], []))
    assert scores.dtype == np.float32
    assert scores.tolist() == [0, 1, 1]


def test_expected_visits_follows_sources_not_destinations() -> None:
    # 0 is a source of everyone and has no neighbour; 4 has all and is nobody's
    graph = store([(0, 1), (0, 2), (0, 4), (1, 4), (2, 4)], 5)
    scores = expected_visits(graph, visits([1, 2], [-1], batch_size=1))
    # drawn twice in two batches: 2 (1 - exp(-1)) of them are expected to meet it
    assert scores == pytest.approx([2 * (1 - np.exp(-1)), 1, 1, 0, 0])


def test_expected_visits_shares_a_fan_out_among_the_neighbours() -> None:
    graph = store([(source, 0) for source in (1, 2, 3, 4)], 5)
    many = 100
    scores = expected_visits(graph, visits([0] * many, [2]))
    # one seed of many batches; half of four neighbours a draw
    assert scores[1:] == pytest.approx(many * (1 - np.exp(-0.5 / many)))
    assert scores[1] == pytest.approx(0.5, rel=0.01)


def test_expected_visits_of_two_hops_reach_neighbours_of_neighbours() -> None:
    graph = store([(1, 0), (2, 1), (3, 2)], 4)
    assert (expected_visits(graph, visits([0], [1, 1])) > 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, []), (1, [3]), (2, [0, 3]), (3, [0, 1, 3]), (4, [0, 1, 3, 4]), (9, [0, 1, 3, 4])],
)
def test_hottest_takes_the_first_of_equals_and_none_of_zero(
    count: int, expected: list[int]
) -> None:
    scores = np.array([2, 2, 0, 5, 1, 0], dtype=np.float32)
    assert hottest(scores, count).tolist() == expected


@pytest.mark.parametrize(
    "nodes", [[], [0], [63], [64], [0, 1, 63, 64, 130], list(range(200))], ids=str
)
def test_slot_index_finds_each_node_in_its_place(nodes: list[int]) -> None:
    index = SlotIndex(np.array(nodes, dtype=np.int64), 200)
    slots, hits = index.find(np.arange(200))
    assert hits == len(nodes)
    assert slots[nodes].tolist() == list(range(len(nodes)))
    assert (np.delete(slots, nodes) == -1).all()
    slots, hits = index.find(np.array([199, 0, 0]))
    assert hits == int(slots[0] >= 0) + 2 * int(slots[1] >= 0)
