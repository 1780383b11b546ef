"""Float buffers of a model (BatchNorm's averages) through a step of several micro-batches."""

from typing import final

import torch
from torch import nn

from dnformer.group import Group


@final
class StepBuffers:
    """Each micro-batch starts from the step's buffers; the step ends at their weighted mean.

    So it does not matter which rank computed which micro-batch.

    Args:
        model: its float buffers are handled in place.
        weight: seeds of the whole step.
    """

    def __init__(self, model: nn.Module, weight: int) -> None:
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._before = [b.clone() for b in self._buffers]
        self._mean = [torch.zeros_like(b) for b in self._buffers]
        self._weight = weight

    def reset(self) -> None:
        """Call before each micro-batch."""
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)

    def add(self, num_seeds: int) -> None:
        """Call after a micro-batch of `num_seeds` seeds."""
        for buffer, mean in zip(self._buffers, self._mean, strict=True):
            mean += buffer * (num_seeds / self._weight)

    def finish(self, group: Group) -> None:
        """Call at the end of the step, on every rank."""
        for buffer, mean in zip(self._buffers, self._mean, strict=True):
            buffer.copy_(group.sum_(mean))
