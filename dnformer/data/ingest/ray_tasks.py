"""The door to Ray of the engine `ray`: work in tasks, and shuffles of their tables by Ray Data.

Tables stay in Ray's object store, which spills to disk; the driver holds references to them.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import ray.data
import ray.exceptions
from ray.data.context import ShuffleStrategy

from dnformer.errors import BackendError, DNFormerError

# tasks under way for each CPU: the next ones fetch what they need meanwhile
_AHEAD = 2
# for a task to end once it was told to
_STOP_S = 30.0


def require_ray() -> None:
    """Refuses to go on without a Ray to run on.

    Raises:
        BackendError: none was started or joined.
    """
    if not ray.is_initialized():
        raise BackendError(
            "engine ray needs a Ray that is started: dnformer ingest --engine ray does it, or call "
            "ray.init() first"
        )


def num_cpus() -> int:
    """CPUs of the cluster."""
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def task_memory() -> int:
    """Bytes of memory of the cluster for each of its CPUs."""
    return int(ray.cluster_resources().get("memory", 1 << 30)) // num_cpus()


def share(value: Any) -> Any:
    """A reference to a small value that many tasks take."""
    return ray.put(value)


def fetch(table: Any) -> Any:
    """The table that a reference stands for, inside a task."""
    return ray.get(table)


def each(work: Callable[..., Any], calls: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """What `work` gives for each of `calls`, in order; arguments may be references.

    Raises:
        DNFormerError: the one that a task raised.
        BackendError: a task or its machine ended, or had too little memory.
    """
    task = ray.remote(work)
    yield from _in_order(task.remote(*call) for call in calls)


def each_table(
    work: Callable[..., tuple[Any, Any]], calls: Iterable[Sequence[Any]]
) -> Iterator[tuple[Any, Any]]:
    """The same of work that gives a table and a small value: (reference to the table, value)."""
    task = ray.remote(num_returns=2)(work)
    tables: deque[Any] = deque()

    def values() -> Iterator[Any]:
        for call in calls:
            table, value = task.remote(*call)
            tables.append(table)
            yield value

    for value in _in_order(values()):
        yield tables.popleft(), value


def _in_order(results: Iterator[Any]) -> Iterator[Any]:
    pending: deque[Any] = deque()
    most = _AHEAD * num_cpus()
    try:
        with _own_errors():
            for result in results:
                pending.append(result)
                if len(pending) > most:
                    yield ray.get(pending.popleft())
            while pending:
                yield ray.get(pending.popleft())
    finally:
        _stop(pending)


def _stop(pending: Iterable[Any]) -> None:
    """Ends tasks that nobody waits for, so that none writes a part after all were removed."""
    left = list(pending)
    for result in left:
        ray.cancel(result)
    if left:
        ray.wait(left, num_returns=len(left), timeout=_STOP_S)


def shuffle(tables: Sequence[Any], column: str, firsts: Sequence[int]) -> list[Any]:
    """The rows of all `tables` sorted by a column of int64, cut where it reaches each of `firsts`.

    Args:
        tables: references to Arrow tables of one schema.
        column: what to sort by.
        firsts: ascending, the least of which is not above any value.

    Returns:
        A reference to a table for each of `firsts`; a table without rows may have no columns.
    """
    # without any boundary the sort would choose some; one above all gives one table too many
    boundaries = [*firsts[1:], 2**63 - 1]
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    # the other strategies start processes of their own for each step
    context.shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    # a table for each range, however large
    context.target_max_block_size = None
    quiet = logging.getLogger("ray.data")
    before = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with ray.data.DataContext.current(context), _own_errors():
            found = ray.data.from_arrow_refs(list(tables))
            found = found.sort(column, boundaries=boundaries).materialize()
            return list(found.to_arrow_refs())[: len(firsts)]
    finally:
        quiet.setLevel(before)


@contextmanager
def _own_errors() -> Iterator[None]:
    """Our own errors as they were raised in a task, and Ray's in one line."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, DNFormerError | OSError):
            raise cause from None
        raise
    except ray.exceptions.OutOfMemoryError as error:
        raise BackendError(
            "a task of the ingest had too little memory; use machines with more memory for each "
            f"CPU, or smaller row groups: {' '.join(str(error).split())[:200]}"
        ) from None
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.ObjectLostError) as error:
        found = " ".join(str(error).split())[:200]
        raise BackendError(f"the Ray cluster lost a part of the ingest: {found}") from None
