import math
import random as python_random
import statistics
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import optuna
import pytest

from dnformer.config import RunConfig
from dnformer.errors import ConfigError
from dnformer.parsing import parse
from dnformer.tuning.proposals import Proposer, proposer
from dnformer.tuning.space import Space
from dnformer.tuning.trials import Params, Result, State, Trial

WIDE = {
    "optim.lr": {"loguniform": [1e-5, 1e-1]},
    "loader.num_neighbors": {"choice": [10, [15, 10], [5, 5]]},
    "optim.schedule": {"choice": ["constant", "step"]},
    "optim.decay_epochs": {"int": [5, 50], "when": {"optim.schedule": "step"}},
    "optim.decay_factor": {"uniform": [0.1, 0.9], "when": {"optim.schedule": "step"}},
    "loader.batch_size": {"logint": [16, 512]},
}
LR = {"optim.lr": {"loguniform": [1e-5, 1e-1]}}


def of(space: dict[str, Any], *, seed: int = 0, higher: bool = True, **tune: Any) -> Proposer:
    config = parse(
        RunConfig,
        {"name": "search", "data": {"uri": "cache/cora"}, "tune": {"space": space, **tune}},
    )
    return proposer(Space(config), config.tune, seed=seed, higher=higher)


def value(params: Params) -> float:
    """Highest at a learning rate of 1e-3."""
    return -abs(math.log10(params["optim.lr"]) + 3)


def ended(number: int, params: Params, *values: float, state: State = "finished") -> Trial:
    return Trial(number, params, state, (Result(9, values[0]),), values)


def searched(search: Proposer, count: int) -> list[Trial]:
    trials: list[Trial] = []
    for number in range(count):
        params = search.propose(number, trials)
        assert params is not None
        trials.append(ended(number, params, value(params)))
    return trials


def median_lr(trials: list[Trial], *, higher: bool = True, **tune: Any) -> float:
    """The median proposal of log10 of the learning rate after `trials`."""
    drawn = []
    for seed in range(9):
        params = of(LR, seed=seed, higher=higher, **tune).propose(len(trials), trials)
        assert params is not None
        drawn.append(math.log10(params["optim.lr"]))
    return statistics.median(drawn)


def around(exponent: float, count: int) -> list[float]:
    """Learning rates near a power of ten."""
    return [10 ** (exponent + 0.02 * index) for index in range(count)]


def test_random_is_a_function_of_seed_and_number() -> None:
    search = of(WIDE, search="random", seed=1)
    trials = searched(search, 5)
    assert len({trial.params["optim.lr"] for trial in trials}) == 5
    again = of(WIDE, search="random", seed=1)
    assert again.propose(3, []) == trials[3].params
    assert of(WIDE, search="random", seed=2).propose(3, trials[:3]) != trials[3].params


def test_random_draws_again_what_is_no_valid_config() -> None:
    space = {"model.hidden": {"int": [8, 64]}, "model.heads": {"choice": [5, 7]}}
    search = of(space, search="random")
    for number in range(50):
        params = search.propose(number, [])
        assert params is not None
        assert params["model.hidden"] % params["model.heads"] == 0


def test_grid_is_tried_in_order_and_ends() -> None:
    search = of({"model.heads": {"choice": [4, 3, 1]}}, search="grid")
    tried = [search.propose(number, []) for number in range(3)]
    assert tried == [{"model.heads": 4}, {"model.heads": 1}, None]


def test_grid_without_end_is_refused_before_it_begins() -> None:
    with pytest.raises(ConfigError, match="search grid cannot try"):
        of(LR, search="grid")


def test_optuna_sets_conditional_fields_where_they_hold() -> None:
    trials = searched(of(WIDE), 30)
    step = [trial.params for trial in trials if trial.params["optim.schedule"] == "step"]
    assert 0 < len(step) < 30
    conditional = {"optim.decay_epochs", "optim.decay_factor"}
    for trial in trials:
        expected = WIDE.keys() if trial.params in step else WIDE.keys() - conditional
        assert trial.params.keys() == expected
        assert trial.params["loader.num_neighbors"] in ([10], [15, 10], [5, 5])


def test_optuna_is_a_function_of_seed_number_and_trials() -> None:
    trials = searched(of(WIDE, seed=4), 16)
    for number in (2, 12, 15):
        # in an object of its own, as after a restart
        assert of(WIDE, seed=4).propose(number, trials[:number]) == trials[number].params
    assert of(WIDE, seed=5).propose(12, trials[:12]) != trials[12].params
    better = [ended(t.number, t.params, -value(t.params)) for t in trials[:12]]
    assert of(WIDE, seed=4).propose(12, better) != trials[12].params
    # a search that is made longer goes on as if it had been as long from the start
    longer = of(WIDE, seed=4, num_trials=200)
    assert longer.propose(12, trials[:12]) == trials[12].params


