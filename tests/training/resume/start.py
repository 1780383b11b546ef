"""One start of a run, in a process that the server forked: the workers are forks of it again.

All that the harness takes from the package's training is imported here.
"""

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from kills import DRIVER, CountedGroup, Fuse, Kill
from watched_s3 import mark_this_process

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.data.manifest import read_manifest
from dnformer.driver import Driver
from dnformer.errors import DNFormerError
from dnformer.group import Group
from dnformer.parsing import parse
from dnformer.training.launch import train
from dnformer.training.run import Run, portable, run_uri
from dnformer.training.worker import Job, run_worker

_MEETING_S = 60.0


def start(request: dict[str, Any]) -> None:
    """Trains a run to its end, or to its death, and writes what came out beside it.

    Args:
        request: `config`, `folder` (for what comes out), `slow_s`, and `groups`: each a
            number of `workers` and its `kill`. A group follows the one before it when that died,
            as under Ray; with 0 workers the start is this one process. After the last group
            the start dies too.
    """
    mark_this_process()
    config = parse(RunConfig, request["config"])
    groups = request["groups"]
    if groups[0]["workers"] == 0:
        _fuse(config, request, groups[0]["kill"], rank=0)
        _tell(request, "start", lambda: train(config))
        return
    _fuse(config, request, groups[0]["kill"], rank=DRIVER)
    _tell(request, "start", lambda: _with_workers(config, request))


def _tell(request: dict[str, Any], name: str, work: Callable[[], Any]) -> dict[str, Any]:
    """Writes `name`.json: the `result` of `work`, or its `error`."""
    try:
        told: dict[str, Any] = {"result": work()}
    except DNFormerError as error:
        told = {"error": str(error), "kind": type(error).__name__}
    file = Path(request["folder"], f"{name}.json")
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)
    return told


def _fuse(config: RunConfig, request: dict[str, Any], kill: Any, *, rank: int) -> Fuse:
    found = Kill(*kill) if kill else None
    # rank 0 sees to the death of the driver while it trains
    mine = (rank,) if rank or not found or not found.steps else (rank, DRIVER)
    if found is not None and found.rank not in mine:
        found = None
    return Fuse(run_uri(config), found, slow_s=request["slow_s"])


def _with_workers(config: RunConfig, request: dict[str, Any]) -> Any:
    fingerprint = read_manifest(config.data.uri).fingerprint
    with Run(config, fingerprint) as run:
        found = run.result()
        if found is not None:
            return found
        job = Job(portable(run.config), fingerprint, run.attempt)
        for number, group in enumerate(request["groups"]):
            if _run_group(config, job, request, number, group):
                told = json.loads(Path(request["folder"], f"{number}-0.json").read_text())
                run.finish(told["result"])
                return told["result"]
        os.kill(os.getpid(), signal.SIGKILL)
    return None


def _run_group(
    config: RunConfig, job: Job, request: dict[str, Any], number: int, group: dict[str, Any]
) -> bool:
    """Whether the workers reached the end; when one dies, so do the others."""
    members = []
    for rank in range(group["workers"]):
        pid = os.fork()
        if pid == 0:
            _be_worker(config, job, request, (number, rank))
        members.append(pid)
    well = True
    while members:
        pid, status = os.wait()
        members.remove(pid)
        if status and well:
            well = False
            _end(members, patient=request["patient"])
    return well


def _be_worker(
    config: RunConfig, job: Job, request: dict[str, Any], place: tuple[int, int]
) -> NoReturn:
    code = 1
    try:
        _let_go_of_the_lock(job.run)
        mark_this_process()
        number, rank = place
        group = request["groups"][number]
        fuse = _fuse(config, request, group["kill"], rank=rank)
        meeting = Path(request["folder"], f"meeting-{number}")
        members = (rank, group["workers"])
        said = _tell(request, f"{number}-{rank}", lambda: _work(job, members, meeting, fuse))
        code = int("error" in said)
    finally:
        traceback.print_exc()
        # no cleaning up: it would wait for those that died
        os._exit(code)


def _let_go_of_the_lock(run: str) -> None:
    """A fork holds what the driver holds, which Ray's workers do not."""
    if not storage.is_local(run):
        return
    lock = Path(run, ".lock").stat()
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), lock):
                os.close(descriptor)


def _end(members: list[int], *, patient: bool) -> None:
    if patient:
        time.sleep(0.3)
    for pid in members:
        os.kill(pid, signal.SIGKILL)


def _work(job: Job, place: tuple[int, int], meeting: Path, fuse: Fuse) -> Any:
    rank, size = place
    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size,
            timeout=timedelta(seconds=_MEETING_S),
        )  # fmt: skip
    group: Group = CountedGroup(rank, size, torch.device("cpu")).with_fuse(fuse)
    return run_worker(job, group, Driver())
