"""The page of a run: its numbers are the run's own, and what there is not is said."""

import json
import shutil

import numpy as np
import plotly.graph_objects as go
import pytest

from dnformer.errors import CheckpointError, DataError
from dnformer.report.page import Page
from dnformer.report.write import build_page
from dnformer.training.run import read_result

from .conftest import NUM_NODES, OPTIONS


def page_of(*uris: str, **options: object) -> Page:
    return build_page(list(uris), OPTIONS._replace(**options))


def sections(page: Page) -> list[str]:
    return [section.id for section in page.sections if section.blocks]


def words(page: Page) -> str:
    return json.dumps([vars(b) for s in page.sections for b in s.blocks if b.kind == "words"])


def valid(page: Page) -> int:
    """Has plotly check all figures; how many there are."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        known = isinstance(value, str) and value.startswith("$")
        return value if not known else "Blues" if value == "$heat" else "#000"

    drawings = page.drawings()
    for figure in drawings.values():
        go.Figure(plain(figure))
    return len(drawings)


def column(page: Page, table: str, name: str) -> list:
    shown = page.numbers()["shown"][table]
    return [row[shown["columns"].index(name)] for row in shown["rows"]]


def test_page_of_a_run_on_classes(run):
    page, result = page_of(run), read_result(run)
    assert sections(page) == [
        "summary", "learning", "time", "predictions", "attention", "config",
    ]  # fmt: skip
    assert valid(page) == 14
    shown = page.numbers()["shown"]
    matrix = np.array([row[1:] for row in shown["confusion"]["rows"]])
    assert matrix.sum() == len(range(NUM_NODES)) - int(0.5 * 90) - int(0.25 * 90)
    accuracy = result["test"]["accuracy"]
    assert np.trace(matrix) / matrix.sum() == pytest.approx(accuracy)
    assert np.mean(column(page, "f1", "F1")) == pytest.approx(result["test"]["f1_macro"])
    assert sum(column(page, "f1", "support")) == matrix.sum()
    right, many = column(page, "calibration", "accuracy"), column(page, "calibration", "how many")
    assert np.dot(right, many) / matrix.sum() == pytest.approx(accuracy)
    assert sum(many) == matrix.sum()
    assert column(page, "degree", "neighbours") == ["3–4"]
    assert column(page, "degree", "accuracy") == [pytest.approx(accuracy)]
    losses = column(page, "worst", "loss")
    assert losses == sorted(losses, reverse=True)
    assert all("<script>" in each for each in column(page, "worst", "node"))
    assert page.facts["result"] == result


def test_curves_and_time_are_the_records(run):
    page = page_of(run, metrics_only=True)
    shown = page.numbers()["shown"]
    assert sections(page) == ["summary", "learning", "time", "config"]
    assert "--metrics-only" in words(page)
    assert column(page, "curve-accuracy", "epoch") == [1, 2, 3]
    best = read_result(run)
    assert column(page, "curve-accuracy", "validation")[best["best_epoch"]] == pytest.approx(
        best["val"]["accuracy"]
    )
    stages = shown["stages"]
    for row in stages["rows"]:
        assert sum(row[2:]) == pytest.approx(row[1], rel=0.05)
    assert len(shown["slow-steps"]["rows"]) > 0
    assert set(column(page, "slow-epochs", "epoch")) == {1, 2, 3}


def test_config_tells_what_differs_first(run):
    page = page_of(run, metrics_only=True)
    told = dict(zip(column(page, "settings", "field"), column(page, "settings", "value"),
                    strict=True))  # fmt: skip
    assert told["model.hidden"] == "8"
    assert told["data.split"] == "{random: [0.5, 0.25, 0.25]}"
    assert "optim.lr" not in told


def test_page_of_a_run_on_labels(trained):
    uri = trained("labels", data={"label": "tags"})
    page, result = page_of(uri), read_result(uri)
    assert valid(page) > 8
    assert np.mean(column(page, "auc", "AUC")) == pytest.approx(result["test"]["auc"])
    assert np.mean(column(page, "auc", "F1")) == pytest.approx(result["test"]["f1_macro"])
    known = sum(column(page, "auc", "known"))
    assert sum(column(page, "calibration", "how many")) == known


def test_page_of_a_run_on_numbers(trained):
    uri = trained("numbers", data={"label": "size"})
    page, result = page_of(uri), read_result(uri)
    assert valid(page) > 8
    for name in ("MAE", "RMSE", "R²"):
        key = {"R²": "r2"}.get(name, name.lower())
        assert column(page, "errors", name) == [pytest.approx(result["test"][key], rel=1e-5)]
    assert column(page, "degree", "mean absolute error") == [
        pytest.approx(result["test"]["mae"], rel=1e-5)
    ]
    assert sum(column(page, "residuals-0", "nodes")) == column(page, "errors", "known")[0]


def test_page_of_one_softmax_has_no_lambda(trained):
    page = page_of(trained("single", model={"attention": "single", "hidden": 8}))
    assert "attention" in sections(page)
    assert "lambda" not in page.numbers()["shown"]
    assert "there is no lambda" in words(page)


def test_page_of_another_model_has_no_attention(trained):
    page = page_of(trained("gcn", model={"name": "gcn", "hidden": 8}))
    assert sections(page) == ["summary", "learning", "time", "predictions", "config"]
    assert page.numbers()["shown"]["confusion"]["rows"]


def test_attention_is_measured_on_some_nodes(run):
    page = page_of(run, nodes=10)
    assert "Of 10 of 90 nodes, drawn" in words(page)


def test_page_of_sampled_evaluation_is_by_sampled_neighbours(trained):
    page = page_of(trained("sampled", eval={"mode": "sampled"}))
    assert "with sampled neighbours" in words(page)
    assert valid(page) > 8


@pytest.fixture
def unfinished(run, tmp_path):
    """A copy of the run without its result."""
    uri = tmp_path / "unfinished"
    shutil.copytree(run, uri)
    (uri / "result.json").unlink()
    return uri


def test_page_of_a_run_that_goes_on_looks_at_validation_nodes(unfinished):
    page = page_of(str(unfinished))
    assert "The run has no result" in words(page)
    assert "validation nodes" in words(page)
    assert "test nodes with" not in words(page)
    assert page.facts["finished"] is False
    assert "best validation accuracy" in page.numbers()["shown"]["summary"]


def test_page_of_a_run_without_checkpoint_says_so(unfinished):
    shutil.rmtree(unfinished / "checkpoints")
    page = page_of(str(unfinished))
    assert "no checkpoint yet" in words(page)
    assert sections(page) == ["summary", "learning", "time", "config"]


def test_page_of_a_run_that_has_just_begun(unfinished):
    shutil.rmtree(unfinished / "checkpoints")
    shutil.rmtree(unfinished / "metrics")
    page = page_of(str(unfinished))
    assert "No epoch has ended yet" in words(page)
    assert sections(page) == ["summary", "learning", "config"]


def test_finished_run_without_checkpoint_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/checkpoints")
    with pytest.raises(CheckpointError, match=r"no checkpoint yet.*--metrics-only"):
        page_of(str(tmp_path / "copy"))
    assert "learning" in sections(page_of(str(tmp_path / "copy"), metrics_only=True))


def test_run_whose_dataset_is_gone_is_refused(run, dataset, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    file = tmp_path / "copy/run.json"
    file.write_text(file.read_text().replace(dataset, str(tmp_path / "nowhere")))
    with pytest.raises(DataError, match=r"no dataset here.*--metrics-only"):
        page_of(str(tmp_path / "copy"))


def test_resumed_starts_are_marked(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    (file,) = (tmp_path / "copy/metrics").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    at = next(i for i, line in enumerate(lines) if line["kind"] == "epoch") + 1
    start = lines[0] | {"attempt": 2, "after": 1, "step": lines[at - 1]["step"], "epoch": 1}
    file.write_text("".join(json.dumps(line) + "\n" for line in lines[:at]))
    second = file.with_name(f"2-{start['step']}.jsonl")
    second.write_text("".join(json.dumps(line) + "\n" for line in [start, *lines[at:]]))
    page = page_of(str(tmp_path / "copy"), metrics_only=True)
    assert column(page, "starts", "attempt") == [1, 2]
    marks = [mark["text"] for mark in page.drawings()["figure-curve-loss"]["layout"]["annotations"]]
    assert "start 2" in marks


def test_comparison_of_runs(run, trained):
    other = trained("numbers-free", optim={"lr": 0.05})
    page = page_of(run, other)
    assert valid(page) >= 4
    assert "spread" not in page.numbers()["shown"]
    fields = column(page, "settings", "field")
    assert fields == ["optim.lr", "train.log_every"]
    row = next(r for r in page.numbers()["shown"]["metrics"]["rows"] if r[0] == "test/accuracy")
    values = [read_result(uri)["test"]["accuracy"] for uri in (run, other)]
    assert row[1:3] == [f"{100 * value:.2f} %" for value in values]
    assert row[3] == f"{100 * (values[1] - values[0]):+,.4g} points"


def test_comparison_of_repeats_has_their_mean(trained, tmp_path):
    for i in range(2):
        shutil.copytree(trained(f"seed-{i}", data={"seed": i}), tmp_path / f"repeat-{i}")
    page = page_of(str(tmp_path))
    values = [read_result(str(tmp_path / f"repeat-{i}"))["test"]["accuracy"] for i in range(2)]
    mean = f"{100 * np.mean(values):.2f} % ± {100 * np.std(values, ddof=1):.2f} %"
    assert list(page.numbers()["shown"]["spread"].values()) == [mean]
