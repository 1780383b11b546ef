"""Which paused trial goes on: the best of the highest rung, in bounded number."""

import math

import pytest

from dnformer.config import TuneConfig
from dnformer.tuning.halving import Halving
from dnformer.tuning.trials import Result


def make(epochs: int = 9, *, higher: bool = True, **tune: object) -> Halving:
    return Halving(TuneConfig.model_validate({"grace_epochs": 1} | tune), epochs, higher=higher)


def at(halving: Halving, epochs: int, values: list[float]) -> None:
    for number, value in enumerate(values):
        halving.result(number, Result(epochs, value))


@pytest.mark.parametrize(
    ("epochs", "tune", "expected"),
    [
        (9, {}, (1, 3)),
        (10, {}, (1, 3, 9)),
        (200, {"grace_epochs": 40}, (40, 120)),
        (200, {"reduction_factor": 2, "grace_epochs": 50}, (50, 100)),
        (1, {}, ()),
    ],
)
def test_milestones_are_grace_times_powers_of_the_factor(epochs, tune, expected):
    assert make(epochs, **tune).milestones == expected


def test_the_best_third_goes_on_and_rounds_up_when_no_more_come():
    halving = make()
    at(halving, 1, [0.1, 0.5])
    assert halving.next(last=False) is None
    assert halving.next(last=True) == 1
    halving.result(2, Result(1, 0.3))
    assert halving.next(last=False) == 1
    halving.leave(1)
    assert halving.next(last=False) is None
    halving.result(3, Result(1, 0.6))
    # of four the best one and a third: 3 is in, and 1 has gone on
    assert halving.next(last=False) == 3


def test_the_highest_rung_comes_first():
    halving = make()
    at(halving, 1, [0.1, 0.2, 0.3, 0.9, 0.8, 0.7])
    for number in (3, 4):
        assert halving.next(last=False) == number
        halving.leave(number)
    for number, value in ((3, 0.9), (4, 0.95)):
        halving.result(number, Result(3, value))
    halving.result(5, Result(3, 0.1))
    assert halving.next(last=False) == 4


@pytest.mark.parametrize("higher", [True, False])
def test_the_lower_number_goes_first_of_equals(higher):
    halving = make(higher=higher)
    at(halving, 1, [0.5, 0.5, 0.5])
    assert halving.next(last=False) == 0


def test_lower_is_better_where_it_is():
    halving = make(higher=False)
    at(halving, 1, [0.5, 0.4, 0.6])
    assert halving.next(last=False) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_never_goes_on(value):
    halving = make()
    at(halving, 1, [value, value, value])
    assert halving.next(last=True) is None
