"""Searches with Ray Tune for real: killed drivers, lost trials, workers of Ray Train in a trial."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from filelock import FileLock

from dnformer.config import RunConfig, load_config
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.errors import ConfigError, LostError, Stopped, TrainError
from dnformer.parsing import parse
from dnformer.ray_runtime import Resources, session
from dnformer.training import launch
from dnformer.tuning.results import best_config, stored_config, write_best
from dnformer.tuning.runner import _sigterm_stops as sigterm_stops
from dnformer.tuning.runner import room_for
from dnformer.tuning.search import Found, Runner, Watch, tune
from dnformer.tuning.trial import run_trial

from . import fake

pytestmark = [
    pytest.mark.timeout(600),
    # Ray warns of its own settings, and leaves its processes to the interpreter's end
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# judged after 1, 3 and 9
EPOCHS = 27
TUNE = {
    "num_trials": 5,
    "search": "optuna",
    "scheduler": "asha",
    "grace_epochs": 1,
    "max_concurrent": 1,
    "space": {"optim.lr": {"loguniform": [1e-4, 1e-1]}},
}


def make_values(data: str, folder: Path, tuned: dict = TUNE, **train: Any) -> dict:
    return {
        "name": "search",
        "storage_path": str(folder / "runs"),
        "data": {"uri": data, "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": [4, 3], "batch_size": 24},
        "model": {"hidden": 16},
        "train": {"epochs": EPOCHS, "threads": 1, "micro_batches": 1, **train},
        "cache": {"dir": str(folder / "store")},
        "tune": tuned,
    }


def without_ray(values: dict) -> Found:
    """The search of `values`, its trials one after the other in this process."""
    return tune(parse(RunConfig, values), runner=Runner(run_trial, fake.in_threads(1)))


def events(search: str | Path) -> dict[str, bytes]:
    paths = Path(search, "trials/events").glob("*.json")
    return {path.name: path.read_bytes() for path in sorted(paths)}


def table(search: str | Path) -> list[dict]:
    rows = pq.read_table(Path(search, "trials.parquet")).to_pylist()
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def outcome(found: Found) -> list[tuple]:
    return [(t.params, t.state, t.values, t.results, t.facts.get("epochs")) for t in found.trials]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = str(tmp_path_factory.mktemp("data") / "graph")
    ingest(SyntheticSource(nodes=400, classes=3, features=8, degree=4), uri)
    return uri


@pytest.fixture(scope="module")
def straight(data, tmp_path_factory) -> Found:
    """The search that nobody killed."""
    return without_ray(make_values(data, tmp_path_factory.mktemp("straight")))


def command(name: str, file: Path | str) -> list[str]:
    return [sys.executable, "-m", "dnformer.cli", name, str(file), "--json"]


def kill(file: Path, search: Path, draws: random.Random) -> None:
    """Starts `dnformer tune`, and kills it some events later."""
    aim = len(events(search)) + draws.randint(2, 5)
    log = file.with_suffix(".log")
    with log.open("w") as sink:
        process = subprocess.Popen(command("tune", file), stdout=subprocess.DEVNULL, stderr=sink)
        while len(events(search)) < aim:
            assert process.poll() is None, log.read_text()
            time.sleep(0.005)
        time.sleep(draws.uniform(0, 0.2))
        assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.ray
def test_search_killed_twice_gives_the_table_of_one_never_killed(data, straight, tmp_path):
    search, file, draws = tmp_path / "runs/search", tmp_path / "search.yaml", random.Random(6)
    file.write_text(yaml.safe_dump(make_values(data, tmp_path)))
    known: dict[str, bytes] = {}
    for _ in range(2):
        kill(file, search, draws)
        found = events(search)
        assert len(found) > len(known)
        assert dict(list(found.items())[: len(known)]) == known
        known = found
    done = subprocess.run(command("tune", file), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = events(search)
    assert len(found) > len(known), "it was killed before its end"
    assert dict(list(found.items())[: len(known)]) == known
    assert table(search) == table(straight.uri)
    # nothing but our lines reaches a log, nothing but JSON a program
    assert "Ray" not in done.stderr.replace("loading Ray", "").replace("starting Ray on", "")
    best = json.loads(done.stdout)["best"]
    assert straight.best is not None
    assert straight.best.state == "finished"
    assert (best["trial"], best["value"]) == (straight.best.number, *straight.best.values)

    again = subprocess.run(command("train", best["file"]), capture_output=True, check=True)
    assert json.loads(again.stdout)["val"]["accuracy"] == best["value"]


def test_the_config_of_a_trial_that_was_stopped_trains_to_its_value(straight):
    stopped = [trial for trial in straight.trials if trial.state == "stopped"]
    trial = max(stopped, key=lambda trial: trial.values)
    assert trial.facts["epochs"] < EPOCHS
    config = best_config(stored_config(straight.uri, trial), trial)
    result = launch.train(load_config(write_best(straight.uri, config, trial, monitor="accuracy")))
    assert result["epochs"] == trial.facts["epochs"]
    assert result["val"] == trial.facts["val"]


def test_a_trial_waits_for_what_a_killed_driver_left(data, tmp_path):
    values = make_values(data, tmp_path, TUNE | {"num_trials": 1, "scheduler": "none"}, epochs=1)
    folder = tmp_path / "runs/search/trials/0000"
    lock = FileLock(folder / ".lock", thread_local=False)

    def hold(source, trainable):
        folder.mkdir(parents=True)
        lock.acquire()
        threading.Timer(1.5, lock.release).start()
        fake.in_threads(1)(source, trainable)

    found = tune(parse(RunConfig, values), runner=Runner(run_trial, hold))
    assert not lock.is_locked
    assert [trial.state for trial in found.trials] == ["finished"]


@pytest.fixture(scope="module")
def ray() -> Iterator[ModuleType]:
    with session(Resources(1, 1), lambda text: None):
        # only now: Ray takes its environment when it is imported
        import ray

        yield ray


def reserved(ray: ModuleType) -> tuple[list[dict], float]:
    """Placement groups that are still there, and CPUs in use."""
    groups = ray.util.placement_group_table().values()
    used = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)
    return [group for group in groups if group["state"] != "REMOVED"], used


@pytest.mark.ray
def test_trials_with_workers_of_their_own_leave_nothing_reserved(ray, data, tmp_path):
    # the second is judged below the first, and ends after an epoch
    grid = {
        "search": "grid",
        "scheduler": "asha_stopping",
        "space": {"optim.lr": {"choice": [4e-3, 1e-4, 7e-3]}},
    }
    found = {
        workers: search(
            make_values(data, tmp_path / str(workers), TUNE | grid, workers=workers, epochs=9)
        )
        for workers, search in (
            (0, without_ray),
            (1, lambda values: tune(parse(RunConfig, values))),
        )
    }
    assert [trial.state for trial in found[1].trials] == ["finished", "stopped", "finished"]
    assert outcome(found[1]) == outcome(found[0])
    give_up = time.monotonic() + 15
    while reserved(ray) != ([], 0) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert reserved(ray) == ([], 0)


def dies_once(task, report) -> None:
    """A trial whose first process dies where it is trial 1, and loses workers where it is 2."""
    marker = Path(task.gate.folder).parent / f"met-{task.number}"
    met = marker.exists()
    marker.touch()
    if task.number == 1 and not met:
        os._exit(1)
    if task.number == 2 and not met:
        raise LostError("worker 0 was lost")
    fake.fake_trial(task, report)


def dies_always(task, report) -> None:
    """A trial whose process is always lost where it is trial 1."""
    if task.number == 1:
        os._exit(1)
    fake.fake_trial(task, report)


# what is said of a trial whose process has died
DEATH = r"its process was killed .*, or crashed"


def printed(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on stdout and stderr; Ray's own one of a process that died is left to it."""
    return [line for text in capfd.readouterr() for line in text.splitlines()
            if "(raylet)" not in line]  # fmt: skip


