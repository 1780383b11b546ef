"""How far an ingest is: stages, each with rows, bytes, speed and the time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Say: TypeAlias = Callable[["Stage"], None]


class Stage:
    """One step of an ingest.

    Attributes:
        name: what is done, in the words of a person.
        rows: done so far.
        bytes: done so far, of the input files.
        total: what there is to do in rows, or in bytes where only these are known; 0: unknown.
    """

    def __init__(self, name: str, say: Say, *, total: int = 0, in_bytes: bool = False) -> None:
        self.name, self.total, self._in_bytes, self._say = name, total, in_bytes, say
        self.rows = self.bytes = 0
        self._start = time.perf_counter()

    def add(self, *, rows: int = 0, bytes_: int = 0) -> None:
        """So much more is done."""
        self.rows += rows
        self.bytes += bytes_
        self._say(self)

    @property
    def done(self) -> int:
        """What is done of `total`."""
        return self.bytes if self._in_bytes else self.rows

    @property
    def seconds(self) -> float:
        """Since the stage began."""
        return time.perf_counter() - self._start

    def line(self) -> str:
        """What a log says: rows, speed, time left."""
        seconds = max(self.seconds, 1e-9)
        text = f"{self.name}: {self.rows:,} rows, {self.rows / seconds:,.0f} rows/s"
        if self.bytes:
            text += f", {self.bytes / seconds / 1e6:,.0f} MB/s"
        if 0 < self.done < self.total:
            left = seconds * (self.total - self.done) / self.done
            text += f", {self.done / self.total:.0%}, {left:.0f} s left"
        return text


class Progress:
    """The stages of one ingest, and what each took.

    Args:
        say: told of every batch; it should ignore most calls.
    """

    def __init__(self, say: Say = lambda stage: None) -> None:
        self._say = say
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, *, total: int = 0, in_bytes: bool = False) -> Iterator[Stage]:
        """A stage, begun here, over with the block."""
        stage = Stage(name, self._say, total=total, in_bytes=in_bytes)
        self._say(stage)
        try:
            yield stage
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + stage.seconds
