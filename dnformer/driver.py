"""What workers tell their driver and are told by it; Ray, a signal or a test stands behind it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from dnformer import storage

_LOOK_S, _LOOK_ELSEWHERE_S = 0.5, 5.0

Record = dict[str, Any]
Notice = Literal["none", "save", "stop"]


def _silent(record: Record) -> None:
    pass


def _quiet() -> bool:
    return False


def _nothing() -> Notice:
    return "none"


class Driver(NamedTuple):
    """The driver as one worker sees it; every rank calls `report` and `attend` at the same points.

    Attributes:
        report: takes each record of metrics.
        pending: whether this worker was told something that all should attend to; cheap.
        attend: called on all ranks where one of them was told: what there is to do. "save": a
            checkpoint at once; "stop": that, and no further step.
    """

    report: Callable[[Record], None] = _silent
    pending: Callable[[], bool] = _quiet
    attend: Callable[[], Notice] = _nothing


@contextmanager
def meanwhile(look: Callable[[], None], uri: str) -> Iterator[None]:
    """Calls `look` now and then, in a thread, while the block runs, and once at its end.

    Args:
        look: for what is new below `uri`.
        uri: of a folder; on a store, where each look is a request, it is called less often.
    """
    ended = threading.Event()
    every_s = _LOOK_S if storage.is_local(uri) else _LOOK_ELSEWHERE_S

    def poll() -> None:
        while not ended.wait(every_s):
            look()

    thread = threading.Thread(target=poll, name="dnformer-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
