"""Float buffers through a step: who computed which micro-batch does not matter."""

import torch
from torch import nn

from dnformer.group import Group
from dnformer.training.buffers import StepBuffers


def test_step_buffers_end_at_the_mean_weighted_by_seeds():
    norm = nn.BatchNorm1d(1)
    norm.running_mean.fill_(5.0)
    buffers = StepBuffers(norm, weight=4)
    for seeds, value in ((3, 1.0), (1, 9.0)):
        buffers.reset()
        assert norm.running_mean.item() == 5.0
        norm.running_mean.fill_(value)
        buffers.add(seeds)
    buffers.finish(Group())
    assert norm.running_mean.item() == (3 * 1.0 + 1 * 9.0) / 4


def test_step_buffers_leave_counters_alone():
    norm = nn.BatchNorm1d(1)
    buffers = StepBuffers(norm, weight=2)
    for _ in range(2):
        buffers.reset()
        norm(torch.randn(3, 1))
        buffers.add(1)
    buffers.finish(Group())
    assert norm.num_batches_tracked.item() == 2
