"""Losses and metrics of each kind of target on literal outputs."""

import math

import pytest
import torch
import torch.nn.functional as F

from dnformer.errors import ConfigError, DataError
from dnformer.train.objectives import (
    ClassObjective,
    MultilabelObjective,
    RegressionObjective,
    main_metric,
    monitor_for,
    roc_auc,
    shown,
)

LABELS = torch.tensor([[1, 0], [0, -1], [1, 1], [-1, 0]], dtype=torch.int8)
SCORES = torch.tensor([[2.0, 1.0], [-1.0, 5.0], [-0.5, 3.0], [9.0, -2.0]], dtype=torch.float64)
NUMBERS = torch.tensor([[10.0, 7.0], [30.0, math.nan], [20.0, 7.0]])


def test_class_objective():
    y, out = torch.tensor([0, 1, 1]), torch.tensor([[3.0, 1.0], [2.0, 1.0], [0.0, 4.0]])
    found = ClassObjective().evaluate(out, y)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["loss"] == pytest.approx(F.cross_entropy(out.double(), y).item(), abs=1e-15)


def test_multilabel_loss_is_over_known_entries():
    terms = -F.logsigmoid(torch.where(LABELS == 1, SCORES, -SCORES))
    expected = terms[LABELS >= 0].sum() / 2
    torch.testing.assert_close(MultilabelObjective().loss(SCORES, LABELS), expected)
    changed = SCORES.clone()
    changed[LABELS < 0] = 77.0
    torch.testing.assert_close(MultilabelObjective().loss(changed, LABELS), expected)


def test_multilabel_metrics():
    found = MultilabelObjective().evaluate(SCORES, LABELS)
    # known: (2, 1) (1, 0) (-1, 0) (-.5, 1) (3, 1) (-2, 0): two hits, one false alarm, one miss
    assert found["f1"] == pytest.approx(4 / 6)
    # label 0: 2 and -0.5 over -1; label 1: 3 over 1 and -2
    assert found["auc"] == 1.0
    flipped = MultilabelObjective().evaluate(-SCORES, LABELS)
    assert flipped["auc"] == 0.0


def test_multilabel_auc_leaves_out_labels_of_one_value():
    y = torch.tensor([[1, 1], [0, 1], [1, 1]], dtype=torch.int8)
    out = torch.tensor([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
    assert MultilabelObjective().evaluate(out, y)["auc"] == 0.5
    MultilabelObjective().check(y, "val")
    with pytest.raises(DataError, match=r"split 'val': no label has both a positive and a neg"):
        MultilabelObjective().check(y[:, 1:], "val")


def test_multilabel_f1_of_nothing_positive_is_zero():
    sums = {"true_positive": 0.0, "false_positive": 0.0, "false_negative": 0.0}
    assert MultilabelObjective().running(sums) == {"f1": 0.0}


@pytest.mark.parametrize("seed", range(5))
def test_roc_auc_equals_the_pairs(seed):
    generator = torch.Generator().manual_seed(seed)
    # few values, so that many tie
    score = torch.randint(6, (40,), generator=generator).double()
    positive = torch.rand(40, generator=generator) < 0.3
    pairs = score[positive][:, None] - score[~positive][None]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean().item()
    assert roc_auc(score, positive) == pytest.approx(expected, abs=1e-12)


def test_regression_metrics_are_in_the_targets_units():
    objective = RegressionObjective(NUMBERS)
    # outputs of 0 predict the means, 20 and 7
    found = objective.evaluate(torch.zeros(3, 2), NUMBERS)
    assert found["mae"] == pytest.approx(20 / 5)
    assert found["rmse"] == pytest.approx(math.sqrt(200 / 5))
    # three entries have variance 1 together, of which the mean is over K = 2; the others are right
    assert found["loss"] == pytest.approx(3 / 3 / 2)


def test_regression_loss_and_gradient_leave_out_what_is_unknown():
    objective = RegressionObjective(NUMBERS)
    out = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    loss = objective.loss(out, NUMBERS)
    loss.backward()
    scale = math.sqrt(200 / 3)
    errors = [1 + 10 / scale, 1.0, 1 - 10 / scale, 1.0, 1.0]
    assert loss.item() == pytest.approx(sum(e * e for e in errors) / 2)
    expected = [[errors[0], 1.0], [errors[2], 0.0], [1.0, 1.0]]
    torch.testing.assert_close(out.grad, torch.tensor(expected, dtype=torch.float64))


def test_regression_does_not_depend_on_units():
    metres = torch.tensor([[10.0], [30.0], [math.nan], [20.0]])
    millimetres = metres * 1000 + 5e5
    out = torch.linspace(-1, 1, 4, dtype=torch.float64).view(4, 1)
    first = RegressionObjective(metres).evaluate(out, metres)
    second = RegressionObjective(millimetres).evaluate(out, millimetres)
    assert second["loss"] == pytest.approx(first["loss"])
    assert second["mae"] == pytest.approx(1000 * first["mae"])


def test_regression_of_a_column_that_nothing_is_known_of():
    y = torch.tensor([[1.0, math.nan], [3.0, math.nan]])
    assert RegressionObjective(y).evaluate(torch.zeros(2, 2), y)["mae"] == 1.0


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("class", None, "val/accuracy"),
        ("multilabel", None, "val/auc"),
        ("regression", None, "val/mae"),
        ("multilabel", "val/f1", "val/f1"),
        ("regression", "val/loss", "val/loss"),
    ],
)
def test_monitor_for(kind, asked, expected):
    assert monitor_for(kind, asked) == expected


def test_monitor_for_another_kind_is_refused():
    with pytest.raises(ConfigError, match="regression; choose one of val/mae, val/rmse, val/loss"):
        monitor_for("regression", "val/accuracy")


def test_main_metric_and_shown():
    assert main_metric({"loss": 1.0, "f1": 0.5, "auc": 0.6}) == "auc"
    assert main_metric(["loss", "f1"]) == "f1"
    assert shown("auc", 0.61234) == "61.23 %"
    assert shown("mae", 0.061234) == "0.06123"
