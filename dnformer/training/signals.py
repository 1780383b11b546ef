"""Ctrl-C and SIGTERM to a run in this process: it stops after a step, with its state saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from dnformer.driver import Notice
from dnformer.errors import Stopped

_STOPPING = (signal.SIGINT, signal.SIGTERM)


@final
class Stopper:
    """Whether this process was told to stop.

    Attributes:
        signal: that told it, or None.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._stepping = say, False
        self.signal: int | None = None

    def pending(self) -> bool:
        """Whether it was; a step calls it."""
        self._stepping = True
        return self.signal is not None

    def attend(self) -> Notice:
        """To stop is all that it can be told."""
        return "stop"

    def told(self, number: int, frame: Any) -> None:
        """The handler of signals. Before the first step, and the second time, it stops at once."""
        if self._stepping and self.signal is None:
            self.signal = number
            self._say("stopping after this step; once more stops at once")
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Stopped("stopped at once, what came after the last checkpoint is done again")


@contextmanager
def stopper(say: Callable[[str], None]) -> Iterator[Stopper]:
    """Handles the signals while the block runs; in another thread than the main one, none."""
    found = Stopper(say)
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {number: signal.signal(number, found.told) for number in _STOPPING}
    try:
        yield found
    except Stopped as stopped:
        if found.signal == signal.SIGINT:
            raise KeyboardInterrupt(str(stopped)) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
