"""Judges: exact answers, the trials' brackets, and that a replay gives the same."""

import math
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnformer.config import TuneConfig
from dnformer.tuning.judge import Brackets, Judge, judge
from dnformer.tuning.trials import Result

SCHEDULERS = ("asha_stopping", "hyperband", "median", "none")


def make(
    scheduler: str, epochs: int = 9, *, higher: bool = True, seed: int = 0, **of: Any
) -> Judge:
    tune = TuneConfig.model_validate({"scheduler": scheduler} | of)
    return judge(tune, epochs, higher=higher, seed=seed)


def at(judge: Judge, epochs: int, values: list[float]) -> list[bool]:
    """The answers to trials 0, 1, .. that come to a milestone in this order."""
    answers = []
    for number, value in enumerate(values):
        judge.begin(number)
        answers.append(judge.result(number, Result(epochs, value)))
    return answers


@pytest.mark.parametrize(
    ("scheduler", "epochs", "of", "expected"),
    [
        pytest.param("asha_stopping", 9, {}, (1, 3), id="asha_stopping"),
        pytest.param("asha_stopping", 10, {"grace_epochs": 1}, (1, 3, 9), id="asha-last"),
        # log(243) / log(3) is 4.999..
        pytest.param(
            "asha_stopping", 244, {"grace_epochs": 1}, (1, 3, 9, 27, 81, 243), id="asha-power"
        ),
        pytest.param(
            "asha_stopping", 200, {"reduction_factor": 2}, (40, 80, 160), id="asha-halves"
        ),
        pytest.param("asha_stopping", 1, {}, (), id="asha-one-epoch"),
        pytest.param("asha_stopping", 5, {"grace_epochs": 7}, (), id="asha-no-rung"),
        pytest.param("hyperband", 28, {"grace_epochs": 1}, (1, 3, 9, 27), id="hyperband"),
        pytest.param("hyperband", 1, {}, (), id="hyperband-one-epoch"),
        pytest.param("median", 9, {"grace_epochs": 2}, (2, 4, 6, 8), id="median"),
        pytest.param("median", 8, {"grace_epochs": 2}, (2, 4, 6), id="median-below-epochs"),
        pytest.param("median", 1, {}, (), id="median-one-epoch"),
        pytest.param("none", 9, {}, (), id="none"),
    ],
)
def test_milestones(scheduler: str, epochs: int, of: Any, expected: tuple[int, ...]) -> None:
    judge = make(scheduler, epochs, **of)
    assert judge.milestones == expected
    assert at(judge, epochs, [1.0, 0.0]) == [True, True]


# the last one's cutoffs: none, 1, 1 2/3 and, 1/3 of the way from 1.66 to 2, 1.773
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([0.0], [True], id="first"),
        pytest.param([0.5, 0.5, 0.5], [True, True, True], id="equal"),
        pytest.param([0.9, 0.8, 0.7], [True, False, False], id="worse-and-worse"),
        pytest.param([1.0, 2.0, 1.66, 1.78], [True, True, False, True], id="between"),
    ],
)
def test_asha_compares_with_the_percentile_of_those_before(
    values: list[float], expected: list[bool]
) -> None:
    assert at(make("asha_stopping"), 1, values) == expected
    assert at(make("asha_stopping", higher=False), 1, [-value for value in values]) == expected


def test_asha_rungs_are_apart() -> None:
    judge = make("asha_stopping")
    assert at(judge, 1, [0.5, 0.6, 0.7]) == [True, True, True]
    assert judge.result(0, Result(3, 0.5))
    assert judge.result(2, Result(3, 0.7))
    assert not judge.result(1, Result(3, 0.6))
    assert judge.result(0, Result(5, 0.0)), "no milestone"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("higher", [True, False])
def test_values_that_are_not_finite_end_the_trial_and_nothing_else(
    value: float, scheduler: str, higher: bool
) -> None:
    with_it, without = (make(scheduler, higher=higher) for _ in range(2))
    for number in range(12):
        with_it.begin(number)
        without.begin(number)
        with_it.begin(100 + number)
        assert not with_it.result(100 + number, Result(1, value))
        with_it.end(100 + number, Result(1, value))
        result = Result(1, number * 5 % 12)
        assert with_it.result(number, result) == without.result(number, result)


def test_median_of_the_means_of_the_others() -> None:
    judge = make("median", grace_epochs=2)
    for number, value in enumerate([0.1, 0.3, 0.5]):
        judge.begin(number)
        assert judge.result(number, Result(2, value)), "too few to compare with"
        assert judge.result(number, Result(4, value + 0.2))
        judge.end(number, Result(9, 0.9))
    # means up to 2: 0.1, 0.3, 0.5; up to 4: 0.2, 0.4, 0.6
    for number, last in ((3, 0.39), (4, 0.4)):
        judge.begin(number)
        assert judge.result(number, Result(2, 0.3))
        assert judge.result(number, Result(3, 0.0)), "no milestone"
        assert judge.result(number, Result(4, last)) == (number == 4)
    judge.begin(5)
    assert not judge.result(5, Result(2, 0.29))


