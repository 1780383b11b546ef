"""Population based training: who takes over whom, and with which params."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnformer.config import RunConfig
from dnformer.tuning.population import Exploit, Population
from dnformer.tuning.space import Space
from dnformer.tuning.trials import Result

LR = {"optim.lr": {"loguniform": [1e-4, 1e-2]}}


def make(
    space: dict[str, Any] = LR, epochs: int = 9, *, higher: bool = True, seed: int = 0, **of: Any
) -> Population:
    tune = {"scheduler": "pbt", "space": space}
    base = RunConfig.model_validate({"name": "run", "data": {"uri": "cache"}, "tune": tune} | of)
    return Population(Space(base), base.tune, epochs, higher=higher, seed=seed)


def at(
    population: Population, epochs: int, values: list[float], params: dict[str, Any] | None = None
) -> list[Exploit | None]:
    """The answers to trials 0, 1, .. that come to a milestone in this order."""
    answers = []
    for number, value in enumerate(values):
        population.begin(number, params or {"optim.lr": 1e-3 + number * 1e-4})
        answers.append(population.result(number, Result(epochs, value)))
    return answers


def sources(answers: list[Exploit | None]) -> list[int | None]:
    return [answer.source if answer else None for answer in answers]


@pytest.mark.parametrize(
    ("epochs", "expected"), [(9, tuple(range(1, 9))), (27, tuple(range(5, 27, 5))), (1, ())]
)
def test_milestones(epochs: int, expected: tuple[int, ...]) -> None:
    population = make(epochs=epochs)
    assert population.milestones == expected
    assert at(population, epochs, [1.0, 0.0]) == [None, None]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([0.5, 0.6], [None, None], id="first"),
        pytest.param([0.6, 0.5], [None, 0], id="second"),
        pytest.param([0.5, 0.5, 0.5, 0.5], [None] * 4, id="equal"),
        # a quarter is one of four, and two of five
        pytest.param([0.3, 0.4, 0.5, 0.31], [None] * 4, id="middle"),
        pytest.param([0.3, 0.4, 0.5, 0.31, 0.32], [None] * 5, id="third-of-five"),
        pytest.param([0.3, 0.4, 0.5, 0.6, 0.2], [None] * 4 + [3], id="worst"),
        pytest.param([math.nan, 0.5, math.nan, -math.inf], [None, None, 1, 1], id="not-finite"),
        pytest.param([math.nan, math.nan], [None, None], id="none-finite"),
    ],
)
def test_the_worst_quarter_takes_over_the_best(
    values: list[float], expected: list[int | None]
) -> None:
    assert sources(at(make(), 1, values)) == expected
    mirrored = [-value for value in values]
    assert sources(at(make(higher=False), 1, mirrored)) == expected


def test_sources_are_drawn_among_the_best_quarter() -> None:
    values = [0.1 * number for number in range(1, 9)] + [0.05]
    drawn = {sources(at(make(seed=seed), 1, values))[-1] for seed in range(40)}
    assert drawn == {5, 6, 7}


def test_who_took_over_is_no_source_there() -> None:
    for seed in range(20):
        answers = at(make(seed=seed), 1, [0.6, 0.5, 0.4, 0.3, 0.2])
        assert sources(answers) == [None, 0, 0, 0, 0]


def test_milestones_are_apart_and_params_those_of_the_time() -> None:
    moves = 0
    for seed in range(40):
        population = make(seed=seed)
        for number, lr in enumerate([0.001, 0.005]):
            population.begin(number, {"optim.lr": lr})
        assert population.result(0, Result(1, 0.6)) is None
        first = population.result(1, Result(1, 0.5))
        assert population.result(1, Result(2, 0.8)) is None
        back = population.result(0, Result(2, 0.7))
        assert first is not None
        assert back is not None
        assert (first.source, back.source) == (0, 1)
        factor = back.params["optim.lr"] / first.params["optim.lr"]
        moves += round(factor, 9) in (0.8, 1.2)
        assert population.result(1, Result(1, 0.9)) == first, "asked again"
        assert population.result(0, Result(100, 0.1)) is None, "no milestone"
    assert moves > 20


def test_draws_of_each_milestone_are_apart() -> None:
    population = make(epochs=30, higher=False)
    for number in range(2):
        population.begin(number, {"optim.lr": 0.001})
    found = set()
    for epochs in population.milestones:
        population.result(0, Result(epochs, 0.1))
        exploit = population.result(1, Result(epochs, 0.2))
        assert exploit is not None
        found.add(exploit.params["optim.lr"])
    assert {0.0008, 0.0012} < found


def taken_over(space: dict[str, Any], params: dict[str, Any], **of: Any) -> list[dict[str, Any]]:
    """The params that follow from a source's, for 200 seeds."""
    exploits = [at(make(space, seed=seed, **of), 1, [1.0, 0.0], params)[1] for seed in range(200)]
    return [exploit.params for exploit in exploits if exploit]


