"""The training loop. It knows nothing of Ray: state, loader and a few callables come in.

A step is G micro-batches, whoever computes them: each rank adds up the gradients of its own, one
flattened all-reduce ends the step. Every random number of a micro-batch follows from its key.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, final

import psutil
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from dnformer.config import CheckpointConfig, EvalConfig, OptimConfig, TrainConfig
from dnformer.errors import TrainError
from dnformer.group import Group
from dnformer.loader import Loader, decode
from dnformer.train.buffers import StepBuffers
from dnformer.train.objectives import METRICS, Objective
from dnformer.train.sinks import Record
from dnformer.train.state import TrainState


class Settings(NamedTuple):
    """The sections of the config that the loop obeys."""

    train: TrainConfig
    optim: OptimConfig
    evaluation: EvalConfig
    checkpoint: CheckpointConfig


class Hooks(NamedTuple):
    """What the loop calls; every rank calls each at the same points.

    Attributes:
        evaluate: validation metrics, equal on all ranks.
        record: takes each record of metrics.
        save: publishes a checkpoint of the state.
        report: takes the epoch's record when its checkpoint, if any, is there.
    """

    evaluate: Callable[[], dict[str, float]]
    record: Callable[[Record], None]
    save: Callable[[], None]
    report: Callable[[Record], None]


@contextmanager
def seeded(key: int, device: torch.device) -> Iterator[None]:
    """PyTorch's generators seeded with `key`; the caller's states come back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(key)
        yield


def learning_rate(optim: OptimConfig, step: int, total_steps: int) -> float:
    """The learning rate of step `step` of `total_steps`: a function of nothing else."""
    if optim.schedule == "constant":
        return optim.lr
    return optim.lr * 0.5 * (1 + math.cos(math.pi * step / total_steps))


