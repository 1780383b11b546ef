"""`dnformer analyze` as a person meets it: tables, files, pairs by repeat, refusals."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dnformer.analysis.compare import CLAIMS
from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.parsing import parse
from dnformer.training.launch import repeat, train

from .commands import Result, run_command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two repeats of a DNFormer and of its twin, and runs that do not fit them."""
    folder = tmp_path_factory.mktemp("cli-analyze")
    for name, nodes in (("data", 60), ("other", 40)):
        source = SyntheticSource(nodes=nodes, classes=3, features=4, degree=5)
        ingest(source, str(folder / name))
    for name, settings, times in (
        ("diff", {}, 2),
        ("single", {"model": {"attention": "single"}}, 2),
        ("later", {"seed": 5}, 1),
        ("foreign", {"data": {"uri": str(folder / "other")}}, 1),
        ("gcn", {"model": {"name": "gcn"}}, 1),
    ):
        config = config_of(folder, name, settings)
        train(config) if times == 1 else repeat(config, times)
    return folder


def config_of(folder: Path, name: str, settings: dict) -> RunConfig:
    values = {
        "name": name,
        "storage_path": str(folder / "runs"),
        "data": {"uri": str(folder / "data")} | settings.pop("data", {})
        | {"split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"kind": "full"},
        "model": {"hidden": 4} | settings.pop("model", {}),
        "train": {"epochs": 2, "threads": 1},
        "cache": {"dir": str(folder / "stores")},
    }  # fmt: skip
    return parse(RunConfig, values | settings)


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs `dnformer analyze` in the folder of the runs, in this process."""
    monkeypatch.chdir(folder / "runs")
    return partial(run_command, capsys, "analyze")


def rows_of(found: dict) -> dict[tuple[str, str, str], dict]:
    return {(row["section"], row["name"], row["place"]): row for row in found["rows"]}


def test_a_run_beside_its_twin(run, folder):
    result = run("diff", "--against", "single", "--out", "analysis", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["repeats"] == [0, 1]
    assert found["nodes"] == found["num_nodes"] == 60
    twin = str(folder / "runs" / "single")
    assert found["against"] == [twin]
    rows = rows_of(found)
    score = rows["quantised", "accuracy", "float32"]
    for values, name in ((score["run"], "diff"), (score["against"][twin], "single")):
        trained = [
            json.loads((folder / f"runs/{name}/repeat-{i}/result.json").read_text())["result"]
            for i in range(2)
        ]
        assert values["values"] == [each["test"]["accuracy"] for each in trained]
    assert rows["noise at test", "accuracy", "none"]["run"] == score["run"]
    energy = rows["attention", "common-mode ratio of the first softmax", "layer 1"]
    ratio = rows["attention", "common-mode ratio", "layer 1"]
    assert ratio["against"][twin]["values"] == energy["against"][twin]["values"]
    assert rows["lambda", "mean", "all layers"]["against"][twin] is None
    assert {row["section"] for row in found["rows"]} == {
        "attention", "lambda", "outliers", "quantised", "noise at test", "distractors",
    }  # fmt: skip
    assert {each["claim"] for each in found["claims"]} <= {claim.text for claim in CLAIMS}
    folder = folder / "runs" / "analysis"
    assert json.loads((folder / "analysis.json").read_text()) == found
    assert "| common-mode ratio | layer 1 |" in (folder / "analysis.md").read_text()
    page = (folder / "analysis.html").read_text()
    assert "figure-noise-at-test-accuracy" in page
    assert "Lambda on the edges of layer 2" in page


def test_a_run_alone_has_its_own_numbers_and_no_interval(run):
    result = run("later", "--nodes", "20")
    assert result.returncode == 0, result.stderr
    assert "later: attention of 20 of 60 nodes, drawn evenly" in result.stdout
    assert "One run: there are no intervals." in result.stdout
    header = next(line for line in result.stdout.splitlines() if line.startswith("| measure"))
    assert header == "| measure | at | later |"
    assert "difference" not in result.stdout


def test_training_on_noise_goes_on_where_it_was(run):
    command = ("later", "--train-noise", "--out", "noisy", "--nodes", "20", "--json")
    first = run(*command)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("noise edges") == 5  # the measure, and four trainings
    again = run(*command)
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert again.stderr.count("is finished") == 4
    rows = rows_of(json.loads(first.stdout))
    before = rows["quantised", "accuracy", "float32"]["run"]["mean"]
    after = rows["noise at training", "accuracy", "0.5 · E"]["run"]["mean"]
    lost = rows["noise at training", "cost", "0.5 · E"]["run"]["mean"]
    assert lost == pytest.approx(before - after)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "no run and no repeats here"),
        (["gcn"], "is a run of gcn; only the attention of DNFormer can be read"),
        (["diff/repeat-0", "--against", "foreign"], "differ in dataset"),
        (["diff/repeat-0", "--against", "later"], "differ in data.seed"),
        (["diff", "--against", "diff"], "a run stands twice"),
        (["diff", "--train-noise"], "--train-noise trains runs that are kept in --out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_fit_is_refused_in_one_line(run, arguments, says):
    result = run(*arguments)
    assert result.returncode == 2
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert says in error
    assert result.stdout == ""
