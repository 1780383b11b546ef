"""The command line as a person meets it: exit codes, one-line errors, stable JSON keys."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from dnformer.data.ingest.run import ingest
from dnformer.data.ingest.tables import TableSource

from .commands import Result, run_command


def refused(result: Result) -> str:
    """The one line of an error; anything else is a failure."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1] == errors[0]
    return errors[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with tables of people, run.yaml for a dataset `data` of them, and that dataset."""
    folder = tmp_path_factory.mktemp("cli")
    people = [f"p{i}" for i in range(30)]
    edges = [f"{people[i]},{people[(i * 7 + 3) % 30]}" for i in range(30)]
    nodes = [f"{name},{'ab'[i % 2]},{i % 2},{i / 30:.3f}" for i, name in enumerate(people)]
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]))
    (folder / "nodes.csv").write_text("\n".join(["id,label,f0,f1", *nodes]))
    values = {
        "name": "people",
        "data": {"uri": "data", "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": 3, "batch_size": 8},
        "model": {"hidden": 4},
        "train": {"epochs": 3, "threads": 1},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    source = TableSource(edges=str(folder / "edges.csv"), nodes=str(folder / "nodes.csv"))
    ingest(source, str(folder / "data"), policies={"direction": "undirected"})
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in `folder`, in this process."""
    monkeypatch.chdir(folder)
    # the node-local stores go beside the test's files, not to the user's cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return partial(run_command, capsys)


def test_help_lists_what_is_there(run):
    result = run()
    assert result.returncode == 0
    listed = result.stdout.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in listed if line] == [
        "ingest", "describe", "init", "train", "tune", "reproduce", "evaluate", "report", "predict",
        "analyze", "explain", "export", "doctor", "status", "logs", "stop", "list", "submit",
        "bench", "runs", "cache",
    ]  # fmt: skip


def test_ingest_again_has_nothing_to_do(run):
    result = run("ingest", "--edges", "edges.csv", "--nodes", "nodes.csv", "--undirected",
                 "--out", "data")  # fmt: skip
    assert result.returncode == 0
    assert "data: is already there, nothing to do" in result.stdout
    assert "direction undirected" in result.stdout


def test_ingest_takes_a_config_file_and_options_on_top(run, folder):
    values = {"table": {"edges": "edges.csv", "nodes": "nodes.csv"}, "out": "nowhere"}
    (folder / "ingest.yaml").write_text(yaml.safe_dump(values))
    result = run("ingest", "--config", "ingest.yaml", "--out", "other", "--split", "random",
                 "--set", "policies.direction=undirected", "--json")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["uri"] == "other"
    described = json.loads(run("describe", "other", "--json").stdout)
    assert described["splits"] == {"train": 18, "val": 6, "test": 6}
    data = json.loads(run("describe", "data", "--json").stdout)
    assert described["fingerprint"] == data["fingerprint"]


