"""Checkpoints on storage: `RUN/checkpoints/step-N-A/`, of step N by attempt A, format 1.

Tensors are safetensors, the rest is JSON; nothing is unpickled. `state.json` is published last and
holds the tensors' hash, so a checkpoint is complete or it is none. A folder has one writer. The
newest checkpoint is the latest attempt's, whatever step an older one still writes: an attempt
publishes the state that it begins with before its first step.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import safetensors.torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from dnformer import storage
from dnformer.errors import CheckpointError
from dnformer.parsing import Section
from dnformer.training.run import Attempt, first_attempt

log = logging.getLogger(__name__)

_STATE = "state.json"


class Meta(Section):
    """Whose a checkpoint is."""

    config: dict[str, Any]
    fingerprint: str
    versions: dict[str, str]
    target: dict[str, list[float]] = Field(
        {}, description="of numbers, the mean and scale in units of which the model gives them"
    )


class _Tensors(Section):
    file: str = Field(pattern=r"^[0-9a-f]{16}\.safetensors$")
    bytes: int
    sha256: str


class Document(Section):
    """What `state.json` says."""

    format: Literal[1] = 1
    state: dict[str, Any]
    tensors: _Tensors
    meta: Meta
    attempt: int


class Snapshot(NamedTuple):
    """A state at one step, which no later step changes.

    Attributes:
        step: steps done in the run.
        tensors: by name, on the CPU.
        values: the rest, as JSON takes it.
    """

    step: int
    tensors: dict[str, Tensor]
    values: dict[str, Any]


@dataclass(frozen=True)
class Keeping:
    """Which checkpoints stay: the newest `newest`, and those of the steps `best`."""

    newest: int
    best: Collection[int]


def folder(run: str) -> str:
    """Where the checkpoints of a run are."""
    return storage.join(run, "checkpoints")


def write_checkpoint(attempt: Attempt, snapshot: Snapshot, *, meta: Meta, keeping: Keeping) -> None:
    """Publishes `snapshot` as `step-<step>`, then removes the checkpoints that do not stay.

    Args:
        attempt: the right to write; asked for before each file.
        snapshot: what to save.
        meta: what else belongs to it.
        keeping: which stay.

    Raises:
        CheckpointError: another attempt has taken over.
    """
    mine = _Place(attempt.number, snapshot.step)
    target = mine.uri(attempt.run)
    tensors = safetensors.torch.save(snapshot.tensors)
    sha256 = hashlib.sha256(tensors).hexdigest()
    # by content: what stands at this step stays whole until the new state.json replaces it
    file = f"{sha256[:16]}.safetensors"
    document = Document(
        state=snapshot.values,
        tensors=_Tensors(file=file, bytes=len(tensors), sha256=sha256),
        meta=meta,
        attempt=attempt.number,
    )
    content = document.model_dump_json(indent=1).encode()
    attempt.check()
    storage.write_bytes(storage.join(target, file), tensors)
    attempt.check()
    storage.write_bytes(storage.join(target, _STATE), content)
    for name in storage.list_names(target):
        if name.endswith(".safetensors") and name != file:
            storage.remove(storage.join(target, name))
    for place in _surplus(_places(attempt.run), mine, keeping):
        _remove(place.uri(attempt.run))


class _Place(NamedTuple):
    """Where a checkpoint is; the greatest is the newest."""

    attempt: int
    step: int

    def uri(self, run: str) -> str:
        return storage.join(folder(run), f"step-{self.step}-{self.attempt}")


def _places(run: str) -> list[_Place]:
    """Where there are checkpoints, complete or not, newest first."""
    matches = (re.fullmatch(r"step-(\d+)-(\d+)", n) for n in storage.list_names(folder(run)))
    return sorted((_Place(int(m[2]), int(m[1])) for m in matches if m), reverse=True)


def _surplus(places: list[_Place], mine: _Place, keeping: Keeping) -> list[_Place]:
    """Which of `places`, newest first, do not stay; none of a later attempt is touched."""
    own = [place for place in places if place.attempt <= mine.attempt]
    stay = set(own[: keeping.newest])
    for step in keeping.best:
        stay |= set([place for place in own if place.step == step][:1])
    return [place for place in own if place not in stay]


def _remove(target: str) -> None:
    storage.remove(storage.join(target, _STATE))
    storage.remove(target)


def newest_checkpoint(run: str) -> tuple[bytes, bytes] | None:
    """(tensors, state.json) of the newest complete checkpoint, or None where there is none.

    An incomplete one, left by a kill, is passed over with a warning.

    Raises:
        CheckpointError: a checkpoint is of a newer format, or is none of ours.
    """
    first, listed = first_attempt(run), None
    # an older attempt that still writes may remove what was listed, after it wrote a newer one
    while (places := [place for place in _places(run) if place.attempt >= first]) != listed:
        listed = places
        for place in places:
            target = place.uri(run)
            content = storage.read_if_exists(storage.join(target, _STATE))
            tensors = None if content is None else _read_tensors(target, content)
            if content is not None and tensors is not None:
                return tensors, content
            log.warning("%s is incomplete (a write was interrupted); passed over", target)
    return None


def _read_tensors(target: str, content: bytes) -> bytes | None:
    """The tensors that belong to a state.json, or None where they are not there."""
    expected = _document(content, target).tensors
    tensors = storage.read_if_exists(storage.join(target, expected.file))
    if tensors is None or hashlib.sha256(tensors).hexdigest() != expected.sha256:
        return None
    return tensors


def _document(content: bytes, name: str) -> Document:
    try:
        return Document.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "all of it"
        if path == "format":
            raise CheckpointError(
                f"{name}: checkpoint format {first['input']!r}, this version reads 1: update "
                "dnformer"
            ) from None
        raise CheckpointError(
            f"{name}/{_STATE} is no checkpoint of DNFormer ({path}: {first['msg']}); remove it"
        ) from None


def read_checkpoint(tensors: bytes, document: bytes) -> tuple[dict[str, Tensor], Document]:
    """(tensors by name, the rest) of what `newest_checkpoint` gave.

    Raises:
        CheckpointError: the content is damaged.
    """
    try:
        return safetensors.torch.load(tensors), _document(document, "checkpoint")
    except SafetensorError as error:
        raise CheckpointError(f"the checkpoint's tensors cannot be read: {error}") from None


def read_newest(run: str) -> tuple[dict[str, Tensor], Document]:
    """(tensors by name, the rest) of the newest checkpoint of the run in the folder `run`.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    found = newest_checkpoint(run)
    if found is None:
        raise CheckpointError(f"{run}: no checkpoint yet; train it first")
    return read_checkpoint(*found)


