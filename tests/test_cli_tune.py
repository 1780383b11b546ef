"""`dnformer tune` as a person meets it; trials run in this process, one after the other."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.errors import Stopped
from dnformer.tuning import search
from dnformer.tuning.runner import Source, Trainable
from dnformer.tuning.search import Found, Runner
from dnformer.tuning.trials import Trial

from .commands import Result, people, run_command


def one_by_one(source: Source, trainable: Trainable) -> None:
    while (task := source.next_task()) is not None:
        trainable(task, partial(source.told, task.number))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a dataset `data`, run.yaml for it, and tune.yaml with a space of two fields."""
    folder = tmp_path_factory.mktemp("cli-tune")
    ingest(SyntheticSource(nodes=40, classes=2, features=4, degree=4), str(folder / "data"))
    values = people(epochs=3)
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    values["tune"] = {
        "search": "grid", "scheduler": "none", "num_trials": 4,
        "space": {"model.heads": {"choice": [1, 2]}, "optim.lr": {"choice": [0.005, 1e30]}},
    }  # fmt: skip
    (folder / "tune.yaml").write_text(yaml.safe_dump(values))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in `folder`, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(search, "tune", partial(search.tune, runner=Runner(run=one_by_one)))
    return partial(run_command, capsys)


def refused(result: Result) -> str:
    """The one line of an error; anything else is a failure."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return error


def test_tune_then_train_its_best(run, folder):
    result = run("tune", "tune.yaml", "--json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["search"] == str(folder / "runs" / "people")
    assert [trial["params"] for trial in told["trials"]] == [
        {"model.heads": heads, "optim.lr": lr} for heads in (1, 2) for lr in (0.005, 1e30)
    ]
    states = [trial["state"] for trial in told["trials"]]
    assert states == ["finished", "failed", "finished", "failed"]
    assert [trial["value"] for trial in told["trials"]][1::2] == [None, None]
    assert [trial["epochs"] for trial in told["trials"]] == [3, None, 3, None]
    best = told["best"]
    assert best["trial"] in (0, 2)
    assert best["value"] == max(told["trials"][i]["value"] for i in (0, 2))
    assert best["config"]["name"] == "people-best"
    assert best["file"] == str(folder / "runs/people/best.yaml")
    assert told["front"] == [best["trial"]]
    assert told["importance"] == {}
    assert told["repeats"] == []
    trained = json.loads(run("train", best["file"], "--json").stdout)
    assert trained["val"]["accuracy"] == best["value"]


def test_tune_prints_a_table_and_how_to_train_the_best(run, folder):
    assert run("tune", "tune.yaml").returncode == 0
    result = run("tune", "tune.yaml")
    assert "is finished; a higher tune.num_trials adds trials" in result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].rstrip() == str(folder / "runs/people")
    assert lines[1].split() == ["trial", "heads", "lr", "accuracy", "epochs", "seconds", "state"]
    assert [line.split()[0] for line in lines[2:6]][2:] == ["1", "3"]
    assert lines[4].split() == ["1", "1", "1e+30", "0", "failed"]
    number = lines[2].split()[0]
    assert lines[6].startswith(f"best: trial {number}, val accuracy ")
    assert lines[6].endswith(", 3 epochs")
    assert lines[-1] == f"  the same again: dnformer train {folder}/runs/people/best.yaml"


def test_tune_says_what_goes_on(run):
    result = run("tune", "tune.yaml", "--set", "name=told", "--trials", 2)
    lines = result.stderr.splitlines()
    assert "trial 0 begins: heads 1, lr 0.005" in lines
    (end,) = [line for line in lines if line.startswith("trial 0 finished after 3 of 3 epochs")]
    assert "best so far" in end
    assert "1/2 have ended" in end
    assert len([line for line in lines if line.startswith("trial 1 failed: ")]) == 1


def test_tune_repeats_the_best_and_the_config_itself(run):
    options = ("--set", "name=again", "--set", "tune.space={optim.lr: {choice: [0.005, 0.05]}}")
    told = json.loads(
        run("tune", "tune.yaml", *options, "--repeat", 2, "--top", 1, "--json").stdout
    )
    baseline, best = told["repeats"]
    assert (baseline["label"], baseline["against"]) == ("baseline", None)
    assert best["label"] == f"trial-{told['best']['trial']}"
    assert len(best["values"]) == len(baseline["values"]) == 2
    assert best["against"].keys() == {"mean_difference", "low", "high", "p", "num_pairs"}
    trained = json.loads(run("train", "run.yaml", "--repeat", 2, "--json").stdout)
    assert baseline["values"] == trained["values"]
    result = run("tune", "tune.yaml", *options, "--repeat", 2, "--top", 1)
    assert "test accuracy of 2 seeds and splits, the same" in result.stdout
    assert "\np of 2 pairs is never below 0.05, " in result.stdout


def test_tune_quick_searches_the_papers_fields(run, monkeypatch):
    asked = []

    def stopped(config: RunConfig, **kwargs: Any) -> Found:
        asked.append((set(config.tune.space), config.tune.num_trials, kwargs["start"]))
        raise Stopped("stopped by SIGTERM")

    monkeypatch.setattr(search, "tune", stopped)
    result = run("tune", "run.yaml", "--quick", "--trials", 7, "--fresh")
    assert result.returncode == 143
    assert asked == [({"model.heads", "model.layers", "optim.lr"}, 7, "fresh")]


def test_tune_without_a_space_says_both_mends(run):
    error = refused(run("tune", "run.yaml"))
    assert error.startswith("error: run.yaml: tune.space is empty; name what to search")
    assert "--quick" in error


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--quick"], "has a tune.space; leave out --quick"),
        (["--top", "2"], "give --repeat too"),
        (["--trials", "0"], "greater than or equal to 1"),
        (["--set", "tune.space={model.head: {choice: [1]}}"], "did you mean 'model.heads'"),
    ],
    ids=["quick", "top", "trials", "path"],
)
def test_tune_refuses(run, options, text):
    assert text in refused(run("tune", "tune.yaml", "--set", "name=refused", *options))


def test_tune_in_which_all_failed_is_exit_code_1(run):
    result = run("tune", "tune.yaml", "--set", "name=failed", "--set",
                 "tune.space={optim.lr: {choice: [1e30]}}")  # fmt: skip
    assert result.returncode == 1
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert "runs/failed: none of 1 trials gave a value; the first: " in last


def test_tune_at_ctrl_c_says_how_it_goes_on(run, monkeypatch):
    def interrupted(*args: Any, **kwargs: Any) -> Found:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "tune", interrupted)
    result = run("tune", "tune.yaml")
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "stopped; the same command goes on"
    result = run("tune", "tune.yaml", "--fresh")
    assert result.stderr.splitlines()[-1] == "stopped; the same command without --fresh goes on"


def test_tune_json_has_null_for_what_is_no_number(run, monkeypatch):
    assert run("tune", "tune.yaml").returncode == 0
    real = search.tune

    def found(config: RunConfig, **kwargs: Any) -> Found:
        one = real(config, **kwargs)
        odd = Trial(4, {}, "finished", values=(math.nan,), facts={"epochs": 1, "seconds": math.inf})
        return one._replace(trials=(*one.trials, odd))

    monkeypatch.setattr(search, "tune", found)
    result = run("tune", "tune.yaml", "--json")
    assert "NaN" not in result.stdout
    assert "Infinity" not in result.stdout
    told = json.loads(result.stdout)["trials"][4]
    assert (told["value"], told["seconds"], told["objectives"]) == (None, None, {"metric": None})
