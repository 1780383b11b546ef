"""Which trial is best, and which ones none is better than."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dnformer.tuning.ranking import best_of, front_of, ranked
from dnformer.tuning.trials import Trial

METRIC: Any = ["metric"]
THREE: Any = ["metric", "seconds_per_epoch", "parameters"]
NAN = math.nan


def trial(number: int, *values: float, state: Any = "finished") -> Trial:
    return Trial(number, {}, state=state, values=values or None)


def numbers(trials: Any) -> list[int]:
    return [trial.number for trial in trials]


def test_best_of_is_the_highest_or_the_lowest():
    trials = [trial(0, 0.5), trial(1, 0.75), trial(2, 0.25)]
    assert numbers(ranked(trials, METRIC, higher=True)) == [1, 0, 2]
    assert numbers(ranked(trials, METRIC, higher=False)) == [2, 0, 1]
    assert best_of(trials, METRIC, higher=True) is trials[1]
    assert best_of(trials, METRIC, higher=False) is trials[2]


def test_best_of_counts_trials_that_have_ended_with_a_finite_metric():
    trials = [
        trial(0, state="running"),
        trial(1, 0.9, state="failed"),
        trial(2, NAN),
        trial(3, math.inf),
        trial(4),
        trial(5, 0.1, state="stopped"),
    ]
    for higher in (True, False):
        assert numbers(ranked(trials, METRIC, higher=higher)) == [5]
        assert best_of(trials[:5], METRIC, higher=higher) is None
        assert front_of(trials[:5], METRIC, higher=higher) == ()


def test_best_of_equal_ones_is_the_one_with_the_lower_number():
    trials = [trial(2, 0.5), trial(1, 0.5), trial(0, 0.25)]
    assert numbers(ranked(trials, METRIC, higher=True)) == [1, 2, 0]
    assert numbers(front_of(trials, METRIC, higher=True)) == [1]


def test_best_of_equal_metrics_is_the_one_with_the_better_rest():
    trials = [trial(0, 0.5, 2.0, 10), trial(1, 0.5, 1.0, 20), trial(2, 0.5, 1.0, 15)]
    assert numbers(ranked(trials, THREE, higher=True)) == [2, 1, 0]


def test_front_has_what_nothing_is_better_than_in_all():
    trials = [
        trial(0, 0.9, 3.0, 100),
        trial(1, 0.8, 2.0, 100),
        trial(2, 0.8, 2.5, 100),  # slower than 1
        trial(3, 0.7, 1.0, 200),
        trial(4, 0.7, 4.0, 10),
        trial(5, 0.8, 2.0, 100),  # equals 1
    ]
    assert numbers(front_of(trials, THREE, higher=True)) == [0, 1, 3, 4]
    assert numbers(front_of(trials, THREE, higher=False)) == [3, 4, 1]


def test_front_takes_an_unknown_figure_as_the_worst():
    trials = [trial(0, 0.9, NAN, 10), trial(1, 0.9, 2.0, 10), trial(2, 0.95, NAN, 10)]
    assert numbers(front_of(trials, THREE, higher=True)) == [2, 1]


FIGURE = st.sampled_from([0.0, 0.25, 0.5, 1.0, NAN])
TRIALS = st.lists(st.tuples(FIGURE, FIGURE, FIGURE), max_size=12).map(
    lambda rows: [trial(number, *row) for number, row in enumerate(rows)]
)


@given(trials=TRIALS, higher=st.booleans(), order=st.randoms())
def test_front_is_what_the_definition_says(trials, higher, order):
    def losses(one: Trial) -> tuple[float, ...]:
        assert one.values is not None
        signed = (-one.values[0] if higher else one.values[0], *one.values[1:])
        return tuple(math.inf if math.isnan(value) else value for value in signed)

    def beats(one: Trial, other: Trial) -> bool:
        a, b = losses(one), losses(other)
        return all(x <= y for x, y in zip(a, b, strict=True)) and (
            a != b or one.number < other.number
        )

    counted = [one for one in trials if math.isfinite(losses(one)[0])]
    expected = {one.number for one in counted if not any(beats(other, one) for other in counted)}
    shuffled = list(trials)
    order.shuffle(shuffled)
    front = front_of(shuffled, THREE, higher=higher)
    assert set(numbers(front)) == expected
    assert front[:1] == tuple(filter(None, [best_of(trials, THREE, higher=higher)]))
