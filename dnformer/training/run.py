"""The run folder: whose run it is, who writes in it, and what came out.

`run.json` holds config and dataset fingerprint; `attempt.json` the one start that may write.
"""

import hashlib
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import psutil
from filelock import FileLock, Timeout
from pydantic import Field, ValidationError

from dnformer import memory, storage
from dnformer.cgroup import cores
from dnformer.config import RunConfig, StorageConfig
from dnformer.errors import CheckpointError, InUseError
from dnformer.parsing import Section, parse

_RUN, _ATTEMPT, _RESULT, LOCK = "run.json", "attempt.json", "result.json", ".lock"
_CONTENT = (_RESULT, "checkpoints", "failed", "metrics", "ray", "tensorboard")

Start = Literal["any", "fresh", "resume"]


class _RunFile(Section):
    format: Literal[1] = 1
    config: dict[str, Any]
    fingerprint: str
    files: dict[str, str] = Field({}, description="SHA-256 of the files that decide, by field")
    # that began the run; what earlier ones leave there is not of this run
    attempt: int = 0


class _AttemptFile(Section):
    start: int = 0
    attempt: int
    token: str = ""
    taken: bool = True
    host: str
    pid: int
    started: float
    oom_kills: int | None = None


class _ResultFile(Section):
    attempt: int = 0
    result: dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """The right to write into a run, which ends when another start or worker group takes it.

    A start is a driver; each group of workers that it starts is an attempt. Attempts are counted on
    over all starts, and what an attempt publishes has its number in its name. An older one that
    does not know yet that it was superseded can so only leave what nobody reads.

    Attributes:
        run: the run's folder.
        start: number of the driver's start.
        number: number of the attempt.
        token: tells apart two that took one number, where a store cannot put conditionally.
    """

    run: str
    start: int
    number: int
    token: str

    def claim(self) -> "Attempt":
        """The attempt of a worker group of this start: this one, or a new one after another group.

        Raises:
            CheckpointError: a later start has taken over.
        """
        uri = storage.join(self.run, _ATTEMPT)
        before = storage.read_if_exists(uri)
        found = parsed(uri, before, _AttemptFile)
        if found is None or found.start != self.start:
            raise self.superseded()
        number = found.attempt + 1 if found.taken else found.attempt
        claimed = Attempt(self.run, self.start, number, uuid.uuid4().hex)
        claim = found.model_copy(update={"attempt": number, "taken": True, "token": claimed.token})
        if not storage.compare_and_put(uri, _content(claim), expected=before):
            raise self.superseded()
        return claimed

    def check(self) -> None:
        """Call before anything is published.

        Raises:
            CheckpointError: another attempt has taken over.
        """
        found = _read(storage.join(self.run, _ATTEMPT), _AttemptFile)
        if found is None or (found.attempt, found.token) != (self.number, self.token):
            raise self.superseded()

    def superseded(self) -> CheckpointError:
        """The error of one whose right has ended."""
        return CheckpointError(
            f"{self.run}: attempt {self.number} was superseded by another start; it stops here"
        )


def run_uri(config: RunConfig) -> str:
    """The folder of the run that `config` describes."""
    return storage.join(storage.absolute(config.storage_path), config.name)


Parsed = TypeVar("Parsed", bound=Section)


def _read(uri: str, kind: type[Parsed]) -> Parsed | None:
    return parsed(uri, storage.read_if_exists(uri), kind)


def parsed(
    uri: str, content: bytes | None, kind: type[Parsed], *, mend: str = "start under another name"
) -> Parsed | None:
    """What a file of a run or search says, None where there is none.

    Raises:
        CheckpointError: it is damaged; `mend` says what helps.
    """
    if content is None:
        return None
    try:
        return kind.model_validate_json(content)
    except ValidationError:
        raise CheckpointError(f"{uri}: damaged, or none of ours; {mend}") from None


