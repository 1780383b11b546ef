"""A finding, and a limit of time on whatever looks for one."""

import queue
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

Given = TypeVar("Given")


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: of it.
        ok: whether training would work as far as this goes.
        found: what is there; what is worth a word though it works is a note in it.
        mend: what helps where it is not ok; else empty.
    """

    name: str
    ok: bool
    found: str
    mend: str = ""


def within(timeout_s: float, action: Callable[[], Given]) -> Given:
    """What `action` returns; a thread that is still at it then is left behind.

    Raises:
        TimeoutError: it took longer.
    """
    answers: queue.SimpleQueue[tuple[Given | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((action(), None))
        except BaseException as error:  # noqa: BLE001 - raised again, where it is waited for
            answers.put((None, error))

    # a daemon: a pool's threads are waited for when the process ends
    threading.Thread(target=run, name="dnformer-doctor", daemon=True).start()
    try:
        given, error = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if error is not None:
        raise error
    return given  # type: ignore[return-value]  # there, where no error is
