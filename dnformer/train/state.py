"""The state of a run, and its checkpoints: `RUN/checkpoints/step-N/`, format 1.

Tensors are safetensors, the rest is JSON; nothing is unpickled. `state.json` is published last and
holds the tensors' hash, so a checkpoint is complete or it is none.
"""

import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from dnformer import storage
from dnformer.errors import CheckpointError, DataError

log = logging.getLogger(__name__)

FORMAT = 1
_TENSORS, _STATE = "tensors.safetensors", "state.json"


@dataclass
class TrainState:
    """Everything that a run continues from; there is no generator state.

    Attributes:
        model: the weights, on the worker's device.
        optimizer: its slots.
        epoch: the epoch that runs next, or is running.
        step: steps done in it.
        steps_done: steps done in the run.
        totals: sums over the running epoch: loss, seeds, edges, what the objective counts.
        best_value: best monitored value so far, or None.
        best_step: `steps_done` at the best value.
        best_epoch: the epoch that ended there.
        best_model: weights there, on the CPU.
        stale: evaluations since.
        seconds: time spent so far, over all attempts.
    """

    model: nn.Module
    optimizer: Optimizer
    epoch: int = 0
    step: int = 0
    steps_done: int = 0
    totals: dict[str, float] = field(default_factory=dict)
    best_value: float | None = None
    best_step: int = -1
    best_epoch: int = -1
    best_model: dict[str, Tensor] = field(default_factory=dict)
    stale: int = 0
    seconds: float = 0.0

    def keep_best(self, value: float) -> None:
        """Remembers the weights as the best so far, at `value`."""
        self.best_value, self.best_step, self.best_epoch = value, self.steps_done, self.epoch
        self.best_model = {k: v.detach().cpu().clone() for k, v in self._model_tensors().items()}
        self.stale = 0

    def _model_tensors(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict())

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name: `model.`, `best.` and `optim.<parameter>.` + slot."""
        named = {f"model.{k}": v.detach() for k, v in self._model_tensors().items()}
        named |= {f"best.{k}": v for k, v in self.best_model.items()}
        for name, parameter in self.model.named_parameters():
            for slot, value in self.optimizer.state.get(parameter, {}).items():
                named[f"optim.{name}.{slot}"] = torch.as_tensor(value).detach()
        return {name: value.cpu().contiguous() for name, value in named.items()}

    def values(self) -> dict[str, Any]:
        """The rest, as plain values."""
        names = ("epoch", "step", "steps_done", "totals", "best_value", "best_step", "best_epoch",
                 "stale", "seconds")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Continues from a checkpoint's tensors and values.

        Raises:
            CheckpointError: they do not fit the model.
        """
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optim": {}}
        for name, tensor in tensors.items():
            part, _, key = name.partition(".")
            parts.setdefault(part, {})[key] = tensor
        try:
            self.model.load_state_dict(parts["model"])
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(f"the checkpoint does not fit the model: {reason}") from None
        self.best_model = parts["best"]
        parameters = dict(self.model.named_parameters())
        for key, value in parts["optim"].items():
            name, _, slot = key.rpartition(".")
            if name not in parameters:
                raise CheckpointError(f"the checkpoint does not fit the model: no parameter {name}")
            # Adam keeps `step` on the CPU, the moments beside the parameter
            device = torch.device("cpu") if slot == "step" else parameters[name].device
            # copied: the file's own memory is not aligned, on which last bits may depend
            self.optimizer.state[parameters[name]][slot] = value.to(device, copy=True)
        for name, value in values.items():
            setattr(self, name, value)


def folder(run: str) -> str:
    """Where the checkpoints of a run are."""
    return storage.join(run, "checkpoints")


def write_checkpoint(run: str, state: TrainState, *, meta: dict[str, Any], keep: int) -> None:
    """Publishes `state` as `step-<steps_done>`; then removes all but the last `keep` and the best.

    Args:
        run: the run's folder.
        state: what to save.
        meta: what else belongs to it: config, dataset fingerprint, threads, attempt.
        keep: checkpoints kept beside the best one.
    """
    target = storage.join(folder(run), f"step-{state.steps_done}")
    tensors = safetensors.torch.save(state.tensors())
    # an equal name may be there, from the attempt that this one continues
    storage.remove(storage.join(target, _STATE))
    storage.write_bytes(storage.join(target, _TENSORS), tensors)
    document = {
        "format": FORMAT,
        "state": state.values(),
        "tensors": {"bytes": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()},
        "meta": meta,
    }
    storage.write_bytes(storage.join(target, _STATE), json.dumps(document, indent=1).encode())
    best = {state.best_step} if state.best_step >= 0 else set()
    for step in _steps(run)[keep:]:
        if step not in best:
            _remove(run, step)


def _steps(run: str) -> list[int]:
    """Steps that have a checkpoint folder, newest first."""
    names = (name.removeprefix("step-") for name in storage.list_names(folder(run)))
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def _remove(run: str, step: int) -> None:
    target = storage.join(folder(run), f"step-{step}")
    storage.remove(storage.join(target, _STATE))
    storage.remove(target)


def newest_checkpoint(run: str) -> tuple[bytes, bytes] | None:
    """(tensors, state.json) of the newest complete checkpoint, or None where there is none.

    An incomplete one, left by a kill, is passed over with a warning.

    Raises:
        CheckpointError: a checkpoint is of a newer format.
    """
    for step in _steps(run):
        target = storage.join(folder(run), f"step-{step}")
        try:
            document = storage.read_bytes(storage.join(target, _STATE))
            tensors = storage.read_bytes(storage.join(target, _TENSORS))
        except DataError:
            log.warning("%s is incomplete (a write was interrupted); passed over", target)
            continue
        expected = _document(document, target)["tensors"]["sha256"]
        if hashlib.sha256(tensors).hexdigest() == expected:
            return tensors, document
        log.warning("%s: its tensors are not what its state.json says; passed over", target)
    return None


def _document(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
        found = document["format"]
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{name}/{_STATE} is no checkpoint of DNFormer; remove it") from None
    if found != FORMAT:
        raise CheckpointError(
            f"{name}: checkpoint format {found!r}, this version reads {FORMAT}: update dnformer"
        )
    return dict(document)


def read_checkpoint(tensors: bytes, document: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors by name, the document) of what `newest_checkpoint` gave.

    Raises:
        CheckpointError: the content is damaged.
    """
    try:
        return safetensors.torch.load(tensors), _document(document, "checkpoint")
    except SafetensorError as error:
        raise CheckpointError(f"the checkpoint's tensors cannot be read: {error}") from None
