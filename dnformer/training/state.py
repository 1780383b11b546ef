"""The state of a run: everything that training continues from; there is no generator state."""

from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from dnformer.errors import CheckpointError, ConfigError
from dnformer.nn.node_model import NodeModel
from dnformer.parsing import Section, parse
from dnformer.training.checkpoints import Snapshot
from dnformer.training.optim import Optim


class Values(Section):
    """What a checkpoint holds of a `TrainState` beside tensors."""

    epoch: int = Field(ge=0, strict=True)
    step: int = Field(ge=0, strict=True)
    steps_done: int = Field(ge=0, strict=True)
    totals: list[float]
    recent: list[float]
    best_value: float | None
    best_step: int = Field(strict=True)
    best_epoch: int = Field(strict=True)
    ranked: list[tuple[float, int]]
    stale: int = Field(ge=0, strict=True)
    seconds: float = Field(ge=0)
    optim: dict[str, Any]


@dataclass
class TrainState:
    """Where a run stands.

    Attributes:
        model: the weights, on the worker's device.
        optim: what changes them.
        epoch: the epoch that runs next, or is running.
        step: steps done in it.
        steps_done: steps done in the run.
        totals: sums over the running epoch (`loop.Sums`).
        recent: sums since the last record of a step.
        best_value: best monitored value so far, or None.
        best_step: `steps_done` at the best value.
        best_epoch: the epoch that ended there.
        best_model: weights there, on the CPU.
        ranked: (value, step) of the best checkpoints, best first.
        stale: validations since.
        seconds: time spent so far, over all attempts.
    """

    model: NodeModel
    optim: Optim
    epoch: int = 0
    step: int = 0
    steps_done: int = 0
    totals: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    best_value: float | None = None
    best_step: int = -1
    best_epoch: int = -1
    best_model: dict[str, Tensor] = field(default_factory=dict)
    ranked: list[tuple[float, int]] = field(default_factory=list)
    stale: int = 0
    seconds: float = 0.0

    def keep_best(self, value: float) -> None:
        """Remembers the model's weights as the best so far, at `value`."""
        self.best_value, self.best_step, self.best_epoch = value, self.steps_done, self.epoch
        self.best_model = {k: v.detach().cpu().clone() for k, v in self.model.state_dict().items()}
        self.stale = 0

    def rank(self, value: float, keep: int, *, lower_is_better: bool) -> None:
        """Notes a checkpoint at this step, of which the best `keep` stay."""
        ranked = [*self.ranked, (value, self.steps_done)]
        # of equal ones the first, as for the best weights
        ranked.sort(key=lambda item: (item[0] if lower_is_better else -item[0], item[1]))
        self.ranked = ranked[:keep]

    def snapshot(self) -> Snapshot:
        """The state as it is now; tensors `model.*`, `best.*` and those of `optim`."""
        # copied: they change while a checkpoint is written; those of the best are replaced instead
        named = {
            f"model.{name}": tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in self.model.state_dict().items()
        }
        named |= {f"best.{name}": tensor for name, tensor in self.best_model.items()}
        named |= {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in self.optim.tensors().items()
        }
        return Snapshot(self.steps_done, named, self.values())

    def values(self) -> dict[str, Any]:
        """The rest, as plain values."""
        return {
            name: self.optim.values() if name == "optim" else _copied(getattr(self, name))
            for name in Values.model_fields
        }

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Continues from a checkpoint's tensors and values.

        Raises:
            CheckpointError: they do not fit the model.
        """
        plain = parse_values(values)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optim": {}, "ema": {}}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            if part not in parts:
                raise CheckpointError(f"the checkpoint has an unknown tensor {name!r}; remove it")
            parts[part][key] = tensor
        check_weights(self.model, parts["model"], whose="the checkpoint's weights")
        if plain.best_value is not None:
            check_weights(self.model, parts["best"], whose="the checkpoint's best weights")
        self.model.load_state_dict(parts["model"])
        # copied: the file's own memory is not aligned, on which last bits may depend
        self.best_model = {name: tensor.clone() for name, tensor in parts["best"].items()}
        # under fp16 all steps so far may have been skipped
        if plain.steps_done and not parts["optim"] and plain.optim.get("scaler") is None:
            raise CheckpointError("the checkpoint lacks the optimizer's tensors; remove it")
        others = {n: t for n, t in tensors.items() if n.partition(".")[0] in ("optim", "ema")}
        self.optim.restore(others, plain.optim)
        for name in Values.model_fields:
            if name != "optim":
                setattr(self, name, _copied(getattr(plain, name)))


def parse_values(values: dict[str, Any]) -> Values:
    """What a checkpoint holds beside tensors.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return parse(Values, values, name="the checkpoint's state")
    except ConfigError as error:
        raise CheckpointError(f"{error}; remove the checkpoint") from None


def no_best_model(run: str) -> CheckpointError:
    """What is wrong with a run that has no best weights."""
    return CheckpointError(
        f"{run}: no validation gave a number yet, so there is no best model; train it further"
    )


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def check_weights(
    model: nn.Module, tensors: dict[str, Tensor], *, whose: str = "the weights"
) -> None:
    """Refuses weights that have not exactly the model's names, shapes and dtypes.

    Args:
        model: what they should fit.
        tensors: the weights by name.
        whose: they are, in the words of the error.

    Raises:
        CheckpointError: the first that differs is named.
    """
    own = model.state_dict()
    wrong = [
        f"{name} is {_shape(tensors.get(name))}, the model has {_shape(own.get(name))}"
        for name in sorted({*own, *tensors})
        if _shape(tensors.get(name)) != _shape(own.get(name))
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CheckpointError(f"{whose} do not fit the model: {wrong[0]}{more}")


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{list(tensor.shape)} {tensor.dtype}"
