"""An exponential moving average of a model's weights, to validate with and to keep."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn


@final
class Average:
    """The moving average of a model's trained parameters.

    It starts at the model's weights. Step t (steps done before it) keeps min(decay, (1 + t) /
    (10 + t)) of it, so the start is forgotten soon and nothing needs to be corrected for it.
    Buffers, as BatchNorm's averages, are averages already: the model's own stay in use.

    Args:
        parameters: of the model, by name.
        decay: the share of itself that it keeps in a step, in the long run.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self._mean = {name: p.detach().clone() for name, p in parameters.items()}
        self._inside = False

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes the weights in after a step that `step` steps went before."""
        assert not self._inside, "the average is in use: the weights cannot be trained now"
        kept = min(self._decay, (1 + step) / (10 + step))
        weights: list[Tensor] = [self._parameters[name] for name in self._mean]
        torch._foreach_lerp_(list(self._mean.values()), weights, 1 - kept)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model holds the average inside, its own weights again afterwards; nothing is copied.

        References to a parameter's memory from before (`detach`, a view) don't follow.
        """
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        self._inside = not self._inside
        for name, parameter in self._parameters.items():
            self._mean[name], parameter.data = parameter.data, self._mean[name]

    def tensors(self) -> dict[str, Tensor]:
        """The average by parameter name; the memory is its own."""
        assert not self._inside, "the average is in use: it cannot be saved now"
        return dict(self._mean)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continues from `tensors`, which fit, copied."""
        for name, mean in self._mean.items():
            mean.copy_(tensors[name])
