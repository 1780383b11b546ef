"""The state of a run: what comes back, what does not fit."""

import pytest
import torch
from torch import nn

from dnformer.config import OptimConfig
from dnformer.errors import CheckpointError
from dnformer.training.optim import Optim, Position
from dnformer.training.state import TrainState


def make_state(*, steps: int = 0, seed: int = 0, width: int = 4) -> TrainState:
    """A linear model that took `steps` steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2))
    config = OptimConfig(lr=0.1, ema_decay=0.9)
    optim = Optim(model, config, precision="float32", device=torch.device("cpu"))
    state = TrainState(model, optim)
    for _ in range(steps):
        take_step(state)
    return state


def take_step(state: TrainState) -> None:
    state.optim.optimizer.zero_grad()
    state.optim.backward(state.model(torch.ones(1, 3)).square().sum())
    state.optim.step(Position(state.steps_done, 5, 2))
    state.steps_done += 1


def test_restore_gives_the_same_next_steps():
    state = make_state(steps=3)
    state.epoch, state.step, state.seconds = 1, 2, 5.5
    state.totals, state.recent = [0.5, 7.0], [0.1, 1.0]
    state.keep_best(0.75)
    state.rank(0.75, 2, lower_is_better=False)
    state.stale = 4
    saved, again = state.snapshot(), make_state(seed=1)
    again.restore(saved.tensors, saved.values)
    assert again.values() == state.values()
    for one in (state, again):
        take_step(one)
    first, second = state.snapshot().tensors, again.snapshot().tensors
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_snapshot_does_not_follow_the_state():
    state = make_state(steps=1)
    state.totals = [1.0]
    state.keep_best(1.0)
    saved = state.snapshot()
    before = {name: tensor.clone() for name, tensor in saved.tensors.items()}
    state.totals[0] = 2.0
    take_step(state)
    state.keep_best(2.0)
    assert saved.step == 1
    assert saved.values["totals"] == [1.0]
    for name, tensor in before.items():
        assert torch.equal(saved.tensors[name], tensor), name


def test_keep_best_does_not_follow_the_model():
    state = make_state(steps=1)
    state.keep_best(1.0)
    before = state.best_model["0.weight"].clone()
    take_step(state)
    assert torch.equal(state.best_model["0.weight"], before)


@pytest.mark.parametrize(
    ("lower", "expected"),
    [(False, [(3.0, 2), (3.0, 4)]), (True, [(1.0, 1), (2.0, 3)])],
    ids=["higher", "lower"],
)
def test_rank_keeps_the_best_and_of_equal_ones_the_first(lower, expected):
    state = make_state()
    for step, value in enumerate([1.0, 3.0, 2.0, 3.0], start=1):
        state.steps_done = step
        state.rank(value, 2, lower_is_better=lower)
    assert state.ranked == expected


def test_restore_refuses_another_model():
    saved = make_state(steps=1).snapshot()
    with pytest.raises(
        CheckpointError, match=r"0\.bias is \[4\] torch\.float32, the model has \[5\]"
    ):
        make_state(width=5).restore(saved.tensors, saved.values)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epoch", "a"), ("epoch", -1), ("step", 1.5), ("seconds", float("nan")), ("best_value", []),
     ("totals", {"a": 1}), ("steps_done", None), ("model", {})],
    ids=str,
)  # fmt: skip
def test_restore_refuses_values_that_are_none(field, value):
    saved = make_state(steps=1).snapshot()
    with pytest.raises(CheckpointError, match=field):
        make_state().restore(saved.tensors, saved.values | {field: value})


def test_restore_refuses_tensors_that_do_not_belong():
    state = make_state(steps=1)
    state.keep_best(1.0)
    saved = state.snapshot()
    other = make_state()
    with pytest.raises(CheckpointError, match=r"unknown tensor 'other\.x'"):
        other.restore(saved.tensors | {"other.x": torch.ones(1)}, saved.values)
    lacking = {name: t for name, t in saved.tensors.items() if name != "best.0.bias"}
    with pytest.raises(CheckpointError, match=r"0\.bias is missing"):
        other.restore(lacking, saved.values)
    cast = saved.tensors | {"model.0.bias": saved.tensors["model.0.bias"].double()}
    with pytest.raises(CheckpointError, match=r"torch\.float64, the model has"):
        other.restore(cast, saved.values)
