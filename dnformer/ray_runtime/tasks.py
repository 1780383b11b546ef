"""Runs a function on many items as Ray tasks, some at a time."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

from dnformer.errors import DNFormerError, LostError
from dnformer.ray_runtime.session import Resources

Item = TypeVar("Item")
# times that a task whose process is lost is started again
_RETRIES = 3


def run_tasks(
    function: Callable[[Any], Any], items: Iterable[tuple[Item, Any]], needed: Resources
) -> Iterator[tuple[Item, Any]]:
    """Each item with what `function(payload)` gave for it, as they end; inside a `session`.

    Args:
        function: an importable function.
        items: (item, payload, plain values); the next one is asked for when there is room.
        needed: `num_workers` tasks at a time, each with `cpus` and `gpus`.

    Raises:
        DNFormerError: the one that a task raised.
        LostError: a task's process was lost too often.
    """
    remote = ray.remote(function).options(
        num_cpus=needed.cpus, num_gpus=needed.gpus, max_retries=_RETRIES
    )
    waiting, running = iter(items), dict[Any, Item]()
    while True:
        for item, payload in islice(waiting, needed.num_workers - len(running)):
            running[remote.remote(payload)] = item
        if not running:
            return
        (done,), _ = ray.wait(list(running))
        yield running.pop(done), _result(done)


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, DNFormerError):
            raise error.cause from None
        raise
    except WorkerCrashedError:
        raise LostError(
            f"a task's process was lost {_RETRIES + 1} times; is memory short?"
        ) from None
