"""Ten problems, planted: each is named by exactly one check that fails, with what helps.

Where the system can be made to have the problem, it has: mounts in a namespace of their own, since
root heeds no permission bits. A GPU cannot be planted; there the facts of one are.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.doctor import Check, examine
from dnformer.doctor.facts import Gpus, look
from dnformer.doctor.machine import Asked, check_machine

from .test_cluster import TOKEN, dashboard

Write = Callable[..., Path]


def the_failed(checks: list[Check]) -> Check:
    (check,) = (check for check in checks if not check.ok)
    return check


def doctor(*arguments: str, mount: str = "", **environment: str) -> Check:
    """The one check that fails in a process of its own, with its exit code and its JSON.

    Args:
        arguments: of the command.
        mount: shell commands before it, in mounts that nobody else sees.
        environment: variables beside ours.
    """
    command = [sys.executable, "-m", "dnformer.cli", "doctor", "--json", *arguments]
    if mount:
        probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
        if probe.returncode:
            pytest.skip("needs namespaces of users and mounts")
        command = ["unshare", "-rm", "sh", "-ec", f'{mount}; exec "$@"', "sh", *command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | environment
    )
    assert done.returncode == 1, done.stderr
    return the_failed([Check(**check) for check in json.loads(done.stdout)["checks"]])


def test_missing_triton_where_a_gpu_is() -> None:
    gpu = Gpus((("NVIDIA H100", (9, 0)),), ("sm_90",), cuda="13.0", files=1)
    facts = replace(look(), gpus=gpu, triton=None, triton_wanted="triton==3.7.1")
    check = the_failed(check_machine(replace(facts, torch_threads=1), Asked(threads=1)))
    assert (check.name, check.mend) == ("triton", "pip install 'triton==3.7.1'")


def test_tiny_shm() -> None:
    check = doctor(mount="mount -t tmpfs -o size=64m none /dev/shm")
    assert check.name == "/dev/shm"
    assert "64 MiB free of 64 MiB" in check.found
    assert "--shm-size=1g" in check.mend


def test_wrong_endpoint_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    options = {"s3": {"endpoint_url": "http://127.0.0.1:9"}}
    storage.configure(StorageConfig(options=options, retry_s=0))
    try:
        check = the_failed(examine(uri="s3://bucket/x").checks)
    finally:
        storage.configure(StorageConfig())
    assert check.name == "write"
    assert "storage.options.s3.endpoint_url" in check.mend


def test_wrong_endpoint_of_a_cluster() -> None:
    check = the_failed(examine(address="http://127.0.0.1:9").checks)
    assert check.name == "ray head"
    assert "8265" in check.mend


def test_bad_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    with dashboard(token=TOKEN) as head:
        check = the_failed(examine(address=head.url).checks)
    assert check.name == "ray auth"
    assert "RAY_AUTH_TOKEN_PATH to a file with the cluster's token" in check.mend


def test_read_only_cache_folder(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o ro none {tmp_path}"
    check = doctor(mount=mount, XDG_CACHE_HOME=str(tmp_path))
    assert check.name == "cache"
    assert check.found == f"{tmp_path}/dnformer: Read-only file system"
    assert check.mend == "set cache.dir to a folder that can be written"


def test_no_space(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=64k none {tmp_path}; head -c 64K /dev/zero > {tmp_path}/full"
    check = doctor(mount=mount, XDG_CACHE_HOME=str(tmp_path))
    assert check.name == "cache"
    assert check.found == f"{tmp_path}/dnformer: No space left on device"
    assert "larger disk" in check.mend


def test_no_space_for_the_store_of_a_run(write_run: Write, tmp_path: Path) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    check = doctor("--config", str(write_run()), mount=f"mount -t tmpfs -o size=4k none {stores}")
    assert check.name == "cache"
    assert "the node-local store takes" in check.found
    assert "larger disk" in check.mend


def test_too_many_threads() -> None:
    check = doctor(OMP_NUM_THREADS="512")
    cores = len(os.sched_getaffinity(0))
    assert check.name == "threads"
    assert check.mend == f"unset OMP_NUM_THREADS, or set it to {cores}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_gpu_asked_and_none_there(write_run: Write) -> None:
    report = examine(config=str(write_run(train={"use_gpu": True})))
    check = the_failed(report.checks)
    assert check.name == "gpu"
    assert "set train.use_gpu: false" in check.mend
    assert report.estimate is not None
    assert report.estimate["gpu_hours"] is None


def test_dataset_newer_than_the_reader(write_run: Write, tmp_path: Path) -> None:
    config, manifest = write_run(), tmp_path / "data" / "manifest.json"
    values: dict[str, Any] = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(values | {"format": 2}))
    check = the_failed(examine(config=str(config)).checks)
    assert check.name == "dataset"
    assert "format 2 is newer than 1" in check.found
    assert check.mend.startswith("update dnformer")


def test_wrong_torch(tmp_path: Path) -> None:
    record = tmp_path / "torch-2.4.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.4.0\n")
    check = doctor(PYTHONPATH=str(tmp_path))
    assert (check.name, check.mend) == ("torch", "pip install 'torch>=2.11'")
    assert check.found == "2.4.0; dnformer works with >=2.11"


def test_torch_that_does_not_import(write_run: Write, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    check = doctor("--config", str(write_run()), "--bench", PYTHONPATH=str(tmp_path))
    assert check.name == "torch"
    assert "libcudart.so.13" in check.found
    assert check.mend.startswith("pip install --force-reinstall --no-deps torch==2.")