def test_describe_has_stable_keys(run, folder):
    facts = json.loads(run("describe", "data", "--json").stdout)
    assert {
        "num_nodes", "num_edges", "num_features", "num_classes", "fingerprint", "splits",
    } <= facts.keys()  # fmt: skip
    assert facts["class_counts"] == {"a": 15, "b": 15}
    assert "no split came with this dataset" in facts["split_problem"]
    text = run("describe", "data", "--split", "random").stdout
    assert "train 18, val 6, test 6" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["train"], "Missing parameter"),
        (["train", "missing.yaml"], "missing.yaml: cannot be read: No such file"),
        (["train", "run.yaml", "--set", "optim.lr"], "expected path=value"),
        (["train", "run.yaml", "--set", "optim.rl=1"], "'optim.rl'; did you mean 'lr'?"),
        (
            ["train", "run.yaml", "--fresh", "--resume"],
            "--fresh forgets what --resume goes on from",
        ),
        (["train", "run.yaml", "--resume"], "there is no run to resume; leave out --resume"),
        (["train", "run.yaml", "--set", "model.heads=3"], "hidden 4 is no multiple of heads 3"),
        (["train", "run.yaml", "--set", "data.uri=nowhere"], "no dataset here"),
        (["evaluate", "runs/nothing"], "no run here"),
        (["describe", "."], "no dataset here"),
        (["describe", "data", "--storage-option", "s3.key=x"], "s3.key is a credential"),
        (["evaluate", "runs/nothing", "--storage-option", "s3"], "expected PROTOCOL.NAME=VALUE"),
        (["ingest", "pyg:Planetoid/Coro", "--root", ".", "--out", "x"], "no graph"),
        (["ingest", "edges.csv", "--out", "x"], "expected pyg:NAME, ogb:NAME or synthetic:KIND"),
        (["ingest", "--out", "x"], "takes one source of pyg, ogb, synthetic, table"),
        (["ingest", "synthetic:sbm"], "out is required"),
        (["ingest", "synthetic:sbm", "--nodes", "900", "--out", "data"], "holds another dataset"),
        (["ingest", "synthetic:sbm", "--out", "."], "is not empty and holds no dataset"),
        (["ingest", "synthetic:sbm", "--out", "run.yaml/x"], "choose another path"),
        (["train", "run.yaml", "--set", "storage_path=run.yaml"], "choose another path"),
        (["ingest", "--edges", "run.yaml", "--out", "x"], "run.yaml"),
        (
            ["ingest", "synthetic:sbm", "--out", "x", "--split", "thirds"],
            "'thirds' is no split; there are column",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_is_one_line_and_exit_code_2(run, arguments, message):
    assert message in refused(run(*arguments))


def test_bad_row_is_named_by_file_row_and_value(run, folder):
    (folder / "bad.csv").write_text("src,dst\np0,p1\np1,p99\n")
    line = refused(run("ingest", "--edges", "bad.csv", "--nodes", "nodes.csv", "--out", "x"))
    assert "bad.csv row 2" in line
    assert "p99" in line
    assert not (folder / "x").exists()


@pytest.mark.parametrize("module", ["dnformer", "dnformer.cli"])
def test_module_runs_as_a_program(folder, module):
    command = [sys.executable, "-m", module, "train", "nowhere.yaml"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "error: nowhere.yaml: cannot be read: No such file or directory\n"


def test_ctrl_c_while_the_program_loads_is_one_line():
    """The import of typer stands for all that the command line imports."""
    interrupted = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from dnformer.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", interrupted]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "error: stopped\n")


def test_quiet_says_nothing_but_the_result(run):
    result = run("train", "run.yaml", "--set", "name=silent", "--quiet")
    assert result.returncode == 0
    assert result.stdout.startswith("test accuracy")
    assert result.stderr == ""


def test_quiet_still_says_what_is_wrong(run):
    run("train", "run.yaml", "--quiet")
    result = run("train", "run.yaml", "--quiet", "--set", "train.threads=2")
    assert result.returncode == 0
    assert result.stderr == (
        "warning: train.threads is 2, the run began with 1: results may differ in the last bits\n"
    )
    assert "unknown key" in refused(run("train", "run.yaml", "-q", "--set", "optim.rl=1"))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("evaluate fold", "folder"),
        ("runs show folder/r", "folder/runs"),
        ("train run.yaml --set optim.wa", "optim.warmup_steps="),
        ("eval", "evaluate"),
    ],
)
def test_shell_completes(tmp_path, words, offered):
    (tmp_path / "folder" / "runs").mkdir(parents=True)
    environment = {
        **os.environ,
        "_DNFORMER_COMPLETE": "complete_bash",
        "COMP_WORDS": f"dnformer {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    command = [str(Path(sys.executable).with_name("dnformer"))]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True,
                            check=False)  # fmt: skip
    assert offered in result.stdout.split("\n")
