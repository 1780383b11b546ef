"""Runs a function on a group of Ray Train's workers, and starts them again when some are lost."""

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer

from dnformer import memory, storage
from dnformer.driver import Driver, Notice, Record
from dnformer.errors import DNFormerError, LostError, TrainError
from dnformer.group import Group
from dnformer.ray_runtime.deaths import named_death
from dnformer.ray_runtime.failures import note_failure
from dnformer.ray_runtime.gauges import Gauges
from dnformer.ray_runtime.session import Resources

Worker = Callable[[Any, Group, Driver], Any]

# a report is a barrier that waits for the controller's next poll
_REPORT_EVERY_S = 10.0
# between two looks for a node that is to go, or for a word to stop
_LOOK_EVERY_S = 5.0
_RESIZE_EVERY_S = 30.0
# mistakes in code, which the next group would meet again; all else may pass: lost workers,
# connections, files
_LASTING = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NotImplementedError,
    TypeError, ValueError,
)  # fmt: skip
_STOP = "stop"


@dataclass(frozen=True)
class Policy:
    """How a group of workers deals with trouble.

    Attributes:
        max_failures: times that it is started again, beside nodes that were announced to go.
        collective_timeout_s: seconds after which a worker gives up waiting for the others.
    """

    max_failures: int = 0
    collective_timeout_s: float = 600


def run_workers(
    worker: Worker, payload: Any, *, resources: Resources, folder: str, policy: Policy
) -> Any:
    """Runs `worker(payload, group, driver)` on every worker; call inside a `session`.

    Lost workers are started again; each group goes on from where it finds the payload's run. A
    `DNFormerError` ends it at once: the next group would meet the same.

    Args:
        worker: an importable function.
        payload: plain values, the same for all.
        resources: what they need.
        folder: URI for Ray's own few files, and for what went wrong.
        policy: what is done then.

    Returns:
        What rank 0's worker returned.

    Raises:
        DNFormerError: the one that a worker raised.
        LostError: workers were lost too often.
        TrainError: one failed otherwise.
    """
    storage.remove(storage.join(folder, _STOP))
    config = {"worker": worker, "payload": payload, "folder": folder}
    oom_kills = memory.oom_kills()
    try:
        with _own_interrupt(folder):
            return _trainer(config, resources, folder, policy).fit().return_value
    except TrainingFailedError as error:
        raise _cause(error, oom_kills) from None


def _trainer(
    config: dict[str, Any], resources: Resources, folder: str, policy: Policy
) -> TorchTrainer:
    path, filesystem = folder, None
    if not storage.is_local(folder):
        filesystem, path = storage.arrow_filesystem(folder)
    low, high = resources.least, resources.num_workers
    return TorchTrainer(
        _run_one,
        train_loop_config=config,
        scaling_config=ScalingConfig(
            num_workers=high if low == high else (low, high),
            use_gpu=resources.gpus > 0,
            resources_per_worker={"CPU": resources.cpus, "GPU": resources.gpus},
            elastic_resize_monitor_interval_s=_RESIZE_EVERY_S,
        ),
        torch_config=TorchConfig(
            # NCCL takes no two workers on one GPU
            backend="nccl" if resources.gpus >= 1 else "gloo",
            timeout_s=max(1, round(policy.collective_timeout_s)),
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=path,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(max_failures=policy.max_failures),
            callbacks=[_Failures(folder)],
        ),
    )


@contextmanager
def _own_interrupt(folder: str) -> Iterator[None]:
    """Signals while workers run: SIGTERM tells them to stop, Ctrl-C is KeyboardInterrupt.

    Ray Train's own handler of Ctrl-C exits with 0, and would stay.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        # a second one ends this process as it would have
        signal.signal(number, signal.SIG_DFL)
        storage.write_bytes(storage.join(folder, _STOP), b"")

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Failures(UserCallback):  # type: ignore[misc] # ray has no types
    """Told of failed workers in Ray's controller; what it raises ends the run."""

    def __init__(self, folder: str) -> None:
        self._folder, self._oom_kills = folder, memory.oom_kills()

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        ours = [e for _, e in sorted(worker_exceptions.items()) if isinstance(e, DNFormerError)]
        if ours:
            raise ours[0]
        lasting: dict[int, Exception] = {
            rank: e for rank, e in worker_exceptions.items() if isinstance(e, _LASTING)
        }
        full = [e for e in worker_exceptions.values() if _is_full(e)]
        if full:
            raise TrainError(
                f"{full[0]}: make room; the same command goes on from the last checkpoint"
            )
        if lasting:
            raise TrainError(_text_of(lasting, self._oom_kills))
        note_failure(self._folder, _text_of(worker_exceptions, self._oom_kills))
        self._oom_kills = memory.oom_kills()


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _text_of(errors: dict[int, Exception], oom_kills: int | None) -> str:
    """What happened to the one that others failed because of, in a line."""
    # Ray Train wraps what its look at a worker that died gave
    inner = {rank: getattr(e, "health_check_failure", e) for rank, e in sorted(errors.items())}
    for rank, error in inner.items():
        death = named_death(str(error), oom_kills, memory.oom_kills())
        if death is not None:
            return f"worker {rank} {death}"
    rank, error = next(iter(inner.items()))
    text = " ".join(str(error).split())[:300]
    return f"worker {rank} failed: {type(error).__name__}: {text}"


def _run_one(config: dict[str, Any]) -> Any:
    import ray.train.torch

    context = ray.train.get_context()
    device = ray.train.torch.get_device()
    group = Group(context.get_world_rank(), context.get_world_size(), device)
    link = _Link(group, config["folder"])
    driver = Driver(link.report, link.pending, link.attend)
    return config["worker"](config["payload"], group, driver)


class _Link:
    """A worker's end of the line to the driver."""

    def __init__(self, group: Group, folder: str) -> None:
        self._group, self._folder = group, folder
        self._gauges = Gauges(folder) if group.rank == 0 else None
        self._reported = self._looked = time.monotonic()
        self._leaving: set[str] = set()

    def report(self, record: Record) -> None:
        """Passes a record on to Ray: to its metrics; every few seconds to the controller."""
        import ray.train

        if self._gauges is not None:
            self._gauges.write(record)
        if record["kind"] == "step":
            return
        due = self._group.rank == 0 and time.monotonic() - self._reported >= _REPORT_EVERY_S
        if self._group.any(due):
            ray.train.report(record)
            self._reported = time.monotonic()

    def pending(self) -> bool:
        """Whether it is time to look; rank 0 looks for all."""
        if self._group.rank > 0 or time.monotonic() - self._looked < _LOOK_EVERY_S:
            return False
        self._looked = time.monotonic()
        return True

    def attend(self) -> Notice:
        """Whether a node is announced to go, or the driver was told to stop."""
        import ray.train

        stop = self._group.rank == 0 and storage.exists(storage.join(self._folder, _STOP))
        if self._group.any(stop):
            return "stop"
        info = ray.train.get_preemption_info()
        leaving = set(info.preempted_node_ids) if info is not None else set()
        new, self._leaving = leaving - self._leaving, leaving
        return "save" if new else "none"


def _cause(error: Exception, oom_kills: int | None) -> DNFormerError:
    raised: Any = getattr(error, "controller_failure", None)
    if isinstance(raised, DNFormerError):
        return raised
    found: dict[int, Exception] = getattr(error, "worker_failures", {})
    if found:
        return LostError(_text_of(found, oom_kills))
    return LostError(f"Ray could not run the workers: {raised or error}")
