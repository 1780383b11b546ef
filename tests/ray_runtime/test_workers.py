"""Ray for real: one local session for the file, started as `dnformer train` starts it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml

from dnformer.config import RunConfig
from dnformer.driver import Driver
from dnformer.errors import ConfigError, DataError, TrainError
from dnformer.group import Group
from dnformer.parsing import parse
from dnformer.ray_runtime import Resources, session
from dnformer.ray_runtime.session import _temporary_folder
from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint
from dnformer.training.launch import evaluate, train
from dnformer.training.sinks import read_metrics

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    # Ray warns of its own settings, and leaves its processes to the interpreter's end
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# 12 epochs of 34 steps: long enough that a kill comes before the end, and no checkpoint
# every 37 steps falls on the end of an epoch
EPOCHS, EVERY = 12, 37
CORA = Path(__file__).parents[2].parent / "shared" / "data" / "Cora"


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module", autouse=True)
def ray(said) -> Iterator[ModuleType]:
    with session(Resources(2, 1), said.append):
        # only now: Ray takes its environment when it is imported
        from dnformer.ray_runtime import workers

        yield workers


def add_up(payload: dict, group: Group, driver: Driver) -> dict:
    """A worker: sums over the group, and reports."""
    driver.report({"kind": "epoch", "epoch": 0, "step": 1})
    total = group.sum_(torch.tensor([group.rank + payload["add"]])).item()
    return {"rank": group.rank, "sum": total, "cwd": os.getcwd()}


def refuse(payload: str, group: Group, driver: Driver) -> None:
    """A worker that raises one of our errors on rank 1."""
    if group.rank == 1:
        raise DataError(payload)


def divide(payload: int, group: Group, driver: Driver) -> float:
    """A worker that fails by a bug."""
    return 1 / payload


def test_session_says_what_is_going_on_and_leaves_no_token_file(said, tmp_path):
    assert "starting Ray on this machine for 2 worker(s)" in said[-1]
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_session_inside_a_session_checks_what_is_there(said):
    with (
        pytest.raises(ConfigError, match=r"9 workers need 9 x 4 = 36 CPU, the cluster has"),
        session(Resources(9, 4), said.append),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"1 workers need 1 x 1 = 1 GPU, the cluster has 0"),
        session(Resources(1, 1, gpus=1), said.append),
    ):
        pass


def test_run_workers_gives_what_rank_0_returned(ray, tmp_path):
    result = ray.run_workers(
        add_up,
        {"add": 1},
        resources=Resources(2, 1),
        folder=str(tmp_path),
        policy=ray.Policy(),
    )
    assert (result["rank"], result["sum"]) == (0, 3)


def test_run_workers_raises_the_workers_own_error(ray, tmp_path):
    resources = Resources(2, 1)
    with pytest.raises(DataError, match=r"^row 7 is bad$"):
        ray.run_workers(
            refuse, "row 7 is bad", resources=resources, folder=str(tmp_path / "a"),
            policy=ray.Policy(max_failures=2),
        )  # fmt: skip
    with pytest.raises(TrainError, match="worker 0 failed: ZeroDivisionError"):
        ray.run_workers(
            divide, 0, resources=resources, folder=str(tmp_path / "b"),
            policy=ray.Policy(max_failures=2),
        )  # fmt: skip


def press_ctrl_c(payload: int, group: Group, driver: Driver) -> None:
    """A worker that sends its driver what Ctrl-C sends, and waits to be stopped."""
    if group.rank == 0:
        os.kill(payload, signal.SIGINT)
    time.sleep(60)


def test_run_workers_passes_on_ctrl_c_and_gives_the_handler_back(ray, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        ray.run_workers(
            press_ctrl_c, os.getpid(), resources=Resources(2, 1),
            folder=str(tmp_path), policy=ray.Policy(),
        )  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is before


def make_values(data_uri: str, storage: Path, store: Path, **train: object) -> dict:
    """A run on `data_uri` with dropout, 34 steps of 2 micro-batches an epoch on Cora."""
    return {
        "name": "run",
        "storage_path": str(storage),
        "data": {"uri": data_uri, "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": [5, 3], "batch_size": 24},
        "model": {"hidden": 16},
        "train": {"epochs": EPOCHS, "threads": 1, "micro_batches": 2, "log_every": 1, **train},
        "checkpoint": {"every_steps": EVERY, "every_epochs": 1000},
        "cache": {"dir": str(store)},
    }


@pytest.fixture(scope="module")
def data_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Cora where it is there, else a graph of its size."""
    from dnformer.data.ingest.run import ingest
    from dnformer.data.sources.raw import RawSource
    from dnformer.data.sources.synthetic import SyntheticSource

    uri = str(tmp_path_factory.mktemp("data") / "graph")
    if CORA.is_dir():
        ingest(RawSource(name="Planetoid/Cora", root=str(CORA)), uri)
    else:
        ingest(SyntheticSource(nodes=2708, classes=7, features=32, degree=4), uri)
    return uri


