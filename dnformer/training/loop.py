"""The training loop. It knows nothing of Ray: state, loader and a few callables come in.

A step is G micro-batches, whoever computes them: each rank adds up the gradients of its own, one
flattened all-reduce ends the step. Every random number of a micro-batch follows from its key.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from dnformer.config import CheckpointConfig, EvalConfig, TrainConfig
from dnformer.driver import Driver, Notice, Record
from dnformer.errors import CheckpointError, Stopped, TrainError
from dnformer.group import Group
from dnformer.loader import Loader, decode
from dnformer.training.buffers import StepBuffers
from dnformer.training.guards import Suspect, Trouble
from dnformer.training.meter import Mark, Meter
from dnformer.training.objectives import METRICS, Objective, better
from dnformer.training.optim import Position
from dnformer.training.stages import Stages
from dnformer.training.state import TrainState

# the first of a span's sums; those of the objective follow
_SUMS = ("loss", "weight", "seeds", "edges", "skipped")


class Settings(NamedTuple):
    """The sections of the config that the loop obeys."""

    train: TrainConfig
    evaluation: EvalConfig
    checkpoint: CheckpointConfig


class Hooks(NamedTuple):
    """What the loop calls; every rank calls each at the same points, but for `save`.

    Attributes:
        evaluate: validation metrics, equal on all ranks.
        record: takes each record of metrics.
        save: publishes a checkpoint of the state; rank 0 decides alone when time is up for one.
        enough: whether the run is to end after so many epochs; asked before each further one.
        begin: a step begins.
        not_finite: the error of a step that is not finite.
        driver: is told each record, after the checkpoint that belongs to it, if there is one.
    """

    evaluate: Callable[[], dict[str, float]]
    record: Callable[[Record], None]
    save: Callable[[], None]
    enough: Callable[[int], bool]
    begin: Callable[[int], None]
    not_finite: Callable[[Trouble], TrainError]
    driver: Driver


@contextmanager
def seeded(key: int, device: torch.device) -> Iterator[None]:
    """PyTorch's generators seeded with `key`; the caller's states come back afterwards."""
    # torch.manual_seed does the same to every kind of device, and takes 1 ms
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(key)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def seed_logits(model: nn.Module, batch: Data, dtype: torch.dtype) -> Tensor:
    """The model's output for the seeds of a batch, `[S, K]`.

    A model with `edge_channels` is given the edges' attributes, one that `uses_degrees` the nodes'
    degrees, where the batch has them.
    """
    degree = {"degree": batch.degree} if "degree" in batch else {}
    out = model(
        decode(batch, dtype),
        batch.edge_index,
        batch.get("num_sampled_nodes"),
        batch.get("num_sampled_edges"),
        batch.edge_attr.to(dtype) if model.edge_channels else None,
        **degree,
    )
    logits: Tensor = out[batch.seed_rows]
    return logits


@final
class Loop:
    """Trains `state` until its last epoch, or until patience runs out.

    Args:
        state: where to start or continue; it is updated in place.
        loader: training micro-batches.
        group: this worker and the others.
        settings: the loop's sections of the config, `micro_batches` and `monitor` decided.
        hooks: what to call on the way.
        objective: the loss and what is counted.
        weights: of the loader's nodes in the loss, float64, above 0, in the loader's order.
        stages: the clock of this rank.
    """

    def __init__(  # noqa: PLR0913 - what a loop is made of
        self,
        state: TrainState,
        loader: Loader,
        group: Group,
        *,
        settings: Settings,
        hooks: Hooks,
        objective: Objective,
        weights: Tensor,
        stages: Stages,
    ) -> None:
        self.state, self._loader, self._group, self._hooks = state, loader, group, hooks
        self._settings, self._objective, self._stages = settings, objective, stages
        self._parameters = [p for p in state.model.parameters() if p.requires_grad]
        self._dtype = self._parameters[0].dtype
        self._weights, self._device_weights = weights.numpy(), weights.to(group.device, self._dtype)
        self._micro_batches = settings.train.micro_batches or 1
        self.steps_per_epoch = -(-len(loader) // self._micro_batches)
        self._meter = Meter(stages, loader, group)
        self._span = Span(self._meter.mark(), [])
        self._saved_at, self._saved_step = time.monotonic(), state.steps_done
        self._grad_norm, self._owed = 0.0, False
        sums = len(self._zeros())
        fits = all(len(found) in (0, sums) for found in (state.totals, state.recent))
        if state.step > self.steps_per_epoch or not fits:
            raise CheckpointError(
                f"the checkpoint is at step {state.step} of {self.steps_per_epoch} with "
                f"{len(state.totals)} of {sums} sums; it is damaged, remove it"
            )

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        patience = self._settings.train.patience
        stale = patience is not None and self.state.stale >= patience
        return stale or self.state.epoch >= self._epochs

    @property
    def _epochs(self) -> int:
        """Epochs at most."""
        train = self._settings.train
        return min(train.epochs, train.stop_after or train.epochs)

    def run(self) -> None:
        """Trains to the end.

        Raises:
            TrainError: the loss or a gradient is not finite.
            Stopped: it was told to stop; the state is saved.
        """
        while not self.done and not self._hooks.enough(self.state.epoch):
            self._epoch()
        if self._saved_step != self.state.steps_done:
            self._save()

    def _mine(self, step: int) -> list[int]:
        """This rank's micro-batches of a step of the epoch."""
        first = step * self._micro_batches
        indices = range(first + self._group.rank, first + self._micro_batches,
                        self._group.world_size)  # fmt: skip
        return [index for index in indices if self._loader.num_seeds(index)]

    def _epoch(self) -> None:
        state = self.state
        state.totals = state.totals or self._zeros()
        state.recent = state.recent or self._zeros()
        span, self._span = self._new_span(state.totals), self._new_span(state.recent)
        self._loader.set_epoch(state.epoch)
        state.model.set_epoch(state.epoch)
        state.model.train()
        steps = range(state.step, self.steps_per_epoch)
        batches = self._loader.draws(index for step in steps for index in self._mine(step))
        for step in steps:
            self._hooks.begin(state.steps_done)
            notice = self._step(step, batches)
            self._record_step()
            self._after_step(notice)
        self._end_epoch(span)

    def _zeros(self) -> list[float]:
        return [0.0] * (len(_SUMS) + self._objective.num_counts)

    def _new_span(self, sums: list[float]) -> "Span":
        return Span(self._meter.mark(), list(sums))

    def _step(self, step: int, batches: Iterator[Data]) -> Notice:
        state = self.state
        state.optim.optimizer.zero_grad(set_to_none=True)
        weight, num_seeds = self._of_step(step)
        sums = torch.zeros(
            3 + self._objective.num_counts, dtype=self._dtype, device=self._group.device
        )
        buffers = StepBuffers(state.model, num_seeds)
        parts = []
        for index in self._mine(step):
            with self._stages.timed("wait"):
                batch = next(batches)
            buffers.reset()
            found = self._micro_batch(index, batch, weight)
            sums += found
            parts.append(Part(index, found[0], _nodes(batch)))
            buffers.add(self._loader.num_seeds(index))
        sums[2] += self._hooks.driver.pending()
        loss, edges, pending, *counts = self._reduce(sums, buffers)
        skipped = self._update(loss, parts)
        state.step, state.steps_done = step + 1, state.steps_done + 1
        added = (loss * weight, weight, float(num_seeds), edges, skipped, *counts)
        for totals in (state.totals, state.recent):
            totals[:] = [a + b for a, b in zip(totals, added, strict=True)]
        return self._hooks.driver.attend() if pending else "none"

    def _of_step(self, step: int) -> tuple[float, int]:
        """(total weight in the loss, seeds) of a step, over all ranks."""
        first = step * self._micro_batches
        positions = [self._loader.positions(first + g) for g in range(self._micro_batches)]
        weight = sum(float(self._weights[each].sum()) for each in positions)
        return weight, sum(map(len, positions))

    def _micro_batch(self, index: int, batch: Data, weight: float) -> Tensor:
        """Adds a micro-batch's gradients; its [loss, edges, 0, *counts]."""
        device, optim = self._group.device, self.state.optim
        with self._stages.timed("copy"):
            batch = batch.to(device)
        with seeded(self._loader.key(index), device):
            with self._stages.timed("forward"), optim.autocast():
                logits = seed_logits(self.state.model, batch, self._dtype).to(self._dtype)
                target = batch.y[batch.seed_rows]
                weights = self._device_weights[batch.input_id]
                loss = self._objective.loss(logits, target, weights)
                if self.state.model.extra_loss is not None:
                    loss = loss + self.state.model.extra_loss * weights.sum()
                loss = loss / weight
            with self._stages.timed("backward"):
                optim.backward(loss)
        counts = self._objective.count(logits.detach(), target).to(self._dtype)
        edges = counts.new_tensor([batch.edge_index.size(1), 0])
        return torch.cat([loss.detach().to(self._dtype).reshape(1), edges, counts])

    def _reduce(self, sums: Tensor, buffers: StepBuffers) -> list[float]:
        """Sums gradients and `sums` over the group, in one call; the sums as numbers."""
        with self._stages.timed("reduce"):
            for parameter in self._parameters:
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            if self._group.world_size > 1:
                tensors = [*(p.grad for p in self._parameters if p.grad is not None), sums]
                flat = self._group.sum_(torch.cat([t.reshape(-1) for t in tensors]))
                parts = torch.split(flat, [t.numel() for t in tensors])
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
            buffers.finish(self._group)
            return [float(value) for value in sums.tolist()]

    def _update(self, loss: float, parts: "list[Part]") -> float:
        """Changes the weights; 1 where fp16 skips that, else 0."""
        state = self.state
        if not math.isfinite(loss):
            raise self._trouble("loss", [part for part in parts if not part.loss.isfinite()])
        with self._stages.timed("optimizer"):
            update = state.optim.step(self._position(state.steps_done))
        self._grad_norm = update.grad_norm
        if update.applied:
            return 0.0
        if state.optim.scaled_too_much:
            return 1.0
        raise self._trouble("gradient", parts)

    def _trouble(self, what: Literal["loss", "gradient"], parts: "list[Part]") -> TrainError:
        suspects = [Suspect(part.micro_batch, float(part.loss), part.nodes) for part in parts]
        state = self.state
        return self._hooks.not_finite(Trouble(state.steps_done, state.epoch, what, suspects))

    def _position(self, step: int) -> Position:
        return Position(step, self.steps_per_epoch, self._settings.train.epochs)

    def _record_step(self) -> None:
        every, state = self._settings.train.log_every, self.state
        if every and state.steps_done % every == 0:
            record = self._at("step") | self._measured(self._span, state.recent)
            self._hooks.record(record)
            self._hooks.driver.report(record)
            state.recent = self._zeros()
            self._span = self._new_span(state.recent)

    def _after_step(self, notice: Notice) -> None:
        """Saves within the epoch where that is due, and stops where that was asked for."""
        checkpoint, state = self._settings.checkpoint, self.state
        every, every_s = checkpoint.every_steps, checkpoint.every_s
        due = bool(every) and state.steps_done % (every or 1) == 0
        due |= every_s is not None and time.monotonic() - self._saved_at >= every_s
        due |= notice == "save"
        if notice == "stop" or (due and state.step < self.steps_per_epoch):
            self._save()
        # the end of the epoch saves what is due by then
        self._owed = due and state.step == self.steps_per_epoch
        if notice == "stop":
            raise Stopped(f"stopped at step {state.steps_done}, in epoch {state.epoch + 1}")

    def _save(self) -> None:
        with self._stages.timed("checkpoint"):
            self._hooks.save()
        self._saved_at, self._saved_step = time.monotonic(), self.state.steps_done

    def _end_epoch(self, span: "Span") -> None:
        state, epoch = self.state, self.state.epoch
        metrics = self._evaluate(epoch)
        record = self._at("epoch") | self._measured(span, state.totals) | metrics
        state.epoch, state.step, state.totals = epoch + 1, 0, []
        state.seconds += record["seconds"]
        # the record first: a resumed run must find every epoch that its checkpoint has behind it
        self._hooks.record(record)
        if self._checkpoint_due(epoch):
            self._rank(metrics)
            self._save()
        self._hooks.driver.report(record)

    def _checkpoint_due(self, epoch: int) -> bool:
        checkpoint = self._settings.checkpoint
        by_epoch = (epoch + 1) % checkpoint.every_epochs == 0
        return by_epoch or self._owed or self.done

    @property
    def _monitor(self) -> str:
        assert self._settings.train.monitor is not None
        return self._settings.train.monitor

    def _evaluate(self, epoch: int) -> dict[str, float]:
        """Validates where that is due; keeps the weights if they are the best."""
        state, last = self.state, epoch + 1 >= self._epochs
        if (epoch + 1) % self._settings.evaluation.every_epochs and not last:
            return {}
        with state.optim.averaged():
            with self._stages.timed("evaluate"):
                metrics = self._hooks.evaluate()
            value = metrics[self._monitor]
            improved = better(self._monitor, value, state.best_value)
            if improved:
                state.keep_best(value)
            else:
                state.stale += 1
        state.optim.observe(better=improved)
        return metrics

    def _rank(self, metrics: dict[str, float]) -> None:
        value = metrics.get(self._monitor)
        if value is not None and math.isfinite(value):
            lower = METRICS[self._monitor.removeprefix("val/")].lower_is_better
            keep = self._settings.checkpoint.keep_best
            self.state.rank(value, keep, lower_is_better=lower)

    def _at(self, kind: str) -> Record:
        return {
            "kind": kind,
            "epoch": self.state.epoch,
            "step": self.state.steps_done,
            "steps_per_epoch": self.steps_per_epoch,
        }

    def _measured(self, span: "Span", sums: list[float]) -> Record:
        """Training metrics of `sums`, and what the span in which they were added took."""
        loss, weight, _, _, skipped, *counts = sums
        metrics = self._objective.running(torch.tensor(counts, dtype=torch.float64))
        metrics["loss"] = loss / weight
        took = self._meter.since(span.mark)
        seeds, edges = (sums[i] - span.before[i] for i in (2, 3))
        return {
            **{f"train/{name}": value for name, value in metrics.items()},
            "lr": self.state.optim.rate(self._position(max(self.state.steps_done - 1, 0))),
            "grad_norm": self._grad_norm,
            "skipped_steps": int(skipped),
            "seeds_per_s": seeds / took["seconds"],
            "edges_per_s": edges / took["seconds"],
            **took,
        }


class Span(NamedTuple):
    """Where a span begins, and the sums then: those of an epoch may come from a checkpoint."""

    mark: Mark
    before: list[float]


class Part(NamedTuple):
    """A micro-batch of a step: its index, its share of the loss, its seeds."""

    micro_batch: int
    loss: Tensor
    nodes: Tensor


def _nodes(batch: Data) -> Tensor:
    """Indices of the seeds of a batch."""
    ids: Tensor | None = batch.get("n_id")
    rows: Tensor = batch.seed_rows
    return rows if ids is None else ids[rows]
