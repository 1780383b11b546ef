"""The command `report`: writes one file, whole or not at all, anywhere."""

import json
import tomllib
from pathlib import Path

import fsspec
import pytest

import dnformer

from ..commands import run_command


def test_report_writes_a_page_and_tells_programs(run, tmp_path, capsys):
    out = tmp_path / "new/page.html"
    result = run_command(capsys, "report", run, "--out", out, "--nodes", "20", "--json")
    assert result.returncode == 0
    told = json.loads(result.stdout)
    assert told["report"] == str(out)
    assert told["subject"] == "run"
    assert told["sources"] == [run]
    assert told["sections"][0] == "summary"
    assert told["size"] == out.stat().st_size > 1_000_000
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


def test_report_writes_to_any_store(run, capsys):
    out = "memory://reports/page.html"
    result = run_command(capsys, "report", run, "--out", out, "--metrics-only")
    assert result.returncode == 0
    assert out in result.stdout
    with fsspec.open(out) as file:
        assert file.read().startswith(b"<!DOCTYPE html>")


def test_report_of_several_runs(run, trained, tmp_path, capsys):
    other = trained("numbers-free", optim={"lr": 0.05})
    out = tmp_path / "both.html"
    result = run_command(capsys, "report", run, other, "--out", out, "--json")
    assert json.loads(result.stdout)["subject"] == "comparison"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{tmp}"], "no run and no search here"),
        (["{run}", "--out", "{tmp}"], "is a folder; name a file in it"),
        (["{run}", "{run}"], "a run stands twice"),
        (["{run}", "--nodes", "0"], "greater than or equal to 1"),
        ([], "Missing parameter: runs"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, capsys, arguments, says):
    (tmp_path / "something").touch()
    given = [word.format(run=run, tmp=tmp_path) for word in arguments]
    result = run_command(capsys, "report", *given)
    assert result.returncode == 2
    assert says in result.stderr.splitlines()[-1]


def test_failed_report_leaves_the_old_page(tmp_path, capsys):
    out = tmp_path / "page.html"
    out.write_text("old")
    assert run_command(capsys, "report", tmp_path / "nowhere", "--out", out).returncode == 2
    assert out.read_text() == "old"


def test_all_files_that_are_no_code_are_in_the_wheel():
    package = Path(dnformer.__file__).parent
    settings = tomllib.loads((package.parent / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]
    shipped = {
        path
        for name, globs in patterns.items()
        for each in globs
        for path in (package.parent / name.replace(".", "/")).glob(each)
    }
    templates = set((package / "report/templates").iterdir())
    assert len(templates) >= 8
    assert templates <= shipped
