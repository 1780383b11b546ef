from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dnformer.ops.plan import TASK_EDGES, make_plan


def pointers(degrees: list[int], dtype: type = np.int64) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(degrees)]).astype(dtype)


@given(
    degrees=st.lists(st.integers(0, 5) | st.integers(0, 40), max_size=40),
    task_edges=st.integers(1, 24),
    dtype=st.sampled_from([np.int32, np.int64]),
)
@example(degrees=[40] * 40, task_edges=1, dtype=np.int64)
@example(degrees=[0] * 40, task_edges=1, dtype=np.int64)
@example(degrees=[2] * 40, task_edges=1, dtype=np.int64)
@example(degrees=[0, 9, 0], task_edges=8, dtype=np.int64)
@example(degrees=[8, 8, 8], task_edges=8, dtype=np.int64)
def test_make_plan_covers(degrees: list[int], task_edges: int, dtype: type) -> None:
    ptr = pointers(degrees, dtype)
    tasks, hubs = make_plan(ptr, task_edges)
    whole = [i for first, last, _, _, slot in tasks if slot < 0 for i in range(first, last)]
    assert whole == [i for i, degree in enumerate(degrees) if degree <= task_edges]
    assert hubs[:, 0].tolist() == [i for i, degree in enumerate(degrees) if degree > task_edges]
    # in order, without a gap
    assert [edge for _, _, start, stop, _ in tasks for edge in range(start, stop)] == list(
        range(sum(degrees))
    )
    for first, last, start, stop, slot in tasks:
        assert first < last
        if slot < 0:
            assert (start, stop) == (ptr[first], ptr[last])
            assert stop - start <= 2 * task_edges
        else:
            assert last == first + 1
            assert 0 < stop - start <= task_edges


@given(degrees=st.lists(st.integers(0, 40), max_size=20), task_edges=st.integers(1, 24))
def test_make_plan_hubs(degrees: list[int], task_edges: int) -> None:
    plan = make_plan(pointers(degrees), task_edges)
    pieces = [(slot, row) for row, _, _, _, slot in plan.tasks if slot >= 0]
    expected = [(slot, row) for row, first, last in plan.hubs for slot in range(first, last)]
    assert pieces == expected
    assert [slot for slot, _ in pieces] == list(range(plan.num_pieces))


@pytest.mark.parametrize("num_rows", [0, 1, 100_000])
def test_make_plan_no_edges(num_rows: int) -> None:
    tasks, hubs = make_plan(pointers([0] * num_rows))
    assert tasks.shape[1:] == (5,)
    assert hubs.shape == (0, 3)
    # rows cost something too
    assert num_rows / TASK_EDGES <= len(tasks) <= 1 + 8 * num_rows / TASK_EDGES
    assert all(last == first for (_, last, *_), (first, *_) in pairwise(tasks.tolist()))


def test_make_plan_default() -> None:
    # a task of many rows, a row of many tasks
    tasks, hubs = make_plan(pointers([1] * 100 + [3 * TASK_EDGES - 1] + [1]))
    end = 3 * TASK_EDGES + 99
    assert tasks.tolist() == [
        [0, 100, 0, 100, -1],
        [100, 101, 100, 100 + TASK_EDGES, 0],
        [100, 101, 100 + TASK_EDGES, 100 + 2 * TASK_EDGES, 1],
        [100, 101, 100 + 2 * TASK_EDGES, end, 2],
        [101, 102, end, end + 1, -1],
    ]
    assert hubs.tolist() == [[100, 0, 3]]
