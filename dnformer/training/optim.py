"""Everything that changes weights: optimizer, learning rate, precision, clipping, moving average.

The loop sums the gradients over the ranks before `Optim.step`, so all ranks decide alike.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Adam, AdamW, Optimizer

from dnformer.config import OptimConfig
from dnformer.errors import CheckpointError, ConfigError
from dnformer.parsing import Section, parse
from dnformer.training.average import Average
from dnformer.training.schedule import Position, learning_rate

__all__ = ["Optim", "Position", "Update", "learning_rate", "parameter_groups"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SLOTS = ("step", "exp_avg", "exp_avg_sq")
# torch's and PyG's: LayerNorm, RMSNorm, BatchNorm1d, GraphNorm, ..
_NORM = re.compile(r"Norm(\dd)?$")
# parameters that are no weights of a map
_PLAIN = ("bias", "lam.raw", "hop_weight", "hop_gate", "teleport")


class Update(NamedTuple):
    """What a step did.

    Attributes:
        grad_norm: L2 norm of the gradients of all parameters, unscaled, before clipping.
        applied: False where a gradient was not finite: weights, slots and average are as before.
    """

    grad_norm: float
    applied: bool


@final
class Optim:
    """The optimizer of a model and what goes with it.

    Args:
        model: its trained parameters, on `device`, with the weights that training starts from.
        config: what to do.
        precision: "float32", "float64", "bf16" or "fp16", as `train.precision`.
        device: where the model is.
    """

    optimizer: Optimizer

    def __init__(
        self, model: nn.Module, config: OptimConfig, *, precision: str, device: torch.device
    ) -> None:
        self._config, self._device = config, device
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        kind = Adam if config.name == "adam" else AdamW
        # on the CPU a third to a quarter of the time of foreach and of a plain loop, and the same
        # bits for any number of threads
        self.optimizer = kind(parameter_groups(model, config), lr=config.lr, fused=True)
        self._narrow = _AUTOCAST.get(precision)
        self._scaler: GradScaler | None = None
        if precision == "fp16":
            self._scaler = GradScaler(device.type)
            # its tensors are made by the first loss, and a rank may have none in the first step
            self._scaler.scale(torch.zeros((), device=device))
        self._average = None if config.ema_decay is None else Average(self._named, config.ema_decay)
        self._decays = self._stale = 0

    def autocast(self) -> AbstractContextManager[None]:
        """The context of forward pass and loss; the backward pass stays outside."""
        if self._narrow is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._narrow)

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of `loss`, times the scale under fp16."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()  # type: ignore[no-untyped-call]

    def step(self, at: Position) -> Update:
        """Changes the weights by the gradients, which are summed over the ranks and present.

        Gradients that are not finite change nothing; under fp16 the scale is halved then.
        """
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        norm = get_total_norm(p.grad for p in self._named.values() if p.grad is not None)
        grad_norm = float(norm)
        applied = math.isfinite(grad_norm)
        if applied:
            if self._config.clip_norm is not None:
                clip_grads_with_norm_(self._named.values(), self._config.clip_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(at)
            self.optimizer.step()
            if self._average is not None:
                self._average.update(at.step)
        if self._scaler is not None:
            self._scaler.update()
        return Update(grad_norm, applied)

    @property
    def scaled_too_much(self) -> bool:
        """Whether gradients that are not finite may be so because of fp16's scale alone.

        Then the step is to be skipped; otherwise the model diverges, and more steps don't help.
        """
        return self._scaler is not None and self._scaler.get_scale() >= 1

    def observe(self, *, better: bool) -> None:
        """Counts a validation, for schedule plateau."""
        self._stale = 0 if better else self._stale + 1
        if self._config.schedule == "plateau" and self._stale == self._config.plateau_patience:
            self._decays, self._stale = self._decays + 1, 0

    def rate(self, at: Position) -> float:
        """The learning rate of the step at `at`."""
        return learning_rate(self._config, at, self._decays)

    def averaged(self) -> AbstractContextManager[None]:
        """The model holds the moving average inside, if there is one."""
        return nullcontext() if self._average is None else self._average.applied()

    def tensors(self) -> dict[str, Tensor]:
        """`optim.<parameter>.<slot>` and `ema.<parameter>`, on the CPU; not inside `averaged`.

        On the CPU they are no copies: the next step changes them.
        """
        named = {
            f"optim.{name}.{slot}": value
            for name, parameter in self._named.items()
            for slot, value in self.optimizer.state.get(parameter, {}).items()
        }
        if self._average is not None:
            named |= {f"ema.{name}": mean for name, mean in self._average.tensors().items()}
        return {name: value.detach().cpu().contiguous() for name, value in named.items()}

    def values(self) -> dict[str, Any]:
        """The rest, as JSON: the plateau's counters, and fp16's scaler or None."""
        scaler = None
        if self._scaler is not None:
            state = self._scaler.state_dict()
            scaler = {"scale": state["scale"], "growth_tracker": state["_growth_tracker"]}
        return {"plateau": {"decays": self._decays, "stale": self._stale}, "scaler": scaler}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Continues from `tensors()` and `values()`; tensors of other parts are left alone.

        Raises:
            CheckpointError: they do not fit the model or the config.
        """
        slots = {n.removeprefix("optim."): t for n, t in tensors.items() if n.startswith("optim.")}
        means = {n.removeprefix("ema."): t for n, t in tensors.items() if n.startswith("ema.")}
        self._restore_slots(slots)
        self._restore_average(means)
        try:
            plain = parse(_Values, dict(values), name="its optimizer's values")
        except ConfigError as error:
            raise CheckpointError(f"the checkpoint is damaged: {error}") from None
        self._decays, self._stale = plain.plateau.decays, plain.plateau.stale
        self._restore_scaler(plain.scaler)

    def _restore_slots(self, slots: Mapping[str, Tensor]) -> None:
        # none of a parameter that no step has trained yet
        begun = {name.rpartition(".")[0] for name in slots}
        names = [name for name in self._named if name in begun]
        shapes = {
            f"{name}.{slot}": () if slot == "step" else self._named[name].shape
            for name in names
            for slot in _SLOTS
        }
        _check_fit("optim", slots, shapes)
        self.optimizer.state.clear()
        for name in names:
            parameter = self._named[name]
            for slot in _SLOTS:
                # copied: the file's own memory is not aligned, on which last bits may depend
                value = slots[f"{name}.{slot}"].to(parameter.device, copy=True)
                self.optimizer.state[parameter][slot] = value

    def _restore_average(self, means: Mapping[str, Tensor]) -> None:
        averaged = self._named if self._average is not None else {}
        _check_fit("ema", means, {name: p.shape for name, p in averaged.items()})
        if self._average is not None:
            self._average.restore(means)

    def _restore_scaler(self, values: "_Scaler | None") -> None:
        if (values is None) != (self._scaler is None):
            found, needed = ("no", "needs one") if values is None else ("a", "has none")
            raise CheckpointError(
                f"the checkpoint has {found} gradient scale, this train.precision {needed}"
            )
        if self._scaler is not None and values is not None:
            state = {"scale": values.scale, "_growth_tracker": values.growth_tracker}
            self._scaler.load_state_dict(self._scaler.state_dict() | state)


