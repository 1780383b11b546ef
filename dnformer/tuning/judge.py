"""Which trials go on after a milestone: Ray Tune's rules, without its controller.

A rule sees stand-ins for Ray's trials, and epochs instead of a clock, so that the same calls give
the same answers. Ray is imported where a rule of its is made: inside a session, if there is one.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from dnformer.config import TuneConfig
from dnformer.tuning.trials import Result

_TIME, _VALUE = "epochs", "value"


class Judge(Protocol):
    """Ends trials early. Every call is in the order of the record.

    Attributes:
        milestones: epochs done at which a trial is judged, ascending, below the trial's epochs.
    """

    milestones: tuple[int, ...]

    def begin(self, number: int) -> None:
        """A trial begins."""

    def result(self, number: int, result: Result) -> bool:
        """Whether the trial goes on. A value that is not finite ends it."""

    def end(self, number: int, result: Result | None) -> None:
        """A trial has ended, with this last result; None: it failed, what it had counts on."""


def judge(tune: TuneConfig, epochs: int, *, higher: bool, seed: int) -> Judge:
    """The judge of a search; not of asha (`tune.halving`) nor pbt (`tune.population`).

    - asha_stopping (Li et al., MLSys 2020), as Ray has it: nobody waits in a rung. A trial goes on
      if its value is not below the percentile 1 - 1 / reduction_factor of those recorded there
      before it. So the first to come always goes on, and so does each that is as good as the best.
    - hyperband (Li et al., JMLR 2018): that in brackets, each of which begins one rung later. With
      enough brackets the last judges nobody.
    - median (Golovin et al., KDD 2017): every grace epochs, ends a trial whose value is worse than
      the median over the others, three at least that came as far, of their mean value up to there.

    Args:
        tune: the section; `num_trials` does not matter.
        epochs: of a whole trial.
        higher: whether a higher value is better.
        seed: of the search; decides on the trials of each bracket.
    """
    mode = "max" if higher else "min"
    if tune.scheduler == "median":
        grace = tune.grace(epochs)
        return _median(tuple(range(grace, epochs, grace)), mode)
    rungs = tune.rungs(epochs)
    if tune.scheduler == "asha_stopping":
        return _asha(rungs, epochs, tune.reduction_factor, mode)
    if tune.scheduler == "hyperband":
        starts = range(min(tune.brackets, len(rungs) + 1))
        brackets = [_asha(rungs[s:], epochs, tune.reduction_factor, mode) for s in starts]
        return Brackets(brackets, tune.reduction_factor, seed)
    assert tune.scheduler == "none", tune.scheduler
    return Lenient()


@final
class Lenient:
    """Ends no trial, except for a value that is not finite."""

    milestones: tuple[int, ...] = ()

    def begin(self, number: int) -> None:
        """Nothing to do."""

    def result(self, number: int, result: Result) -> bool:
        """Whether the value is finite."""
        return math.isfinite(result.value)

    def end(self, number: int, result: Result | None) -> None:
        """Nothing to do."""


class _Trial(NamedTuple):
    """What Ray's rules see of a trial."""

    trial_id: int


@final
class RayRule:
    """A rule of Ray's, asked at its milestones only.

    Asked a second time, as by a trial that was started again, it gives the first answer. No value
    that is not finite comes to Ray: among percentiles an infinite one would make NaN, which nobody
    is below.

    Args:
        scheduler: a TrialScheduler over the attributes "epochs" and "value".
        milestones: where it judges.
    """

    def __init__(self, scheduler: Any, milestones: tuple[int, ...]) -> None:
        self.milestones = milestones
        self._scheduler = scheduler
        self._judged: dict[int, int] = {}  # epochs up to which a trial was judged
        self._ended: set[int] = set()

    def begin(self, number: int) -> None:
        """A trial begins."""
        with _numpy_state_kept():
            self._scheduler.on_trial_add(None, _Trial(number))

    def result(self, number: int, result: Result) -> bool:
        """Whether the trial goes on."""
        if not math.isfinite(result.value):
            self._ended.add(number)
        if number not in self._ended and self._is_new(number, result):
            if result.epochs not in self.milestones:
                return True
            self._judged[number] = result.epochs
            said = self._scheduler.on_trial_result(None, _Trial(number), _for_ray(result))
            if said == self._scheduler.STOP:
                self._ended.add(number)
        return number not in self._ended

    def end(self, number: int, result: Result | None) -> None:
        """A trial has ended; what came after its last milestone is made known too."""
        if result is not None and math.isfinite(result.value) and self._is_new(number, result):
            self._judged[number] = result.epochs
            self._scheduler.on_trial_complete(None, _Trial(number), _for_ray(result))

    def _is_new(self, number: int, result: Result) -> bool:
        return result.epochs > self._judged.get(number, 0)


@final
class Brackets:
    """Each trial has one of several judges, as HyperBand shares them out.

    A trial's bracket follows from (seed, number). The shares are HyperBand's, reduction_factor^s /
    (s + 1) of a bracket with s rungs, and hold within a trial or two for any number of trials: the
    numbers go through them in steps of the golden ratio, which no grid of params keeps pace with.

    Args:
        brackets: the one that judges earliest first.
        reduction_factor: of their rungs.
        seed: of the search.
    """

    def __init__(self, brackets: Sequence[Judge], reduction_factor: int, seed: int) -> None:
        self.milestones = brackets[0].milestones
        self._brackets = brackets
        rungs = [len(bracket.milestones) for bracket in brackets]
        weights = [reduction_factor**s / (s + 1) for s in rungs]
        self._bounds = [part / sum(weights) for part in accumulate(weights)][:-1]
        self._start = np.random.default_rng(seed).random()

    def begin(self, number: int) -> None:
        """A trial begins."""
        self.of(number).begin(number)

    def result(self, number: int, result: Result) -> bool:
        """Whether the trial goes on; it does at milestones that its bracket does not have."""
        return self.of(number).result(number, result)

    def end(self, number: int, result: Result | None) -> None:
        """A trial has ended."""
        self.of(number).end(number, result)

    def of(self, number: int) -> Judge:
        """The judge of a trial."""
        position = (self._start + number * (math.sqrt(5) - 1) / 2) % 1
        return self._brackets[bisect(self._bounds, position)]


def _asha(rungs: tuple[int, ...], epochs: int, reduction_factor: int, mode: str) -> Judge:
    if not rungs:
        return Lenient()
    from ray.tune.schedulers import AsyncHyperBandScheduler

    scheduler = AsyncHyperBandScheduler(
        time_attr=_TIME,
        metric=_VALUE,
        mode=mode,
        max_t=epochs,
        grace_period=rungs[0],
        reduction_factor=reduction_factor,
    )
    return RayRule(scheduler, rungs)


def _median(milestones: tuple[int, ...], mode: str) -> Judge:
    if not milestones:
        return Lenient()
    from ray.tune.schedulers import MedianStoppingRule

    scheduler = MedianStoppingRule(
        time_attr=_TIME,
        metric=_VALUE,
        mode=mode,
        grace_period=milestones[0],
        min_samples_required=3,
        # it never yields to waiting trials, for which it would ask a controller
        min_time_slice=math.inf,
        hard_stop=True,
    )
    return RayRule(scheduler, milestones)


def _for_ray(result: Result) -> dict[str, float]:
    return {_TIME: result.epochs, _VALUE: result.value}


@contextmanager
def _numpy_state_kept() -> Iterator[None]:
    """Gives numpy's global generator its state back: Ray draws from it, if only among one."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)
