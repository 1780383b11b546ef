"""Wall times of contenders that take turns, so that what slows the machine slows them all."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Step = Callable[[], object]


class Times(NamedTuple):
    """Seconds of one contender over the rounds: the median, and how far they spread."""

    seconds: float
    low: float
    high: float


def race(
    steps: Sequence[Step],
    *,
    repeats: int,
    wait: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Times]:
    """Runs every step once a round, each round beginning with the next one.

    A first round is not timed: kernels compile, caches and the allocator fill. What a step returns
    is freed within its time, as in training.

    Args:
        steps: the contenders.
        repeats: timed rounds.
        wait: called before each reading of the clock; a GPU works on after a step returned.
        clock: seconds.
    """
    for step in steps:
        step()
    seconds: list[list[float]] = [[] for _ in steps]
    gc.collect()
    gc.disable()  # a collection would be charged to whoever happens to run
    try:
        for turn in range(repeats):
            for place in range(len(steps)):
                index = (turn + place) % len(steps)
                wait()
                start = clock()
                steps[index]()
                wait()
                seconds[index].append(clock() - start)
    finally:
        gc.enable()
    return [Times(statistics.median(values), min(values), max(values)) for values in seconds]


def log_slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent b of seconds ~ sizes^b, by least squares on logarithms."""
    x, y = ([math.log(value) for value in values] for values in (sizes, seconds))
    slope, _ = statistics.linear_regression(x, y)
    return slope