class _Plateau(Section):
    decays: int = Field(ge=0, strict=True)
    stale: int = Field(ge=0, strict=True)


class _Scaler(Section):
    scale: float = Field(gt=0)
    growth_tracker: int = Field(ge=0, strict=True)


class _Values(Section):
    plateau: _Plateau
    scaler: _Scaler | None


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """The trained parameters in groups of one weight decay.

    A parameter of a norm, a bias, the one number a head of lambda "head" (its bias, there is
    nothing else) and STAGNN's weights of hops have `norm_weight_decay`, where there is one. All
    others have `weight_decay`;
    lambda "reparam"'s vectors are among them: they are small matrices, and at 0 they give
    lambda_init.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if config.norm_weight_decay is None:
        every = [p for _, p in trained]
        return [{"params": every, "weight_decay": config.weight_decay}]
    own = set(_norms_and_biases(model))
    weights = [p for name, p in trained if name not in own]
    others = [p for name, p in trained if name in own]
    groups = [(weights, config.weight_decay), (others, config.norm_weight_decay)]
    return [{"params": params, "weight_decay": decay} for params, decay in groups if params]


def _norms_and_biases(model: nn.Module) -> Iterator[str]:
    for prefix, module in model.named_modules():
        is_norm = _NORM.search(type(module).__name__) is not None
        for name, _ in module.named_parameters(prefix, recurse=False):
            if is_norm or name.endswith(_PLAIN):
                yield name


def _check_fit(
    part: str, found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]
) -> None:
    """Raises where `found` has other names or shapes than `expected`."""
    for name in sorted(found.keys() ^ expected.keys()):
        what = "has a tensor too many" if name in found else "lacks a tensor"
        raise CheckpointError(
            f"the checkpoint does not fit the model and optim: it {what}, {part}.{name}"
        )
    for name, shape in expected.items():
        if found[name].shape != shape or not found[name].is_floating_point():
            raise CheckpointError(
                f"the checkpoint does not fit the model: {part}.{name} is "
                f"{list(found[name].shape)} {found[name].dtype}, the model has {list(shape)} floats"
            )
