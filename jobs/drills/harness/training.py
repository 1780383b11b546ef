"""One `dnformer train` on a cluster: started, watched step by step, killed, started again."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, final

from harness import run_files
from harness.cluster import Cluster, Driver
from harness.run_files import RunFiles, metrics_files, read_run_files

_WAIT_S = 600
_POLL_S = 0.1


class Line(NamedTuple):
    """What a driver said, and when by the monotonic clock."""

    at: float
    text: str


class Step(NamedTuple):
    """A step whose record was there at a time: `attempt` is the workers' start that did it."""

    at: float
    attempt: int
    step: int


@final
class Training:
    """A run, through all the starts that it takes; a context manager that ends its driver.

    Args:
        cluster: where it runs.
        config: its YAML.
        settings: `a.b=value`, on top; with `name` and `storage_path`.
        run: the folder of the run.
        log: the file for what its drivers say.
    """

    def __init__(
        self, cluster: Cluster, config: Path, settings: list[str], *, run: str, log: Path
    ) -> None:
        self._cluster, self.run, self._log = cluster, run, log
        self._command = [sys.executable, "-m", "dnformer.cli", "train", str(config), "--json"]
        for setting in settings:
            self._command += ["--set", setting]
        self.lines: list[Line] = []
        self.steps: list[Step] = []
        self.failures: list[float] = []
        self._ended = threading.Event()
        self._driver: Driver | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Training":
        self._log.write_text("")
        if "://" not in self.run:
            self._thread(self._watch)
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if not self.ended:
            self._running.kill()
        self._running.wait()
        self._ended.set()
        for thread in self._threads:
            thread.join()

    @property
    def _running(self) -> "subprocess.Popen[str]":
        assert self._driver is not None
        return self._driver.process

    def start(self) -> None:
        """Starts the driver: the same command each time."""
        self._driver = self._cluster.drive(self._command, self._log.with_suffix(".out"))
        self._listener = self._thread(self._listen, self._driver.process)

    def kill_driver(self) -> None:
        """Ends the driver, without giving it time for a word."""
        os.kill(self._running.pid, signal.SIGKILL)
        self._running.wait()

    @property
    def ended(self) -> bool:
        """Whether the driver has ended."""
        return self._running.poll() is not None

    def wait(self) -> int:
        """The exit status of the driver, when it has ended and all that it said is there."""
        self.until(lambda: self.ended, "the run's end")
        self._listener.join()
        return self._running.wait()

    def result(self) -> dict[str, Any]:
        """What the run gave."""
        assert self._driver is not None
        found: dict[str, Any] = json.loads(self._driver.output.read_text())
        return found

    def first_sign(self, after: float) -> float | None:
        """When something was first said or noted of a fault, after a time; None: nothing was."""
        said = [line.at for line in self.lines if not line.text.startswith("epoch ")]
        return min((at for at in said + self.failures if at > after), default=None)

    def times(self) -> list[float]:
        """When steps were seen done; where they can't be watched, when epochs were."""
        epochs = [line.at for line in self.lines if line.text.startswith("epoch ")]
        return sorted([seen.at for seen in self.steps] or epochs)

    @property
    def last_step(self) -> int:
        """The last step that is known to be done; 0 where steps are not watched."""
        return max((seen.step for seen in self.steps), default=0)

    def wait_for_step(self, step: int) -> None:
        """Returns when `step` is done."""
        self.until(lambda: self.last_step >= step, f"step {step}")

    def wait_for_line(self, pattern: str) -> Line:
        """The first line of a driver that `pattern` is found in, when it is there."""
        found: list[Line] = []

        def said() -> bool:
            found.extend(line for line in self.lines if re.search(pattern, line.text))
            return bool(found)

        self.until(said, f"a line with {pattern!r}")
        return found[0]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Returns when `condition` holds.

        Raises:
            RuntimeError: it didn't in a long time, or the driver ended before.
        """
        deadline = time.monotonic() + _WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"no sign of {what} in {_WAIT_S} s; {self._log} has:\n{self.tail()}"
                )
            if self.ended and not condition():
                raise RuntimeError(
                    f"the driver ended before {what}; {self._log} has:\n{self.tail()}"
                )
            time.sleep(_POLL_S)

    def files(self) -> RunFiles:
        """What the run's files say."""
        if "://" not in self.run:
            return read_run_files(self.run)
        command = [sys.executable, run_files.__file__, self.run]
        return run_files.from_json(json.loads(self._cluster.ask(command)))

    def tail(self) -> str:
        """The last lines that the drivers said."""
        return "\n".join(line.text for line in self.lines[-20:])

    def _thread(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with self._log.open("a", buffering=1) as log, process.stderr:
            for text in process.stderr:
                self.lines.append(Line(time.monotonic(), text.rstrip()))
                log.write(f"{time.strftime('%H:%M:%S')} {text}")

    def _watch(self) -> None:
        """Notes when each step's record, and each note on lost workers, is there."""
        known: set[tuple[int, int]] = set()
        failed = Path(self.run) / "failed"
        while not self._ended.wait(_POLL_S):
            new = len(list(failed.glob("group-*"))) - len(self.failures)
            self.failures += [time.monotonic()] * new
            for attempt, _, lines in metrics_files(self.run):
                records = [json.loads(line) for line in lines]
                steps = {record["step"] for record in records if record["kind"] == "step"}
                for step in sorted(steps):
                    if (attempt, step) not in known:
                        known.add((attempt, step))
                        self.steps.append(Step(time.monotonic(), attempt, step))
