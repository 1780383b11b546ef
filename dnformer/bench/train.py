"""`dnformer bench train`: the same training without Ray, on one Ray worker, and on two.

Each worker computes on one thread, and may use as many cores as there are workers. They take turns,
since what else runs on the machine would favour one of them.
"""

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from dnformer import ray_runtime, storage
from dnformer.bench.report import Target, for_json, heading, load, print_case
from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.manifest import read_manifest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.driver import Driver, Record
from dnformer.errors import BackendError, ConfigError
from dnformer.group import Group
from dnformer.parsing import override, parse
from dnformer.training.run import Run, portable
from dnformer.training.worker import Job, run_worker

_CASE = "train"
_LONG_S = 60.0  # shorter epochs than that may pay more for Ray's part in them
# what the bench decides, which makes the contenders comparable
_OWN = ("name", "storage_path", "data.uri", "train.workers", "train.threads", "train.use_gpu")


class Contender(NamedTuple):
    """A way to train: `workers` of Ray, or 0 for this process."""

    impl: str
    workers: int


ALONE = Contender("in process", 0)
ONE = Contender("Ray, 1 worker", 1)
TWO = Contender("Ray, 2 workers", 2)
CONTENDERS = (ALONE, ONE, TWO)


class Settings(NamedTuple):
    """What the command takes.

    Attributes:
        repeats: rounds; each trains once with every contender.
        graph: URI of a dataset with labels; else one is made.
        changes: `path=value` of the run's config.
        nodes: of the graph that is made.
    """

    repeats: int = 3
    graph: str | None = None
    changes: Sequence[str] = ()
    nodes: int = 50_000


class Timed(NamedTuple):
    """One training: wall seconds of each epoch but the first, and the records of these.

    They end when the epoch is reported, so that checkpoints and Ray's part are within.
    """

    seconds: list[float]
    records: list[Record]


class Row(NamedTuple):
    """One contender.

    Attributes:
        case: "train".
        graph: what it ran on.
        impl: the contender.
        workers: Ray's; 0: this process.
        seconds: wall time of an epoch after the first, median of all rounds' epochs.
        low: of these.
        high: of these.
        epochs: how many these are.
        seeds: nodes that train.
        seeds_per_s: seed nodes a second.
        edges_per_s: sampled edges a second, without checkpoints and reports.
        stages: seconds of an epoch by stage, mean of workers and epochs.
        note: anything else.
    """

    case: str
    graph: str
    impl: str
    workers: int
    seconds: float
    low: float
    high: float
    epochs: int
    seeds: int
    seeds_per_s: float
    edges_per_s: float
    stages: dict[str, float]
    note: str = ""


class Findings(NamedTuple):
    """All of the case."""

    rows: list[Row]
    targets: list[Target]


def run(settings: Settings, *, say: Callable[[str], None]) -> Findings:
    """Trains with every contender, in turns.

    Raises:
        ConfigError: a change of the config is wrong, or is the bench's to make.
        DataError: the graph is not there, or has no labels.
        BackendError: this process may use one core only, or Ray did not start.
    """
    if len(os.sched_getaffinity(0)) < TWO.workers:
        raise BackendError(f"{TWO.workers} workers need as many cores; this process may use 1")
    _refuse_own(settings.changes)
    with tempfile.TemporaryDirectory(prefix="dnformer-bench-") as name:
        folder = Path(name)
        uri = settings.graph or str(folder / "power-law")
        config = _config(uri, folder, settings)
        if settings.graph is None:
            say(f"making a graph of {settings.nodes:,} nodes")
            _make_graph(uri, settings.nodes)
        fingerprint = read_manifest(storage.absolute(uri)).fingerprint
        with ray_runtime.session(ray_runtime.Resources(TWO.workers, 1), say):

            def train(contender: Contender, turn: int) -> Timed:
                say(f"round {turn + 1} of {settings.repeats}: {contender.impl}")
                return _train(_named(config, contender, turn), fingerprint, contender)

            rounds = in_turns(settings.repeats, train)
    return compare(Path(uri).name, rounds)


def _refuse_own(changes: Sequence[str]) -> None:
    for change in changes:
        path = change.partition("=")[0]
        if any(own == path or own.startswith(f"{path}.") for own in _OWN):
            raise ConfigError(f"--set {change}: the bench decides {', '.join(_OWN)}")


def _make_graph(uri: str, nodes: int) -> None:
    ingest(SyntheticSource(kind="power_law", nodes=nodes, degree=20, features=128), uri)


def _config(uri: str, folder: Path, settings: Settings) -> RunConfig:
    values: dict[str, Any] = {
        "name": "bench",
        "storage_path": str(folder),
        "data": {"uri": uri, "split": {"random": [0.6, 0.2, 0.2]}},
        # the loader's thread shares the worker's core
        "loader": {"num_neighbors": [15, 10], "threads": 1},
        "train": {
            "epochs": 4,
            "threads": 1,
            "micro_batches": TWO.workers,
            "patience": None,
            "monitor": "val/loss",
        },
    }
    if settings.graph is None:
        values["cache"] = {"dir": str(folder / "stores")}
    config = parse(RunConfig, override(values, settings.changes))
    if config.train.epochs < 2:
        raise ConfigError("train.epochs is 1: the first is not timed; set 2 or more")
    return config


