"""`dnformer runs`: what is listed, shown, compared and removed, and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from dnformer.config import load_config
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.training import launch
from dnformer.training.run import locked
from dnformer.tuning import search
from dnformer.tuning.trial import run_trial

from .commands import Result, run_command
from .tuning import fake


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a dataset `data` and, in runs/, two runs, repeats and a search."""
    folder = tmp_path_factory.mktemp("runs")
    ingest(SyntheticSource(nodes=40, classes=2, features=4, degree=4), str(folder / "data"))
    values = {
        "name": "first",
        "storage_path": str(folder / "runs"),
        "data": {"uri": str(folder / "data"), "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": 3, "batch_size": 8},
        "model": {"hidden": 4},
        "train": {"epochs": 2, "threads": 1},
        "cache": {"dir": str(folder / "stores")},
        "tune": {"search": "grid", "scheduler": "none", "num_trials": 2,
                 "space": {"model.layers": {"choice": [1, 2]}}},
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    path = folder / "run.yaml"
    launch.train(load_config(path))
    launch.train(load_config(path, ["name=second", "optim.lr=0.02"]))
    launch.repeat(load_config(path, ["name=deep/repeated"]), 2)
    runner = search.Runner(run_trial, fake.in_threads(1))
    search.tune(load_config(path, ["name=search"]), runner=runner)
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in `folder`, in this process."""
    monkeypatch.chdir(folder)
    return partial(run_command, capsys)


def test_ls_lists_runs_repeats_and_searches(run, folder):
    runs = json.loads(run("runs", "ls", "--json").stdout)["runs"]
    assert [(entry["name"], entry["kind"], entry["state"]) for entry in runs] == [
        ("deep/repeated", "repeats", "finished"),
        ("first", "run", "finished"),
        ("search", "search", "finished"),
        ("second", "run", "finished"),
    ]
    assert [(entry["done"], entry["of"]) for entry in runs] == [(2, 2)] * 4
    result = json.loads((folder / "runs" / "first" / "result.json").read_text())["result"]
    first = runs[1]
    assert (first["val"], first["test"]) == (
        result["val"]["accuracy"], result["test"]["accuracy"],
    )  # fmt: skip
    assert first["dataset"] == str(folder / "data")
    size = sum(file.stat().st_size for file in (folder / "runs" / "first").rglob("*"))
    assert first["bytes"] == pytest.approx(size, rel=0.5)
    assert runs[0]["std"] is not None


def test_ls_prints_a_row_each(run):
    lines = run("runs", "ls").stdout.splitlines()
    assert lines[0].split() == [
        "name", "state", "done", "metric", "best", "val", "test", "dataset", "when", "size",
    ]  # fmt: skip
    assert len(lines) == 5
    assert "±" in lines[1]
    assert "(search)" in lines[3]
    assert run("runs", "ls", "nowhere").stdout == "nowhere: no runs\n"


def test_ls_of_a_run_that_stopped_and_one_that_goes_on(run, folder):
    result = run("train", "run.yaml", "--set", "name=stopped", "--set", "train.stop_after=1",
                 "--json")  # fmt: skip
    assert result.returncode == 0, result.stderr
    stopped = folder / "runs" / "stopped"
    (stopped / "result.json").unlink()
    entry = json.loads(run("runs", "show", "runs/stopped", "--json").stdout)
    assert (entry["state"], entry["done"], entry["of"]) == ("stopped", 1, 1)
    assert entry["test"] is None
    assert 0 <= entry["val"] <= 1
    with locked(str(stopped)):
        text = run("runs", "show", "runs/stopped").stdout
        assert "going on, 1 of at most 1 epochs" in text
        refused = run("runs", "rm", "runs/stopped", "--yes")
        assert refused.returncode == 2
        assert "is being written" in refused.stderr
    assert stopped.exists()
    assert run("runs", "rm", "runs/stopped", "--yes").returncode == 0
    assert not stopped.exists()


def test_show_of_a_damaged_run_says_what_is_damaged(run, folder):
    damaged = folder / "runs" / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_text("{")
    assert "run.json: damaged" in run("runs", "show", "runs/damaged").stdout
    names = [entry["name"] for entry in json.loads(run("runs", "ls", "--json").stdout)["runs"]]
    assert "damaged" in names
    assert run("runs", "rm", "runs/damaged", "-y").returncode == 0


def test_show_has_the_settings_beside_the_defaults(run):
    shown = json.loads(run("runs", "show", "runs/second", "--json").stdout)
    assert shown["settings"]["optim.lr"] == 0.02
    assert "optim.weight_decay" not in shown["settings"]
    parts = json.loads(run("runs", "show", "runs/search", "--json").stdout)["parts"]
    assert [part["name"] for part in parts] == ["search/trials/0000", "search/trials/0001"]


def test_diff_shows_settings_and_metrics_that_differ(run):
    found = json.loads(run("runs", "diff", "runs/first", "runs/second", "--json").stdout)
    assert found["config"] == {"optim.lr": [0.005, 0.02]}
    assert "val/loss" in found["metrics"]
    text = run("runs", "diff", "runs/first", "runs/second").stdout
    assert "0.005" in text
    assert "model.hidden" not in text
    assert run("runs", "diff", "runs/first", "runs/first").stdout == (
        "no setting and no metric differs\n"
    )


@pytest.mark.parametrize("name", ["deep/repeated", "search"])
def test_rm_removes_repeats_and_searches_unless_a_part_goes_on(run, folder, tmp_path, name):
    uri = folder / "runs" / name
    part = next(path.parent for path in sorted(uri.rglob("run.json")))
    with locked(str(part)):
        assert run("runs", "rm", uri, "--yes").returncode == 2
    removed = json.loads(run("runs", "rm", uri, "--yes", "--json").stdout)
    assert removed["removed"] == str(uri)
    assert not uri.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rm", "data", "--yes"], "data: no run here; dnformer runs ls shows those there are"),
        (["rm", ".", "--yes"], "no run here"),
        (["rm", "runs/first"], "nobody is there to ask; --yes removes it"),
        (["show", "runs"], "no run here"),
        (["diff", "runs/first", "run.yaml"], "no run here"),
        (["lss"], "No such command 'lss'. Did you mean 'ls'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_runs_refuses(run, folder, arguments, message):
    result = run("runs", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert (folder / "data" / "manifest.json").exists()
    assert (folder / "runs" / "first").exists()


@pytest.mark.parametrize(("answer", "left"), [("n", True), ("y", False)])
def test_rm_asks_on_a_terminal(folder, answer, left):
    launch.train(load_config(folder / "run.yaml", ["name=asked"]))
    terminal, its_end = os.openpty()
    os.write(terminal, f"{answer}\n".encode())
    command = [sys.executable, "-m", "dnformer.cli", "runs", "rm", "runs/asked"]
    asked = subprocess.run(command, cwd=folder, stdin=its_end, capture_output=True, text=True,
                           check=False)  # fmt: skip
    os.close(its_end)
    os.close(terminal)
    assert "Remove run" in asked.stdout
    assert asked.returncode == (1 if left else 0)
    assert (folder / "runs" / "asked").exists() == left