def fake_config(folder: Path) -> RunConfig:
    config = fake.config_of(folder, num_trials=3, max_concurrent=1)
    train = config.train.model_copy(update={"max_failures": 1})
    return config.model_copy(update={"train": train})


@pytest.mark.ray
def test_a_trial_whose_process_dies_is_started_again(ray, tmp_path, capfd):
    said: list[str] = []
    found = tune(fake_config(tmp_path), watch=Watch(said.append), runner=Runner(dies_once))
    again = [text for text in said if "starting it again" in text]
    assert re.fullmatch(rf"trial 1: {DEATH}; starting it again", again[0])
    assert again[1:] == ["trial 2: worker 0 was lost; starting it again"]
    assert table(found.uri) == table(fake.search(tmp_path / "straight", num_trials=3).uri)
    assert printed(capfd) == []


@pytest.mark.ray
def test_a_trial_that_is_lost_in_two_starts_has_failed(ray, tmp_path, capfd):
    config, said = fake_config(tmp_path), []
    watch, runner = Watch(said.append), Runner(dies_always)
    with pytest.raises(TrainError, match=r"lost trial 1; the same command goes on") as raised:
        tune(config, watch=watch, runner=runner)
    assert raised.value.exit_code == 1
    again, lost = (text for text in said if "trial 1" in text)
    assert re.fullmatch(rf"trial 1: {DEATH}; starting it again", again)
    assert re.fullmatch(rf"trial 1 was lost: {DEATH}", lost)
    before = events(tmp_path / "runs/search")
    kinds = [(json.loads(event)["kind"], json.loads(event)["trial"]) for event in before.values()]
    assert kinds == [(kind, i) for i in range(3) for kind in ("begin", "lost" if i == 1 else "end")]

    found = tune(config, watch=watch, runner=runner)
    assert [trial.state for trial in found.trials] == ["finished", "failed", "finished"]
    assert re.fullmatch(rf"lost in two starts: {DEATH}", found.trials[1].facts["error"])
    assert dict(list(events(found.uri).items())[: len(before)]) == before
    assert printed(capfd) == []


