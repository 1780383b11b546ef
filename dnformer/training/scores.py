"""Scores that follow from counts, or from the order of all outputs, in float64.

The same counts give the metrics of an epoch's training, summed over steps and workers, and those of
a split. torchmetrics is what the tests compare with; it isn't used here because its results are
float32 (AUROC 1.0000001 for a perfect order), because it ties outputs beyond a sigmoid's reach,
and because importing it takes a second.
"""

import torch
from torch import Tensor


def known_nodes(y: Tensor) -> Tensor:
    """Which nodes have a class, or any known label or number, bool `[S]`."""
    known = ~y.isnan() if y.is_floating_point() else y >= 0
    return known if y.dim() == 1 else known.any(dim=1)


def f1_each(hits: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    """2 hits / (predicted + actual), elementwise; 0 where there is neither."""
    return 2 * hits / (predicted + actual).clamp(min=1)


def roc_auc(score: Tensor, positive: Tensor) -> float:
    """The share of (positive, negative) pairs in the right order, a tie counting one half.

    Args:
        score: `[S]`.
        positive: which of them are, bool `[S]`: some, not all.
    """
    _, value, count = torch.unique(score, return_inverse=True, return_counts=True)
    middle = count.cumsum(0) - (count - 1).double() / 2  # mean rank of each value, from 1
    num_positive = int(positive.sum())
    rank_sum = float(middle[value][positive].sum())
    pairs = num_positive * (len(score) - num_positive)
    return (rank_sum - num_positive * (num_positive + 1) / 2) / pairs


def mean_roc_auc(scores: Tensor, y: Tensor) -> dict[str, float]:
    """{"auc": the mean over the labels that have both values}, empty where none has.

    Args:
        scores: `[S, R]`.
        y: 1, 0, or below 0 where unknown, `[S, R]`.
    """
    values = [
        roc_auc(score[label >= 0], label[label >= 0] == 1)
        for score, label in zip(scores.T, y.T, strict=True)
        if (label == 0).any() and (label == 1).any()
    ]
    return {"auc": sum(values) / len(values)} if values else {}


def mean_r2(out: Tensor, y: Tensor) -> dict[str, float]:
    """{"r2": the mean over the numbers that vary}, empty where none does.

    Args:
        out: predictions, float64 `[S, K]`.
        y: NaN where unknown, float64 `[S, K]`.
    """
    values = []
    for predicted, number in zip(out.T, y.T, strict=True):
        known = ~number.isnan()
        predicted, number = predicted[known], number[known]
        if len(number) and number.min() < number.max():
            spread = (number - number.mean()).square().sum()
            values.append(1 - float((predicted - number).square().sum() / spread))
    return {"r2": sum(values) / len(values)} if values else {}
