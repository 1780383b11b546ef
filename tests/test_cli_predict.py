"""`dnformer predict` as a person meets it, and the script that does the same."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource

from .commands import Result, people, run_command

SCRIPT = Path(__file__).parents[1] / "jobs" / "predict.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a dataset `data`, and run.yaml for it."""
    folder = tmp_path_factory.mktemp("cli-predict")
    ingest(SyntheticSource(nodes=40, classes=2, features=4, degree=4), str(folder / "data"))
    values = people(epochs=1)
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in `folder`, in this process."""
    monkeypatch.chdir(folder)
    return partial(run_command, capsys)


@pytest.fixture
def trained(run) -> str:
    """A run of `people`, trained once."""
    assert run("train", "run.yaml").returncode == 0
    return "runs/people"


def test_predict_says_what_is_known(run, trained, folder):
    result = run("predict", trained, "--out", "said")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{folder}/said: 40 nodes in ")
    assert lines[1] == "  columns id, prediction, probabilities"
    assert lines[4].startswith("  test accuracy ")
    assert lines[4].endswith(" % (8 nodes whose labels are known)")
    assert lines[5].startswith("  test accuracy: exact ")
    assert ", sampled [3, 3] " in lines[5]
    assert lines[6] == "  parts/part-00000.parquet"
    assert "computing layers" in result.stderr
    again = run("predict", trained, "--out", "said")
    assert "is there already; --overwrite makes it anew" in again.stderr


def test_predict_as_json_and_quiet(run, trained, folder):
    result = run("predict", trained, "--out", "quiet", "--ids", "5, 7", "--embeddings", "--quiet",
                 "--json")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    facts = json.loads(result.stdout)
    assert (facts["uri"], facts["num_nodes"]) == (str(folder / "quiet"), 2)
    assert list(facts["columns"]) == ["id", "prediction", "probabilities", "embedding"]
    assert facts["identity"]["columns"] == ["embeddings"]


def test_script_takes_a_config(run, trained, folder):
    values = {"run": trained, "out": "unused", "split": "test"}
    (folder / "predict.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, str(SCRIPT), "predict.yaml", "out=scripted", "layers=true"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["uri"], facts["num_nodes"]) == (str(folder / "scripted"), 8)
    assert "layer_2" in facts["columns"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["runs/nothing", "--out", "x"], "no run here"),
        (["--out", "x"], "run is required"),
        ([], "out is required"),
        (["RUN", "--out", "x", "--ids", "99"], "data has no node 99"),
        (["RUN", "--out", "x", "--mode", "exakt"], "mode: input should be 'exact' or 'sampled'"),
        (["RUN", "--out", "data"], "is no manifest of predictions"),
        (["RUN", "--out", "x", "--memory-limit", "much"], "'much' is no size"),
        (["RUN", "--out", "x", "--config", "no.yaml"], "no.yaml: cannot be read"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(run, trained, options, error):
    result = run("predict", *[trained if option == "RUN" else option for option in options])
    assert (result.returncode, result.stdout) == (2, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert error in last
