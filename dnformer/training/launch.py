"""Starts, continues and repeats runs: the one entry for the command line and for Python."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dnformer import ray_runtime, storage
from dnformer.config import RunConfig, StorageConfig, TrainConfig
from dnformer.data.graph import pick_target
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.driver import Driver, Record, meanwhile
from dnformer.errors import CheckpointError, DataError
from dnformer.group import Group
from dnformer.training.build import device_for
from dnformer.training.checkpoints import newest_checkpoint
from dnformer.training.gate import Gate
from dnformer.training.objectives import main_metric, monitor_for, shown
from dnformer.training.run import Attempt, Run, Start, portable, reach_run, read_result, run_uri
from dnformer.training.signals import stopper
from dnformer.training.sinks import Follower
from dnformer.training.worker import Job, evaluate_run, run_worker

Result = dict[str, Any]

_BY_ITSELF = StorageConfig()


def _silent(value: Any) -> None:
    pass


@dataclass(frozen=True)
class Progress:
    """Who is told how a run goes.

    Attributes:
        say: takes a line about what is going on.
        record: takes a record of kind "start" for each start of the workers, with the step they
            go on from, and one of kind "epoch" with the metrics of each finished epoch.
    """

    say: Callable[[str], None] = _silent
    record: Callable[[Record], None] = field(default=_silent)


def train(
    config: RunConfig,
    *,
    start: Start = "any",
    progress: Progress | None = None,
    gate: Gate | None = None,
) -> Result:
    """Trains a run to its end, from its newest checkpoint if it has one.

    Args:
        config: the run.
        start: "fresh" forgets what the run's folder holds; "resume" refuses one without checkpoint.
        progress: who is told how it goes.
        gate: who may end it early.

    Returns:
        `run`, `epochs`, `best_epoch`, `seconds`, and `val` and `test` metrics at the best epoch.

    Raises:
        DNFormerError: a setting or the data are wrong, or the run could not go on.
        Stopped: it was told to stop by SIGTERM; its state is saved.
        KeyboardInterrupt: likewise, by Ctrl-C.
    """
    progress = progress or Progress()
    storage.configure(config.storage)
    manifest = read_manifest(storage.absolute(config.data.uri))
    fingerprint = manifest.fingerprint
    with Run(decided(config, manifest), fingerprint, start=start) as run:
        for warning in run.warnings:
            progress.say(f"warning: {warning}")
        found = run.result()
        if found is not None:
            progress.say(f"{run.uri} is finished; --fresh trains it again")
            return found
        if start == "resume" and newest_checkpoint(run.uri) is None:
            raise CheckpointError(f"{run.uri} has no checkpoint to resume; leave out --resume")
        if run.config.loader.sampler == "pyg-lib":
            progress.say("warning: pyg-lib's draws are not reproducible, nor is a resumed run")
        job = Job(portable(run.config), fingerprint, run.attempt, gate)
        result = _run(run.config, job, progress)
        run.finish(result)
        return result


def decided(config: RunConfig, manifest: Manifest) -> RunConfig:
    """`config` with what follows from the dataset spelt out: its split and what is monitored."""
    position = pick_target(manifest, config.data.label, config.data.uri)
    if position is None:
        raise DataError(f"{config.data.uri}: the dataset has no labels; there is nothing to learn")
    monitor = monitor_for(manifest.targets[position], config.train.monitor)
    # the dataset's default may change under a run
    data = config.data.model_copy(update={"split": config.data.split or manifest.default_split})
    train = config.train.model_copy(update={"monitor": monitor})
    return config.model_copy(update={"data": data, "train": train})


def _run(config: RunConfig, job: Job, progress: Progress) -> Result:
    train = config.train
    if train.max_workers == 0:
        group = Group(device=device_for(train.use_gpu))
        with stopper(progress.say) as told:
            return run_worker(job, group, Driver(progress.record, told.pending, told.attend))
    needed = resources(config)
    with ray_runtime.session(needed, progress.say), _followed(job, progress):
        # only now: Ray takes its environment when it is imported
        from dnformer.ray_runtime.workers import Policy, run_workers

        progress.say(f"starting {_range(train)} worker(s)")
        result: Result = run_workers(
            run_worker, job, resources=needed, folder=job.run,
            policy=Policy(train.max_failures, train.collective_timeout_s),
        )  # fmt: skip
        return result


def _range(train: TrainConfig) -> str:
    low, high = train.min_workers, train.max_workers
    return str(high) if low == high else f"{low} to {high}"


def resources(config: RunConfig) -> ray_runtime.Resources:
    """What the workers of a run need."""
    train = config.train
    gpus = train.gpu_share if train.use_gpu else 0
    return ray_runtime.Resources(
        train.max_workers, train.threads or 1, gpus, min_workers=train.min_workers
    )


@contextmanager
def _followed(job: Job, progress: Progress) -> Iterator[None]:
    """Passes on what the workers record, from the metrics they write, and why a group failed."""
    follower = Follower(job.run, since_attempt=job.attempt.number)
    told = len(ray_runtime.failures(job.run))

    def follow() -> None:
        nonlocal told
        for reason in ray_runtime.failures(job.run, after=told):
            progress.say(f"{reason}; starting again from the last checkpoint")
            told += 1
        for record in follower.poll():
            progress.record(record)

    with meanwhile(follow, job.run):
        yield


def repeat(
    config: RunConfig, times: int, *, start: Start = "any", progress: Progress | None = None
) -> Result:
    """Trains `times` runs in `RUN/repeat-i`; run i has seed + i and data seed + i.

    Returns:
        `metric`, the main one of the label's kind, its `values` on the test nodes, their `mean` and
        sample `std`, and means of the rest.
    """
    progress = progress or Progress()
    results = []
    with _one_session(config, progress):
        for i in range(times):
            each = repeated(config, i)
            # those that come after the one that was stopped have not begun
            begun = storage.exists(run_uri(each))
            resumed: Start = "any" if start == "resume" and i and not begun else start
            result = train(each, start=resumed, progress=progress)
            metric = main_metric(result["test"])
            value = shown(metric, result["test"][metric])
            progress.say(f"repeat {i + 1}/{times}: test {metric} {value}")
            results.append(result)
    values = [result["test"][metric] for result in results]
    return {
        "run": storage.join(storage.absolute(config.storage_path), config.name),
        "epochs": sum(result["epochs"] for result in results),
        "seconds": sum(result["seconds"] for result in results),
        "val": _means(results, "val"),
        "test": _means(results, "test"),
        "metric": metric,
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if times > 1 else 0.0,
        "values": values,
    }


def repeated(config: RunConfig, i: int) -> RunConfig:
    """The config of repeat `i`."""
    data = config.data.model_copy(update={"seed": config.data_seed + i})
    update = {"name": f"{config.name}/repeat-{i}", "seed": config.seed + i, "data": data}
    return config.model_copy(update=update)


@contextmanager
def _one_session(config: RunConfig, progress: Progress) -> Iterator[None]:
    if config.train.max_workers == 0:
        yield
        return
    with ray_runtime.session(resources(config), progress.say):
        yield


def _means(results: list[Result], split: str) -> dict[str, float]:
    # one that is undefined on a split is left out
    names = [name for name in results[0][split] if all(name in each[split] for each in results)]
    return {name: statistics.fmean(result[split][name] for result in results) for name in names}


def evaluate(uri: str, *, reached: StorageConfig = _BY_ITSELF) -> Result:
    """Validation and test metrics of the best weights of the run at `uri`, computed anew.

    Args:
        uri: the run's folder.
        reached: how stores are reached; the run's own config has the rest.

    Raises:
        CheckpointError: there is no run, or it has no checkpoint.
    """
    uri, config, fingerprint = reach_run(uri, reached)
    result = evaluate_run(Job(config.dump(), fingerprint, Attempt(uri, 0, 0, "")))
    stored = read_result(uri)
    return result if stored is None else result | {"seconds": stored["seconds"]}
