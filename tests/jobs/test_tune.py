"""The entry script of searches, and what the drill on ASHA makes of two of them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dnformer.cli_common import job_arguments

JOBS = Path(__file__).parents[2] / "jobs"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"jobs_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_has_at_most_40_lines():
    assert len((JOBS / "tune.py").read_text().splitlines()) <= 40


def test_script_takes_settings_and_options():
    assert [*job_arguments("tune", ["a.yaml", "optim.lr=1", "--quick", "--repeat=6"])] == [
        "tune", "a.yaml", "--set", "optim.lr=1", "--quick", "--repeat=6", "--json",
    ]  # fmt: skip
    assert [*job_arguments("tune", [])] == ["tune", "--json"]


@pytest.mark.parametrize(
    ("epochs", "best", "met"),
    [(110, 0.8775, True), (111, 0.8775, False), (110, 0.8765, False), (10, 0.9, True)],
    ids=["both at the limit", "epochs", "points", "better"],
)
def test_drill_compares_two_searches(epochs, best, met):
    drill = loaded(JOBS / "drills" / "asha.py")
    full = {
        "best": {"value": 0.8805, "trial": 1},
        "trials": [
            {"state": "finished", "epochs": 150},
            {"state": "finished", "epochs": 50},
            {"state": "failed", "epochs": None},
        ],
    }
    early = {
        "best": {"value": best, "trial": 0},
        "trials": [
            {"state": "stopped", "epochs": 5},
            {"state": "finished", "epochs": epochs - 5},
        ],
    }
    rows = [drill.row("asha", early), drill.row("none", full)]
    found = drill.compared(*rows)
    assert found["met"] is met
    assert found["share_of_epochs"] == epochs / 200
    assert drill.table(rows).splitlines() == [
        "| scheduler | trials | ended early | epochs | best validation | trial |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| asha | 2 | 1 | {epochs} | {100 * best:.2f} % | 0 |",
        "| none | 3 | 0 | 200 | 88.05 % | 1 |",
    ]