def test_optuna_proposes_the_same_in_another_process() -> None:
    code = (
        "import runpy, sys\n"
        "module = runpy.run_path(sys.argv[1])\n"
        "trials = module['searched'](module['of'](module['WIDE']), 12)\n"
        "print([trial.params for trial in trials])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code, __file__],
            env={"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            # nor is anything else said
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert printed == {f"{[trial.params for trial in searched(of(WIDE), 12)]}\n"}


def test_optuna_finds_better_ones_than_random() -> None:
    space = {**LR, "model.layers": {"int": [1, 6]}}
    medians = {}
    for search in ("optuna", "random"):
        searches = [searched(of(space, search=search, seed=seed), 40) for seed in range(4)]
        late = [value(trial.params) for trials in searches for trial in trials[-15:]]
        medians[search] = statistics.median(late)
    # a quarter of the range around the best, and a half
    assert medians["optuna"] > -0.65
    assert medians["random"] < -0.85


@pytest.mark.parametrize("higher", [True, False])
def test_optuna_goes_where_the_metric_is_better(higher: bool) -> None:
    rates = [*around(-4, 8), *around(-2, 8)]
    trials = [ended(n, {"optim.lr": lr}, 0.1 + (n >= 8)) for n, lr in enumerate(rates)]
    assert (median_lr(trials, higher=higher) > -3) == higher


def test_optuna_does_not_compare_stopped_trials_with_those_of_more_epochs() -> None:
    low, high = around(-4, 8), around(-2, 8)
    # one rung further counts, not a value that nobody had there
    fast = [
        Trial(n, {"optim.lr": lr}, "stopped", (Result(3, 0.9),), (0.9,)) for n, lr in enumerate(low)
    ]
    slow = [
        Trial(8 + n, {"optim.lr": lr}, "stopped", (Result(3, 0.7), Result(9, 0.8)), (0.8,))
        for n, lr in enumerate(high)
    ]
    assert median_lr([*fast, *slow]) > -3


def test_optuna_does_not_learn_from_failed_trials_nor_from_a_value_that_is_no_number() -> None:
    finished = [ended(n, {"optim.lr": lr}, 0.5) for n, lr in enumerate(around(-3, 8))]
    proposals = []
    for exponent in (-5, -2):
        params = [{"optim.lr": lr} for lr in around(exponent, 8)]
        failed = [Trial(8 + n, given, "failed") for n, given in enumerate(params)]
        undefined = [ended(8 + n, given, math.nan) for n, given in enumerate(params)]
        proposals += [of(LR).propose(16, [*finished, *more]) for more in (failed, undefined)]
    assert proposals == [proposals[0]] * 4


def test_optuna_keeps_away_from_running_trials() -> None:
    space = {"seed": {"choice": [0, 1, 2]}, **LR}
    done = [ended(n, {"seed": n % 3, "optim.lr": 10.0 ** -(2 + n / 9)}, 0.5) for n in range(9)]
    busy = [Trial(9 + n, {"seed": 1, "optim.lr": 10.0 ** -(4 + n / 9)}) for n in range(9)]
    alone = [of(space, seed=seed).propose(18, done) for seed in range(40)]
    beside = [of(space, seed=seed).propose(18, [*done, *busy]) for seed in range(40)]
    ones = [sum(p is not None and p["seed"] == 1 for p in drawn) for drawn in (alone, beside)]
    assert ones[1] < ones[0]


def test_optuna_tries_each_config_once_while_there_are_others() -> None:
    space = {"model.heads": {"choice": [1, 2, 4]}, "model.layers": {"int": [1, 3]}}
    search = of(space)
    trials: list[Trial] = []
    for number in range(9):
        params = search.propose(number, trials)
        assert params is not None
        assert params not in [trial.params for trial in trials]
        states: list[State] = ["finished", "failed", "running"]
        trials.append(Trial(number, params, states[number % 3], (), (0.5,)))
    assert search.propose(9, trials) in [trial.params for trial in trials]


def test_optuna_draws_again_what_is_no_valid_config() -> None:
    space = {"model.hidden": {"int": [8, 64]}, "model.heads": {"choice": [5, 7]}}
    search = of(space)
    trials: list[Trial] = []
    for number in range(15):
        params = search.propose(number, trials)
        assert params is not None
        assert params["model.hidden"] % params["model.heads"] == 0
        trials.append(ended(number, params, params["model.hidden"]))


def test_optuna_of_several_objectives_weighs_metric_seconds_and_parameters() -> None:
    tune = {"objectives": ["metric", "seconds_per_epoch", "parameters"], "scheduler": "none"}
    rates = [*around(-4, 8), *around(-2, 8)]
    # equal in two, and the better of one is at 1e-4
    for column, good in ((0, 0.9), (1, 1.0), (2, 500.0)):
        values = [0.5, 2.0, 1000.0]
        better = [*values[:column], good, *values[column + 1 :]]
        trials = [
            ended(n, {"optim.lr": lr}, *(better if n < 8 else values)) for n, lr in enumerate(rates)
        ]
        assert median_lr(trials, **tune) < -3


def test_optuna_leaves_the_process_as_it_was() -> None:
    def state() -> tuple[Any, ...]:
        return (
            python_random.getstate(),
            np.random.get_state()[1].tolist(),
            list(warnings.filters),
            optuna.logging.get_verbosity(),
        )

    optuna.logging.set_verbosity(optuna.logging.INFO)  # its default
    before = state()
    searched(of(WIDE), 12)
    assert state() == before
