"""Where the time of training goes: seconds by stage, and the stage that runs now."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, final


class Current(NamedTuple):
    """The stage that runs, "" between two, and when it began (`time.monotonic`)."""

    stage: str
    since: float


@final
class Stages:
    """A clock for each stage of one rank's work; stages are timed one after the other.

    Attributes:
        current: what runs now; another thread may read it.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self.current = Current("", time.monotonic())

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time of the block to `stage`."""
        start = time.monotonic()
        self.current = Current(stage, start)
        try:
            yield
        finally:
            end = time.monotonic()
            self._seconds[stage] = self._seconds.get(stage, 0.0) + end - start
            self.current = Current("", end)

    def add(self, stage: str, seconds: float) -> None:
        """Adds what another thread took for `stage`."""
        self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds by stage since the start."""
        return dict(self._seconds)
