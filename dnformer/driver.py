"""What workers tell their driver and are told by it; Ray, a signal or a test stands behind it."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

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
