"""The page of a search: its trials, which settings matter, also while it goes on."""

import shutil

import pytest

from dnformer.config import RunConfig
from dnformer.errors import CheckpointError, ConfigError
from dnformer.parsing import parse
from dnformer.report.write import build_page
from dnformer.training.run import Run

from .conftest import EVIL, OPTIONS
from .test_run_page import column, page_of, sections, valid, words


def test_page_of_a_search_that_goes_on(search):
    page = page_of(search)
    assert sections(page) == ["summary", "settings-tried", "rungs", "trials", "config"]
    assert valid(page) == 4
    assert "has not ended: 6 trials of 8 have" in words(page)
    assert page.facts == {"monitor": "val/accuracy", "best": 4}


def test_trials_are_ranked_and_all_there(search):
    page = page_of(search)
    assert column(page, "trials", "trial") == [4, 3, 2, 0, 1, 5, 6]
    assert column(page, "trials", "val/accuracy")[0] == pytest.approx(0.8)
    assert column(page, "trials", "test/accuracy")[0] == pytest.approx(0.79)
    assert column(page, "trials", "error")[5] == f"a step was {EVIL}"
    assert column(page, "trials", "model.norm")[3] is None
    assert column(page, "trials", "state")[-1] == "running"


def test_coordinates_leave_out_what_a_trial_does_not_set(search):
    page = page_of(search)
    assert column(page, "parallel", "trial") == [4, 3, 6, 2, 0, 1]
    lines = page.drawings()["figure-parallel"]["data"]
    by_trial = {each["text"].split(":")[0]: each["y"] for each in lines if each["mode"] == "lines"}
    # heads 2 of [1, 2, 4], layers 2 of 1 to 3, lr, norm pre, the value between least and most
    assert by_trial["trial 4"] == pytest.approx([0.5, 0.5, 0.602, 0.0, 1.0], abs=1e-3)
    assert by_trial["trial 0"][3] is None
    assert by_trial["trial 1"][-1] == 0


def test_heads_and_layers_have_the_best_of_each_cell(search):
    page = page_of(search)
    names = ("heads", "layers", "val/accuracy")
    rows = zip(*(column(page, "grid", name) for name in names), strict=True)
    cells = {(heads, layers): value for heads, layers, value in rows}
    assert cells == {(1, 1): pytest.approx(0.75), (2, 2): pytest.approx(0.8),
                     (4, 3): pytest.approx(0.7)}  # fmt: skip


def test_curves_go_from_rung_to_rung(search):
    page = page_of(search)
    rows = page.numbers()["shown"]["rungs"]["rows"]
    assert [row[1:] for row in rows if row[0] == 4] == [
        [1, pytest.approx(0.6)], [3, pytest.approx(0.7)], [9, pytest.approx(0.8)],
    ]  # fmt: skip
    marks = page.drawings()["figure-rungs"]["layout"]["annotations"]
    assert [mark["text"] for mark in marks] == ["rung 1", "rung 3"]


def test_importance_adds_up_to_one(search):
    page = page_of(search)
    assert sum(column(page, "importance", "share")) == pytest.approx(1)
    assert "model.norm" not in column(page, "importance", "field")


def test_search_without_trials_says_so(search, tmp_path):
    shutil.copytree(search, tmp_path / "copy", ignore=shutil.ignore_patterns("events"))
    page = page_of(str(tmp_path / "copy"))
    assert "No trial has ended" in words(page)
    assert sections(page) == ["summary", "settings-tried", "config"]


def test_what_does_not_go_into_one_page_is_refused(search, run, tmp_path):
    with pytest.raises(ConfigError, match="is a search; only runs can be shown side by side"):
        build_page([run, search], OPTIONS)
    with pytest.raises(ConfigError, match="a run stands twice"):
        build_page([run, run], OPTIONS)
    with pytest.raises(CheckpointError, match="no run and no search here"):
        build_page([str(tmp_path)], OPTIONS)


def test_repeats_are_compared_where_all_have_finished(search, values, tmp_path):
    shutil.copytree(search, tmp_path / "search")
    tests = {"baseline": [0.5, 0.6, 0.7], "trial-4": [0.6, 0.9], "trial-3": []}
    for label, scores in tests.items():
        for i, score in enumerate(scores):
            plain = values(f"search/repeats/{label}/repeat-{i}") | {"storage_path": str(tmp_path)}
            with Run(parse(RunConfig, plain), "0" * 64) as run:
                run.finish({"test": {"accuracy": score}})
    page = page_of(str(tmp_path / "search"))
    assert "repeats" in sections(page)
    assert column(page, "repeats", "config") == ["baseline", "trial-4"]
    assert column(page, "repeats", "mean") == ["55.00 %", "75.00 %"]
    assert column(page, "repeats", "minus the baseline's") == [None, "+20 points"]
    assert "p of 2 pairs is never below 0.05" in words(page)
