import threading

import pytest

from dnformer.data.threads import in_threads


def test_in_threads_keeps_the_order_whoever_is_first() -> None:
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(10)
        if item == 1:
            second_is_done.set()
        return 10 * item

    assert list(in_threads(work, range(5), 2)) == [0, 10, 20, 30, 40]


def test_in_threads_takes_few_items_ahead() -> None:
    taken = []

    def items() -> object:
        for item in range(100):
            taken.append(item)
            yield item

    results = in_threads(str, items(), 3)
    assert next(results) == "0"
    assert len(taken) == 4
    results.close()
    assert len(taken) == 4


def test_in_threads_raises_what_work_raised() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    results = in_threads(work, range(100), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_in_threads_of_nothing() -> None:
    assert list(in_threads(str, [], 2)) == []
