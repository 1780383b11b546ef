"""Population based training (Jaderberg et al., 2017): which trial takes over which one's state.

Pure decisions. A trial is compared with what the others had after as many epochs, so that the
epochs of a state never differ from those of the trial that takes it over.
"""

import itertools
import math
from typing import Any, NamedTuple, final

import numpy as np

from dnformer.config import TuneConfig
from dnformer.tuning.space import Dimension, Space
from dnformer.tuning.trials import Params, Result

# share of the trials that take over, and of those that are taken over
_QUANTILE = 0.25
# probability that a param is drawn again
_RESAMPLED = 0.25
_FACTORS = (0.8, 1.2)


class Exploit(NamedTuple):
    """A trial goes on from another's state, with other params.

    Attributes:
        source: the trial whose state after as many epochs is taken over.
        params: what the trial tries from here on.
    """

    source: int
    params: Params


class _Member(NamedTuple):
    """A trial at a milestone: what it was before any takeover there."""

    score: float
    params: Params
    exploit: Exploit | None


@final
class Population:
    """Lets the worst quarter of the trials that have come to a milestone take over the best.

    Nobody waits: a trial is compared with those that came before it, and the first never takes
    over. Its source is drawn among the best quarter, of those strictly better that did not take
    over there themselves, whose own state is no more. So the trials should run side by side; of
    trials that run one after another, only the later ones learn. No trial is ended. One whose value
    is not finite is among the worst, and never a source.

    Each of the source's params is drawn again with probability 0.25. Else it is moved: a number
    times 0.8 or 1.2 within its bounds, a whole one by at least 1, a choice to one beside it. All
    draws follow from (seed, number, epochs).

    Args:
        space: what params may be.
        tune: its section, for the grace epochs.
        epochs: of a whole trial.
        higher: whether a higher value is better.
        seed: of the search.

    Attributes:
        milestones: epochs done at which it is asked: every grace epochs.
    """

    milestones: tuple[int, ...]

    def __init__(
        self, space: Space, tune: TuneConfig, epochs: int, *, higher: bool, seed: int
    ) -> None:
        grace = tune.grace(epochs)
        self.milestones = tuple(range(grace, epochs, grace))
        self._space, self._higher, self._seed = space, higher, seed
        self._params: dict[int, Params] = {}
        self._rungs: dict[int, dict[int, _Member]] = {epochs: {} for epochs in self.milestones}

    def begin(self, number: int, params: Params) -> None:
        """A trial begins."""
        self._params[number] = params

    def result(self, number: int, result: Result) -> Exploit | None:
        """What a trial takes over after `result.epochs`; None: it goes on as it is.

        Asked a second time for the same epochs, it gives the first answer.

        Raises:
            ConfigError: none of 100 draws of params is a valid config.
        """
        rung = self._rungs.get(result.epochs)
        if rung is None:
            return None
        if number not in rung:
            score = result.value if self._higher else -result.value
            score = score if math.isfinite(score) else -math.inf
            random = np.random.default_rng(
                np.random.SeedSequence(self._seed, spawn_key=(number, result.epochs))
            )
            exploit = self._exploit(rung, score, random)
            rung[number] = _Member(score, self._params[number], exploit)
            if exploit is not None:
                self._params[number] = exploit.params
        return rung[number].exploit

    def _exploit(
        self, before: dict[int, _Member], score: float, random: np.random.Generator
    ) -> Exploit | None:
        sources = _sources(before, score)
        if not sources:
            return None
        source = sources[int(random.integers(len(sources)))]
        params = before[source].params
        draws = (
            self._space.draw(lambda dimension: _explored(dimension, params, random))
            for _ in itertools.count()
        )
        return Exploit(source, next(self._space.valid(draws)))


def _sources(before: dict[int, _Member], score: float) -> list[int]:
    """The trials that one with this score may take over, best first; none unless it is bad."""
    count = len(before) + 1
    quantile = min(math.ceil(count * _QUANTILE), count // 2)
    if sum(member.score < score for member in before.values()) >= quantile:
        return []
    better = [n for n, member in before.items() if member.score > score and not member.exploit]
    return sorted(better, key=lambda n: (-before[n].score, n))[:quantile]


def _explored(dimension: Dimension, params: Params, random: np.random.Generator) -> Any:
    if dimension.path not in params or random.random() < _RESAMPLED:
        return dimension.sample(random)
    value, up = params[dimension.path], int(random.integers(2))
    if dimension.kind == "choice":
        return _beside(dimension.choices, value, up)
    moved, low, high = value * _FACTORS[up], dimension.low, dimension.high
    if dimension.kind in ("int", "logint"):
        moved = max(round(moved), value + 1) if up else min(round(moved), value - 1)
        return int(min(max(moved, low), high))
    return float(min(max(moved, low), high))


def _beside(choices: tuple[Any, ...], value: Any, up: int) -> Any:
    """The choice after or before `value`; at an end, the only one beside it."""
    index = choices.index(value)
    beside = [choices[i] for i in (index - 1, index + 1) if 0 <= i < len(choices)]
    return beside[up % len(beside)] if beside else value
