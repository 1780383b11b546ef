"""Starts runs that die, and says what they left: the side of the tests."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .kills import Kill


class Workers(NamedTuple):
    """A group of workers of a start: how many (0: the start is one process), and who dies when."""

    workers: int
    kill: Kill | None = None


class Ended(NamedTuple):
    """How a start ended: its process's status, and what it said, if it came to say something."""

    status: int
    told: dict[str, Any]
    folder: Path

    @property
    def killed(self) -> bool:
        """Whether it died by a kill."""
        return self.status < 0


class Starts:
    """A process that forks starts of runs; use as a context manager.

    Args:
        folder: for what starts say.
        environment: of the process, beside this one's.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder, self._environment = folder, environment

    def __enter__(self) -> "Starts":
        server = Path(__file__).with_name("server.py")
        self._log = (self._folder / "server.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(server)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # a process that has used a GPU cannot fork
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **self._environment},
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()
        self._log.close()

    def warm_up(self, config: dict[str, Any]) -> None:
        """Trains `config` in the process itself: all later starts find everything compiled."""
        ended = self._ask(config, [Workers(0)], here=True)
        assert "result" in ended.told, ended.told

    def start(
        self,
        config: dict[str, Any],
        *groups: Workers,
        slow_s: float = 0.0,
        patient: bool = False,
        outlived: bool = False,
    ) -> Ended:
        """Starts a run and waits until the start has ended.

        Args:
            config: of the run.
            groups: of workers, each follows when the one before it died.
            slow_s: how long each change of the run's folder by a background thread takes.
            patient: workers have a moment to find out that another one died.
            outlived: workers live on when the start itself is killed.
        """
        return self._ask(config, groups, slow_s=slow_s, patient=patient, outlived=outlived)

    def _ask(
        self,
        config: dict[str, Any],
        groups: Sequence[Workers],
        *,
        here: bool = False,
        slow_s: float = 0.0,
        patient: bool = False,
        outlived: bool = False,
    ) -> Ended:
        folder = self._folder / uuid.uuid4().hex[:12]
        folder.mkdir()
        request = {
            "config": config,
            "folder": str(folder),
            "groups": [group._asdict() for group in groups],
            "here": here,
            "slow_s": slow_s,
            "patient": patient,
            "outlived": outlived,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self._folder / "server.log").read_text()
        status, said = int(answer), told(folder, "start")
        assert status < 0 or said, (self._folder / "server.log").read_text()
        return Ended(status, said, folder)


def told(folder: Path, name: str, *, wait_s: float = 0.0) -> dict[str, Any]:
    """What a start (`start`) or a worker (`<group>-<rank>`) said at its end; {} where it died."""
    end = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((folder / f"{name}.json").read_text()))
        if time.monotonic() >= end:
            return {}
        time.sleep(0.02)


def complete_steps(run: Path) -> list[int]:
    """Steps of the complete checkpoints in a local run's folder, found without our own reader."""
    steps = []
    for file in run.glob("checkpoints/*/state.json"):
        document = json.loads(file.read_text())
        tensors = [path for path in file.parent.iterdir() if path.suffix == ".safetensors"]
        hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in tensors]
        if document["tensors"]["sha256"] in hashes:
            steps.append(document["state"]["steps_done"])
    return sorted(steps)


def leftovers(run: Path) -> list[str]:
    """Temporary files in a run's folder."""
    return sorted(str(path.relative_to(run)) for path in run.rglob("*.tmp"))


def tear(run: Path, *, after: int) -> None:
    """Cuts the last line of the metrics in half, as a power cut may; not up to step `after`."""
    for file in run.glob("metrics/*.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        if lines and lines[-1].endswith("\n") and json.loads(lines[-1])["step"] > after:
            half = lines[-1][: len(lines[-1]) // 2]
            file.write_text("".join(lines[:-1]) + half)
