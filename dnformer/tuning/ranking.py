"""Which trials of a search are the best ones; a value that is not finite never is."""

import math
from collections.abc import Sequence

from dnformer.config.search import Objective
from dnformer.tuning.trials import Trial


def counts(trial: Trial) -> bool:
    """Whether a trial has ended with a metric."""
    ended = trial.state in ("finished", "stopped")
    return ended and trial.values is not None and math.isfinite(trial.values[0])


def ranked(
    trials: Sequence[Trial], objectives: Sequence[Objective], *, higher: bool
) -> list[Trial]:
    """The trials that have ended with a metric, the best one first.

    Where two metrics are equal the other objectives decide, in their order, then the number.

    Args:
        trials: of a search.
        objectives: what their `values` are.
        higher: whether a higher metric is better; of the other objectives a lower one is.
    """
    return [trial for *_, trial in _places(trials, objectives, higher=higher)]


def best_of(
    trials: Sequence[Trial], objectives: Sequence[Objective], *, higher: bool
) -> Trial | None:
    """The first of `ranked`; None where no trial counts."""
    return next(iter(ranked(trials, objectives, higher=higher)), None)


def front_of(
    trials: Sequence[Trial], objectives: Sequence[Objective], *, higher: bool
) -> tuple[Trial, ...]:
    """The Pareto front, as `ranked` orders it: no other trial is as good in every objective.

    Of trials with equal values it has the one with the lowest number.
    """
    front: list[tuple[tuple[float, ...], Trial]] = []
    # one that is as good in all stands before
    for losses, _, trial in _places(trials, objectives, higher=higher):
        if not any(all(map(float.__le__, other, losses)) for other, _ in front):
            front.append((losses, trial))
    return tuple(trial for _, trial in front)


def _places(
    trials: Sequence[Trial], objectives: Sequence[Objective], *, higher: bool
) -> list[tuple[tuple[float, ...], int, Trial]]:
    """(losses, lower is better; number; trial) in their order."""
    places = []
    for trial in trials:
        if not counts(trial):
            continue
        losses = tuple(
            _loss(value, higher=higher and objective == "metric")
            for objective, value in zip(objectives, trial.values or (), strict=True)
        )
        places.append((losses, trial.number, trial))
    return sorted(places, key=lambda place: place[:2])


def _loss(value: float, *, higher: bool) -> float:
    if not math.isfinite(value):
        return math.inf
    return -float(value) if higher else float(value)
