"""How well a model tells several yes/no labels of a node: AUC and F1 of each, calibration, worst.

S nodes, K labels; an entry may be unknown.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from dnformer.report.charts import axis, label, named_axis, rows_of_bars
from dnformer.report.outcome import Outcome, by_degree, calibration, reliability, worst
from dnformer.report.page import Block, Column, Figure, Table, count, number, share
from dnformer.training.scores import roc_auc

Array = npt.NDArray[Any]

_BARS = 40


def blocks(outcome: Outcome) -> list[Block]:
    """All that is shown of labels."""
    known = outcome.y >= 0
    probabilities = outcome.out.sigmoid()
    entries = int(known.sum())
    found = reliability(probabilities[known].numpy(), (outcome.y[known] == 1).double().numpy())
    y = outcome.y.clamp(min=0).double()
    each = F.binary_cross_entropy_with_logits(outcome.out, y, reduction="none") * known
    loss = (each.sum(dim=1) / known.sum(dim=1)).numpy()
    return [
        *_auc(outcome, known),
        calibration(found, f"{entries:,} known labels", right="share of 1"),
        by_degree(outcome, loss, "loss", percent=False),
        _worst(outcome, known, loss),
    ]


def _auc(outcome: Outcome, known: torch.Tensor) -> list[Block]:
    rows = []
    for k, name in enumerate(outcome.names):
        of, score = outcome.y[known[:, k], k] == 1, outcome.out[known[:, k], k]
        positive, hits = int(of.sum()), int((of & (score > 0)).sum())
        met = positive + int((score > 0).sum())
        auc = roc_auc(score, of) if 0 < positive < len(of) else None
        rows.append([name, len(of), positive, auc, 2 * hits / max(met, 1)])
    rows.sort(key=lambda row: (row[3] is None, row[3]))
    columns = [Column("label"), Column("known", count), Column("of them 1", count),
               Column("AUC", share), Column("F1", share)]  # fmt: skip
    table = Table("auc", f"Labels of {outcome.of}, the worst first", columns, rows)
    drawn = [row for row in rows if row[3] is not None]
    if not drawn:
        return [table]
    labels = [f"{label(row[0])} ({row[2]:,})" for row in drawn[:_BARS]]
    first, last = drawn[0], drawn[-1]
    figure = Figure(
        title=f"AUC of the {_BARS} worst labels" if len(drawn) > _BARS else "AUC of each label",
        says=f"From {first[0]} ({share(first[3])}) to {last[0]} ({share(last[3])}). "
        "In brackets, how many nodes have it. AUC is not defined where all or none have it.",
        traces=[rows_of_bars(labels, [row[3] for row in drawn[:_BARS]])],
        layout={
            "xaxis": axis("AUC", percent=True, range=[0, 1.02]),
            "yaxis": named_axis(labels, "", downwards=True),
        },
        table=table,
        height=130 + 26 * len(labels),
    )
    return [figure]


def _worst(outcome: Outcome, known: torch.Tensor, loss: Array) -> Table:
    predicted, y = (outcome.out > 0).numpy(), outcome.y.numpy()
    is_known, names = known.numpy(), outcome.names

    def named(entries: Array) -> str:
        return ", ".join(names[k] for k in np.flatnonzero(entries)) or "none"

    def cells(place: int) -> list[Any]:
        of = is_known[place]
        has, says = (y[place] == 1) & of, predicted[place] & of
        return [named(has & ~says), named(says & ~has), float((has != says).sum() / of.sum())]

    columns = [Column("has, not predicted"), Column("predicted, has not"), Column("wrong", number)]
    return worst(outcome, loss, columns, cells)
