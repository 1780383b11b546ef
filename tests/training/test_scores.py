"""Scores from counts and from orders, beside all pairs and torchmetrics."""

import pytest
import torch
from torchmetrics.functional.classification import binary_auroc

from dnformer.training.scores import f1_each, known_nodes, mean_r2, mean_roc_auc, roc_auc


@pytest.mark.parametrize("seed", range(5))
def test_roc_auc_equals_the_pairs(seed):
    generator = torch.Generator().manual_seed(seed)
    # few values, so that many tie
    score = torch.randint(6, (40,), generator=generator).double()
    positive = torch.rand(40, generator=generator) < 0.3
    pairs = score[positive][:, None] - score[~positive][None]
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0)).mean().item()
    assert roc_auc(score, positive) == pytest.approx(expected, abs=1e-12)
    reference = binary_auroc(score / 6, positive.long())
    assert roc_auc(score, positive) == pytest.approx(float(reference), abs=1e-6)


@pytest.mark.parametrize("size", [5, 97, 3333])
def test_roc_auc_of_a_perfect_order_is_one(size):
    assert roc_auc(torch.arange(size), torch.arange(size) > size // 3) == 1.0


def test_roc_auc_tells_scores_apart_that_a_sigmoid_does_not():
    score = torch.tensor([50.0, 60.0, 70.0, 80.0])
    assert len(torch.unique(score.sigmoid())) == 1
    assert roc_auc(score, torch.tensor([False, True, False, True])) == 0.75


def test_mean_roc_auc_leaves_out_labels_of_one_value_and_unknown_entries():
    y = torch.tensor([[1, 1, 0], [0, 1, 1], [1, 1, -1]], dtype=torch.int8)
    out = torch.tensor([[0.0, 1.0, 4.0], [1.0, 2.0, 5.0], [2.0, 3.0, 9.0]])
    assert mean_roc_auc(out, y) == {"auc": (0.5 + 1.0) / 2}
    assert mean_roc_auc(out[:, 1:2], y[:, 1:2]) == {}


def test_f1_each_is_zero_where_there_is_nothing():
    counts = (torch.tensor(c, dtype=torch.float64) for c in ([1, 0], [3, 0], [1, 0]))
    assert f1_each(*counts).tolist() == [0.5, 0.0]


def test_mean_r2_is_of_the_numbers_that_vary():
    nan = torch.nan
    y = torch.tensor([[1.0, 7.0, nan], [3.0, 7.0, nan], [nan, 7.0, nan]], dtype=torch.float64)
    out = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [99.0, 0.0, 0.0]], dtype=torch.float64)
    assert mean_r2(out, y) == {"r2": 1 - 1 / 2}
    assert mean_r2(out[:, 1:], y[:, 1:]) == {}


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        pytest.param(torch.tensor([0, -1, 3]), [True, False, True], id="class"),
        pytest.param(torch.tensor([[-1, -1], [-1, 0]]), [False, True], id="multilabel"),
        pytest.param(torch.tensor([[torch.nan], [0.0]]), [False, True], id="regression"),
    ],
)
def test_known_nodes(y, expected):
    assert known_nodes(y).tolist() == expected
