"""Each example runs from its first cell to its last, in a folder of its own."""

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "jobs" / "examples"
CORA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs an example with words on its command line, and gives its variables."""

    def run_example(name: str, *words: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stores"))
        monkeypatch.setattr("sys.argv", [name, *words])
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run_example


def test_every_example_is_run_here():
    tested = {"cora.py", "own_csv.py", "dnformer_in_pyg.py", "pyg_in_dnformer.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested
    assert all(path.read_text().count("# %%") >= 4 for path in EXAMPLES.glob("*.py"))


def test_cora_with_a_graph_that_stands_in(run):
    found = run("cora.py", "--epochs", "3")
    assert found["result"].epochs == 3
    assert found["single"].run != found["result"].run


@pytest.mark.shared
def test_cora(run):
    found = run("cora.py", "--root", str(CORA), "--epochs", "15")
    assert found["graph"].num_nodes == 2708
    assert found["result"].test["accuracy"] > 0.8


def test_own_csv(run, tmp_path):
    found = run("own_csv.py")
    assert found["result"].test["accuracy"] > 0.8
    assert found["model"].classes == ["coffee", "tea"]
    assert found["probabilities"].shape == (3, 2)
    assert (tmp_path / "people-model" / "README.md").exists()


def test_dnformer_in_pyg(run):
    found = run("dnformer_in_pyg.py")
    assert found["accuracy"] > 0.75
    assert all(p.grad is not None for p in found["mixed"].parameters())


def test_pyg_in_dnformer(run):
    found = run("pyg_in_dnformer.py")
    assert found["accuracy"] > 0.6
    assert found["result"].test["accuracy"] > 0.6
