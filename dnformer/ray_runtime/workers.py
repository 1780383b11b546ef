"""Runs a function on a group of Ray Train's workers."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dnformer import storage
from dnformer.errors import DNFormerError, TrainError
from dnformer.group import Group
from dnformer.ray_runtime.session import Resources

Report = Callable[[dict[str, Any]], None]
Worker = Callable[[Any, Group, Report], Any]

# a report is a barrier that waits for the controller's next poll
_REPORT_EVERY_S = 10.0


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
