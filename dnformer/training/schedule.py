"""Learning rates: functions of the config, the step and the decays so far, of nothing else."""

import math
from typing import NamedTuple

from dnformer.config import OptimConfig


class Position(NamedTuple):
    """Where a step is in the run.

    Attributes:
        step: steps done in the run before it.
        steps_per_epoch: steps of each epoch.
        epochs: epochs of the whole run.
    """

    step: int
    steps_per_epoch: int
    epochs: int


def learning_rate(config: OptimConfig, at: Position, decays: int = 0) -> float:
    """The learning rate of the step at `at`.

    In the first `warmup_steps` it grows linearly from `lr / warmup_steps`, on top of the schedule.
    Cosine goes from `lr` at the step after them to `min_lr` at the end of the last epoch, which the
    step after the run's last would have.

    Args:
        config: the schedule.
        at: the step.
        decays: how often schedule plateau has decayed so far; no other schedule reads it.
    """
    warmup = min(1.0, (at.step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return warmup * _scheduled(config, at, decays)


def _scheduled(config: OptimConfig, at: Position, decays: int) -> float:
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "cosine":
        total = max(at.epochs * at.steps_per_epoch - config.warmup_steps, 1)
        after = min(max(at.step - config.warmup_steps, 0), total)
        share = 0.5 * (1 + math.cos(math.pi * after / total))
        return config.min_lr + (config.lr - config.min_lr) * share
    if config.schedule == "step":
        decays = at.step // at.steps_per_epoch // config.decay_epochs
    return max(config.min_lr, config.lr * config.decay_factor**decays)
