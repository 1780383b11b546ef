"""Starts a Ray or joins one.

A Ray that we start is ours alone: its own temporary folder, token authentication, no dashboard.
"""

import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dnformer.cgroup import cores
from dnformer.errors import BackendError, ConfigError, Stopped

_PREFIX = "dnformer-ray-"
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray starts workers at nice 15; beside any other load they would starve
    "RAY_worker_niceness": "0",
    # the controller polls every 2 s by default, which a small run would wait for
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # a task that does not fit into memory is started anew for ever by default
    "RAY_task_oom_retries": "2",
    "GOMP_SPINCOUNT": "1000",
}


@dataclass(frozen=True)
class Resources:
    """What a group of workers needs.

    Attributes:
        num_workers: workers at most.
        cpus: CPU cores of each.
        gpus: GPUs of each, or the share of one.
        min_workers: with fewer it waits for more; None: for all.
        object_store_bytes: of a Ray that we start; None: as much as Ray takes by itself.
    """

    num_workers: int
    cpus: int
    gpus: float = 0
    object_store_bytes: int | None = 128 << 20
    min_workers: int | None = None

    @property
    def least(self) -> int:
        """Workers at least."""
        return self.num_workers if self.min_workers is None else self.min_workers


@contextmanager
def session(needed: Resources, say: Callable[[str], None]) -> Iterator[None]:
    """A Ray to run on: the one of `RAY_ADDRESS`, else a local one that ends with the block.

    Inside another session it is that one.

    Raises:
        ConfigError: this machine has too few CPUs or GPUs.
        BackendError: no Ray at `RAY_ADDRESS`, or none could be started.
    """
    local = not os.environ.get("RAY_ADDRESS")
    _set_environment(local, elastic=needed.least < needed.num_workers)
    if "ray" not in sys.modules:
        say("loading Ray")
    import ray

    if ray.is_initialized():
        _check_resources(ray, needed, say)
        yield
        return
    folder = None
    if local:
        say(f"starting Ray on this machine for {needed.num_workers} worker(s): some 10 to 40 s")
        folder = _start_local(ray, needed)
    else:
        say(f"joining the Ray cluster at {os.environ['RAY_ADDRESS']}")
        _join(ray)
    failed = True
    try:
        _check_resources(ray, needed, say)
        # Ray prints what it has to say of lost workers, also where stdout is a program's
        with redirect_stdout(sys.stderr):
            yield
        failed = False
    except (KeyboardInterrupt, Stopped):
        failed = False
        raise
    finally:
        ray.shutdown()
        if folder is not None and failed:
            say(f"Ray's logs are in {folder}/session_latest/logs")
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _set_environment(local: bool, *, elastic: bool) -> None:
    # how long a group waits for its nodes; Ray counts on one that is gone for a while, and an
    # elastic group need not wait for it
    wait_s = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20" if elastic else "60"}
    for name, value in (_SETTINGS | wait_s).items():
        os.environ.setdefault(name, value)
    # Ray reads these when it is imported; one that was imported before keeps its own ways
    if "RAY_AUTH_MODE" in os.environ or "ray" in sys.modules:
        return
    if local:
        # only this process and its children know the token
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    else:
        token = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
        os.environ["RAY_AUTH_MODE"] = "token" if token else "disabled"


def _start_local(ray: Any, needed: Resources) -> Path:
    folder = _temporary_folder()
    try:
        _init_local(ray, needed, folder)
    except Exception as error:  # noqa: BLE001 - Ray raises nothing narrower when a node starts late
        raise BackendError(
            f"Ray did not start ({' '.join(str(error).split())}); on a busy machine, try again. "
            f"Its logs are in {folder}"
        ) from None
    return folder


def _init_local(ray: Any, needed: Resources, folder: Path) -> None:
    own = cores()
    ray.init(
        address="local",
        num_cpus=max(own, needed.num_workers * needed.cpus),
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=needed.object_store_bytes,
        _temp_dir=str(folder),
    )


def _temporary_folder() -> Path:
    """A new folder for Ray; folders of starts that were killed are removed on the way."""
    # Ray puts Unix sockets inside, whose paths may have 107 bytes
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= 20 else Path("/tmp")
    for leftover in base.glob(f"{_PREFIX}*"):
        owner = leftover.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))


def _join(ray: Any) -> None:
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        address = os.environ["RAY_ADDRESS"]
        raise BackendError(f"no Ray cluster could be joined at {address}: {error}") from None


def _check_resources(ray: Any, needed: Resources, say: Callable[[str], None]) -> None:
    have = ray.cluster_resources()
    for name, each in (("CPU", needed.cpus), ("GPU", needed.gpus)):
        want, found = round(needed.least * each, 6), have.get(name, 0)
        if want <= found:
            continue
        arithmetic = (
            f"{needed.least} workers need {needed.least} x {each:g} = {want:g} {name}, "
            f"the cluster has {found:g}"
        )
        if not os.environ.get("RAY_ADDRESS"):
            raise ConfigError(f"{arithmetic}; lower train.workers or train.threads")
        # an autoscaler may bring the rest
        say(f"warning: {arithmetic} now")
