"""`dnformer ingest` of tables as a person meets it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dnformer.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of people: b -> a twice, c -> c, a -> z, who is nobody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.csv").write_text(
        "src,dst,weight,since,kind\nb,a,1,5,0\nb,a,2,6,1\nc,c,1,7,0\na,z,1,8,1\n"
    )
    (tmp_path / "nodes.csv").write_text("id,label,price,f0\nc,x,1.5,1\nb,y,,2\na,x,2.5,3\n")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    capsys.readouterr()
    tables = ["--edges", "edges.csv", "--nodes", "nodes.csv", "--features", "f0", "--out", "out"]
    with pytest.raises(SystemExit) as exit_:
        main(["ingest", *tables, *options])
    return int(exit_.value.code or 0), *capsys.readouterr()


def test_every_option_of_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "--dangling", "add", "--duplicates", "sum", "--self-loops", "drop",
        "--weight", "weight", "--time", "since", "--edge-attrs", "kind",
        "--label", "label,price:regression", "--feature-dtype", "float16",
        "--memory-limit", "64GiB", "--temp-dir", "temp", "--engine", "local", "--json",
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    assert {"uri", "written", "seconds", "num_nodes", "num_edges", "num_features", "num_classes",
            "fingerprint", "policies", "counts", "examples", "stages"} <= facts.keys()  # fmt: skip
    assert facts["counts"] == {
        "edges_read": 4, "self_loops": 1, "self_loops_dropped": 1, "duplicates_dropped": 0,
        "duplicates_summed": 1, "edges_added_by_undirected": 0, "num_edges": 2,
        "isolated_nodes": 1, "nodes_added": 1,
    }  # fmt: skip
    assert facts["examples"]["dangling"] == ["edges.csv row 4: a -> z"]
    assert {"read nodes", "read edges", "map edges", "sort and write edges"} <= set(facts["stages"])
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert [target["name"] for target in manifest["targets"]] == ["label", "price"]
    assert manifest["edge_attr_names"] == ["kind"]
    assert manifest["feature_dtype"] == "float16"
    assert list((folder / "temp").iterdir()) == []


def test_what_the_policies_did_is_said_with_examples(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--dangling", "drop")
    assert code == 0
    assert "dangling: edges.csv row 4: a -> z\n" in out
    assert "duplicates: edges.csv row 2: b -> a\n" in out
    code, out, _ = run(capsys, "--dangling", "drop")
    assert code == 0
    assert "out: is already there, nothing to do" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "edges.csv row 4: dst 'z' is no node of nodes.csv; add the node or remove the edge"),
        (("--dangling", "ignore"), "policies: dangling: input should be 'error', 'drop' or 'add'"),
        (("--memory-limit", "1MiB"), "memory limit 1 MiB: the program itself takes"),
        (("--memory-limit", "much"), "'much' is no size; expected bytes"),
        (("--dangling", "drop", "--label", "label:size"), "'class', 'multilabel' or 'regression'"),
        (("--dangling", "drop", "--weight", "heavy"), "no column 'heavy'; it has src, dst, weight"),
        (("--dangling", "drop", "--split", "soon"), "--split soon: 'soon' is no split; there are"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistake_is_one_line(
    options: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *options)
    assert code == 2
    assert out == ""
    assert message in err.splitlines()[-1]
    assert not (folder / "out").exists()


def test_stopped_by_the_user_leaves_nothing_behind(folder: Path) -> None:
    rows = "".join(f"{i % 1000},{i % 997}\n" for i in range(3_000_000))
    (folder / "many.csv").write_text("src,dst\n" + rows)
    command = [sys.executable, "-m", "dnformer.cli", "ingest", "--edges", "many.csv",
               "--out", "many", "--temp-dir", "temp"]  # fmt: skip
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not any((folder / "temp").glob("*/edges.parquet")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        assert process.wait() == 130
    assert err.splitlines()[-1] == "error: stopped"
    assert "Traceback" not in err
    assert not (folder / "many").exists()
    assert list((folder / "temp").iterdir()) == []
