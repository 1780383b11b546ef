"""Metric records of a run: `RUN/metrics/<attempt>-<first_step>.jsonl`, the truth about a run.

Appended on a local disk; elsewhere whole objects are put at each checkpoint.
"""

import json
import threading
import time
from pathlib import Path
from typing import Any, final

from dnformer import storage
from dnformer.driver import Record

# an fsync takes some 4 ms (p95 16 ms), a step of a small graph about as long; the write without
# it 0.02 ms, and the system keeps what a killed process wrote
_SYNC_EVERY_S = 1.0
# elsewhere a file is put whole at each checkpoint, so that a long run goes on in another one
_FILE_BYTES = 4 << 20
# what a record is about, not what was measured
_NO_CURVES = ("kind", "step", "steps_per_epoch")


@final
class MetricsFile:
    """The records of one start of a run; one thread may write while another one publishes.

    Args:
        run: the run's folder.
        attempt: which start this is.
        first_step: steps that were done before it.
        file_bytes: how large a file that is put whole may grow.
    """

    def __init__(
        self, run: str, *, attempt: int, first_step: int, file_bytes: int = _FILE_BYTES
    ) -> None:
        self._folder, self._attempt = storage.join(run, "metrics"), attempt
        self._file_bytes, self._synced = file_bytes, time.monotonic()
        self._uri = self._uri_from(first_step)
        # a start that begins again at the same step goes on in the same file
        found = _whole_lines(storage.read_if_exists(self._uri) or b"")
        # each with the steps done by then
        self._lines = [(first_step, line + "\n") for line in found]
        self._lock = threading.Lock()
        self._path = Path(self._uri) if storage.is_local(self._uri) else None
        if self._path is not None:
            self._put(self._lines)

    def _uri_from(self, step: int) -> str:
        return storage.join(self._folder, f"{self._attempt}-{step}.jsonl")

    def write(self, record: Record) -> None:
        """Adds a record; on a local disk, readers see it and a killed process does not lose it."""
        line = json.dumps(record) + "\n"
        if self._path is None:
            with self._lock:
                self._lines.append((record["step"], line))
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)
        if time.monotonic() - self._synced >= _SYNC_EVERY_S:
            self._sync(self._path)

    def publish(self) -> None:
        """Makes all records so far last: call it before each checkpoint."""
        if self._path is not None:
            self._sync(self._path)
            return
        with self._lock:
            lines = list(self._lines)
        if self._put(lines) > self._file_bytes:
            with self._lock:
                del self._lines[: len(lines)]
            self._uri = self._uri_from(lines[-1][0])

    def _sync(self, path: Path) -> None:
        storage.sync(path)
        self._synced = time.monotonic()

    def _put(self, lines: list[tuple[int, str]]) -> int:
        content = "".join(line for _, line in lines).encode()
        storage.write_bytes(self._uri, content)
        return len(content)


@final
class Follower:
    """The records of a run as they come, each one once; what was read is not read again.

    Args:
        run: the run's folder.
        since_attempt: the first start whose records are wanted.
    """

    def __init__(self, run: str, *, since_attempt: int = 0) -> None:
        self._folder, self._since = storage.join(run, "metrics"), since_attempt
        self._offsets: dict[str, int] = {}
        self._ended: set[str] = set()

    def poll(self) -> list[Record]:
        """The records that came since the last call, in the order of the run's starts."""
        files = [name for attempt, _, name in _files(self._folder) if attempt >= self._since]
        records: list[Record] = []
        for name in files:
            if name not in self._ended:
                records += self._rest(name)
        # a run writes into its newest file only
        self._ended.update(files[:-1])
        return records

    def _rest(self, name: str) -> list[Record]:
        offset = self._offsets.get(name, 0)
        with storage.open_read(storage.join(self._folder, name)) as file:
            file.seek(offset)
            found = file.read()
        # a line without its end is still being written
        whole = found[: found.rfind(b"\n") + 1]
        self._offsets[name] = offset + len(whole)
        return [json.loads(line) for line in _whole_lines(whole)]


def read_metrics(run: str) -> list[Record]:
    """All records of a run in order, without those that a resumed start did again.

    Each start's own record names the attempt whose checkpoint it went on from; from the newest one
    back, that is the run. Attempts beside this line, which wrote after they were superseded, are
    left out.
    """
    folder = storage.join(run, "metrics")
    by_attempt: dict[int, list[Record]] = {}
    for attempt, _, name in _files(folder):
        lines = _whole_lines(storage.read_bytes(storage.join(folder, name)))
        if lines:
            by_attempt.setdefault(attempt, []).extend(map(json.loads, lines))
    records: list[Record] = []
    at, limit = max(by_attempt, default=None), float("inf")
    while at in by_attempt:
        own = by_attempt[at]
        records = [record for record in own if record["step"] <= limit] + records
        at, limit = own[0].get("after"), own[0]["step"]
    return _last_of_each(records)


def scalars(record: Record) -> dict[str, float]:
    """The numbers of a record by name, as in `val/loss` or `stage_seconds/sample/max`.

    Those of a step record begin with `step/`: beside an epoch's means they are other curves.
    """
    if record["kind"] == "start":
        return {}
    prefix = "step/" if record["kind"] == "step" else ""
    left = {name: value for name, value in record.items() if name not in _NO_CURVES}
    numbers = ((name, v) for name, v in flat(left, "/").items() if isinstance(v, int | float))
    return {f"{prefix}{name}": float(value) for name, value in numbers}


def flat(values: dict[str, Any], separator: str) -> dict[str, Any]:
    """The leaves of nested dicts by path."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            inside = flat(value, separator)
            found |= {f"{name}{separator}{path}": leaf for path, leaf in inside.items()}
        else:
            found[name] = value
    return found


def _files(folder: str) -> list[tuple[int, int, str]]:
    """(attempt, first step, name) of all files of records, in the order they were begun."""
    found = []
    for name in storage.list_names(folder):
        attempt, _, first_step = name.removesuffix(".jsonl").partition("-")
        if attempt.isdigit() and first_step.isdigit():
            found.append((int(attempt), int(first_step), name))
    return sorted(found)


def _whole_lines(content: bytes) -> list[str]:
    """The lines that were written to their end: a kill may cut the last one."""
    return content.decode(errors="replace").split("\n")[:-1]


def _last_of_each(records: list[Record]) -> list[Record]:
    """One record a (kind, step): a start that begins again at the same step writes some twice."""
    last = {(record["kind"], record["step"]): record for record in records}
    return list(last.values())
