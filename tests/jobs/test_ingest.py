"""The entry script of an ingest under plain Python."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

SCRIPT = Path(__file__).parents[2] / "jobs" / "ingest.py"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


def test_script_has_at_most_40_lines():
    assert len(SCRIPT.read_text().splitlines()) <= 40


def test_script_ingests_a_config_with_settings_and_prints_one_json_object(tmp_path):
    values = {"out": "elsewhere", "synthetic": {"kind": "sbm", "nodes": 60, "classes": 2}}
    (tmp_path / "ingest.yaml").write_text(yaml.safe_dump(values))
    result = run("ingest.yaml", "out=data", "synthetic.nodes=30", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert (facts["uri"], facts["num_nodes"], facts["written"]) == ("data", 30, True)
    # a source and options of the command line name the same dataset, which is there
    again = run("synthetic:sbm", "--nodes=30", "synthetic.classes=2", "--out=data", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["written"] is False


def test_script_names_a_mistake(tmp_path):
    result = run("nowhere.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("error: nowhere.yaml: cannot be read")
