"""The one door to Ray: starts or joins a cluster, and runs a function on a group of workers.

A Ray that we start is ours alone: its own temporary folder, token authentication, no dashboard.
"""

import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from dnformer import storage
from dnformer.errors import BackendError, ConfigError, DNFormerError, TrainError
from dnformer.group import Group

Report = Callable[[dict[str, Any]], None]
Worker = Callable[[Any, Group, Report], Any]

_PREFIX = "dnformer-ray-"
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray starts workers at nice 15; beside any other load they would starve
    "RAY_worker_niceness": "0",
    # the controller polls every 2 s by default, which a small run would wait for
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # a task that does not fit into memory is started anew for ever by default
    "RAY_task_oom_retries": "2",
    "GOMP_SPINCOUNT": "1000",
}
# a report is a barrier that waits for the controller's next poll
_REPORT_EVERY_S = 10.0


@dataclass(frozen=True)
class Resources:
    """What a group of workers needs.

    Attributes:
        num_workers: workers.
        cpus: CPU cores of each.
        use_gpu: one GPU for each.
        object_store_bytes: of a Ray that we start; None: as much as Ray takes by itself.
    """

    num_workers: int
    cpus: int
    use_gpu: bool
    object_store_bytes: int | None = 128 << 20


@contextmanager
def session(needed: Resources, say: Callable[[str], None]) -> Iterator[None]:
    """A Ray to run on: the one of `RAY_ADDRESS`, else a local one that ends with the block.

    Inside another session it is that one.

    Raises:
        ConfigError: this machine has too few CPUs or GPUs.
        BackendError: no Ray at `RAY_ADDRESS`, or none could be started.
    """
    local = not os.environ.get("RAY_ADDRESS")
    _set_environment(local)
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
        yield
        failed = False
    except KeyboardInterrupt:
        failed = False
        raise
    finally:
        ray.shutdown()
        if folder is not None and failed:
            say(f"Ray's logs are in {folder}/session_latest/logs")
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _set_environment(local: bool) -> None:
    for name, value in _SETTINGS.items():
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
    cores = len(os.sched_getaffinity(0))
    try:
        ray.init(
            address="local",
            num_cpus=max(cores, needed.num_workers * needed.cpus),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=needed.object_store_bytes,
            _temp_dir=str(folder),
        )
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise BackendError(f"Ray did not start: {error}; its logs are in {folder}") from None
    return folder


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
    for name, each in (("CPU", needed.cpus), ("GPU", int(needed.use_gpu))):
        want, found = needed.num_workers * each, have.get(name, 0)
        if want <= found:
            continue
        arithmetic = (
            f"{needed.num_workers} workers need {needed.num_workers} x {each} = {want} {name}, "
            f"the cluster has {found:g}"
        )
        if not os.environ.get("RAY_ADDRESS"):
            raise ConfigError(f"{arithmetic}; lower train.workers or train.threads")
        # an autoscaler may bring the rest
        say(f"warning: {arithmetic} now")


def run_workers(worker: Worker, payload: Any, *, resources: Resources, folder: str) -> Any:
    """Runs `worker(payload, group, report)` on every worker; call inside a `session`.

    Args:
        worker: an importable function.
        payload: plain values, the same for all.
        resources: what they need.
        folder: URI for Ray's own few files.

    Returns:
        What rank 0's worker returned.

    Raises:
        DNFormerError: the one that a worker raised.
        TrainError: a worker died or failed otherwise.
    """
    from ray.train import RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    path, filesystem = folder, None
    if not storage.is_local(folder):
        filesystem, path = storage.arrow_filesystem(folder)
    trainer = TorchTrainer(
        _run_one,
        train_loop_config={"worker": worker, "payload": payload},
        scaling_config=ScalingConfig(
            num_workers=resources.num_workers,
            use_gpu=resources.use_gpu,
            resources_per_worker={"CPU": resources.cpus, "GPU": int(resources.use_gpu)},
        ),
        torch_config=TorchConfig(backend="nccl" if resources.use_gpu else "gloo"),
        run_config=RunConfig(name="ray", storage_path=path, storage_filesystem=filesystem),
    )
    try:
        with _own_interrupt():
            return trainer.fit().return_value
    except TrainingFailedError as error:
        raise _cause(error) from None


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Ctrl-C as KeyboardInterrupt: Ray Train's own handler exits with 0, and would stay."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _run_one(config: dict[str, Any]) -> Any:
    import ray.train.torch

    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    group = Group(context.get_world_rank(), context.get_world_size(), device)
    return config["worker"](config["payload"], group, _reporter(group))


def _reporter(group: Group) -> Report:
    """Passes a record on to Ray every few seconds, on all ranks or on none."""
    import ray.train

    last = time.monotonic()

    def report(record: dict[str, Any]) -> None:
        nonlocal last
        due = group.rank == 0 and time.monotonic() - last >= _REPORT_EVERY_S
        if group.sum_(torch.tensor(int(due), device=group.device)):
            ray.train.report(record)
            last = time.monotonic()

    return report


def _cause(error: Exception) -> DNFormerError:
    failures: dict[int, Exception] = getattr(error, "worker_failures", {})
    for rank in sorted(failures):
        if isinstance(failures[rank], DNFormerError):
            return failures[rank]  # type: ignore[return-value]
    for rank, failure in sorted(failures.items()):
        return TrainError(f"worker {rank} failed: {type(failure).__name__}: {failure}")
    return TrainError(f"Ray could not run the workers: {error}")
