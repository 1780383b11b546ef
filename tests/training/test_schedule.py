"""Learning rates: where they begin, turn and end."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnformer.config import OptimConfig
from dnformer.training.schedule import Position, learning_rate

STEPS, EPOCHS = 5, 8


def rates(*, decays: int = 0, **settings: object) -> list[float]:
    """The rate of each of 40 steps, highest 1."""
    config = OptimConfig(**{"lr": 1.0} | settings)
    return [learning_rate(config, Position(k, STEPS, EPOCHS), decays) for k in range(40)]


def test_learning_rate_constant():
    assert set(rates()) == {1.0}


@given(st.floats(1e-5, 10), st.integers(1, 50), st.integers(1, 50))
def test_learning_rate_cosine_by_default_is_the_plain_formula(lr, steps, epochs):
    config, total = OptimConfig(lr=lr, schedule="cosine"), steps * epochs
    for step in range(0, total, 7):
        plain = lr * 0.5 * (1 + math.cos(math.pi * step / total))
        assert learning_rate(config, Position(step, steps, epochs)) == plain


def test_learning_rate_cosine_ends_at_min_lr():
    found = rates(schedule="cosine", min_lr=0.25)
    assert found[0] == 1
    assert found[20] == pytest.approx(0.625)
    assert found == sorted(found, reverse=True)
    after = Position(40, STEPS, EPOCHS)
    assert learning_rate(OptimConfig(lr=1, schedule="cosine", min_lr=0.25), after) == 0.25


def test_learning_rate_cosine_after_warmup():
    found = rates(schedule="cosine", warmup_steps=4)
    assert found[:5] == [0.25, 0.5, 0.75, 1, 1]
    assert found[22] == pytest.approx(0.5)
    assert found[4:] == sorted(found[4:], reverse=True)


def test_learning_rate_warmup_longer_than_the_run():
    assert rates(schedule="cosine", warmup_steps=80)[39] == 0.5


def test_learning_rate_step():
    found = rates(schedule="step", decay_epochs=3, decay_factor=0.5, min_lr=0.3)
    assert found == [1.0] * 15 + [0.5] * 15 + [0.3] * 10


def test_learning_rate_step_with_warmup_decays_at_the_same_epochs():
    found = rates(schedule="step", decay_epochs=3, decay_factor=0.5, warmup_steps=2)
    assert found == [0.5] + [1.0] * 14 + [0.5] * 15 + [0.25] * 10


def test_learning_rate_plateau():
    plateau = {"schedule": "plateau", "decay_factor": 0.5, "min_lr": 0.2}
    assert [set(rates(decays=k, **plateau)) for k in range(4)] == [{1.0}, {0.5}, {0.25}, {0.2}]


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_learning_rate_decays_only_by_plateau(schedule):
    assert rates(schedule=schedule, decays=3) == rates(schedule=schedule)


@given(
    st.sampled_from(["constant", "cosine", "step", "plateau"]),
    st.integers(0, 60),
    st.floats(0, 0.9),
    st.integers(0, 3),
)
def test_learning_rate_is_positive_and_at_most_the_highest(schedule, warmup, low, decays):
    found = rates(schedule=schedule, warmup_steps=warmup, min_lr=low, decays=decays)
    assert all(0 < rate <= 1 for rate in found)
    assert all(rate >= low * (1 - 1e-12) for rate in found[warmup:])
