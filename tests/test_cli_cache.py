"""`dnformer cache`, as a person and a program meet it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from dnformer.cli import main
from dnformer.data.cache import write_cache
from dnformer.data.graph import open_graph
from dnformer.data.table import GraphTable


class Hosted(NamedTuple):
    """A folder of stores, and the fingerprints of two in it."""

    folder: str
    first: str
    second: str


@pytest.fixture
def hosted(make_table: Callable[..., GraphTable], tmp_path: Path) -> Hosted:
    found = []
    for name, edges in (("a", [(0, 1)]), ("b", [(1, 0)])):
        write_cache(make_table(edges, num_nodes=2), str(tmp_path / name), source=f"test {name}")
        found.append(open_graph(tmp_path / name, cache_dir=tmp_path / "stores").fingerprint)
    return Hosted(str(tmp_path / "stores"), *found)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], hosted: Hosted) -> Callable[..., tuple[int, str, str]]:
    """Runs `dnformer cache ...` on the folder: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["cache", *arguments, "--dir", hosted.folder])
        captured = capsys.readouterr()
        return int(caught.value.code or 0), captured.out, captured.err

    return run


Run = Callable[..., tuple[int, str, str]]


def listed(run: Run) -> list[str]:
    stores = json.loads(run("ls", "--json")[1])["stores"]
    return [store["fingerprint"] for store in stores]


def test_cache_ls_json_has_stable_keys(run: Run, hosted: Hosted) -> None:
    code, out, _ = run("ls", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["folder"] == hosted.folder
    assert facts["bytes"] == sum(store["bytes"] for store in facts["stores"])
    assert set(facts["stores"][0]) == {
        "fingerprint", "uri", "source", "bytes", "used_s", "in_use"
    }  # fmt: skip


def test_cache_ls_prints_a_line_a_store(run: Run, hosted: Hosted) -> None:
    _, out, _ = run("ls")
    lines = out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(hosted.first[:12])
    assert lines[0].endswith("test a")
    assert lines[2].startswith(f"{hosted.folder}: 2 stores, ")


def test_cache_rm_removes_what_is_named(run: Run, hosted: Hosted) -> None:
    code, out, _ = run("rm", hosted.first[:10])
    assert (code, out.split()[:2]) == (0, ["removed", hosted.first[:12]])
    assert listed(run) == [hosted.second]


def test_cache_rm_takes_the_uri_of_a_dataset(run: Run, hosted: Hosted, tmp_path: Path) -> None:
    code, out, _ = run("rm", str(tmp_path / "b"), "--json")
    found = json.loads(out)
    assert (code, found["removed"], found["kept"]) == (0, [hosted.second], [])
    assert found["bytes"] > 0
    assert listed(run) == [hosted.first]


def test_cache_rm_refuses_what_is_in_use(run: Run, hosted: Hosted, tmp_path: Path) -> None:
    graph = open_graph(tmp_path / "a", cache_dir=hosted.folder)
    code, _, err = run("rm", hosted.first)
    assert code == 2
    digits = graph.fingerprint[:12]
    assert err == f"error: a process has {digits} open; stop it first (dnformer cache ls)\n"
    assert hosted.first in listed(run)


def test_cache_rm_all_keeps_what_is_in_use_and_says_so(
    run: Run, hosted: Hosted, tmp_path: Path
) -> None:
    graph = open_graph(tmp_path / "a", cache_dir=hosted.folder)
    code, out, _ = run("rm", "--all")
    assert code == 0
    assert f"kept {graph.fingerprint[:12]}" in out
    assert listed(run) == [hosted.first]


@pytest.mark.parametrize("arguments", [[], ["abc", "--all"]], ids=["nothing", "both"])
def test_cache_rm_takes_stores_or_all(run: Run, arguments: list[str]) -> None:
    code, _, err = run("rm", *arguments)
    assert code == 2
    assert err.startswith("error: cache rm takes stores, or --all")


def test_cache_rm_of_an_unknown_store_is_an_error(run: Run, hosted: Hosted) -> None:
    code, _, err = run("rm", "zzz")
    assert (code, err) == (2, "error: no store 'zzz'; dnformer cache ls shows what is there\n")
    assert len(listed(run)) == 2
