"""What outputs become: the columns of a prediction, in the label's own words and units.

S nodes, K outputs.
"""

from typing import Any, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dnformer.data.table import Target
from dnformer.training.objectives import (
    ClassObjective,
    MultilabelObjective,
    Objective,
    RegressionObjective,
)


@final
class Columns:
    """Makes tables of outputs.

    A class target gives `prediction` (its number), `class` (its name, where classes have names) and
    `probabilities`, one for each class; a multilabel one `LABEL` (0 or 1) and `LABEL_probability`
    for each label; numbers are `prediction`, or `NUMBER` each where there are several, in their own
    units. Labels and numbers without names are called `prediction_0`, `prediction_1`, ..

    Args:
        target: what the outputs are about.
        units: of numbers, the mean and scale that make them of the outputs.
    """

    def __init__(self, target: Target, units: dict[str, list[float]]) -> None:
        self._target, self._units = target, units

    @property
    def objective(self) -> Objective:
        """Measures `values` against what is known."""
        kind, outputs = self._target.kind, self._target.num_outputs
        if kind == "class":
            return ClassObjective(outputs)
        if kind == "multilabel":
            return MultilabelObjective(outputs)
        # of mean 0 and deviation 1: they are in their own units already
        y = torch.tensor([[-1.0], [1.0]]).expand(2, outputs)
        return RegressionObjective(y, torch.ones(2))

    def values(self, logits: Tensor) -> Tensor:
        """Outputs `[S, K]` as they are, or in the units of the numbers, float64."""
        if self._target.kind != "regression":
            return logits
        mean, scale = (torch.tensor(self._units[name]) for name in ("mean", "scale"))
        return logits.double() * scale.double() + mean.double()

    def table(self, ids: Any, values: Tensor, extra: dict[str, Tensor]) -> Any:
        """The rows of S nodes.

        Args:
            ids: their original ids, an Arrow array.
            values: as `values` gives them.
            extra: further columns, `[S, C]` each.
        """
        columns = {"id": ids} | self._predictions(values)
        return pa.table(columns | {name: _lists(rows) for name, rows in extra.items()})

    def row_bytes(self, extra_values: int) -> int:
        """About the bytes of a row, with so many further numbers."""
        return 48 + 8 * (self._target.num_outputs + extra_values)

    def _predictions(self, values: Tensor) -> dict[str, Any]:
        kind = self._target.kind
        if kind == "class":
            return self._classes(values)
        if kind == "multilabel":
            chosen, shares = (values > 0).to(torch.int8), values.sigmoid().float()
            return {
                name: column
                for place, label in enumerate(self._names())
                for name, column in ((label, chosen[:, place].numpy()),
                                     (f"{label}_probability", shares[:, place].numpy()))
            }  # fmt: skip
        numbers = values.float()
        return {name: numbers[:, place].numpy() for place, name in enumerate(self._names())}

    def _classes(self, values: Tensor) -> dict[str, Any]:
        predicted = values.argmax(dim=1).numpy()
        columns: dict[str, Any] = {"prediction": predicted}
        if self._target.classes is not None:
            columns["class"] = pa.array(self._target.classes).take(pa.array(predicted))
        return columns | {"probabilities": _lists(values.softmax(dim=1).float())}

    def _names(self) -> list[str]:
        outputs = self._target.num_outputs
        if self._target.classes is not None:
            return self._target.classes
        return ["prediction"] if outputs == 1 else [f"prediction_{i}" for i in range(outputs)]


def _lists(rows: Tensor) -> Any:
    flat = np.ascontiguousarray(rows.numpy()).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat), rows.shape[1])
