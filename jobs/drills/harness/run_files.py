"""What the files of a run say: its starts, the steps that each did, and its newest checkpoint.

`python run_files.py RUN` prints it, for whoever reaches the run only from another host.
"""

import itertools
import json
import re
import sys
from typing import Any, NamedTuple

from dnformer import storage


class Start(NamedTuple):
    """One start of the workers: its first step, and the last one that it recorded."""

    attempt: int
    first: int
    last: int


class RunFiles(NamedTuple):
    """A run, as its files have it.

    Attributes:
        starts: in order.
        checkpoint: hash of the newest complete checkpoint's tensors, "" where there is none.
        incomplete: files in the run's folder that somebody began and did not end.
    """

    starts: list[Start]
    checkpoint: str
    incomplete: list[str]

    @property
    def repeated(self) -> int:
        """Steps that were done twice."""
        pairs = itertools.pairwise(self.starts)
        return sum(max(before.last - after.first, 0) for before, after in pairs)


def read_run_files(run: str) -> RunFiles:
    """What is in the folder of a run now."""
    starts = []
    for attempt, first, lines in metrics_files(run):
        steps = [json.loads(line)["step"] for line in lines]
        starts.append(Start(attempt, first, max(steps, default=first)))
    complete, incomplete = _checkpoints(run)
    return RunFiles(sorted(starts), complete[max(complete)] if complete else "", incomplete)


def metrics_files(run: str) -> list[tuple[int, int, list[str]]]:
    """(attempt, first step, whole lines) of each file of metrics."""
    folder, found = storage.join(run, "metrics"), []
    for name in storage.list_names(folder):
        match = re.fullmatch(r"(\d+)-(\d+)\.jsonl", name)
        content = storage.read_if_exists(storage.join(folder, name)) if match else None
        if match and content is not None:
            lines = content.decode(errors="replace").split("\n")[:-1]
            found.append((int(match[1]), int(match[2]), lines))
    return found


def _checkpoints(run: str) -> tuple[dict[tuple[int, int], str], list[str]]:
    """(hash by (attempt, step) of the complete ones, names of the others)."""
    folder, complete, incomplete = storage.join(run, "checkpoints"), {}, []
    for name in storage.list_names(folder):
        match = re.fullmatch(r"step-(\d+)(?:-(\d+))?", name)
        state = storage.read_if_exists(storage.join(storage.join(folder, name), "state.json"))
        if match and state is not None:
            complete[int(match[2] or 0), int(match[1])] = json.loads(state)["tensors"]["sha256"]
        else:
            incomplete.append(name)
    return complete, incomplete


def as_json(found: RunFiles) -> dict[str, Any]:
    """Plain values of `found`."""
    return {
        "starts": found.starts,
        "checkpoint": found.checkpoint,
        "incomplete": found.incomplete,
    }


def from_json(values: dict[str, Any]) -> RunFiles:
    """What `as_json` gave."""
    starts = [Start(*start) for start in values["starts"]]
    return RunFiles(starts, values["checkpoint"], values["incomplete"])


if __name__ == "__main__":
    print(json.dumps(as_json(read_run_files(sys.argv[1]))))
