"""What the next trial of a search tries: at random, in a grid, or by what the others found.

A proposal is a function of (seed, number, trials) alone, in any process: nothing else is kept.
"""

import contextlib
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dnformer.config import TuneConfig
from dnformer.tuning.space import Dimension, Space
from dnformer.tuning.trials import Params, Trial

if TYPE_CHECKING:
    import optuna


class Proposer(Protocol):
    """An order in which a space is tried."""

    def propose(self, number: int, trials: Sequence[Trial]) -> Params | None:
        """The params of trial `number`; None where nothing is left to try.

        Args:
            number: how many trials have begun.
            trials: all of them, in order of number, as the record has them.

        Raises:
            ConfigError: none of 100 draws is a valid config.
        """


def proposer(space: Space, tune: TuneConfig, *, seed: int, higher: bool) -> Proposer:
    """The one that `tune.search` names; `higher`: a higher metric is better.

    Raises:
        ConfigError: a grid of a space that is not finite.
    """
    if tune.search == "grid":
        return _Grid(space)
    if tune.search == "random":
        return _Random(space, seed)
    return _Optuna(space, tune, seed=seed, higher=higher)


class _Random:
    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed

    def propose(self, number: int, trials: Sequence[Trial]) -> Params | None:
        random = np.random.default_rng([self._seed, number])
        return next(self._space.valid(self._space.sample(random) for _ in itertools.count()))


class _Grid:
    def __init__(self, space: Space) -> None:
        self._grid = space.grid()

    def propose(self, number: int, trials: Sequence[Trial]) -> Params | None:
        return self._grid[number] if number < len(self._grid) else None


class _Optuna:
    """Multivariate TPE, asked anew for each trial in a study that is filled from the record."""

    def __init__(self, space: Space, tune: TuneConfig, *, seed: int, higher: bool) -> None:
        self._space, self._seed = space, seed
        # seconds and parameters are better when there are fewer
        self._maximized = [higher, *[False] * (len(tune.objectives) - 1)]
        # Optuna's 10 is half of a small search; BOHB (arXiv:1807.01774) asks for one more than
        # the dimensions. It must not hang on num_trials, which may grow in a resumed search
        self._startup = min(10, len(space.dimensions) + 2)

    def propose(self, number: int, trials: Sequence[Trial]) -> Params | None:
        tried = [trial.params for trial in trials]
        with quiet():
            study = self._study(number, trials)
            # an ask that is not taken stays a running trial, from which TPE keeps away
            draws = (self._draw(study.ask()) for _ in itertools.count())
            first = None
            for params in self._space.valid(draws):
                # the same config again would only give the same result
                if params not in tried:
                    return params
                first = first or params
        return first

    def _study(self, number: int, trials: Sequence[Trial]) -> "optuna.Study":
        import optuna

        words = np.random.SeedSequence([self._seed, number]).generate_state(1)
        sampler = optuna.samplers.TPESampler(
            seed=int(words[0]),
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=self._startup,
        )
        directions = optuna.study.StudyDirection
        study = optuna.create_study(
            sampler=sampler,
            directions=[
                directions.MAXIMIZE if maximized else directions.MINIMIZE
                for maximized in self._maximized
            ],
        )
        for trial in trials:
            study.add_trial(self._frozen(trial))
        return study

    def _frozen(self, trial: Trial) -> "optuna.trial.FrozenTrial":
        import optuna

        states = optuna.trial.TrialState
        # one that was judged, and may pause for long, tells what it has come to
        running = states.PRUNED if trial.results else states.RUNNING
        state = {
            "running": running,
            "finished": states.COMPLETE,
            # TPE ranks pruned trials by the epoch they came to, then by their value there: the
            # value of a few epochs is never compared with that of many
            "stopped": states.PRUNED,
            "failed": states.FAIL,
        }[trial.state]
        values = trial.values if state == states.COMPLETE else None
        if state == states.COMPLETE and (values is None or any(map(math.isnan, values))):
            state, values = states.FAIL, None
        chosen = [one for one in self._space.dimensions if one.path in trial.params]
        return optuna.trial.create_trial(
            state=state,
            values=values,
            params={one.path: coded(one, trial.params[one.path]) for one in chosen},
            distributions={one.path: distribution(one) for one in chosen},
            intermediate_values={result.epochs: result.value for result in trial.results},
        )

    def _draw(self, asked: "optuna.Trial") -> Params:
        return self._space.draw(lambda dimension: _suggested(asked, dimension))


def _suggested(asked: "optuna.Trial", dimension: Dimension) -> Any:
    path, low, high = dimension.path, dimension.low, dimension.high
    log = dimension.kind.startswith("log")
    if dimension.kind == "choice":
        return dimension.choices[asked.suggest_categorical(path, range(len(dimension.choices)))]
    if dimension.kind in ("int", "logint"):
        return asked.suggest_int(path, int(low), int(high), log=log)
    return asked.suggest_float(path, low, high, log=log)


def coded(dimension: Dimension, value: Any) -> Any:
    """A value as Optuna has it: a choice by its index, since it may be a list."""
    return dimension.choices.index(value) if dimension.choices else value


def distribution(dimension: Dimension) -> "optuna.distributions.BaseDistribution":
    """A dimension as Optuna has it."""
    from optuna import distributions

    if dimension.kind == "choice":
        return distributions.CategoricalDistribution(range(len(dimension.choices)))
    low, high, log = dimension.low, dimension.high, dimension.kind.startswith("log")
    if dimension.kind in ("int", "logint"):
        return distributions.IntDistribution(int(low), int(high), log=log)
    return distributions.FloatDistribution(low, high, log=log)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No line for each study, and none that `group` is experimental: its version is pinned."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
