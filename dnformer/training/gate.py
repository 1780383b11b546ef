"""Where a trial of a search asks whether it goes on: the verdicts that its driver publishes."""

import json
import time
from dataclasses import dataclass
from typing import Any

from dnformer import storage

# between two looks; elsewhere each is a request
_LOOK_S, _LOOK_ELSEWHERE_S = 0.05, 1.0

Verdict = dict[str, Any]


@dataclass(frozen=True)
class Gate:
    """The verdicts on one trial, a file for each milestone.

    Attributes:
        folder: URI of where they are.
        milestones: epochs done at which there is one, ascending.
    """

    folder: str
    milestones: tuple[int, ...]

    def publish(self, epochs: int, verdict: Verdict) -> None:
        """Says what becomes of the trial after `epochs`, one of the milestones; `stop` ends it."""
        storage.write_bytes(self._uri(epochs), json.dumps(verdict).encode())

    def verdict(self, epochs: int) -> Verdict:
        """What was published for a milestone; waits for it."""
        look_s = _LOOK_S if storage.is_local(self.folder) else _LOOK_ELSEWHERE_S
        while (found := storage.read_if_exists(self._uri(epochs))) is None:
            time.sleep(look_s)
        verdict: Verdict = json.loads(found)
        return verdict

    def stops(self, epochs: int) -> bool:
        """Whether the trial ends after `epochs`; at a milestone it waits for the verdict."""
        return epochs in self.milestones and bool(self.verdict(epochs)["stop"])

    def _uri(self, epochs: int) -> str:
        return storage.join(self.folder, f"verdicts/{epochs:06d}.json")