@pytest.fixture(scope="module")
def straight(data_uri, tmp_path_factory) -> dict[int, str]:
    """By number of workers, the run that nobody stopped."""
    folder = tmp_path_factory.mktemp("straight")
    return {
        workers: train(
            parse(
                RunConfig,
                make_values(data_uri, folder / str(workers), folder / "store", workers=workers),
            )
        )["run"]
        for workers in (1, 2)
    }


def losses(run: str) -> list[float]:
    return [record["train/loss"] for record in read_metrics(run) if record["kind"] == "step"]


def weights(run: str) -> dict[str, torch.Tensor]:
    found = newest_checkpoint(run)
    assert found is not None
    return read_checkpoint(*found)[0]


def test_one_and_two_workers_have_the_same_losses(straight):
    one, two = losses(straight[1]), losses(straight[2])
    assert len(one) == len(two) >= 20
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-5)


def test_evaluate_gives_what_two_workers_gave(straight):
    result = evaluate(straight[2])
    stored = yaml.safe_load(Path(straight[2], "result.json").read_text())
    assert result == stored["result"]


def kill_mid_epoch(values: dict, folder: Path) -> int:
    """Starts `dnformer train`, kills it after its first checkpoint; the step its checkpoint has."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(values))
    run = str(Path(values["storage_path"]) / "run")
    command = [sys.executable, "-m", "dnformer.cli", "train", str(file)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        while not (records := read_metrics(run)) or records[-1]["step"] <= EVERY:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    # workers live on for a moment when their driver is killed
    while len(records) < len(records := read_metrics(run)):
        time.sleep(3)
    found = newest_checkpoint(run)
    assert found is not None
    return int(yaml.safe_load(found[1])["state"]["steps_done"])


@pytest.mark.parametrize(("first", "then"), [(2, 2), (2, 0), (0, 2)], ids=str)
def test_train_killed_mid_epoch_is_continued(straight, data_uri, tmp_path, first, then):
    values = make_values(data_uri, tmp_path / "runs", tmp_path / "store", workers=first)
    resumed_at = kill_mid_epoch(values, tmp_path)
    run = str(tmp_path / "runs" / "run")
    done = max(record["step"] for record in read_metrics(run))
    values["train"]["workers"] = then
    train(parse(RunConfig, values))

    steps_per_epoch = len(losses(straight[2])) // EPOCHS
    assert 0 < resumed_at <= done < len(losses(straight[2])), "it was killed before its end"
    assert resumed_at % steps_per_epoch != 0, "the checkpoint is in the middle of an epoch"
    assert done - resumed_at <= EVERY, "no more steps run twice than the interval"
    assert f"2-{resumed_at}.jsonl" in os.listdir(Path(run) / "metrics")
    np.testing.assert_allclose(losses(run), losses(straight[2]), rtol=0, atol=1e-5)
    if first == then:
        expected, found = weights(straight[2]), weights(run)
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), name


def test_temporary_folder_removes_those_of_dead_owners(tmp_path):
    folder = _temporary_folder()
    dead = folder.with_name("dnformer-ray-999999999-x")
    dead.mkdir()
    again = _temporary_folder()
    assert not dead.exists()
    assert folder.exists()
    for mine in (folder, again):
        mine.rmdir()
