"""What each worker of a run does, in this process or under Ray: build, restore, train, evaluate."""

import sys
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.driver import Driver, Record
from dnformer.errors import CheckpointError, ConfigError
from dnformer.group import Group
from dnformer.parsing import parse
from dnformer.training.build import build_loader, build_parts, open_run_graph
from dnformer.training.checkpoints import Meta, newest_checkpoint, read_checkpoint, read_newest
from dnformer.training.evaluate import Evaluator, Metrics
from dnformer.training.gate import Gate
from dnformer.training.guards import Watchdog, not_finite
from dnformer.training.loop import Hooks, Loop, Settings
from dnformer.training.objectives import Objective, monitor_for
from dnformer.training.run import Attempt
from dnformer.training.stages import Stages
from dnformer.training.state import TrainState, no_best_model
from dnformer.training.writer import Writer


@dataclass(frozen=True)
class Job:
    """A run as it travels to a worker: plain values.

    Attributes:
        config: the decided config, as `RunConfig.dump` gives it.
        fingerprint: of the dataset.
        attempt: the start that it belongs to, as its driver took it.
        gate: who ends it early, if anyone does.
    """

    config: dict[str, Any]
    fingerprint: str
    attempt: Attempt
    gate: Gate | None = None

    @property
    def run(self) -> str:
        """The run's folder."""
        return self.attempt.run


def run_worker(job: Job, group: Group, driver: Driver) -> dict[str, Any]:
    """Trains `job` to its end as one worker of `group`.

    Args:
        job: what to train.
        group: this worker and the others.
        driver: who is told, and tells.

    Returns:
        The run's result, equal on all ranks.

    Raises:
        Stopped: the driver told it to stop; the state is saved.
        DNFormerError: a file is damaged, or training could not go on.
    """
    config = parse(RunConfig, job.config)
    storage.configure(config.storage)
    torch.set_num_threads(config.train.threads or 1)  # the operator's number too
    # before the newest checkpoint is read: no older attempt's can become the newest from here on
    attempt = job.attempt.claim() if group.rank == 0 else job.attempt
    graph = open_run_graph(config, job.fingerprint)
    parts = build_parts(config, graph, group)
    before = _restore(parts.state, config, job, group)
    start = _start_record(parts.state, group, attempt.number, before)
    stages = Stages()
    with ExitStack() as stack:
        writer = None
        if group.rank == 0:
            meta = _meta(job, parts.objective)
            writer = stack.enter_context(Writer(config, meta, attempt, parts.state, start))
        watch = stack.enter_context(_watchdog(config, job.run, stages, group.rank))
        driver.report(start)
        monitor = monitor_for(graph.target, config.train.monitor)
        train = config.train.model_copy(update={"monitor": monitor})
        loop = Loop(
            parts.state,
            build_loader(config, graph, parts, group.device),
            group,
            settings=Settings(train, config.eval, config.checkpoint),
            hooks=Hooks(
                partial(_validation, parts.evaluator),
                record=writer.record if writer else _nothing,
                save=writer.save if writer else _nothing,
                enough=partial(_enough, job.gate, group),
                begin=watch.begin if watch else _nothing,
                not_finite=partial(not_finite, job.run, group.rank),
                driver=driver,
            ),
            objective=parts.objective,
            weights=parts.seeds.weights,
            stages=stages,
        )
        loop.run()
    return finish(job.run, parts.state, parts.evaluator)


def _start_record(state: TrainState, group: Group, attempt: int, before: int | None) -> Record:
    return {
        "kind": "start",
        "epoch": state.epoch,
        "step": state.steps_done,
        "world_size": group.world_size,
        "attempt": attempt,
        # the attempt whose checkpoint it goes on from
        "after": before,
    }


def _meta(job: Job, objective: Objective) -> Meta:
    return Meta(
        config=job.config,
        fingerprint=job.fingerprint,
        versions={"torch": torch.__version__},
        target=objective.values(),
    )


def _restore(state: TrainState, config: RunConfig, job: Job, group: Group) -> int | None:
    """Continues from the newest checkpoint, which rank 0 picks for all; the attempt it is of."""
    found = newest_checkpoint(job.run) if group.rank == 0 else None
    before = config.train.continue_from
    begins = not group.any(found is not None)
    if begins and before is not None and group.rank == 0:
        found = newest_checkpoint(before)
        if found is None:
            raise CheckpointError(f"train.continue_from {before}: no checkpoint there")
    tensors = group.broadcast(found[0] if found else None)
    document = group.broadcast(found[1] if found else None)
    if tensors is None or document is None:
        return None
    named, values = read_checkpoint(tensors, document)
    _refuse_foreign(values.meta, config, job, begins=begins)
    state.restore(named, values.state)
    return None if begins else values.attempt


def _refuse_foreign(meta: Meta, config: RunConfig, job: Job, *, begins: bool) -> None:
    """Raises unless a checkpoint is of this run, or of one whose state it `begins` with."""
    try:
        there = parse(RunConfig, meta.config)
        # weights of another shape are refused where they are restored
        differing = [] if begins else [key for key, _, _ in config.differing(there)]
    except ConfigError as error:
        raise CheckpointError(f"{job.run}: its checkpoint is damaged: {error}") from None
    if meta.fingerprint != job.fingerprint:
        differing.append("the dataset")
    if differing:
        raise CheckpointError(
            f"{job.run}: its checkpoint belongs to another run, which differs in "
            f"{', '.join(differing)}; start over with --fresh"
        )


def _nothing(*told: Any) -> None:
    pass


def _validation(evaluator: Evaluator) -> dict[str, float]:
    return {f"val/{name}": value for name, value in evaluator(["val"])["val"].items()}


def _enough(gate: Gate | None, group: Group, epochs: int) -> bool:
    if gate is None or epochs not in gate.milestones:
        return False
    return group.any(group.rank == 0 and gate.stops(epochs))


def _watchdog(
    config: RunConfig, run: str, stages: Stages, rank: int
) -> AbstractContextManager[Watchdog | None]:
    if config.train.watchdog_s is None:
        return nullcontext()
    return Watchdog(stages, rank, timeout_s=config.train.watchdog_s, run=run, say=_say)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def finish(run: str, state: TrainState, evaluator: Evaluator) -> dict[str, Any]:
    """The result of a run: validation and test metrics of its best weights."""
    if not state.best_model:
        raise no_best_model(run)
    state.model.load_state_dict(state.best_model)
    metrics: Metrics = evaluator(["val", "test"])
    return {
        "run": run,
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
        "parameters": sum(p.numel() for p in state.model.parameters() if p.requires_grad),
        **metrics,
    }


def evaluate_run(job: Job) -> dict[str, Any]:
    """Validation and test metrics of a run's best weights, as its training gave them.

    Raises:
        CheckpointError: the run has no checkpoint.
    """
    config = parse(RunConfig, job.config)
    torch.set_num_threads(config.train.threads or 1)  # the operator's number too
    graph = open_run_graph(config, job.fingerprint)
    parts = build_parts(config, graph, Group())
    tensors, document = read_newest(job.run)
    _refuse_foreign(document.meta, config, job, begins=False)
    parts.state.restore(tensors, document.state)
    return finish(job.run, parts.state, parts.evaluator)
