"""The run folder: whose run it is, who writes in it, and what came out.

`run.json` holds config and dataset fingerprint; `attempt.json` the one start that may write.
"""

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import psutil
from filelock import FileLock, Timeout

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.errors import CheckpointError
from dnformer.parsing import parse

_RUN, _ATTEMPT, _RESULT, _LOCK = "run.json", "attempt.json", "result.json", ".lock"
_CONTENT = (_RESULT, "checkpoints", "metrics", "ray")


@dataclass(frozen=True)
class Attempt:
    """The right to write into a run: attempt `number` of it."""

    run: str
    number: int

    def check(self) -> None:
        """Call before anything is published.

        Raises:
            CheckpointError: a later start has taken over.
        """
        found = _read_json(storage.join(self.run, _ATTEMPT))
        if found is None or found["attempt"] != self.number:
            raise CheckpointError(
                f"{self.run}: attempt {self.number} was superseded by another start; it stops here"
            )


def run_uri(config: RunConfig) -> str:
    """The folder of the run that `config` describes."""
    return storage.join(storage.absolute(config.storage_path), config.name)


def _read_json(uri: str) -> Any:
    content = storage.read_if_exists(uri)
    if content is None:
        return None
    try:
        return json.loads(content)
    except ValueError:
        raise CheckpointError(f"{uri}: damaged, no valid JSON; start over with --fresh") from None


def _write_json(uri: str, values: Any) -> None:
    storage.write_bytes(uri, json.dumps(values, indent=1).encode())


