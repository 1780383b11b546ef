"""How far a prediction is: counted by each worker, told by the first one.

Under Ray it is a small file, which whoever started the workers reads now and then.
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple, final

from dnformer import storage

_EVERY_S, _ELSEWHERE_EVERY_S = 0.2, 5.0


class State(NamedTuple):
    """Where a prediction stands.

    Attributes:
        text: what is going on.
        done: nodes and edges, over all layers.
        total: likewise; 0: not known.
    """

    text: str
    done: int
    total: int


Say = Callable[[State], None]


def silent(state: State) -> None:
    """Tells nobody."""


@final
class Progress:
    """Counts what is done, and says so now and then.

    Args:
        say: told of it.
        every_s: seconds between two words at least, within a stage.
    """

    def __init__(self, say: Say, every_s: float = _EVERY_S) -> None:
        self._say, self._every_s = say, every_s
        self._state, self._last = State("", 0, 0), 0.0

    def expect(self, total: int) -> None:
        """How much there is to do."""
        self._state = self._state._replace(total=total)

    def stage(self, text: str) -> None:
        """What is done from here on."""
        self._state = self._state._replace(text=text)
        self._tell()

    def told(self, done: int) -> None:
        """So much more is done."""
        self._state = self._state._replace(done=self._state.done + done)
        if time.monotonic() - self._last >= self._every_s:
            self._tell()

    def _tell(self) -> None:
        self._last = time.monotonic()
        self._say(self._state)


def into_file(uri: str) -> Progress:
    """Progress that `read_state` finds at `uri`."""

    def say(state: State) -> None:
        storage.write_bytes(uri, json.dumps(state).encode())

    return Progress(say, _EVERY_S * 5 if storage.is_local(uri) else _ELSEWHERE_EVERY_S)


def read_state(uri: str) -> State | None:
    """What was last said at `uri`; None where nothing was."""
    content = storage.read_if_exists(uri)
    return None if content is None else State(*json.loads(content))
