"""Where a trial of a search asks whether it goes on: the verdicts that its driver publishes."""

import json
import time
from dataclasses import dataclass

from dnformer import storage

# between two looks; elsewhere each is a request
_LOOK_S, _LOOK_ELSEWHERE_S = 0.05, 1.0


@dataclass(frozen=True)
class Gate:
    """The verdicts on one trial.

    Attributes:
        uri: of the last one, written by `publish`.
        milestones: epochs done at which there is one, ascending.
    """

    uri: str
    milestones: tuple[int, ...]

    def publish(self, epochs: int, *, stop: bool) -> None:
        """Says whether the trial ends after `epochs`, one of the milestones."""
        verdict = {"epochs": epochs, "stop": stop}
        storage.write_bytes(self.uri, json.dumps(verdict).encode())

    def stops(self, epochs: int) -> bool:
        """Whether the trial ends after `epochs`; waits for the verdict at a milestone."""
        look_s = _LOOK_S if storage.is_local(self.uri) else _LOOK_ELSEWHERE_S
        while epochs in self.milestones:
            found = storage.read_if_exists(self.uri)
            verdict = {"epochs": 0} if found is None else json.loads(found)
            if verdict["epochs"] == epochs:
                return bool(verdict["stop"])
            if verdict["epochs"] > epochs:
                # the trial was killed further on, and does these epochs again
                return False
            time.sleep(look_s)
        return False