@final
class Run:
    """A run folder opened for writing; use as a context manager, it holds the run's lock.

    Args:
        config: the run's config; `micro_batches` and `threads` may be undecided.
        fingerprint: of the dataset.
        fresh: forget what is there and start over.

    Raises:
        CheckpointError: the folder is another run's, or a live start is writing in it.
    """

    def __init__(self, config: RunConfig, fingerprint: str, *, fresh: bool = False) -> None:
        self.uri = run_uri(config)
        self._asked, self._fingerprint, self._fresh = config, fingerprint, fresh
        self._lock: FileLock | None = None

    def __enter__(self) -> "Run":
        self._take_lock()
        try:
            # checked before the attempt is taken: a start that is refused must not stop a live one
            stored = _read_json(storage.join(self.uri, _RUN))
            if stored is None:
                self._refuse_foreign_folder()
            begin = stored is None or self._fresh
            self.config, self.warnings = self._settle(None if begin else stored)
            self.attempt = self._next_attempt()
            if begin:
                self._begin()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _take_lock(self) -> None:
        holder = _read_json(storage.join(self.uri, _ATTEMPT))
        if storage.is_local(self.uri):
            Path(self.uri).mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(Path(self.uri) / _LOCK)
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                raise self._in_use(holder) from None
        elif holder is not None and _is_alive(holder):
            raise self._in_use(holder)

    def _in_use(self, holder: Any) -> CheckpointError:
        who = f"host {holder['host']}, pid {holder['pid']}" if holder else "another process"
        return CheckpointError(
            f"{self.uri} is being written by a start that is alive ({who}); "
            "wait for it, stop it, or choose another name"
        )

    def _next_attempt(self) -> Attempt:
        uri = storage.join(self.uri, _ATTEMPT)
        before = storage.read_if_exists(uri)
        number = _read_json(uri)["attempt"] + 1 if before is not None else 1
        process = psutil.Process()
        claim = {
            "attempt": number,
            "host": socket.gethostname(),
            "pid": process.pid,
            "started": process.create_time(),
        }
        if not storage.compare_and_put(uri, json.dumps(claim).encode(), expected=before):
            raise self._in_use(_read_json(uri))
        return Attempt(self.uri, number)

    def _refuse_foreign_folder(self) -> None:
        found = sorted(set(_CONTENT) & set(storage.list_names(self.uri)))
        if found:
            raise CheckpointError(
                f"{self.uri} holds {', '.join(found)} but no {_RUN}, so it is no run of ours; "
                "choose another name, or move them away"
            )

    def _begin(self) -> None:
        # run.json goes last: what it stands beside is ours to remove
        for name in _CONTENT:
            storage.remove(storage.join(self.uri, name))
        values = {"format": 1, "config": portable(self.config), "fingerprint": self._fingerprint}
        _write_json(storage.join(self.uri, _RUN), values)

    def _settle(self, stored: Any) -> tuple[RunConfig, list[str]]:
        """The config with everything decided, as the run's first start decided it."""
        asked = self._asked
        if stored is None:
            config = asked.resolved(
                micro_batches=asked.train.micro_batches or max(asked.train.max_workers, 1),
                threads=asked.train.threads or _default_threads(asked.train.max_workers),
            )
            return config, []
        first = parse(RunConfig, stored["config"], name=f"{self.uri}/{_RUN}")
        decided = first.train
        assert decided.micro_batches is not None
        assert decided.threads is not None
        config = asked.resolved(
            micro_batches=asked.train.micro_batches or decided.micro_batches,
            threads=asked.train.threads or decided.threads,
        )
        self._refuse_others(config, first, stored["fingerprint"])
        if config.train.threads == decided.threads:
            return config, []
        return config, [
            f"train.threads is {config.train.threads}, the run began with {decided.threads}: "
            "results may differ in the last bits"
        ]

    def _refuse_others(self, config: RunConfig, first: RunConfig, fingerprint: str) -> None:
        here, there = config.identity(), first.identity()
        differing = [
            f"{key} is {here.get(key)!r}, the run has {there.get(key)!r}"
            for key in sorted({*here, *there})
            if here.get(key) != there.get(key)
        ]
        if self._fingerprint != fingerprint:
            differing.append(
                f"the dataset is {self._fingerprint[:12]}, the run has {fingerprint[:12]}"
            )
        if differing:
            raise CheckpointError(
                f"{self.uri} is another run: {'; '.join(differing)}. Choose another name, or "
                "start over with --fresh"
            )

    def result(self) -> dict[str, Any] | None:
        """What `finish` stored, where the run is finished."""
        return read_result(self.uri)

    def finish(self, result: dict[str, Any]) -> None:
        """Stores the run's result."""
        self.attempt.check()
        _write_json(storage.join(self.uri, _RESULT), result)


def read_result(uri: str) -> dict[str, Any] | None:
    """The result of a finished run, or None."""
    found: dict[str, Any] | None = _read_json(storage.join(uri, _RESULT))
    return found


def read_run(uri: str) -> tuple[RunConfig, str]:
    """(config, dataset fingerprint) of the run at `uri`.

    Raises:
        CheckpointError: there is no run.
    """
    stored = _read_json(storage.join(storage.absolute(uri), _RUN))
    if stored is None:
        raise CheckpointError(f"{uri}: no run here ({_RUN} is missing); give a run's folder")
    return parse(RunConfig, stored["config"], name=f"{uri}/{_RUN}"), stored["fingerprint"]


def portable(config: RunConfig) -> dict[str, Any]:
    """Plain values of `config` that mean the same in another process: absolute URIs."""
    values = config.dump()
    values["data"]["uri"] = storage.absolute(config.data.uri)
    values["storage_path"] = storage.absolute(config.storage_path)
    return values


def _default_threads(workers: int) -> int:
    return max(1, len(os.sched_getaffinity(0)) // max(workers, 1))


def _is_alive(holder: dict[str, Any]) -> bool:
    """Whether the process that claimed a run still lives; known for this host only."""
    if holder["host"] != socket.gethostname() or holder["pid"] == os.getpid():
        return False
    try:
        created: float = psutil.Process(holder["pid"]).create_time()
    except psutil.NoSuchProcess:
        return False
    return abs(created - float(holder["started"])) < 1