def seed_logits(model: nn.Module, batch: Data, dtype: torch.dtype) -> Tensor:
    """The model's output for the seeds of a batch, `[S, K]`.

    A model with `edge_channels` is given the edges' attributes.
    """
    out = model(
        decode(batch, dtype),
        batch.edge_index,
        batch.get("num_sampled_nodes"),
        batch.get("num_sampled_edges"),
        batch.edge_attr.to(dtype) if model.edge_channels else None,
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
    """

    def __init__(
        self,
        state: TrainState,
        loader: Loader,
        group: Group,
        *,
        settings: Settings,
        hooks: Hooks,
        objective: Objective,
    ) -> None:
        self.state, self._loader, self._group, self._hooks = state, loader, group, hooks
        self._settings, self._objective = settings, objective
        self._parameters = [p for p in state.model.parameters() if p.requires_grad]
        self._dtype = self._parameters[0].dtype
        self._micro_batches = settings.train.micro_batches or 1
        self.steps_per_epoch = -(-len(loader) // self._micro_batches)
        self._seconds: dict[str, float] = {}

    @property
    def done(self) -> bool:
        """Whether there is nothing left to train."""
        patience = self._settings.train.patience
        stale = patience is not None and self.state.stale >= patience
        return stale or self.state.epoch >= self._settings.train.epochs

    def run(self) -> None:
        """Trains to the end.

        Raises:
            TrainError: the loss is not finite.
        """
        while not self.done:
            self._epoch()

    def _mine(self, step: int) -> list[int]:
        """This rank's micro-batches of a step of the epoch."""
        first = step * self._micro_batches
        indices = range(first + self._group.rank, first + self._micro_batches,
                        self._group.world_size)  # fmt: skip
        return [index for index in indices if self._loader.num_seeds(index)]

    def _epoch(self) -> None:
        state, start = self.state, time.perf_counter()
        self._seconds = {}
        loader_before, counts_before = dict(self._loader.seconds), dict(self._loader.counts)
        self._loader.set_epoch(state.epoch)
        state.model.train()
        steps = range(state.step, self.steps_per_epoch)
        batches = self._loader.draws(index for step in steps for index in self._mine(step))
        for step in steps:
            self._step(step, batches)
            self._maybe_save_mid_epoch()
        for stage, before in loader_before.items():
            self._seconds[stage] = self._loader.seconds[stage] - before
        taken = {name: self._loader.counts[name] - n for name, n in counts_before.items()}
        self._end_epoch(start, taken)

    def _step(self, step: int, batches: Iterator[Data]) -> None:
        state = self.state
        state.optimizer.zero_grad(set_to_none=True)
        first = step * self._micro_batches
        weight = sum(self._loader.num_seeds(first + g) for g in range(self._micro_batches))
        names = ("loss", "edges", *self._objective.counts)
        sums = torch.zeros(len(names), dtype=self._dtype, device=self._group.device)
        buffers = StepBuffers(state.model, weight)
        for index in self._mine(step):
            with self._timed("wait"):
                batch = next(batches)
            buffers.reset()
            sums += self._micro_batch(index, batch, weight)
            buffers.add(self._loader.num_seeds(index))
        found = dict(zip(names, self._reduce(sums, buffers), strict=True))
        loss = found["loss"]
        if not math.isfinite(loss):
            raise TrainError(
                f"the loss is {loss} at step {state.steps_done} (epoch {state.epoch}); the last "
                "checkpoint is kept. Lower optim.lr, or set optim.clip_norm, and start with --fresh"
            )
        with self._timed("optimizer"):
            self._update()
        state.step, state.steps_done = step + 1, state.steps_done + 1
        added = found | {"loss": loss * weight, "seeds": float(weight)}
        state.totals = {name: state.totals.get(name, 0.0) + value for name, value in added.items()}
        every = self._settings.train.log_every
        if every and state.steps_done % every == 0:
            self._hooks.record(self._position("step") | {"train/loss": loss})

    def _update(self) -> None:
        clip_norm = self._settings.optim.clip_norm
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, clip_norm)
        for parameters in self.state.optimizer.param_groups:
            parameters["lr"] = self._rate()
        self.state.optimizer.step()

    def _micro_batch(self, index: int, batch: Data, weight: int) -> Tensor:
        """Adds a micro-batch's gradients; its [loss, edges, *counts]."""
        device = self._group.device
        with self._timed("copy"):
            batch = batch.to(device)
        with seeded(self._loader.key(index), device):
            with self._timed("forward"):
                logits = seed_logits(self.state.model, batch, self._dtype)
                target = batch.y[batch.seed_rows]
                loss = self._objective.loss(logits, target) / weight
            with self._timed("backward"):
                loss.backward()  # type: ignore[no-untyped-call]
        counts = self._objective.count(logits.detach(), target)
        edges = counts.new_tensor([batch.edge_index.size(1)])
        return torch.cat([loss.detach().reshape(1), edges, counts])

    def _reduce(self, sums: Tensor, buffers: "StepBuffers") -> list[float]:
        """Sums gradients and `sums` over the group, in one call; the sums as numbers."""
        with self._timed("reduce"):
            for parameter in self._parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            if self._group.world_size > 1:
                tensors = [*(p.grad for p in self._parameters if p.grad is not None), sums]
                flat = self._group.sum_(torch.cat([t.reshape(-1) for t in tensors]))
                parts = torch.split(flat, [t.numel() for t in tensors])
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
            buffers.finish(self._group)
            return [float(value) for value in sums.tolist()]

    def _rate(self) -> float:
        total = self._settings.train.epochs * self.steps_per_epoch
        return learning_rate(self._settings.optim, self.state.steps_done, total)

    def _maybe_save_mid_epoch(self) -> None:
        every, state = self._settings.checkpoint.every_steps, self.state
        if every and state.steps_done % every == 0 and state.step < self.steps_per_epoch:
            with self._timed("checkpoint"):
                self._hooks.save()

    def _end_epoch(self, start: float, taken: dict[str, int]) -> None:
        state, epoch = self.state, self.state.epoch
        metrics = self._evaluate(epoch)
        record = self._position("epoch") | self._train_metrics() | metrics
        state.epoch, state.step, state.totals = epoch + 1, 0, {}
        elapsed = time.perf_counter() - start
        state.seconds += elapsed
        record["seconds"] = elapsed
        record["seeds_per_s"] = record.pop("seeds") / elapsed
        record["edges_per_s"] = record.pop("edges") / elapsed
        record["rss_bytes"] = psutil.Process().memory_info().rss
        # of this rank's batches since the start or the resume
        record["cache_hit_rate"] = taken["hits"] / max(taken["rows"], 1)
        record["feature_bytes_read"] = taken["bytes_read"]
        record["stage_seconds"] = {k: round(v, 6) for k, v in self._seconds.items()}
        # the record first: a resumed run must find every epoch that its checkpoint has behind it
        self._hooks.record(record)
        if self._checkpoint_due(epoch):
            self._hooks.save()
        self._hooks.report(record)

    def _checkpoint_due(self, epoch: int) -> bool:
        checkpoint = self._settings.checkpoint
        by_epoch = (epoch + 1) % checkpoint.every_epochs == 0
        every = checkpoint.every_steps
        by_step = every is not None and self.state.steps_done % every == 0
        return by_epoch or by_step or self.done

    def _evaluate(self, epoch: int) -> dict[str, float]:
        train = self._settings.train
        assert train.monitor is not None
        last = epoch + 1 >= train.epochs
        if (epoch + 1) % self._settings.evaluation.every_epochs and not last:
            return {}
        with self._timed("evaluate"):
            metrics = self._hooks.evaluate()
        value, best = metrics[train.monitor], self.state.best_value
        lower = METRICS[train.monitor.removeprefix("val/")].lower_is_better
        if best is None or (value < best if lower else value > best):
            self.state.keep_best(value)
        else:
            self.state.stale += 1
        return metrics

    def _position(self, kind: str) -> Record:
        return {"kind": kind, "epoch": self.state.epoch, "step": self.state.steps_done}

    def _train_metrics(self) -> Record:
        totals = self.state.totals
        metrics = {"loss": totals["loss"] / totals["seeds"], **self._objective.running(totals)}
        return {
            **{f"train/{name}": value for name, value in metrics.items()},
            "lr": self._rate(),
            "seeds": totals["seeds"],
            "edges": totals["edges"],
        }

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._seconds[stage] = self._seconds.get(stage, 0.0) + time.perf_counter() - start
