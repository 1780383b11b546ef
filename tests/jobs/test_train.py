"""The entry script under plain Python."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource

SCRIPT = Path(__file__).parents[2] / "jobs" / "train.py"


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], cwd=cwd, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip


def test_script_has_at_most_40_lines():
    assert len(SCRIPT.read_text().splitlines()) <= 40


def test_script_trains_and_prints_one_json_object(tmp_path):
    ingest(SyntheticSource(nodes=60, classes=2, features=4, degree=4), str(tmp_path / "data"))
    values = {
        "name": "run",
        "data": {"uri": "data", "split": {"random": [0.6, 0.2, 0.2]}},
        "model": {"hidden": 4},
        "train": {"epochs": 2},
        "cache": {"dir": "store"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    result = run("run.yaml", "train.epochs=1", "--fresh", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["epochs"] == 1
    assert "\nepoch 1/1  loss " in result.stderr


def test_script_names_a_mistake(tmp_path):
    result = run("nowhere.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr == "error: nowhere.yaml: cannot be read: No such file or directory\n"
    assert run(cwd=tmp_path).returncode == 2
