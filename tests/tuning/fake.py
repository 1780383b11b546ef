"""Trials that train nothing: their curves follow from their settings, and they can be killed.

As a script, `fake.py FOLDER AT_A_TIME OPTIONS`, it runs a search of such trials, without Ray.
"""

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.parsing import parse
from dnformer.tuning.runner import Source
from dnformer.tuning.search import Found, Runner, tune
from dnformer.tuning.trial import Message, Task

EPOCHS = 9
SPACE = {
    "model.heads": {"choice": [1, 2, 4]},
    "optim.lr": {"loguniform": [1e-4, 1e-1]},
}


def curve(config: dict[str, Any], epoch: int) -> float:
    """The accuracy after an epoch: best at a rate of 0.01, better with more heads."""
    far = abs(math.log10(config["optim"]["lr"]) + 2)
    top = 0.9 - 0.2 * far + 0.01 * config["model"]["heads"]
    return round(top * (1 - 0.5 ** (epoch + 1)), 6)


def fake_trial(task: Task, report: Callable[[Message], None], epoch_s: float = 0.0) -> None:
    """As `run_trial`; what it has done stands in a file, by which it goes on."""
    folder = Path(task.gate.folder)  # of all legs of the trial
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "state.json"
    done = json.loads(path.read_text()) if path.exists() else 0
    values = [curve(task.config, epoch) for epoch in range(EPOCHS)]
    for epochs in range(1, (task.config["train"]["stop_after"] or EPOCHS) + 1):
        if epochs > done:
            time.sleep(epoch_s)
            storage.write_bytes(str(path), json.dumps(epochs).encode())
            with (folder / "epochs").open("a") as file:
                file.write(f"{epochs}\n")
        if epochs in task.gate.milestones:
            report({"kind": "result", "epochs": epochs, "value": max(values[:epochs])})
            if task.gate.stops(epochs):
                break
    best = max(values[:epochs])
    metrics = {"accuracy": best, "loss": 1 - best}
    result = {
        "run": str(folder), "epochs": epochs, "best_epoch": epochs - 1, "seconds": 0.5,
        "parameters": 100, "val": metrics, "test": metrics,
    }  # fmt: skip
    report({"kind": "end", "result": result})


def tasks_of(source: Source, lock: AbstractContextManager[Any]) -> Iterator[Task]:
    """All tasks of a source, which is asked by one thread at a time."""
    while True:
        with lock:
            task = source.next_task()
        if task is None:
            return
        if task == "wait":
            time.sleep(0.001)
        else:
            yield task


def in_threads(at_a_time: int) -> Callable[[Source, Any], None]:
    """Runs the trials of a source in so many threads."""

    def run(source: Source, trainable: Any) -> None:
        lock = threading.RLock()

        def work(_: int) -> None:
            for task in tasks_of(source, lock):

                def report(message: Message, number: int = task.number) -> None:
                    with lock:
                        source.told(number, message)

                trainable(task, report)

        with ThreadPoolExecutor(at_a_time) as pool:
            list(pool.map(work, range(at_a_time)))

    return run


def config_of(folder: Path, **options: Any) -> RunConfig:
    """A search in `folder`; the dataset is made there once."""
    data = folder / "data"
    if not (data / "manifest.json").exists():
        ingest(SyntheticSource(nodes=60, classes=2, features=4, degree=4), str(data))
    tune = {"num_trials": 8, "search": "random", "scheduler": "none", "space": SPACE} | options
    return parse(RunConfig, {
        "name": "search",
        "storage_path": str(folder / "runs"),
        "data": {"uri": str(data), "split": {"random": [0.6, 0.2, 0.2]}},
        "train": {"epochs": EPOCHS},
        "tune": tune,
    })  # fmt: skip


def search(folder: Path, at_a_time: int = 1, epoch_s: float = 0.0, **options: Any) -> Found:
    """Runs a search of fake trials."""

    def trainable(task: Task, report: Callable[[Message], None]) -> None:
        fake_trial(task, report, epoch_s)

    runner = Runner(trainable, in_threads(at_a_time))
    return tune(config_of(folder, **options), runner=runner)


if __name__ == "__main__":
    search(Path(sys.argv[1]), int(sys.argv[2]), epoch_s=0.01, **json.loads(sys.argv[3]))
