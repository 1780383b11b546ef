"""What each worker of a run does, in this process or under Ray: build, restore, train, evaluate."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

from dnformer.config import ModelConfig, OptimConfig, RunConfig
from dnformer.data.counter_rng import key_of
from dnformer.data.graph import Graph, open_graph
from dnformer.errors import BackendError, CheckpointError
from dnformer.group import Group
from dnformer.loader import Cached, FullLoader, Loader, NeighborLoader, Visits, open_source
from dnformer.nn import DNFormer
from dnformer.parsing import parse
from dnformer.train.evaluate import Evaluator, Metrics
from dnformer.train.loop import Hooks, Loop, Settings, seeded
from dnformer.train.objectives import monitor_for
from dnformer.train.run import Attempt
from dnformer.train.sinks import MetricsFile, Record
from dnformer.train.state import (
    TrainState,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


@dataclass(frozen=True)
class Job:
    """A run as it travels to a worker: plain values.

    Attributes:
        config: the decided config, as `RunConfig.dump` gives it.
        run: the run's folder.
        attempt: which start of it this is.
        fingerprint: of the dataset.
    """

    config: dict[str, Any]
    run: str
    attempt: int
    fingerprint: str


def run_worker(job: Job, group: Group, report: Callable[[Record], None]) -> dict[str, Any]:
    """Trains `job` to its end as one worker of `group`.

    Args:
        job: what to train.
        group: this worker and the others.
        report: called by every rank at the start and at the end of each epoch.

    Returns:
        The run's result, equal on all ranks.
    """
    config = parse(RunConfig, job.config)
    torch.set_num_threads(config.train.threads or 1)  # the operator's number too
    graph = open_run_graph(config, job.fingerprint)
    model = build_model(config.model, graph, seed=config.seed, precision=config.train.precision)
    model.to(group.device)
    state = TrainState(model, build_optimizer(config.optim, model))
    _restore(state, job, group)
    features = open_features(config, graph, group.device)
    evaluator = build_evaluator(config, model, graph, group, features)
    hooks = _hooks(config, job, state, group, evaluator, report)
    report(_start_record(state))
    monitor = monitor_for(graph.target.kind, config.train.monitor)
    train = config.train.model_copy(update={"monitor": monitor})
    settings = Settings(train, config.optim, config.eval, config.checkpoint)
    loader = build_loader(config, graph, features, group.device)
    Loop(state, loader, group, settings=settings, hooks=hooks, objective=evaluator.objective).run()
    return finish(job.run, state, evaluator)


def open_run_graph(config: RunConfig, fingerprint: str) -> Graph:
    """The dataset of a run.

    Raises:
        DataError: there is none.
        CheckpointError: it is another one than the run began with.
    """
    graph = open_graph(
        config.data.uri,
        split=config.data.split,
        seed=config.data_seed,
        cache_dir=Path(config.cache.dir) if config.cache.dir else None,
        max_bytes=config.cache.max_bytes,
        label=config.data.label,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if graph.fingerprint != fingerprint:
        raise CheckpointError(
            f"{config.data.uri} holds dataset {graph.fingerprint[:12]}, the run was made with "
            f"{fingerprint[:12]}"
        )
    return graph


def build_model(config: ModelConfig, graph: Graph, *, seed: int, precision: str) -> DNFormer:
    """The model for a graph, with initial weights that follow from `seed`."""
    with seeded(key_of(seed, "train"), torch.device("cpu")):
        model = DNFormer(
            graph.num_features,
            config.hidden,
            graph.num_classes,
            config.layers,
            config.heads,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            attention=config.attention,
            lam=config.lam,
            lambda_width=config.lambda_width,
            lambda_init=config.lambda_init,
            lambda_bound=config.lambda_bound,
            norm=config.norm,
            ffn_expansion=config.ffn_expansion,
            activation=config.activation,
            head_norm=config.head_norm,
            self_loops=config.self_loops,
            edge_channels=graph.num_edge_features if config.edge_bias else 0,
        )
    return model.to(torch.float64 if precision == "float64" else torch.float32)


def build_optimizer(config: OptimConfig, model: DNFormer) -> Optimizer:
    """The optimizer over all of the model's parameters."""
    kind = Adam if config.name == "adam" else AdamW
    return kind(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)


