import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnformer.data.ingest.ids import IdBits, IdRanks


@given(
    ids=st.lists(st.integers(0, 5_000), min_size=1, max_size=60),
    asked=st.lists(st.integers(0, 6_000), max_size=60),
)
def test_ranks_are_positions_in_the_sorted_set(ids: list[int], asked: list[int]) -> None:
    bits = IdBits(1 << 20)
    assert bits.add(np.array(ids))
    ranks, distinct = IdRanks(bits), sorted(set(ids))
    assert ranks.num_nodes == len(distinct)
    assert ranks.is_range == (distinct == list(range(len(distinct))))
    assert np.concatenate(list(ranks.ids())).tolist() == distinct
    rank = {one: at for at, one in enumerate(distinct)}
    assert ranks.find(np.array(asked, np.int64)).tolist() == [rank.get(one, -1) for one in asked]


def test_range_finds_itself_and_nothing_past_it() -> None:
    bits = IdBits(1 << 20)
    bits.add(np.arange(130))
    ranks = IdRanks(bits)
    assert ranks.is_range
    assert ranks.find(np.array([0, 129, 130, 2**62])).tolist() == [0, 129, -1, -1]


def test_ids_beyond_the_size_allowed_are_refused() -> None:
    bits = IdBits(30_000)
    assert bits.add(np.array([0, 100_000]))
    assert not bits.add(np.array([200_000]))
    assert IdBits(30_000).add_new(np.array([200_000])) is None


def test_add_new_tells_the_first_that_was_there() -> None:
    bits = IdBits(1 << 20)
    assert bits.add_new(np.array([5, 70_000, 3])) == -1
    assert bits.add_new(np.array([9, 70_000, 3])) == 1
    assert bits.add_new(np.array([11, 11])) == 1


@pytest.mark.parametrize("step", [1, 63, 64, 65, 4_097])
def test_bits_grow_and_pieces_join(step: int) -> None:
    ids = np.arange(0, 3_000_000, step) + 7
    bits = IdBits(1 << 22)
    for part in np.array_split(ids, 5):
        assert bits.add(part)
    ranks = IdRanks(bits)
    assert np.array_equal(np.concatenate(list(ranks.ids())), ids)
    assert np.array_equal(ranks.find(ids), np.arange(ids.size))
