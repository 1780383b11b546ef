"""`dnformer bench predict`: exact predictions beside reading the features and running the layers.

The floor reads the features once and runs the same layers in memory, and writes nothing. Every run
is a process of its own, so that its peak of memory is its own; the time is without imports. What is
read lies in the page cache.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from dnformer.bench.report import Target, for_json, heading, load, print_case, ratio
from dnformer.bench.resident import status_bytes
from dnformer.config import RunConfig, StorageConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.errors import BackendError, ConfigError
from dnformer.group import Group
from dnformer.inference import exact_logits
from dnformer.parsing import parse
from dnformer.prediction.launch import predict
from dnformer.training.launch import train
from dnformer.training.trained import open_trained

_DEGREE, _FEATURES, _LEAST_EDGES = 10, 128, 10_000
_TARGET_RATIO, _TARGET_GIB = 1.3, 2.0


class Settings(NamedTuple):
    """What the command takes.

    Attributes:
        edges: of the generated graph, which has a tenth as many nodes.
        memory_limit: of the prediction, as in 2GiB.
        repeats: timed rounds.
        temp_dir: local folder for all files; None: the system's.
    """

    edges: int = 10_000_000
    memory_limit: str = "2GiB"
    repeats: int = 3
    temp_dir: str | None = None


class Row(NamedTuple):
    """One contender.

    Attributes:
        case: the graph.
        impl: the contender.
        seconds: median of the rounds.
        low: of the rounds.
        high: of the rounds.
        cpu_seconds: of all threads, median of the rounds.
        peak_bytes: the most resident memory, in the worst of the rounds.
        to_floor: seconds over the floor's, median of the rounds' ratios.
        cpu_to_floor: likewise of CPU seconds.
    """

    case: str
    impl: str
    seconds: float
    low: float
    high: float
    cpu_seconds: float
    peak_bytes: int
    to_floor: float | None
    cpu_to_floor: float | None


class Findings(NamedTuple):
    """All of one case."""

    rows: list[Row]
    targets: list[Target]


def run(settings: Settings, *, say: Callable[[str], None]) -> Findings:
    """Makes a graph and a run, and races.

    Raises:
        ConfigError: a setting is wrong.
        BackendError: a contender failed.
    """
    if settings.edges < _LEAST_EDGES:
        raise ConfigError(f"--edges {settings.edges}: expected {_LEAST_EDGES} or more")
    with tempfile.TemporaryDirectory(prefix="dnformer-bench-predict-", dir=settings.temp_dir) as at:
        say(f"making a graph of {settings.edges:,} edges, and a run on it")
        trained = _make_run(Path(at), settings.edges)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
        for turn in range(settings.repeats):
            names = [*CONTENDERS] if turn % 2 else [*reversed(CONTENDERS)]
            for name in names:
                say(f"round {turn + 1} of {settings.repeats}: {name}")
                found[name].append(_once(name, trained, settings.memory_limit))
    case = f"{settings.edges:,} edges"
    rows = [_row(case, name, found) for name in found]
    return Findings(rows, targets(case, rows))


def _make_run(folder: Path, edges: int) -> str:
    """A run whose model is hardly trained, which takes as long to compute as one that is."""
    source = SyntheticSource(
        kind="power_law", nodes=edges // _DEGREE, degree=_DEGREE, features=_FEATURES
    )
    ingest(source, str(folder / "data"))
    values = {
        "name": "run",
        "storage_path": str(folder / "runs"),
        "data": {"uri": str(folder / "data"), "split": {"planetoid": 20}},
        "loader": {"num_neighbors": 5, "batch_size": 256},
        "train": {"epochs": 1},
        "eval": {"mode": "sampled"},
        "cache": {"dir": str(folder / "stores")},
    }
    return str(train(parse(RunConfig, values))["run"])


def _once(name: str, trained: str, memory_limit: str) -> dict[str, float]:
    command = [sys.executable, "-m", "dnformer.bench.predict", name, trained, memory_limit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        raise BackendError(f"{name} failed ({done.returncode}): {last}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _row(case: str, name: str, found: dict[str, list[dict[str, float]]]) -> Row:
    mine, floor = found[name], found["floor"]

    def ratios(what: str) -> float | None:
        if name == "floor":
            return None
        pairs = zip(mine, floor, strict=True)
        return statistics.median(one[what] / other[what] for one, other in pairs)

    seconds = [each["seconds"] for each in mine]
    return Row(
        case=case,
        impl=name,
        seconds=statistics.median(seconds),
        low=min(seconds),
        high=max(seconds),
        cpu_seconds=statistics.median(each["cpu_seconds"] for each in mine),
        peak_bytes=int(max(each["peak_bytes"] for each in mine)),
        to_floor=ratios("seconds"),
        cpu_to_floor=ratios("cpu_seconds"),
    )


def targets(case: str, rows: list[Row]) -> list[Target]:
    """What the prediction is held against."""
    (ours,) = (row for row in rows if row.impl == "predict")
    return [
        Target(case, "seconds over the floor's", ours.to_floor, at_most=_TARGET_RATIO),
        Target(case, "CPU seconds over the floor's", ours.cpu_to_floor, at_most=_TARGET_RATIO),
        Target(case, "peak memory, GiB", ratio(ours.peak_bytes, 2**30), at_most=_TARGET_GIB),
    ]


def _floor(trained: str, memory_limit: str) -> None:
    found = open_trained(trained, StorageConfig())
    graph = found.graph()
    assert graph.store.x is not None
    np.array(graph.store.x)  # read once
    exact_logits(found.dnformer(), graph, Group())


def _predict(trained: str, memory_limit: str) -> None:
    with tempfile.TemporaryDirectory(dir=Path(trained).parent) as out:
        predict(trained, f"{out}/said", memory_limit=memory_limit)


CONTENDERS: dict[str, Callable[[str, str], None]] = {"predict": _predict, "floor": _floor}


def header() -> str:
    """One line above the table."""
    return f"{heading('torch', 'pyarrow')}; {torch.get_num_threads()} threads; {load()}"


def show(found: Findings, console: Console) -> None:
    """Prints the table, with its targets under it."""
    columns = ("impl", "s", "min", "max", "CPU s", "peak MiB", "/ floor", "CPU / floor")
    print_case(console, found.rows[0].case, (*columns, "notes"), _cells(found.rows), found.targets)


def _cells(rows: list[Row]) -> Iterator[list[str]]:
    for row in rows:
        times = (row.seconds, row.low, row.high, row.cpu_seconds)
        ratios = ("" if r is None else f"{r:.2f}" for r in (row.to_floor, row.cpu_to_floor))
        yield [row.impl, *(f"{t:.2f}" for t in times), f"{row.peak_bytes >> 20:,}", *ratios, ""]


def as_json(findings: list[Findings]) -> dict[str, Any]:
    """The findings as one object for programs."""
    return for_json(findings, ("torch", "pyarrow"))


def main(name: str, trained: str, memory_limit: str) -> None:
    """Runs one contender and prints what it took."""
    begin, cpu = time.perf_counter(), time.process_time()
    CONTENDERS[name](trained, memory_limit)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - begin,
                "cpu_seconds": time.process_time() - cpu,
                "peak_bytes": status_bytes("VmHWM"),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
