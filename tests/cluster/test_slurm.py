"""The Slurm scripts, with stand-ins for Slurm's own commands and for Ray's."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "cluster" / "slurm"
SCRIPTS = sorted([*SLURM.glob("*.sbatch"), *SLURM.glob("*.sh")])

# the stand-in for `ray symmetric-run` keeps its arguments, and runs what follows --
STAND_INS = {
    "ray": 'printf "%s\\n" "$@" >>calls\nwhile [ "$1" != -- ]; do shift; done\nshift\n"$@"\n',
    "scontrol": 'echo "scontrol $*" >>calls\n[ "$1" != show ] || printf "first\\nsecond\\n"\n',
}


@pytest.fixture
def job(tmp_path):
    """Starts a script as Slurm would; the stand-in for dnformer does what `text` says."""

    def start(script, text, *arguments, srun='exec "$@"\n'):
        srun = "while [[ $1 == --* ]]; do shift; done\n" + srun
        for name, body in (STAND_INS | {"dnformer": text, "srun": srun}).items():
            file = tmp_path / "bin" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"#!/usr/bin/env bash\n{body}")
            file.chmod(0o755)
        slurm = {"SUBMIT_DIR": ROOT, "JOB_ID": 70, "JOB_NODELIST": "n", "JOB_NUM_NODES": 2}
        environment = os.environ | {
            "HOME": str(tmp_path / "home"),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "SLURM_CPUS_PER_TASK": "8",
            **{f"SLURM_{name}": str(value) for name, value in slurm.items()},
        }
        return subprocess.Popen(
            ["bash", SLURM / script, *arguments],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip

    return start


def calls(tmp_path):
    return (tmp_path / "calls").read_text().splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script_is_clean(script):
    for command in (["bash", "-n"], [str(Path(sys.executable).with_name("shellcheck"))]):
        done = subprocess.run([*command, script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["train", "tune"])
def test_script_asks_for_one_task_a_node_and_time_to_stop(script):
    text = (SLURM / f"{script}.sbatch").read_text()
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, flags=re.MULTILINE))
    assert asked["ntasks-per-node"] == "1"
    assert asked["signal"] == "B:USR1@180"
    assert {"requeue", "exclusive"} <= asked.keys()


def test_symmetric_run_starts_the_command(job, tmp_path):
    seen = 'echo "$RAY_ADDRESS $RAY_AUTH_MODE $*"; wc -c <"$RAY_AUTH_TOKEN_PATH"\n'
    process = job("train.sbatch", seen, "run.yaml", "--set", "optim.lr=0.01")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said.split("\n")[:2] == [
        "first:20070 token train run.yaml --set optim.lr=0.01", "64",
    ]  # fmt: skip
    assert calls(tmp_path)[:11] == [
        "scontrol show hostnames n", "symmetric-run", "--address", "first:20070",
        "--min-nodes", "2", "--num-cpus", "8", "--temp-dir", "/tmp/ray-70", "--metrics-export-port",
    ]  # fmt: skip
    # neither the token nor the driver's number stays
    assert not list((tmp_path / "home" / ".cache" / "dnformer").glob("slurm-*"))


def test_success_is_the_jobs_whatever_became_of_other_nodes(job, tmp_path):
    process = job("train.sbatch", "exit 0\n", "run.yaml", srun='"$@"\nexit 137\n')
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_failure_is_the_jobs(job, tmp_path):
    process = job("tune.sbatch", 'echo "$1"; exit 3\n', "run.yaml")
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (3, "tune\n")
    assert "scontrol requeue 70" not in calls(tmp_path)


def test_job_out_of_time_stops_its_driver_and_is_requeued(job, tmp_path):
    text = 'trap "touch saved; exit 143" TERM\ntouch begun\nfor i in {1..600}; do sleep 0.1; done\n'
    process = job("train.sbatch", text, "run.yaml")
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert (tmp_path / "saved").exists()
    assert process.returncode == 143
    assert calls(tmp_path)[-1] == "scontrol requeue 70"


def test_script_without_a_config_says_how(job):
    process = job("train.sbatch", "", *[])
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said.split()[:2]) == (2, ["usage:", "sbatch"])
