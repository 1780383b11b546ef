"""`dnformer train` and `evaluate` as a person meets them: results, stops, going on, refusals."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml

from dnformer.data.cache import write_cache
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.data.table import Target, TargetColumn
from dnformer.training.sinks import read_metrics

from .commands import Result, people, run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a dataset `data`, and run.yaml for it."""
    folder = tmp_path_factory.mktemp("cli-train")
    ingest(SyntheticSource(nodes=40, classes=2, features=4, degree=4), str(folder / "data"))
    values = people(epochs=3)
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in `folder`, in this process."""
    monkeypatch.chdir(folder)
    return partial(run_command, capsys)


def test_train_then_evaluate_as_json(run, folder):
    result = run("train", "run.yaml", "--json")
    assert result.returncode == 0, result.stderr
    trained = json.loads(result.stdout)
    assert {"run", "epochs", "seconds", "val", "test"} <= trained.keys()
    assert trained["run"] == str(folder / "runs" / "people")
    assert [line.split()[1] for line in result.epochs()] == ["1/3", "2/3", "3/3"]
    evaluated = json.loads(run("evaluate", "runs/people", "--json").stdout)
    assert evaluated == trained


def test_train_of_a_finished_run_gives_its_result_again(run):
    first = run("train", "run.yaml", "--set", "name=twice", "--json")
    again = run("train", "run.yaml", "--set", "name=twice", "--json")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert again.epochs() == []
    assert "is finished; --fresh trains it again" in again.stderr
    fresh = run("train", "run.yaml", "--set", "name=twice", "--fresh")
    assert len(fresh.epochs()) == 3


def test_train_repeat_prints_mean_and_std(run):
    result = run("train", "run.yaml", "--repeat", 2, "--set", "name=repeated")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("test accuracy ")
    assert "(mean ± std of 2 runs)" in result.stdout
    # the second run is no restart of the first
    starts = [line for line in result.stderr.splitlines() if "start" in line]
    assert starts == ["starts", "starts"]
    result = run("train", "run.yaml", "--repeat", 2, "--set", "name=repeated", "--json")
    assert {"mean", "std", "values"} <= json.loads(result.stdout).keys()


def test_train_writes_to_tensorboard(run, folder):
    options = ("--set", "name=seen", "--set", "tracking.tensorboard=true")
    assert run("train", "run.yaml", *options).returncode == 0
    assert list((folder / "runs/seen/tensorboard").glob("events.out.tfevents.*"))


def test_run_that_fails_is_exit_code_1(run):
    result = run("train", "run.yaml", "--set", "name=nan", "--set", "optim.lr=1e30")
    assert result.returncode == 1
    assert re.search(r"^error: the (loss|gradient) is not finite at step", result.stderr, re.M)
    assert "Traceback" not in result.stderr


def test_same_name_with_other_settings_is_refused_by_name(run, folder):
    assert run("train", "run.yaml", "--set", "name=again").returncode == 0
    refused = run("train", "run.yaml", "--set", "name=again", "--set", "optim.lr=0.5")
    assert refused.returncode == 2
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "optim.lr is 0.5, the run has 0.005" in last
    result = run("train", "run.yaml", "--set", "name=again", "--set", "optim.lr=0.5", "--fresh")
    assert result.returncode == 0


@pytest.fixture
def stopped(folder) -> Callable[..., Result]:
    """Starts a long run as a process, and sends it a signal after three more records."""

    def command(number: signal.Signals, name: str, *options: str) -> Result:
        command = [sys.executable, "-m", "dnformer.cli", "train", "run.yaml", "--set",
                   f"name={name}", "--set", "train.epochs=9999", "--set", "train.patience=null",
                   "--set", "checkpoint.every_epochs=9999", *options]  # fmt: skip
        before = steps_done(folder, name)
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
            while steps_done(folder, name) < before + 9:
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            assert process.stderr is not None
            said = process.stderr.read()
        return Result(process.returncode, "", said)

    return command


def steps_done(folder: Path, name: str) -> int:
    return max((r["step"] for r in read_metrics(str(folder / "runs" / name))), default=0)


def test_train_saves_at_sigterm_and_goes_on(stopped, folder):
    result = stopped(signal.SIGTERM, "sigterm")
    assert result.returncode == 143
    said = (
        r"^stopped at step (\d+), in epoch \d+; the same command goes on from the last checkpoint$"
    )
    found = re.search(said, result.stderr, re.M)
    assert found, result.stderr
    assert int(found[1]) > 0
    again = stopped(signal.SIGTERM, "sigterm", "--resume")
    assert f"\ngoes on from step {found[1]}, in epoch " in again.stderr


def test_train_saves_at_ctrl_c(stopped):
    result = stopped(signal.SIGINT, "ctrl-c")
    assert result.returncode == 130
    last = result.stderr.splitlines()[-1]
    assert re.match(r"stopped.*; the same command goes on from the last checkpoint$", last)
    assert "Traceback" not in result.stderr


def test_train_on_numbers_says_their_error(run, folder, make_table):
    values = np.linspace(0, 9, 30, dtype=np.float32)[:, None]
    target = TargetColumn(Target(name="size", kind="regression", num_outputs=1), values)
    pairs = [(i, (i * 7 + 3) % 30) for i in range(30)]
    write_cache(make_table(pairs, x=values / 9, targets=(target,)), str(folder / "numbers"),
                source="test")  # fmt: skip
    result = run("train", "run.yaml", "--set", "name=numbers", "--set", "data.uri=numbers")
    assert result.returncode == 0, result.stderr
    assert re.match(r"test mae [0-9.]+ at the best validation\n  validation [0-9.]+, best",
                    result.stdout)  # fmt: skip
    assert re.search(r"loss [0-9.]+  train mae [0-9.]+  val mae [0-9.]+  ", result.epochs()[0])
