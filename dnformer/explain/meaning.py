"""What outputs and labels mean, in the target's own words and units.

S nodes, K outputs.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnformer.data.table import Target
from dnformer.prediction.columns import Columns


class Score(NamedTuple):
    """The number that neighbours push up or down.

    Attributes:
        name: what it is.
        output: the output that it is about, by name.
        value: of the node.
    """

    name: str
    output: str
    value: float


class Meaning:
    """Puts outputs and labels into words.

    Args:
        target: what they are about.
        units: of numbers, the mean and scale that make them of the outputs.
    """

    def __init__(self, target: Target, units: dict[str, list[float]]) -> None:
        self.target, self._columns = target, Columns(target, units)
        self.names = target.classes or [str(number) for number in range(target.num_outputs)]

    def predicted(self, logits: Tensor) -> list[Any]:
        """Of each node of `logits` `[S, K]`: its class, its labels, or its number or numbers."""
        values = self._columns.values(logits)
        if self.target.kind == "class":
            return [self.names[number] for number in values.argmax(dim=1).tolist()]
        return [self._words(row > 0 if self._is_multilabel else row) for row in values]

    def values(self, logits: Tensor) -> dict[str, float]:
        """Of one node: the probability of each class or label, or its numbers."""
        values = self._columns.values(logits.unsqueeze(0))[0]
        if self.target.kind == "class":
            values = values.softmax(dim=0)
        elif self._is_multilabel:
            values = values.sigmoid()
        return dict(zip(self.names, values.tolist(), strict=True))

    def label(self, y: Any) -> Any:
        """A node's label as the graph stores it, in words; None where it is not known."""
        if self.target.kind == "class":
            return None if y < 0 else self.names[int(y)]
        known = torch.from_numpy(y.copy())
        if bool((known < 0).any() if self._is_multilabel else known.isnan().any()):
            return None
        return self._words(known > 0 if self._is_multilabel else known)

    def score(self, logits: Tensor) -> Tensor:
        """What neighbours push, of outputs `[K]`.

        The log odds of the predicted class or of the likeliest label; of numbers, the first.
        """
        if self.target.kind == "class" and len(logits) > 1:
            others = torch.ones_like(logits, dtype=torch.bool)
            others[logits.argmax()] = False
            return logits.max() - logits[others].logsumexp(dim=0)
        if self.target.kind == "regression":
            return self._columns.values(logits.unsqueeze(0))[0, 0]
        return logits.max()

    def scored(self, logits: Tensor) -> Score:
        """The score of outputs `[K]`, and what it is."""
        value = float(self.score(logits))
        if self.target.kind == "regression":
            output = self.target.name if len(self.names) == 1 else self.names[0]
            return Score(f"the predicted {output}", output, value)
        output = self.names[int(logits.argmax())]
        return Score(f"log odds of {output}", output, value)

    @property
    def _is_multilabel(self) -> bool:
        return self.target.kind == "multilabel"

    def _words(self, row: Tensor) -> Any:
        """The names of what is set, or the numbers; one number alone."""
        if row.dtype == torch.bool:
            return [name for name, there in zip(self.names, row.tolist(), strict=True) if there]
        return row.item() if len(row) == 1 else row.tolist()
