"""Tries again what failed because a store is out of reach or busy, and says so once."""

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar, final

from dnformer.storage.paths import root_of

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_log = logging.getLogger("dnformer.storage")

Given = TypeVar("Given")
# a generator of our own: the global one is the user's
_jitter = random.Random().random


class Unreachable(OSError):
    """A store could not be reached or was busy: errno, what its client said, and the URI."""


@final
class Retry:
    """Repeats actions that raise `Unreachable`; for all threads of a process.

    Args:
        budget_s: seconds from the first failure after which an action is not begun again.
        clock: gives seconds.
        sleep: waits so many seconds.
        jitter: gives a number in [0, 1): workers that failed together do not come back together.
    """

    def __init__(
        self,
        budget_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = _jitter,
    ) -> None:
        self.budget_s = budget_s
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._lock = threading.Lock()
        self._outages: dict[str, float] = {}  # since when, by the store's root

    def __call__(self, uri: str, action: Callable[[], Given]) -> Given:
        """What `action` returns, which is safe to do twice.

        Raises:
            Unreachable: it still failed when the time was up.
        """
        root = root_of(uri)
        try:
            result = action()
        except Unreachable as error:
            return self._again(root, action, error)
        if self._outages:
            self._say_up(root)
        return result

    def _again(self, root: str, action: Callable[[], Given], error: Unreachable) -> Given:
        begin, budget_s = self._clock(), self.budget_s
        pause_s = _FIRST_PAUSE_S
        while (left_s := begin + budget_s - self._clock()) > 0:
            self._say_down(root, error, left_s)
            self._sleep(min(pause_s * (1 + self._jitter()) / 2, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                result = action()
            except Unreachable as again:
                error = again
            else:
                self._say_up(root)
                return result
        if budget_s == 0:
            raise error
        reason = f"{error.strerror}; tried again for {self._clock() - begin:.0f} s"
        raise Unreachable(error.errno, reason, error.filename)

    def _say_down(self, root: str, error: Unreachable, left_s: float) -> None:
        with self._lock:
            if root in self._outages:
                return
            self._outages[root] = self._clock()
        _log.warning(
            "%s not reachable (%s); trying again for up to %.0f s", root, error.strerror, left_s
        )

    def _say_up(self, root: str) -> None:
        with self._lock:
            since = self._outages.pop(root, None)
        if since is not None:
            _log.warning("%s is back after %.0f s", root, self._clock() - since)
