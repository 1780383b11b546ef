import gc

import pytest

from dnformer.bench.timing import Times, log_slope, race


class Clock:
    """Stands still but for `sleep`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_race_takes_turns_after_one_round_of_warming_up():
    ran = []
    race([lambda name=name: ran.append(name) for name in "abc"], repeats=4)
    assert "".join(ran) == "abc" + "abc" + "bca" + "cab" + "abc"


def test_race_gives_median_and_spread_of_each():
    clock = Clock()
    taken = {"a": iter([100, 3, 1, 8]), "b": iter([100, 2, 2, 2])}
    steps = [lambda name=name: clock.sleep(next(taken[name])) for name in "ab"]
    assert race(steps, repeats=3, clock=clock) == [Times(3, 1, 8), Times(2, 2, 2)]


def test_race_waits_within_the_time_of_each_step():
    clock, late = Clock(), []

    def wait() -> None:
        while late:
            clock.sleep(late.pop())

    (times,) = race([lambda: late.append(5.0)], repeats=2, wait=wait, clock=clock)
    assert times == Times(5, 5, 5)


def test_race_leaves_the_garbage_collector_on_also_after_an_error():
    calls = iter([None, "fails"])

    def step() -> None:
        if next(calls):
            raise KeyError

    with pytest.raises(KeyError):
        race([step], repeats=1)
    assert gc.isenabled()


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_log_slope_of_a_power(power):
    sizes = [1e5, 3e5, 1e6, 1e7]
    assert log_slope(sizes, [7e-9 * size**power for size in sizes]) == pytest.approx(power)
