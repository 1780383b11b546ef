import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dnformer.data.counter_rng import GAMMA, STREAMS, below, derive, key_of, mix, permutation

words = st.integers(0, 2**64 - 1)


def test_mix_gives_the_published_splitmix64_stream() -> None:
    # the first draws at seed 1234567 of the authors' splitmix64.c (rosettacode.org)
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    keys = [(1234567 + c * int(GAMMA)) % 2**64 for c in (1, 2, 3)]
    assert [int(mix(np.uint64(key))) for key in keys] == published


@given(seed=words, parts=st.lists(words, max_size=3), stream=st.sampled_from(sorted(STREAMS)))
def test_key_of_is_the_fold_of_the_compiled_derive(
    seed: int, parts: list[int], stream: str
) -> None:
    key = np.uint64(seed)
    for part in (STREAMS[stream], *parts):
        key = np.uint64(derive(key, np.uint64(part)))
    assert key_of(seed, stream, *parts) == int(key)


def test_key_of_is_pinned() -> None:
    assert key_of(0, "split") == 4066422495213993419
    assert key_of(7, "train", 3, 11) == 14750790090997898870


def test_key_of_differs_with_seed_stream_and_parts() -> None:
    keys = [
        key_of(seed, stream, *parts)
        for seed in range(4)
        for stream in STREAMS
        for parts in [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]
    ]
    assert len(set(keys)) == len(keys)


@given(draw=words, n=st.integers(1, 2**32 - 1))
def test_below_is_the_high_word_of_the_product(draw: int, n: int) -> None:
    assert int(below(np.uint64(draw), n)) == draw * n >> 64


@given(n=st.integers(0, 200), key=words)
def test_permutation_holds_each_index_once(n: int, key: int) -> None:
    assert sorted(permutation(n, key).tolist()) == list(range(n))


def test_permutation_is_pinned() -> None:
    assert permutation(8, key_of(0, "split")).tolist() == [6, 4, 1, 2, 0, 3, 7, 5]
    assert permutation(8, key_of(1, "split")).tolist() == [7, 4, 1, 6, 0, 2, 3, 5]


@pytest.mark.parametrize("n", [3, 4, 5])
def test_permutation_is_uniform_over_keys(n: int) -> None:
    num_draws = 200 * math.factorial(n)
    counts = Counter(
        tuple(permutation(n, key_of(0, "order", epoch)).tolist()) for epoch in range(num_draws)
    )
    assert len(counts) == math.factorial(n)
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_permutation_of_neighbouring_keys_is_unrelated() -> None:
    first = [int(permutation(100, key_of(0, "order", epoch))[0]) for epoch in range(2000)]
    same = sum(a == b for a, b in pairwise(first))
    # Binomial(1999, 1/100): mean 20, deviation 4.4
    assert 3 <= same <= 37
