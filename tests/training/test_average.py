"""The moving average: what it holds, and that the model gets its own weights back."""

import pytest
import torch
from torch import nn

from dnformer.training.average import Average


def weights(*values: float) -> dict[str, nn.Parameter]:
    a, b = torch.tensor(values[:2]).float(), torch.tensor(values[2]).float()
    return {"a": nn.Parameter(a), "b": nn.Parameter(b)}


def test_update_keeps_the_decays_share():
    named = weights(1, 2, 3)
    average = Average(named, 0.9)
    with torch.no_grad():
        named["a"] += 10
    average.update(1000)
    torch.testing.assert_close(average.tensors()["a"], torch.tensor([2.0, 3.0]))
    assert average.tensors()["b"] == 3


def test_update_forgets_the_start_soon():
    named = weights(0, 0, 0)
    average = Average(named, 0.99)
    with torch.no_grad():
        named["b"] += 1
    kept = 1.0
    for step in range(4):
        average.update(step)
        kept *= (1 + step) / (10 + step)
        torch.testing.assert_close(average.tensors()["b"], torch.tensor(1 - kept))


def test_applied_swaps_without_copies_and_back():
    named = weights(1, 2, 3)
    average = Average(named, 0.9)
    with torch.no_grad():
        named["a"] += 10
    own, mean = named["a"].data_ptr(), average.tensors()["a"].data_ptr()
    with average.applied():
        assert named["a"].tolist() == [1, 2]
        assert named["a"].data_ptr() == mean
    assert named["a"].tolist() == [11, 12]
    assert named["a"].data_ptr() == own
    assert average.tensors()["a"].tolist() == [1, 2]


def test_applied_gives_the_weights_back_after_an_error():
    named = weights(1, 2, 3)
    average = Average(named, 0.9)
    with torch.no_grad():
        named["a"] += 10
    with pytest.raises(KeyError), average.applied():
        raise KeyError
    assert named["a"].tolist() == [11, 12]


def test_applied_lets_nothing_train_or_save():
    average = Average(weights(1, 2, 3), 0.9)
    with average.applied():
        with pytest.raises(AssertionError, match="cannot be trained"):
            average.update(0)
        with pytest.raises(AssertionError, match="cannot be saved"):
            average.tensors()


def test_average_does_not_follow_the_weights():
    named = weights(1, 2, 3)
    average = Average(named, 0.9)
    with torch.no_grad():
        named["a"] += 10
    assert average.tensors()["a"].tolist() == [1, 2]


def test_restore_copies():
    average = Average(weights(1, 2, 3), 0.9)
    saved = {"a": torch.tensor([5.0, 6.0]), "b": torch.tensor(7.0)}
    average.restore(saved)
    saved["a"] += 1
    assert average.tensors()["a"].tolist() == [5, 6]
