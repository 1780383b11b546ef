"""Starts, continues and repeats runs: the one entry for the command line and for Python."""

import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dnformer import ray_runtime, storage
from dnformer.config import RunConfig
from dnformer.data.graph import pick_target
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.errors import DataError
from dnformer.group import Group
from dnformer.train.objectives import main_metric, monitor_for, shown
from dnformer.train.run import Run, portable, read_result, read_run
from dnformer.train.sinks import Record, read_metrics
from dnformer.train.worker import Job, device_for, evaluate_run, run_worker

Result = dict[str, Any]


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


def train(config: RunConfig, *, fresh: bool = False, progress: Progress | None = None) -> Result:
    """Trains a run to its end, from its newest checkpoint if it has one.

    Args:
        config: the run.
        fresh: forget what the run's folder holds.
        progress: who is told how it goes.

    Returns:
        `run`, `epochs`, `best_epoch`, `seconds`, and `val` and `test` metrics at the best epoch.

    Raises:
        DNFormerError: a setting or the data are wrong, or the run could not go on.
    """
    progress = progress or Progress()
    manifest = read_manifest(storage.absolute(config.data.uri))
    fingerprint = manifest.fingerprint
    with Run(_decided(config, manifest), fingerprint, fresh=fresh) as run:
        for warning in run.warnings:
            progress.say(f"warning: {warning}")
        found = run.result()
        if found is not None:
            progress.say(f"{run.uri} is finished; --fresh trains it again")
            return found
        if run.config.loader.sampler == "pyg-lib":
            progress.say("warning: pyg-lib's draws are not reproducible, nor is a resumed run")
        job = Job(portable(run.config), run.uri, run.attempt.number, fingerprint)
        result = _run(run.config, job, progress)
        run.finish(result)
        return result


def _decided(config: RunConfig, manifest: Manifest) -> RunConfig:
    """`config` with what follows from the dataset spelt out: its split and what is monitored."""
    position = pick_target(manifest, config.data.label, config.data.uri)
    if position is None:
        raise DataError(f"{config.data.uri}: the dataset has no labels; there is nothing to learn")
    monitor = monitor_for(manifest.targets[position].kind, config.train.monitor)
    # the dataset's default may change under a run
    data = config.data.model_copy(update={"split": config.data.split or manifest.default_split})
    train = config.train.model_copy(update={"monitor": monitor})
    return config.model_copy(update={"data": data, "train": train})


def _run(config: RunConfig, job: Job, progress: Progress) -> Result:
    train = config.train
    if train.max_workers == 0:
        return run_worker(job, Group(device=device_for(train.use_gpu)), progress.record)
    resources = ray_runtime.Resources(train.max_workers, train.threads or 1, train.use_gpu)
    with ray_runtime.session(resources, progress.say), _followed(job, progress):
        progress.say(f"starting {train.max_workers} worker(s)")
        result: Result = ray_runtime.run_workers(
            run_worker, job, resources=resources, folder=job.run
        )
        return result


@contextmanager
def _followed(job: Job, progress: Progress) -> Iterator[None]:
    """Passes on the starts and epochs that the workers record, from the metrics they write."""
    ended = threading.Event()
    passed_on: set[tuple[str, int]] = set()

    def follow() -> None:
        for record in read_metrics(job.run, attempt=job.attempt):
            key = (record["kind"], record["step"])
            if record["kind"] != "step" and key not in passed_on:
                passed_on.add(key)
                progress.record(record)

    def poll() -> None:
        while not ended.wait(0.5):
            follow()

    thread = threading.Thread(target=poll, name="dnformer-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        follow()


def repeat(
    config: RunConfig, times: int, *, fresh: bool = False, progress: Progress | None = None
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
            result = train(repeated(config, i), fresh=fresh, progress=progress)
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
    train = config.train
    if train.max_workers == 0:
        yield
        return
    resources = ray_runtime.Resources(train.max_workers, train.threads or 1, train.use_gpu)
    with ray_runtime.session(resources, progress.say):
        yield


def _means(results: list[Result], split: str) -> dict[str, float]:
    names = results[0][split]
    return {name: statistics.fmean(result[split][name] for result in results) for name in names}


def evaluate(uri: str) -> Result:
    """Validation and test metrics of the best weights of the run at `uri`, computed anew.

    Raises:
        CheckpointError: there is no run, or it has no checkpoint.
    """
    uri = storage.absolute(uri)
    config, fingerprint = read_run(uri)
    result = evaluate_run(Job(config.dump(), uri, 0, fingerprint))
    stored = read_result(uri)
    return result if stored is None else result | {"seconds": stored["seconds"]}