@pytest.mark.parametrize(
    ("entry", "value", "moved"),
    [
        pytest.param({"loguniform": [0.001, 0.1]}, 0.01, {0.008, 0.012}, id="loguniform"),
        pytest.param({"uniform": [0.001, 0.1]}, 0.09, {0.09 * 0.8, 0.1}, id="clipped"),
        pytest.param({"choice": [0.1, 0.2, 0.3]}, 0.2, {0.1, 0.3}, id="choice"),
        pytest.param({"choice": [0.1, 0.2, 0.3]}, 0.3, {0.2}, id="choice-end"),
        pytest.param({"choice": [0.1]}, 0.1, {0.1}, id="choice-of-one"),
    ],
)
def test_numbers_and_choices_are_moved(entry: Any, value: float, moved: set[float]) -> None:
    found = [params["optim.lr"] for params in taken_over({"optim.lr": entry}, {"optim.lr": value})]
    assert len(found) == 200
    assert moved <= set(found)
    share = sum(lr in moved for lr in found) / 200
    # a quarter is drawn again, from a choice perhaps at the same value
    assert share == 1 if "choice" in entry and len(entry["choice"]) == 1 else 0.65 < share < 0.95


@pytest.mark.parametrize(
    ("kind", "value", "moved"),
    [("int", 20, {16, 24}), ("logint", 2, {1, 3}), ("int", 1, {1, 2}), ("int", 30, {24, 30})],
)
def test_whole_numbers_move_by_at_least_one(kind: str, value: int, moved: set[int]) -> None:
    path = "optim.warmup_steps"
    found = [params[path] for params in taken_over({path: {kind: [1, 30]}}, {path: value})]
    assert all(type(steps) is int and 1 <= steps <= 30 for steps in found)
    assert sum(steps in moved for steps in found) / 200 > 0.65


def test_conditions_hold_after_a_move() -> None:
    schedule, decay = "optim.schedule", "optim.decay_factor"
    space = {
        decay: {"uniform": [0.1, 0.9], "when": {schedule: "step"}},
        schedule: {"choice": ["constant", "step"]},
    }
    for params in ({schedule: "constant"}, {schedule: "step", decay: 0.5}):
        found = taken_over(space, params)
        assert {one[schedule] for one in found} == {"constant", "step"}
        assert all((decay in one) == (one[schedule] == "step") for one in found)


def test_params_are_a_valid_config() -> None:
    found = taken_over(LR, {"optim.lr": 0.0011}, optim={"min_lr": 0.001})
    assert all(params["optim.lr"] > 0.001 for params in found)


calls = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.3, 0.4, math.nan])), max_size=40
)


def played(calls: list[tuple[int, float]], seed: int) -> list[Exploit | None]:
    population, epochs = make(seed=seed), [0] * 6
    for number in range(6):
        population.begin(number, {"optim.lr": 1e-3})
    answers = []
    for number, value in calls:
        epochs[number] += 1
        answers.append(population.result(number, Result(epochs[number], value)))
    return answers


@given(calls, st.integers(0, 2**40))
def test_replay_gives_the_same_and_leaves_numpy_alone(
    calls: list[tuple[int, float]], seed: int
) -> None:
    np.random.seed(1)
    first = played(calls, seed)
    drawn = np.random.random()
    assert played(calls, seed) == first
    np.random.seed(1)
    assert np.random.random() == drawn
    for answer in first:
        assert answer is None or 1e-4 <= answer.params["optim.lr"] <= 1e-2