def test_median_lower_is_better() -> None:
    assert at(make("median", higher=False), 1, [1.0, 2.0, 3.0, 2.1, 2.0]) == [True] * 3 + [
        False,
        True,
    ]


def test_median_counts_last_results() -> None:
    judge = make("median", grace_epochs=2)
    for number in range(3):
        judge.begin(number)
        assert judge.result(number, Result(2, 0.5))
        judge.end(number, Result(5, 0.6))
    for number in (3, 4):
        judge.begin(number)
    # without their ends they would not have come as far as 4
    assert not judge.result(3, Result(4, 0.4))
    assert judge.result(4, Result(6, 0.4)), "none came as far"


@pytest.mark.parametrize("scheduler", ["asha_stopping", "median"])
def test_asked_again_gives_the_first_answer(scheduler: str) -> None:
    judge = make(scheduler)
    answers = at(judge, 1, [0.5, 0.6, 0.7, 0.1])
    assert answers == [True, True, True, False]
    again = [judge.result(number, Result(1, value)) for number, value in enumerate([0.0] * 3)]
    assert again == answers[:3]
    assert not judge.result(3, Result(1, 1.0))
    assert not judge.result(3, Result(3, 1.0))
    judge.end(3, Result(1, 0.1))


def rungs(num_trials: int, **of: Any) -> list[int]:
    """How many rungs the brackets of the trials have."""
    judge = make("hyperband", **of)
    assert isinstance(judge, Brackets)
    return [len(judge.of(number).milestones) for number in range(num_trials)]


@given(st.integers(0, 2**40), st.integers(1, 60), st.integers(1, 5))
def test_hyperband_shares_hold_for_any_number_of_trials(
    seed: int, num_trials: int, brackets: int
) -> None:
    found = Counter(rungs(num_trials, seed=seed, brackets=brackets))
    # with rungs 1 and 3: 9/3, 3/2, 1, of which so many brackets there are
    weights = dict(list({2: 3.0, 1: 1.5, 0: 1.0}.items())[:brackets])
    for of, weight in weights.items():
        assert abs(found[of] - num_trials * weight / sum(weights.values())) < 2


def test_hyperband_brackets_are_of_seed_and_number() -> None:
    assert rungs(12) == [1, 2, 0, 2, 2, 1, 2, 0, 1, 2, 1, 2]
    assert rungs(12, seed=1) != rungs(12)


def test_hyperband_brackets_judge_apart_and_from_their_first_rung() -> None:
    judge = make("hyperband")
    # of 1, 2, 0, 2, 2, 1 rungs
    assert at(judge, 1, [0.9, 0.5, 0.1, 0.4, 0.6, 0.1]) == [True, True, True, False, True, True]
    third = {0: 0.5, 1: 0.9, 2: 0.1, 4: 0.8, 5: 0.4}
    answers = {number: judge.result(number, Result(3, value)) for number, value in third.items()}
    assert answers == {0: True, 1: True, 2: True, 4: False, 5: False}


calls = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan])), max_size=40
)


def played(judge: Judge, calls: list[tuple[int, float]]) -> list[bool]:
    """The answers where each call takes its trial to the next milestone, and in the end to 9."""
    epochs: dict[int, int] = {}
    ended: set[int] = set()
    answers = []
    for number, value in calls:
        if number in ended:
            continue
        if number not in epochs:
            judge.begin(number)
        epochs[number] = epochs.get(number, 0) + 1
        result = Result(epochs[number], value)
        if result.epochs < 9:
            answers.append(judge.result(number, result))
        if result.epochs == 9 or not answers[-1]:
            ended.add(number)
            judge.end(number, result if value != 0.4 else None)
    return answers


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(calls)
def test_replay_gives_the_same_and_leaves_numpy_alone(
    scheduler: str, calls: list[tuple[int, float]]
) -> None:
    np.random.seed(1)
    first = played(make(scheduler), calls)
    drawn = np.random.random()
    np.random.seed(2)
    assert played(make(scheduler), calls) == first
    np.random.seed(1)
    assert np.random.random() == drawn


def test_without_early_ends_ray_is_not_imported() -> None:
    code = """
import sys
from dnformer.config import TuneConfig
from dnformer.tuning.judge import judge
for scheduler, epochs in (("none", 9), ("asha_stopping", 1), ("hyperband", 1), ("median", 1)):
    judge(TuneConfig(scheduler=scheduler), epochs, higher=True, seed=0)
assert "ray" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