@final
class Checkpointer:
    """Writes checkpoints of one attempt, one after the other; use as a context manager.

    In the background a write takes no time of the training, but what it raises comes with the next
    call. Leaving the block waits for the last one.

    Args:
        attempt: the right to write.
        meta: what belongs to each checkpoint.
        before: called before each; what it publishes is there when the checkpoint is.
        background: write in a thread.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        meta: Meta,
        before: Callable[[], None],
        background: bool,
    ) -> None:
        self._attempt, self._meta, self._before = attempt, meta, before
        self._pool = ThreadPoolExecutor(1, "dnformer-checkpoint") if background else None
        self._pending: Future[None] | None = None

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            # what went wrong first is what is raised
            if kind is None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True)

    def save(self, snapshot: Snapshot, keeping: Keeping) -> None:
        """Writes a checkpoint, after the one before it is written.

        Raises:
            CheckpointError: another attempt has taken over.
            OSError: a write failed.
        """
        self.wait()
        if self._pool is None:
            self._write(snapshot, keeping)
        else:
            self._pending = self._pool.submit(self._write, snapshot, keeping)

    def wait(self) -> None:
        """Returns when all is written; raises what `save` raises."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, snapshot: Snapshot, keeping: Keeping) -> None:
        self._before()
        write_checkpoint(self._attempt, snapshot, meta=self._meta, keeping=keeping)