def locked(folder: str) -> FileLock:
    """The lock of a local folder, which is made; its holder is the one start that writes there.

    Raises:
        Timeout: another process holds it.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(folder) / LOCK)
    lock.acquire(blocking=False)
    return lock


def _content(section: Section) -> bytes:
    return section.model_dump_json(indent=1).encode()


@final
class Run:
    """A run folder opened for writing; use as a context manager, it holds the run's lock.

    Args:
        config: the run's config; `micro_batches` and `threads` may be undecided.
        fingerprint: of the dataset.
        start: "fresh" forgets what is there, "resume" refuses a run that has not begun.

    Raises:
        CheckpointError: the folder is another run's, or a live start is writing in it.
    """

    def __init__(self, config: RunConfig, fingerprint: str, *, start: Start = "any") -> None:
        self.uri = run_uri(config)
        self._asked, self._fingerprint, self._start = config, fingerprint, start
        self._files = _file_hashes(config)
        self._lock: FileLock | None = None

    def __enter__(self) -> "Run":
        self._take_lock()
        try:
            # checked before the attempt is taken: a start that is refused must not stop a live one
            stored = _read(storage.join(self.uri, _RUN), _RunFile)
            if stored is None:
                self._refuse_foreign_folder()
            begin = stored is None or self._start == "fresh"
            if begin and self._start == "resume":
                raise CheckpointError(f"{self.uri}: there is no run to resume; leave out --resume")
            self.config, self.warnings = self._settle(None if begin else stored)
            self.warnings += self._killed_for_memory()
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
        holder = _read(storage.join(self.uri, _ATTEMPT), _AttemptFile)
        if storage.is_local(self.uri):
            try:
                self._lock = locked(self.uri)
            except Timeout:
                raise self._in_use(holder) from None
            storage.remove_unfinished(self.uri)
        elif holder is not None and _is_alive(holder):
            raise self._in_use(holder)

    def _in_use(self, holder: _AttemptFile | None) -> InUseError:
        who = f"host {holder.host}, pid {holder.pid}" if holder else "another process"
        return InUseError(
            f"{self.uri} is being written by a start that is alive ({who}); "
            "wait for it, stop it, or choose another name"
        )

    def _killed_for_memory(self) -> list[str]:
        """What the kernel did to processes of this host since a start that has no result began."""
        last = _read(storage.join(self.uri, _ATTEMPT), _AttemptFile)
        if last is None or last.host != socket.gethostname() or self.result() is not None:
            return []
        report = memory.oom_report(last.oom_kills, memory.oom_kills())
        return [] if report is None else [f"since the last start began, {report}"]

    def _next_attempt(self) -> Attempt:
        uri = storage.join(self.uri, _ATTEMPT)
        before = storage.read_if_exists(uri)
        last = parsed(uri, before, _AttemptFile)
        process = psutil.Process()
        claim = _AttemptFile(
            start=1 if last is None else last.start + 1,
            attempt=1 if last is None else last.attempt + 1,
            token=uuid.uuid4().hex,
            taken=False,
            host=socket.gethostname(),
            pid=process.pid,
            started=process.create_time(),
            oom_kills=memory.oom_kills(),
        )
        if not storage.compare_and_put(uri, _content(claim), expected=before):
            raise self._in_use(_read(uri, _AttemptFile))
        return Attempt(self.uri, claim.start, claim.attempt, claim.token)

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
        values = _RunFile(
            config=portable(self.config),
            fingerprint=self._fingerprint,
            files=self._files,
            attempt=self.attempt.number,
        )
        storage.write_bytes(storage.join(self.uri, _RUN), _content(values))

    def _settle(self, stored: _RunFile | None) -> tuple[RunConfig, list[str]]:
        """The config with everything decided, as the run's first start decided it."""
        asked = self._asked
        if stored is None:
            config = asked.resolved(
                micro_batches=asked.train.micro_batches or max(asked.train.max_workers, 1),
                threads=asked.train.threads or _default_threads(asked.train.max_workers),
            )
            return config, []
        first = parse(RunConfig, stored.config, name=f"{self.uri}/{_RUN}")
        decided = first.train
        assert decided.micro_batches is not None
        assert decided.threads is not None
        config = asked.resolved(
            micro_batches=asked.train.micro_batches or decided.micro_batches,
            threads=asked.train.threads or decided.threads,
        )
        self._refuse_others(config, first, stored)
        return config, [
            f"train.{name} is {now}, the run began with {then}: results may differ in the last bits"
            for name, now, then in (
                ("threads", config.train.threads, decided.threads),
                ("compile", config.train.compile, decided.compile),
            )
            if now != then
        ]

    def _refuse_others(self, config: RunConfig, first: RunConfig, stored: _RunFile) -> None:
        # paths as the run's first start wrote them
        here = parse(RunConfig, portable(config))
        differing = [
            f"{key} is {mine!r}, the run has {its!r}" for key, mine, its in here.differing(first)
        ]
        if self._fingerprint != stored.fingerprint:
            differing.append(
                f"the dataset is {self._fingerprint[:12]}, the run has {stored.fingerprint[:12]}"
            )
        differing += [
            f"the content of {key} has changed since the run began"
            for key, content in self._files.items()
            if stored.files.get(key, content) != content
        ]
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
        # a worker group of this start may have taken the attempt since; another start may not
        found = _read(storage.join(self.uri, _ATTEMPT), _AttemptFile)
        if found is None or found.start != self.attempt.start:
            raise self.attempt.superseded()
        values = _ResultFile(attempt=found.attempt, result=result)
        storage.write_bytes(storage.join(self.uri, _RESULT), _content(values))


