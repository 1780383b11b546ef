"""The command line in this process, and a clock, for the tests of several commands."""

from typing import Any, NamedTuple

import pytest

from dnformer.cli import main


class Result(NamedTuple):
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str

    def epochs(self) -> list[str]:
        """Its lines on epochs."""
        return [line for line in self.stderr.splitlines() if line.startswith("epoch ")]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """Runs `dnformer` in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    return Result(int(exit_.value.code or 0), *capsys.readouterr())


def people(epochs: int) -> dict[str, Any]:
    """A small run on the dataset `data`, as YAML has it."""
    return {
        "name": "people",
        "data": {"uri": "data", "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": 3, "batch_size": 8},
        "model": {"hidden": 4},
        "train": {"epochs": epochs, "threads": 1},
        "cache": {"dir": "stores"},
    }


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now