def _named(config: RunConfig, contender: Contender, turn: int) -> RunConfig:
    train = config.train.model_copy(update={"workers": contender.workers})
    name = f"{config.name}/round-{turn}-workers-{contender.workers}"
    return config.model_copy(update={"name": name, "train": train})


def in_turns(repeats: int, train: Callable[[Contender, int], Timed]) -> dict[str, list[Timed]]:
    """What `train` gives for every contender and round; each round begins with the next one."""
    found: dict[str, list[Timed]] = {contender.impl: [] for contender in CONTENDERS}
    for turn in range(repeats):
        for place in range(len(CONTENDERS)):
            contender = CONTENDERS[(turn + place) % len(CONTENDERS)]
            found[contender.impl].append(train(contender, turn))
    return found


def _train(config: RunConfig, fingerprint: str, contender: Contender) -> Timed:
    with Run(config, fingerprint) as opened:
        job = Job(portable(opened.config), fingerprint, opened.attempt)
        if contender.workers == 0:
            return train_timed(job, Group(), Driver())
        # only here: Ray takes its environment when it is imported
        from dnformer.ray_runtime.workers import Policy, run_workers

        resources = ray_runtime.Resources(contender.workers, 1)
        timed: Timed = run_workers(
            train_timed, job, resources=resources, folder=job.run, policy=Policy()
        )
        return timed


def train_timed(job: Job, group: Group, driver: Driver) -> Timed:
    """As `run_worker`, on as many cores as there are workers; gives the times of its epochs."""
    ends: list[float] = []
    records: list[Record] = []

    def report(record: Record) -> None:
        driver.report(record)
        if record["kind"] == "epoch":
            ends.append(time.perf_counter())
            records.append(record)

    with confined(group.world_size):
        run_worker(job, group, driver._replace(report=report))
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    return Timed(seconds, records[1:])


@contextmanager
def confined(num_cores: int) -> Iterator[None]:
    """Keeps all threads of this process, also new ones, on its first `num_cores` cores."""
    before = os.sched_getaffinity(0)
    _pin(sorted(before)[:num_cores])
    try:
        yield
    finally:
        _pin(before)


def _pin(cores: Sequence[int] | set[int]) -> None:
    for thread in psutil.Process().threads():
        try:
            os.sched_setaffinity(thread.id, cores)
        except ProcessLookupError:
            continue  # it has ended


def compare(graph: str, rounds: dict[str, list[Timed]]) -> Findings:
    """The rows of the contenders, and how they compare: medians of the rounds' ratios."""
    rows = [_row(graph, contender, rounds[contender.impl]) for contender in CONTENDERS]
    alone, one, two = (
        [statistics.median(timed.seconds) for timed in rounds[contender.impl]]
        for contender in (ALONE, ONE, TWO)
    )
    long = rows[0].seconds >= _LONG_S
    share = "Ray's 1 worker over in process, seconds of an epoch"
    return Findings(
        rows,
        [
            Target(_CASE, "2 workers over 1, seeds/s", _median_ratio(one, two), at_least=1.6),
            Target(
                _CASE,
                share if long else f"{share} (bounded from {_LONG_S:g} s on)",
                _median_ratio(one, alone),
                at_most=1.03 if long else None,
            ),
        ],
    )


def _median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def _row(graph: str, contender: Contender, rounds: Sequence[Timed]) -> Row:
    seconds = [value for timed in rounds for value in timed.seconds]
    records = [record for timed in rounds for record in timed.records]
    # sums of an epoch over all workers
    seeds = round(records[0]["seeds_per_s"] * records[0]["seconds"])
    median = statistics.median(seconds)
    names = records[0]["stage_seconds"]
    return Row(
        _CASE,
        graph,
        contender.impl,
        contender.workers,
        median,
        min(seconds),
        max(seconds),
        epochs=len(seconds),
        seeds=seeds,
        seeds_per_s=seeds / median,
        edges_per_s=statistics.median(record["edges_per_s"] for record in records),
        stages={
            name: statistics.fmean(record["stage_seconds"][name]["mean"] for record in records)
            for name in names
        },
    )


_PEERS = ("torch", "ray", "numba", "numpy")


def as_json(findings: Sequence[Findings]) -> dict[str, Any]:
    """One object for programs."""
    return for_json(findings, _PEERS) | {"cores": os.cpu_count()}


def header() -> str:
    """One line above the table."""
    return f"{heading(*_PEERS)}; 1 thread a worker; {load()}"


def show(found: Findings, console: Console) -> None:
    """Prints the table, with its targets under it."""
    first = found.rows[0]
    title = f"{first.case}: {first.graph}, {first.seeds:,} seeds, epochs after the first"
    figures = ("s/epoch", "min", "max", "epochs", "seeds/s", "M edges/s")
    columns = ("impl", *figures, "s of an epoch by stage")
    print_case(console, title, columns, map(_cells, found.rows), found.targets)


def _cells(row: Row) -> list[str]:
    times = (f"{seconds:.2f}" for seconds in (row.seconds, row.low, row.high))
    stages = sorted(row.stages.items(), key=lambda item: -item[1])
    return [
        row.impl, *times, str(row.epochs), f"{row.seeds_per_s:,.0f}",
        f"{row.edges_per_s / 1e6:.2f}",
        ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages if seconds >= 0.005),
    ]  # fmt: skip