def open_features(config: RunConfig, graph: Graph, device: torch.device) -> Cached | None:
    """Where a run's dense features come from, with the rows kept that its training meets most."""
    loader = config.loader
    fan_out = loader.fan_out(config.model.layers)
    visits = Visits(graph.split("train").numpy(), fan_out, loader.batch_size)
    return open_source(graph.store, config.cache, visits=visits, device=device)


def build_loader(
    config: RunConfig, graph: Graph, features: Cached | None, device: torch.device
) -> Loader:
    """The training loader of a run, whose batches go to `device`."""
    nodes, loader = graph.split("train"), config.loader
    if loader.kind == "full":
        return FullLoader(graph, nodes, seed=config.seed, sparse=DNFormer.sparse_input)
    return NeighborLoader(
        graph, nodes, num_neighbors=loader.fan_out(config.model.layers),
        batch_size=loader.batch_size, seed=config.seed, sampler=loader.sampler,
        sampling=loader.sampling, replace=loader.replace, temporal=loader.temporal,
        sparse=DNFormer.sparse_input, raw=device.type == "cuda", threads=loader.threads,
        prefetch=loader.prefetch, features=features, device=device,
    )  # fmt: skip


def build_evaluator(
    config: RunConfig, model: DNFormer, graph: Graph, group: Group, features: Cached | None
) -> Evaluator:
    """The evaluator of a run."""
    return Evaluator(
        model,
        graph,
        group,
        config=config.eval,
        loader=config.loader,
        seed=config.seed,
        features=features,
    )


def _restore(state: TrainState, job: Job, group: Group) -> None:
    """Continues from the newest checkpoint, which rank 0 picks for all."""
    found = newest_checkpoint(job.run) if group.rank == 0 else None
    tensors = group.broadcast(found[0] if found else None)
    document = group.broadcast(found[1] if found else None)
    if tensors is None or document is None:
        return
    named, values = read_checkpoint(tensors, document)
    if values["meta"]["fingerprint"] != job.fingerprint:
        raise CheckpointError(
            f"{job.run}: its checkpoint belongs to another dataset; start over with --fresh"
        )
    state.restore(named, values["state"])


def _hooks(
    config: RunConfig,
    job: Job,
    state: TrainState,
    group: Group,
    evaluator: Evaluator,
    report: Callable[[Record], None],
) -> Hooks:
    def evaluate() -> dict[str, float]:
        return {f"val/{name}": value for name, value in evaluator(["val"])["val"].items()}

    if group.rank > 0:
        return Hooks(evaluate, lambda record: None, lambda: None, report)
    attempt = Attempt(job.run, job.attempt)
    attempt.check()
    metrics = MetricsFile(job.run, attempt=job.attempt, first_step=state.steps_done)
    metrics.write(_start_record(state))
    metrics.publish()
    meta = {
        "config": job.config,
        "fingerprint": job.fingerprint,
        "attempt": job.attempt,
        "versions": {"torch": torch.__version__},
    }

    def save() -> None:
        attempt.check()
        metrics.publish()
        write_checkpoint(job.run, state, meta=meta, keep=config.checkpoint.keep)

    return Hooks(evaluate, metrics.write, save, report)


def _start_record(state: TrainState) -> Record:
    return {"kind": "start", "epoch": state.epoch, "step": state.steps_done}


def finish(run: str, state: TrainState, evaluator: Evaluator) -> dict[str, Any]:
    """The result of a run: validation and test metrics of its best weights."""
    if not state.best_model:
        raise CheckpointError(f"{run}: no validation has been done yet; train it first")
    state.model.load_state_dict(state.best_model)
    metrics: Metrics = evaluator(["val", "test"])
    return {
        "run": run,
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
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
    model = build_model(config.model, graph, seed=config.seed, precision=config.train.precision)
    state = TrainState(model, build_optimizer(config.optim, model))
    if newest_checkpoint(job.run) is None:
        raise CheckpointError(f"{job.run}: no checkpoint yet; train it first")
    _restore(state, job, Group())
    features = open_features(config, graph, Group().device)
    return finish(job.run, state, build_evaluator(config, model, graph, Group(), features))


def device_for(use_gpu: bool) -> torch.device:
    """The device of an in-process run.

    Raises:
        BackendError: a GPU is asked for and none is there.
    """
    if use_gpu and not torch.cuda.is_available():
        raise BackendError("train.use_gpu is true, but torch sees no CUDA device; set it to false")
    return torch.device("cuda" if use_gpu else "cpu")
