"""Sittings: what is missing is run, and nothing twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource

from ..commands import Result, run_command


@pytest.fixture
def folder(tmp_path) -> Path:
    """A dataset, a config of ours and of another width, and candidates of both."""
    ingest(SyntheticSource(nodes=40, classes=2, features=4, degree=4), str(tmp_path / "data"))
    shared: dict[str, Any] = {
        "data.uri": "data", "loader.num_neighbors": [3], "loader.batch_size": 8,
        "model.hidden": 4, "train.epochs": 2, "cache.dir": "stores",
    }  # fmt: skip
    candidates = {
        "seeds": [100],
        "datasets": {"people": shared},
        "models": {
            "dnformer": {"people": [{}, {"model.heads": 1}]},
            "wide": {"people": [{"model.hidden": 8}, {"optim.lr": 1.0e30}]},
        },
    }
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "candidates.yaml").write_text(yaml.safe_dump(candidates))
    for model in ("dnformer", "wide"):
        values = {
            "name": model, "data": {"uri": "data"}, "cache": {"dir": "stores"},
            "loader": {"num_neighbors": [3], "batch_size": 8},
            "model": {"hidden": 4 if model == "dnformer" else 8}, "train": {"epochs": 2},
        }  # fmt: skip
        path = tmp_path / "configs" / "people" / f"{model}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(values))
    return tmp_path


ARGUMENTS = ("--configs", "configs", "--results", "results")


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    monkeypatch.chdir(folder)
    return partial(run_command, capsys, "reproduce")


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "results" / "runs.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_only_what_is_missing_is_run(folder, run):
    first = run("table2", *ARGUMENTS, "--splits", 1, "--models", "dnformer", "--json")
    assert first.returncode == 0, first.stderr
    assert list(json.loads(first.stdout)["datasets"]["people"]) == ["dnformer"]
    before = (folder / "results" / "runs.jsonl").read_bytes()
    second = run("table2", *ARGUMENTS, "--splits", 2)
    assert "1 of 4 runs are there" in second.stderr
    assert (folder / "results" / "runs.jsonl").read_bytes().startswith(before)
    rows = lines(folder)
    assert [(row["seed"], row["settings"]["model.hidden"]) for row in rows] == [
        (0, 4), (0, 8), (1, 4), (1, 8),
    ]  # fmt: skip
    assert second.stdout == (folder / "results" / "table2-random.md").read_text()
    third = run("table2", *ARGUMENTS, "--splits", 2, "--max-hours", 0)
    assert "4 of 4 runs are there" in third.stderr
    assert third.stdout == second.stdout


def test_table3_shares_our_own_row_with_table2(folder, run):
    run("table2", *ARGUMENTS, "--splits", 1)
    found = run("table3", *ARGUMENTS, "--splits", 1, "--max-hours", 0)
    assert "1 of 6 runs are there" in found.stderr
    assert "5 runs are left; the same command goes on" in found.stderr


def test_row_equals_the_run_by_itself(folder, run, capsys):
    run("table2", *ARGUMENTS, "--splits", 1, "--models", "wide")
    alone = run_command(
        capsys, "train", "configs/people/wide.yaml", "--json", "--set", "train.threads=1",
        "--set", "data.split={random: [0.6, 0.2, 0.2]}",
    )  # fmt: skip
    (row,) = lines(folder)
    result = json.loads(alone.stdout)
    assert (row["val"], row["test"]) == (result["val"], result["test"])


def test_best_candidate_becomes_the_config_and_a_failed_one_is_told(folder, run):
    mine = folder / "configs" / "people" / "dnformer.yaml"
    wide = (folder / "configs" / "people" / "wide.yaml").read_text()
    found = run("tune", *ARGUMENTS)
    assert found.returncode == 1
    assert "failed: " in found.stderr
    assert "1 runs failed; the same command tries them again" in found.stderr
    values = yaml.safe_load(mine.read_text())
    by_heads = {
        row["settings"].get("model.heads", 2): row["val"]["accuracy"] for row in lines(folder)[:2]
    }
    best = max(by_heads, key=lambda heads: (by_heads[heads], heads))
    assert values["model"].get("heads", 2) == best
    assert values["data"] == {"uri": "data"}
    assert mine.read_text().startswith("# The best of 2 candidates")
    # the choice is made without a look at test nodes
    assert found.stdout.startswith("Validation accuracy")
    assert "test accuracy" not in (found.stdout + found.stderr).lower()
    # one of its candidates has no row
    assert (folder / "configs" / "people" / "wide.yaml").read_text() == wide


def test_missing_dataset_is_named_with_the_mend(folder, run):
    (folder / "data" / "manifest.json").unlink()
    found = run("table2", *ARGUMENTS)
    assert found.returncode == 2
    assert "data: there is no dataset; give --root" in found.stderr


def test_killed_sitting_goes_on(folder):
    command = [
        sys.executable, "-c", "from dnformer.cli import main; main()",
        "reproduce", "table2", *ARGUMENTS, "--splits", "3",
    ]  # fmt: skip
    rows = folder / "results" / "runs.jsonl"
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE) as sitting:
        while not rows.exists() or rows.read_bytes().count(b"\n") < 2:
            assert sitting.poll() is None, sitting.communicate()
            time.sleep(0.01)
        os.kill(sitting.pid, signal.SIGKILL)
    kept = rows.read_bytes()
    again = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert rows.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    assert f"{kept.count(bytes([10]))} of 6 runs are there" in again.stderr
    keys = [(row["seed"], row["settings"]["model.hidden"]) for row in lines(folder)]
    assert len(keys) == len(set(keys)) == 6


@pytest.mark.ray
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_rows_are_equal_on_ray(folder, run):
    run("table2", *ARGUMENTS, "--splits", 1)
    found = run("table2", "--configs", "configs", "--results", "by-ray", "--splits", 1,
                "--workers", 2, "--storage-path", "runs/ray")  # fmt: skip
    assert found.returncode == 0, found.stderr
    text = (folder / "by-ray" / "runs.jsonl").read_text()
    by_ray = {row["settings"]["model.hidden"]: row for row in map(json.loads, text.splitlines())}
    for row in lines(folder):
        other = by_ray[row["settings"]["model.hidden"]]
        assert (other["val"], other["test"], other["epochs"]) == (
            row["val"], row["test"], row["epochs"],
        )  # fmt: skip
