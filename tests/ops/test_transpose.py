import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dnformer.ops import Topology, transpose

from .helpers import GRAPH

Lists = tuple[list[int], list[int], list[int]]


def topology(neighbours: list[list[int]]) -> Topology:
    counts = torch.tensor([0, *map(len, neighbours)])
    row = [j for row in neighbours for j in row]
    return Topology(counts.cumsum(0), torch.tensor(row, dtype=torch.int64))


def by_search(neighbours: list[list[int]], num_src: int) -> Lists:
    edges = [(j, i) for i, row in enumerate(neighbours) for j in row]
    found = [
        (edge, i) for source in range(num_src) for edge, (j, i) in enumerate(edges) if j == source
    ]
    rowptr = [sum(j < source for j, _ in edges) for source in range(num_src + 1)]
    return rowptr, [edge for edge, _ in found], [i for _, i in found]


@given(
    neighbours=st.lists(st.lists(st.integers(0, 7), max_size=6), max_size=8),
    beyond=st.integers(0, 3),
)
def test_transpose_by_search(neighbours: list[list[int]], beyond: int) -> None:
    # sources that nobody has for a neighbour too
    num_src = 8 + beyond
    found = transpose(topology(neighbours), num_src)
    assert tuple(t.tolist() for t in found) == by_search(neighbours, num_src)
    assert {t.dtype for t in found} == {torch.int32}


def test_transpose_literal() -> None:
    rowptr, edge, col = transpose(GRAPH, 7)
    assert rowptr.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    assert edge.tolist() == [1, 2, 5, 6, 0, 7, 3, 4]
    assert col.tolist() == [2, 2, 3, 3, 1, 4, 2, 2]


@pytest.mark.parametrize("num_src", [0, 4])
def test_transpose_no_edges(num_src: int) -> None:
    rowptr, edge, col = transpose(topology([[], []]), num_src)
    assert rowptr.tolist() == [0] * (num_src + 1)
    assert edge.shape == col.shape == (0,)


@pytest.mark.usefixtures("poison")
def test_transpose_not_poisoned() -> None:
    # integers are filled with their largest value
    found = transpose(GRAPH, 9)
    assert max(int(t.max()) for t in found) == 8


def test_transpose_inputs_unchanged() -> None:
    before = [t.clone() for t in GRAPH[:2]]
    transpose(GRAPH, 7)
    assert all(torch.equal(t, old) for t, old in zip(GRAPH[:2], before, strict=True))
