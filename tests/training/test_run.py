"""The run folder: identity, the one writer, results."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.errors import CheckpointError
from dnformer.parsing import parse
from dnformer.training.run import Attempt, Run, read_result, read_run, run_uri


def make_config(path: str, **sections: dict) -> RunConfig:
    values = {"name": "r", "storage_path": path, "data": {"uri": "/data"}}
    return parse(RunConfig, values | sections)


@pytest.fixture(params=["local", "memory"])
def path(request, tmp_path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def test_run_decides_micro_batches_and_threads_once(path):
    with Run(make_config(path, train={"workers": 2, "threads": 3}), "f") as run:
        assert (run.config.train.micro_batches, run.config.train.threads) == (2, 3)
    with Run(make_config(path, train={"workers": 1}), "f") as run:
        assert (run.config.train.micro_batches, run.config.train.threads) == (2, 3)
        assert run.warnings == []


def test_run_refuses_more_workers_than_its_micro_batches(path):
    with Run(make_config(path, train={"workers": 1}), "f"):
        pass
    with (
        pytest.raises(Exception, match="more than the 1"),
        Run(make_config(path, train={"workers": 2}), "f"),
    ):
        pass


def test_run_warns_of_other_threads(path):
    with Run(make_config(path, train={"threads": 1}), "f"):
        pass
    with Run(make_config(path, train={"threads": 2}), "f") as run:
        assert "began with 1" in run.warnings[0]


def test_run_refuses_other_identity_fields_by_name(path):
    with Run(make_config(path), "f"):
        pass
    other = make_config(path, optim={"lr": 0.5}, model={"heads": 4})
    with pytest.raises(CheckpointError) as error, Run(other, "f"):
        pass
    assert "model.heads is 4, the run has 2" in str(error.value)
    assert "optim.lr is 0.5, the run has 0.005" in str(error.value)
    assert "--fresh" in str(error.value)


def test_run_refuses_another_dataset(path):
    with Run(make_config(path), "a" * 64):
        pass
    with (
        pytest.raises(CheckpointError, match="the dataset is bbbb"),
        Run(make_config(path), "b" * 64),
    ):
        pass


def test_run_takes_other_runtime_fields(path):
    with Run(make_config(path), "f"):
        pass
    other = make_config(path, checkpoint={"keep": 9}, loader={"threads": 7}, data={"uri": "/moved"})
    with Run(other, "f") as run:
        assert run.config.checkpoint.keep == 9


def test_run_that_is_refused_does_not_stop_a_live_one(path):
    with Run(make_config(path), "f") as run:
        attempt = run.attempt
    with pytest.raises(CheckpointError), Run(make_config(path, optim={"lr": 0.5}), "f"):
        pass
    attempt.check()


def test_run_counts_attempts_and_supersedes_the_last(path):
    with Run(make_config(path), "f") as first:
        pass
    with Run(make_config(path), "f") as second:
        assert (first.attempt.number, second.attempt.number) == (1, 2)
        second.attempt.check()
        with pytest.raises(CheckpointError, match="attempt 1 was superseded"):
            first.attempt.check()
        with pytest.raises(CheckpointError, match="superseded"):
            first.finish({})
    assert read_result(run_uri(make_config(path))) is None


def test_run_fresh_forgets_all_but_the_attempt(path):
    with Run(make_config(path), "f") as run:
        run.finish({"test": 1})
        storage.write_bytes(storage.join(run.uri, "checkpoints/step-1/state.json"), b"{}")
        storage.write_bytes(storage.join(run.uri, "notes.txt"), b"mine")
    with Run(make_config(path, optim={"lr": 0.5}), "f", start="fresh") as run:
        assert run.attempt.number == 2
        assert run.result() is None
        assert "checkpoints" not in storage.list_names(run.uri)
        assert "notes.txt" in storage.list_names(run.uri)
        assert read_run(run.uri)[0].optim.lr == 0.5


@pytest.mark.parametrize("start", ["any", "fresh"])
def test_run_leaves_a_folder_alone_that_is_not_its_own(path, start):
    mine = storage.join(run_uri(make_config(path)), "checkpoints/epoch=3.ckpt")
    storage.write_bytes(mine, b"somebody's")
    with (
        pytest.raises(CheckpointError, match=r"holds checkpoints but no run\.json"),
        Run(make_config(path), "f", start=start),
    ):
        pass
    assert storage.read_bytes(mine) == b"somebody's"


def test_run_result_comes_back(path):
    with Run(make_config(path), "f") as run:
        run.finish({"test": {"accuracy": 0.5}})
    with Run(make_config(path), "f") as run:
        assert run.result() == {"test": {"accuracy": 0.5}}


HOLD = """
import sys
from dnformer.config import RunConfig
from dnformer.parsing import parse
from dnformer.training.run import Run
config = parse(RunConfig, {"name": "r", "storage_path": sys.argv[1], "data": {"uri": "/data"}})
with Run(config, "f"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_run_refuses_a_second_live_start_and_follows_a_killed_one(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        expected = f"host {socket.gethostname()}, pid {holder.pid}"
        with pytest.raises(CheckpointError, match=expected), Run(make_config(str(tmp_path)), "f"):
            pass
        holder.kill()
        holder.wait()
    with Run(make_config(str(tmp_path)), "f") as run:
        assert run.attempt.number == 2


def test_run_elsewhere_refuses_a_live_start_of_this_host():
    path = f"memory://{os.getpid()}-live"
    parent = psutil.Process().parent()
    assert parent is not None
    claim = {
        "start": 2,
        "attempt": 4,
        "host": socket.gethostname(),
        "pid": parent.pid,
        "started": parent.create_time(),
    }
    uri = storage.join(run_uri(make_config(path)), "attempt.json")
    storage.write_bytes(uri, json.dumps(claim).encode())
    with pytest.raises(CheckpointError, match=f"pid {parent.pid}"), Run(make_config(path), "f"):
        pass
    storage.write_bytes(uri, json.dumps(claim | {"started": 0}).encode())
    with Run(make_config(path), "f") as run:
        assert run.attempt.number == 5


def test_read_run_names_a_folder_without_run(tmp_path):
    with pytest.raises(CheckpointError, match=r"run\.json is missing"):
        read_run(str(tmp_path))


def test_read_run_names_a_damaged_file(tmp_path):
    Path(tmp_path, "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        read_run(str(tmp_path))


def test_attempt_check_of_a_removed_run(tmp_path):
    with pytest.raises(CheckpointError, match="superseded"):
        Attempt(str(tmp_path), 1, 1, "t").check()


def test_attempt_claim_takes_the_first_group_and_counts_the_next(path):
    with Run(make_config(path), "f") as run:
        first = run.attempt.claim()
        assert first.number == run.attempt.number == 1
        first.check()
        second = run.attempt.claim()
        assert second.number == 2
        with pytest.raises(CheckpointError, match="attempt 1 was superseded"):
            first.check()
        run.finish({"test": 1})
        assert run.result() == {"test": 1}
    with Run(make_config(path), "f") as later:
        assert later.attempt.number == 3
        with pytest.raises(CheckpointError, match="superseded"):
            run.attempt.claim()


def test_run_result_of_an_attempt_before_fresh_is_none(path):
    with Run(make_config(path), "f") as run:
        run.finish({"test": 1})
        result = storage.read_bytes(storage.join(run.uri, "result.json"))
    with Run(make_config(path), "f", start="fresh") as run:
        # a start that was superseded while it wrote
        storage.write_bytes(storage.join(run.uri, "result.json"), result)
        assert run.result() is None


def test_run_resume_refuses_what_has_not_begun(path):
    with (
        pytest.raises(CheckpointError, match="no run to resume"),
        Run(make_config(path), "f", start="resume"),
    ):
        pass
    with Run(make_config(path), "f"):
        pass
    with Run(make_config(path), "f", start="resume") as run:
        assert run.attempt.number == 2


def test_run_refuses_changed_content_of_a_file_that_decides(path, tmp_path):
    mask = tmp_path / "mask.npy"
    mask.write_bytes(b"one")
    config = make_config(path, loss={"mask": str(mask)})
    for _ in range(2):
        with Run(config, "f"):
            pass
    mask.write_bytes(b"two")
    with (
        pytest.raises(CheckpointError, match=r"content of loss\.mask has changed"),
        Run(config, "f"),
    ):
        pass


@pytest.mark.parametrize("content", ["[]", "{}", '{"attempt": "x"}', "{"], ids=repr)
@pytest.mark.parametrize("name", ["run.json", "attempt.json", "result.json"])
def test_run_refuses_files_that_are_none_of_ours(tmp_path, name, content):
    config = make_config(str(tmp_path))
    with Run(config, "f"):
        pass
    Path(run_uri(config), name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name}: damaged"), Run(config, "f") as run:
        run.result()


def test_run_says_what_the_kernel_killed_since_the_last_start(tmp_path):
    config = make_config(str(tmp_path))
    with Run(config, "f") as run:
        assert run.warnings == []
    path = Path(run_uri(config), "attempt.json")
    claim = json.loads(path.read_text())
    if claim["oom_kills"] is None:
        pytest.skip("this kernel does not count what it kills for memory")
    path.write_text(json.dumps(claim | {"oom_kills": claim["oom_kills"] - 1}))
    with Run(config, "f") as run:
        assert "killed 1 process for memory" in run.warnings[0]
        run.finish({})
    with Run(config, "f") as run:
        assert run.warnings == []