def test_sigterm_while_trials_run_is_stopped_and_the_handler_is_given_back():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match=r"^stopped$"), sigterm_stops():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(KeyboardInterrupt), sigterm_stops():
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def cluster(monkeypatch):
    """Makes Ray say that the cluster has so much."""

    def has(**resources: float) -> None:
        fake_ray = SimpleNamespace(cluster_resources=lambda: resources)
        monkeypatch.setitem(sys.modules, "ray", fake_ray)

    return has


@pytest.mark.parametrize(
    ("have", "needed", "wanted", "expected"),
    [
        ({"CPU": 8}, Resources(1, 1), None, (8, "8 CPU / (1 x 1) = 8")),
        ({"CPU": 8}, Resources(1, 1), 3, (3, "8 CPU / (1 x 1) = 8")),
        ({"CPU": 8}, Resources(2, 3), None, (1, "8 CPU / (2 x 3) = 1")),
        ({"CPU": 16, "GPU": 1}, Resources(1, 2, gpus=0.1), None,
         (8, "16 CPU / (1 x 2) = 8, 1 GPU / (1 x 0.1) = 10")),
        ({"CPU": 16, "GPU": 2}, Resources(2, 1, gpus=0.5), 2,
         (2, "16 CPU / (2 x 1) = 8, 2 GPU / (2 x 0.5) = 2")),
    ],
)  # fmt: skip
def test_room_is_what_the_scarcest_allows(cluster, have, needed, wanted, expected):
    cluster(**have)
    assert room_for(needed, wanted) == expected


def test_a_cluster_that_was_joined_may_grow_to_what_is_wanted(cluster, monkeypatch):
    cluster(CPU=2)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    needed = Resources(1, 1, gpus=1)
    now = "2 CPU / (1 x 1) = 2, 0 GPU / (1 x 1) = 0 now, the rest waits for more nodes"
    assert room_for(needed, 3) == (3, now)
    with pytest.raises(ConfigError, match=r"or set tune\.max_concurrent where nodes are added"):
        room_for(needed, None)


@pytest.mark.parametrize(
    ("have", "needed", "wanted", "message"),
    [
        ({"CPU": 4}, Resources(1, 1), 5,
         r"^the cluster has room for 4 trials at a time \(4 CPU / \(1 x 1\) = 4\), not for 5; "
         r"lower train\.workers, train\.threads or tune\.max_concurrent$"),
        ({"CPU": 4}, Resources(2, 3), None, r"room for 0 trials .*\(2 x 3\) = 0\), not for 1;"),
        ({"CPU": 4}, Resources(1, 1, gpus=1), None, r"4 CPU .*, 0 GPU / \(1 x 1\) = 0\), not for"),
    ],
)  # fmt: skip
def test_no_room_is_refused_with_the_arithmetic(cluster, have, needed, wanted, message):
    cluster(**have)
    with pytest.raises(ConfigError, match=message):
        room_for(needed, wanted)