def read_result(uri: str) -> dict[str, Any] | None:
    """The result of a finished run, or None."""
    found = _read(storage.join(uri, _RESULT), _ResultFile)
    return None if found is None or found.attempt < first_attempt(uri) else found.result


def first_attempt(uri: str) -> int:
    """The attempt that began the run at `uri`: what earlier ones left there is not of this run."""
    stored = _read(storage.join(uri, _RUN), _RunFile)
    return 0 if stored is None else stored.attempt


def read_run(uri: str) -> tuple[RunConfig, str]:
    """(config, dataset fingerprint) of the run at `uri`.

    Raises:
        CheckpointError: there is no run.
    """
    stored = _read(storage.join(storage.absolute(uri), _RUN), _RunFile)
    if stored is None:
        raise CheckpointError(f"{uri}: no run here ({_RUN} is missing); give a run's folder")
    return parse(RunConfig, stored.config, name=f"{uri}/{_RUN}"), stored.fingerprint


def reach_run(uri: str, reached: StorageConfig) -> tuple[str, RunConfig, str]:
    """(absolute URI, config, dataset fingerprint) of the run at `uri`.

    From here on this process reaches stores as the run's config says, with `reached` on top.

    Raises:
        CheckpointError: there is no run.
    """
    # else as it does now: it may have just trained the run
    if reached.options:
        storage.configure(reached)
    uri = storage.absolute(uri)
    config, fingerprint = read_run(uri)
    storage.configure(config.storage.joined(reached))
    return uri, config, fingerprint


def holder(uri: str) -> str | None:
    """Who writes in the folder of a run or search now; None where nobody on this host does."""
    last = _read(storage.join(uri, _ATTEMPT), _AttemptFile)
    who = "another process" if last is None else f"host {last.host}, pid {last.pid}"
    if not storage.is_local(uri):
        return who if last is not None and _is_alive(last) else None
    if not storage.exists(storage.join(uri, LOCK)):
        return None
    try:
        locked(uri).release()
    except Timeout:
        return who
    return None


def portable(config: RunConfig) -> dict[str, Any]:
    """Plain values of `config` that mean the same in another process: absolute URIs."""
    values = config.dump()
    values["data"]["uri"] = storage.absolute(config.data.uri)
    values["storage_path"] = storage.absolute(config.storage_path)
    split = values["data"]["split"]
    if split and "file" in split:
        split["file"] = storage.absolute(split["file"])
    for section, key in (("loss", "mask"), ("train", "continue_from")):
        if values[section][key]:
            values[section][key] = storage.absolute(values[section][key])
    return values


def _file_hashes(config: RunConfig) -> dict[str, str]:
    """SHA-256 by field of the files that decide what a run computes."""
    split = config.data.split
    named = {"data.split.file": split.file if split else None, "loss.mask": config.loss.mask}
    return {
        field: hashlib.sha256(storage.read_bytes(uri)).hexdigest()
        for field, uri in named.items()
        if uri is not None
    }


def _default_threads(workers: int) -> int:
    return max(1, cores() // max(workers, 1))


def _is_alive(holder: _AttemptFile) -> bool:
    """Whether the process that claimed a run still lives; known for this host only."""
    if holder.host != socket.gethostname() or holder.pid == os.getpid():
        return False
    try:
        created: float = psutil.Process(holder.pid).create_time()
    except psutil.NoSuchProcess:
        return False
    return abs(created - holder.started) < 1
