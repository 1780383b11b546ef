"""Asynchronous successive halving that promotes (Li et al., MLSys 2020, algorithm 2).

A trial pauses at each rung, and goes on when it is among the best there. Against the variant that
only stops trials, nobody goes on because nobody came before it: fewer epochs, whatever the order.
"""

import math
from typing import final

from dnformer.config import TuneConfig
from dnformer.tuning.trials import Result


@final
class Halving:
    """Picks the paused trial that goes on next.

    Of n trials that have come to a rung the best n / reduction_factor go on, rounded down while new
    trials come, and up when none does, so that the best one is trained to its end. A value that is
    not finite never goes on.

    Args:
        tune: the section, for grace epochs and reduction factor.
        epochs: of a whole trial.
        higher: whether a higher value is better.

    Attributes:
        milestones: the rungs: grace times powers of the factor, below `epochs`.
    """

    milestones: tuple[int, ...]

    def __init__(self, tune: TuneConfig, epochs: int, *, higher: bool) -> None:
        self._factor, self._higher = tune.reduction_factor, higher
        self.milestones = tune.rungs(epochs)
        self._scores: dict[int, dict[int, float]] = {rung: {} for rung in self.milestones}
        self._paused: dict[int, int] = {}

    def result(self, number: int, result: Result) -> None:
        """A trial pauses at a rung."""
        score = result.value if self._higher else -result.value
        self._scores[result.epochs][number] = score if math.isfinite(score) else -math.inf
        self._paused[number] = result.epochs

    def next(self, *, last: bool) -> int | None:
        """The trial that goes on next, from the highest rung that has one.

        Args:
            last: no new trial comes any more.
        """
        for rung in reversed(self.milestones):
            scores = self._scores[rung]
            count = len(scores) / self._factor
            best = sorted(scores, key=lambda number: (-scores[number], number))
            for number in best[: math.ceil(count) if last else math.floor(count)]:
                if self._paused.get(number) == rung and scores[number] > -math.inf:
                    return number
        return None

    def leave(self, number: int) -> None:
        """A trial is paused no more: it goes on, or it has ended."""
        self._paused.pop(number, None)
