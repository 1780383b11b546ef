"""Metric records of a run: `RUN/metrics/<attempt>-<first_step>.jsonl`, the truth about a run.

Appended and synced on a local disk; elsewhere the whole object is put at each checkpoint.
"""

import json
import os
from pathlib import Path
from typing import Any, final

from dnformer import storage

Record = dict[str, Any]


@final
class MetricsFile:
    """The records of one start of a run."""

    def __init__(self, run: str, *, attempt: int, first_step: int) -> None:
        name = f"{attempt}-{first_step}.jsonl"
        self._uri = storage.join(storage.join(run, "metrics"), name)
        # a worker that Ray restarts at the same step goes on in the same file
        found = storage.read_if_exists(self._uri) or b""
        self._lines = _whole_lines(found)
        self._path = Path(self._uri) if storage.is_local(self._uri) else None
        if found or self._path:
            self._put()

    def write(self, record: Record) -> None:
        """Adds a record; locally it is on the disk when this returns."""
        line = json.dumps(record)
        if self._path is None:
            self._lines.append(line)
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def publish(self) -> None:
        """Makes all records so far last: call it before each checkpoint."""
        if self._path is None:
            self._put()

    def _put(self) -> None:
        content = "".join(line + "\n" for line in self._lines)
        storage.write_bytes(self._uri, content.encode())


def read_metrics(run: str, *, attempt: int | None = None) -> list[Record]:
    """All records of a run in order, without those that a resumed start did again.

    Args:
        run: the run's folder.
        attempt: only what this start recorded; None: all.
    """
    folder = storage.join(run, "metrics")
    starts = []
    for name in storage.list_names(folder):
        number, _, first_step = name.removesuffix(".jsonl").partition("-")
        known = number.isdigit() and first_step.isdigit()
        if known and attempt in (None, int(number)):
            starts.append((int(number), int(first_step), name))
    records: list[Record] = []
    for _, first, name in sorted(starts):
        records = [record for record in records if record["step"] <= first]
        lines = _whole_lines(storage.read_bytes(storage.join(folder, name)))
        records += [json.loads(line) for line in lines]
    return _last_of_each(records)


def _whole_lines(content: bytes) -> list[str]:
    """The lines that were written to their end: a kill may cut the last one."""
    return content.decode(errors="replace").split("\n")[:-1]


def _last_of_each(records: list[Record]) -> list[Record]:
    """One record a (kind, step): a worker restarted at the same step writes some twice."""
    last = {(record["kind"], record["step"]): record for record in records}
    return list(last.values())
