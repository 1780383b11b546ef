"""`dnformer bench ..` as a person meets it; what the benches find is tested under tests/bench."""

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource

from .commands import Result, run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset `data`."""
    folder = tmp_path_factory.mktemp("cli-bench")
    ingest(SyntheticSource(nodes=40, degree=4, features=3, classes=2), str(folder / "data"))
    return folder


@pytest.fixture
def run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Runs `dnformer bench` in `folder`, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return partial(run_command, capsys, "bench")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing command"),
        (["ops", "--case", "powerlaw"], "no case 'powerlaw'; did you mean 'power-law'?"),
        (["ops", "--yardstick", "x.py"], "--yardstick x.py: there is no such file"),
        (["ops", "--device", "tpu"], "--device 'tpu' is not one of cpu, cuda"),
        (["ops", "--case", "block", "--graph", "nowhere"], "no dataset here"),
        (["loader", "--case", "loder"], "no case 'loder'; did you mean 'loader'?"),
        (["loader", "--yardstick", "x.py"], "--yardstick x.py: there is no such file"),
        (["ingest", "--ids", "text"], "--ids text: expected int, string, both"),
        (["train", "--graph", "nowhere"], "no dataset here"),
        (["train", "--graph", "data", "--set", "model.depth=2"], "unknown key 'model.depth'"),
        (["train", "--set", "train.workers=4"], "the bench decides"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_is_one_line_and_exit_code_2(
    run: Callable[..., Result], arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert "Traceback" not in result.stderr


def test_ops_of_a_sampled_block(run: Callable[..., Result]) -> None:
    options = ("--case", "block", "--graph", "data", "--repeats", "1", "--threads", "1")
    result = run("ops", *options, "--json")
    assert result.returncode == 0, result.stderr
    assert "case block (1 of 1)" in result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert {row["impl"] for row in rows} >= {"dnformer", "reference", "TransformerConv", "floor"}
    assert all({"case", "impl", "seconds"} <= row.keys() for row in rows)
    assert all(row["graph"] == "block of data" for row in rows)


def test_loader_of_a_dataset(run: Callable[..., Result]) -> None:
    options = ("--case", "loader", "--graph", "data", "--repeats", "1")
    result = run("loader", *options, "--json")
    assert result.returncode == 0, result.stderr
    assert "case loader (1 of 1)" in result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert {row["impl"] for row in rows} == {"dnformer", "PyG"}
    assert all({"case", "impl", "seconds"} <= row.keys() for row in rows)
    result = run("loader", *options)
    assert "two threads over one" in result.stdout


@pytest.mark.ray
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
@pytest.mark.timeout(600)
# Ray warns of its own settings, and leaves its processes to the interpreter's end
@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_train_of_a_dataset_with_every_contender(run: Callable[..., Result]) -> None:
    changes = ("--set", "train.epochs=3", "--set", "loader.batch_size=5")
    result = run("train", "--graph", "data", "--repeats", "1", *changes, "--json")
    assert result.returncode == 0, result.stderr
    impls = ["in process", "Ray, 1 worker", "Ray, 2 workers"]
    said = [line for line in result.stderr.splitlines() if line.startswith("round")]
    assert said == [f"round 1 of 1: {impl}" for impl in impls]
    found = json.loads(result.stdout)
    assert [(row["impl"], row["workers"]) for row in found["rows"]] == [
        (impl, workers) for workers, impl in enumerate(impls)
    ]
    for row in found["rows"]:
        assert (row["case"], row["graph"], row["epochs"], row["seeds"]) == ("train", "data", 2, 24)
        assert 0 < row["low"] <= row["seconds"] <= row["high"]
        assert row["seeds_per_s"] == pytest.approx(24 / row["seconds"])
        assert row["edges_per_s"] > 0
        assert row["stages"]["forward"] > 0
    speed, share = found["targets"]
    assert (speed["at_least"], share["at_most"]) == (1.6, None)
    assert speed["found"] > 0
    assert share["found"] > 0
    assert {"torch", "ray"} <= set(found["versions"])
