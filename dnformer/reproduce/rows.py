"""The small file of finished runs: one JSON object a line, appended, and kept with the project."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

from filelock import FileLock
from pydantic import Field

from dnformer.errors import ConfigError, DataError
from dnformer.parsing import Section, parse
from dnformer.reproduce.grid import Cell

ROWS = "runs.jsonl"


class Row(Section):
    """A finished run."""

    dataset: str = Field(description="name of the dataset")
    fingerprint: str = Field(description="of its content")
    protocol: str = Field(description="of the split")
    seed: int = Field(ge=0, description="of weights, order and split")
    settings: dict[str, Any] = Field(description="fields that differ from the defaults, by path")
    val: dict[str, float] = Field(description="metrics at the best epoch")
    test: dict[str, float] = Field(description="likewise")
    epochs: int = Field(ge=0, description="trained")
    best_epoch: int = Field(ge=0, description="the first one is 0")
    seconds: float = Field(ge=0, description="of training")
    versions: dict[str, str] = Field(description="of what computed it")


class Key(NamedTuple):
    """What makes a run the same one."""

    dataset: str
    fingerprint: str
    protocol: str
    seed: int
    settings: str


def key_of(cell: Cell, fingerprint: str) -> Key:
    """The key of a cell's row, on the dataset with this fingerprint."""
    return Key(cell.dataset, fingerprint, cell.protocol, cell.seed, digest(cell.settings))


def digest(settings: dict[str, Any]) -> str:
    """A short name for settings."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@final
class Rows:
    """The rows of a file, and more as runs end.

    Args:
        path: of the file, which need not be there; its folder is made.

    Raises:
        DataError: a line is no row.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._rows = path, dict[Key, Row]()
        for row in _read(path):
            self._keep(row)

    def _keep(self, row: Row) -> None:
        self._rows[
            Key(row.dataset, row.fingerprint, row.protocol, row.seed, digest(row.settings))
        ] = row

    def of(self, cell: Cell, fingerprint: str) -> Row | None:
        """The row of a cell; None where it has not been run."""
        return self._rows.get(key_of(cell, fingerprint))

    def add(self, row: Row) -> None:
        """Appends a row; several processes may do so to one file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(row.model_dump(), sort_keys=True) + "\n"
        with FileLock(f"{self.path}.lock"), self.path.open("a+b") as file:
            file.seek(0)
            # what a kill has cut off is no row
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(line.encode())
        self._keep(row)


def _read(path: Path) -> Iterator[Row]:
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(whole.splitlines(), start=1):
        where = f"{path} line {number}"
        try:
            yield parse(Row, json.loads(line), name=where)
        except (json.JSONDecodeError, ConfigError) as error:
            raise DataError(f"{where} is no row of a run ({error}); remove the line") from None
