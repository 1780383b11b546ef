"""`dnformer submit` and its companions, as a person meets them, on a head with a token."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from dnformer.cli import main
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource

BIN = Path(sys.executable).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()
    assert (end.value.code, captured.out) == (2, "")
    return captured.err.splitlines()[-1]


@pytest.fixture
def no_cluster(monkeypatch) -> None:
    """No cluster named by the environment, and none that a test could reach."""
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_cluster")
def test_mistakes_are_found_without_a_cluster(tmp_path, capsys):
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"name": "a", "data": {"uri": "/shared/a"}}))
    error = refused(["submit", "train", str(run)], capsys)
    assert error.startswith("error: storage_path: runs is a path of this machine alone; give an")
    given = ["submit", "train", str(run), "--set", "storage_path=/shared/runs"]
    assert refused(given, capsys).startswith("error: no cluster is named: give --address http:")
    assert "lr" in refused([*given, "--set", "optim.l=1"], capsys)
    tables = ["--edges", "edges.csv", "--out", "s3://b/a", "--address", "http://127.0.0.1:1"]
    error = refused(["submit", "ingest", *tables], capsys)
    assert error.startswith("error: table.edges: edges.csv is a path of this machine alone")
    error = refused(["submit", "predict", "runs/a", "--out", "s3://b/said"], capsys)
    assert error.startswith("error: run: runs/a is a path of this machine alone; give an absolute")
    assert refused(["submit", "evaluate", "runs/a"], capsys).startswith("error: No such command")


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize("command", [["list"], ["status", "a"], ["logs", "a"], ["stop", "a"]])
def test_head_that_is_not_there_is_one_line(command, capsys):
    error = refused([*command, "--address", "http://127.0.0.1:1"], capsys)
    assert error.startswith("error: http://127.0.0.1:1 cannot be reached (Connection refused)")


# one head for all that follows


class Head(NamedTuple):
    """A Ray head that has no Python on its PATH which knows Ray."""

    address: str
    token: Path
    shared: Path


def _free_ports(count: int) -> list[int]:
    # all at once, so that they differ
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> Iterator[Head]:
    # Ray puts Unix sockets inside, whose paths may have 107 bytes
    with tempfile.TemporaryDirectory(prefix="dnf-", dir="/tmp") as folder:
        token = Path(folder) / "token"
        token.write_text(secrets.token_hex(32))
        gcs, dashboard, agent, client = _free_ports(4)
        command = [
            BIN / "ray", "start", "--head", "--block", "--num-cpus=2", f"--port={gcs}",
            "--include-dashboard=true", "--dashboard-host=127.0.0.1",
            f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
            f"--ray-client-server-port={client}", f"--temp-dir={folder}/ray",
            "--disable-usage-stats", f"--object-store-memory={100 << 20}",
        ]  # fmt: skip
        environment = {
            **{key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ},
            "PATH": "/usr/bin:/bin", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }  # fmt: skip
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        try:
            address = f"http://127.0.0.1:{dashboard}"
            _await(f"{address}/api/gcs_healthz", process)
            yield Head(address, token, tmp_path_factory.mktemp("shared"))
        finally:
            # it ends all of its Ray
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _await(page: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < end:
        try:
            with urlopen(page, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    pytest.fail("the head did not start")


@pytest.fixture(scope="module")
def run(head, tmp_path_factory) -> Run:
    """Runs the command line in a folder with run.yaml, on a dataset that the head has too."""
    folder, shared = tmp_path_factory.mktemp("client"), head.shared
    ingest(SyntheticSource(nodes=60, classes=2, features=4, degree=4), str(shared / "data"))
    values = {
        "name": "short",
        "storage_path": str(shared / "runs"),
        "data": {"uri": str(shared / "data"), "split": {"random": [0.6, 0.2, 0.2]}},
        # compiles the least, which takes longest in a folder that is new to the head
        "loader": {"kind": "full"},
        "model": {"hidden": 4, "heads": 1},
        "train": {"epochs": 2, "threads": 1},
        "cache": {"dir": str(shared / "stores")},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}

    def run(*arguments: str, token: str = "", **variables: str) -> Any:
        given = {"RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_TOKEN_PATH": str(head.token)}
        return subprocess.run(
            [BIN / "dnformer", *arguments], cwd=folder, capture_output=True, text=True, check=False,
            env={**kept, "RAY_API_SERVER_ADDRESS": head.address, **given, **variables}, timeout=240,
        )  # fmt: skip

    return run


def submit(run: Run, *arguments: str) -> dict[str, Any]:
    result = run("submit", "train", "run.yaml", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.ray
def test_wrong_and_missing_token_are_one_line_each(run, head):
    wrong = run("submit", "train", "run.yaml", token="f" * 64)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[-1].startswith(
        f"error: {head.address} refuses the token of RAY_AUTH_TOKEN (403); "
    )
    assert "ffff" not in wrong.stderr
    none = run("list", RAY_AUTH_TOKEN_PATH="")
    assert (none.returncode, none.stdout) == (2, "")
    assert none.stderr.splitlines()[-1].startswith(
        f"error: {head.address} wants a token, and none was given (401); "
    )


@pytest.mark.ray
def test_job_is_followed_to_its_end_and_not_started_twice(run, head):
    first = run("submit", "train", "run.yaml", "--follow")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "\nepoch 2/2  loss " in first.stdout
    assert f"files of the run: {head.shared}/runs/short" in first.stdout
    assert (head.shared / "runs" / "short" / "result.json").exists()

    again = submit(run)
    assert (again["status"], again["attached"], again["exit_code"]) == ("succeeded", True, 0)
    id = again["id"]
    assert f"submitted {id}" in first.stderr
    followed = run("submit", "train", "run.yaml", "--follow")
    assert (followed.returncode, followed.stdout) == (0, first.stdout)
    assert run("logs", id).stdout == first.stdout
    assert json.loads(run("list", "--json").stdout)["jobs"][0]["id"] == id
    assert f"{id}  short  succeeded  " in run("list").stdout

    # another config under this name is a job of its own, which the run refuses
    other = run("submit", "train", "run.yaml", "--set", "optim.lr=0.5", "--follow")
    assert other.returncode == 1
    assert other.stderr.splitlines()[-1].startswith(f"error: {id}-2 failed: {head.shared}/runs/sh")


@pytest.mark.ray
def test_graph_is_ingested_on_the_cluster(run, head):
    given = ("synthetic:sbm", "--nodes", "60", "--degree", "4", "--out", f"{head.shared}/made")
    done = run("submit", "ingest", *given, "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 nodes, " in done.stdout
    assert (head.shared / "made" / "manifest.json").exists()


@pytest.mark.ray
def test_job_that_is_stopped_goes_on_by_the_same_submit(run, head):
    given = ("--set", "name=long", "--set", "train.epochs=1000000", "--set", "train.patience=null")
    begun = submit(run, *given)
    assert (begun["status"], begun["attached"]) == ("running", False)
    assert submit(run, *given) | {"seconds": 0} == begun | {"seconds": 0, "attached": True}
    changed = run("submit", "train", "run.yaml", *given, "--set", "seed=1", "--repeat", "3")
    assert changed.returncode == 2
    expected = "(options: None there, --repeat 3 here; seed: 0 there, 1 here); stop it first"
    assert expected in changed.stderr

    end = time.monotonic() + 90
    while "\nepoch 2/" not in run("logs", begun["id"]).stdout and time.monotonic() < end:
        time.sleep(0.5)
    stopped = run("stop", begun["id"])
    assert stopped.returncode == 0, stopped.stderr
    assert f"{begun['id']}: stopped, since " in stopped.stdout
    assert "the same command goes on from the last checkpoint" in run("logs", begun["id"]).stdout
    assert json.loads(run("status", begun["id"], "--json").stdout)["status"] == "stopped"

    resumed = submit(run, *given)
    assert (resumed["id"], resumed["attached"]) == (f"{begun['id']}-2", False)
    with subprocess.Popen(
        [BIN / "dnformer", "logs", resumed["id"], "--follow", "--address", head.address],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RAY_AUTH_TOKEN_PATH": str(head.token)},
    ) as following:  # fmt: skip
        assert following.stdout is not None
        said = ""
        while "goes on from step" not in said:
            line = following.stdout.readline()
            assert line, f"the job ended before:\n{said}"
            said += line
        following.send_signal(signal.SIGINT)
        _, error = following.communicate(timeout=30)
    assert following.returncode == 130
    assert f"{resumed['id']} goes on; to stop it: dnformer stop {resumed['id']} --add" in error
    assert json.loads(run("stop", resumed["id"], "--json").stdout)["status"] == "stopped"
