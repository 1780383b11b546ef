"""The record of a search: one object an event, from which all else follows.

`search.json` says which search it is. An event is written once, under the next free number, and
never changed; a second driver that writes too finds its number taken, and stops.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal, final

from filelock import FileLock, Timeout
from pydantic import Field

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.errors import CheckpointError, InUseError
from dnformer.parsing import Section, leaves, parse
from dnformer.training.run import LOCK, locked, parsed, portable, run_uri
from dnformer.tuning.trials import Params, Result, Trial

_SEARCH, _EVENTS, _TABLE = "search.json", "trials/events", "trials.parquet"
_CONTENT = (_SEARCH, "best.yaml", "repeats", "trials", _TABLE)
_READERS = 16

Kind = Literal["begin", "result", "promote", "end", "lost"]


class Event(Section):
    """Something that happened to a trial.

    begin: it was proposed; result: it came to a milestone, with `params` where it took over the
    state of `source` there; promote: it goes on after it paused there; end: it ended for good;
    lost: its process was, too often, and another start goes on with it.
    """

    format: Literal[1] = 1
    kind: Kind
    trial: int = Field(ge=0)
    time: float = Field(description="seconds since 1970, which decides nothing")
    params: Params | None = None
    epochs: int | None = None
    value: float | None = Field(None, description="null: not a number")
    stop: bool | None = None
    source: int | None = None
    state: Literal["finished", "stopped", "failed"] | None = None
    values: list[float] | None = None
    facts: dict[str, Any] = Field({})


class _SearchFile(Section):
    format: Literal[1] = 1
    config: dict[str, Any]
    fingerprint: str


@final
class Record:
    """The record in the folder of a search; a context manager, it holds the search's lock.

    Args:
        config: the search's config; `micro_batches` and `threads` may be undecided.
        fingerprint: of the dataset.
        fresh: forget what the folder holds.

    Attributes:
        uri: the folder.
        config: with everything decided, as the first start decided it.
        events: all so far, in their order.
        of: likewise those of each trial.
        trials: as the events have them, in order of number.

    Raises:
        CheckpointError: the folder is another search's or a run's, an event is missing or damaged,
            or (InUseError) a live start is writing in it.
    """

    def __init__(self, config: RunConfig, fingerprint: str, *, fresh: bool = False) -> None:
        self.uri, self.config = run_uri(config), config
        self.events: list[Event] = []
        self.of: list[list[Event]] = []
        self._trials: list[Trial] = []
        self._fingerprint, self._fresh = fingerprint, fresh
        self._lock: FileLock | None = None

    def __enter__(self) -> "Record":
        if storage.is_local(self.uri):
            try:
                self._lock = locked(self.uri)
            except Timeout:
                raise InUseError(
                    f"{self.uri} is being written by a search that is alive; wait for it, stop it, "
                    "or choose another name"
                ) from None
        try:
            self._open()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def _open(self) -> None:
        uri = storage.join(self.uri, _SEARCH)
        stored = parsed(uri, storage.read_if_exists(uri), _SearchFile)
        if stored is None or self._fresh:
            self._refuse_run(known=stored is not None)
            self._begin(uri)
            return
        first = parse(RunConfig, stored.config, name=uri)
        asked, decided = self.config.train, first.train
        assert decided.micro_batches is not None
        assert decided.threads is not None
        self.config = self.config.resolved(
            micro_batches=asked.micro_batches or decided.micro_batches,
            threads=asked.threads or decided.threads,
        )
        self._refuse_others(first, stored.fingerprint)
        for event in _read_events(storage.join(self.uri, _EVENTS)):
            self.replay(event)

    def _refuse_run(self, *, known: bool) -> None:
        found = set(storage.list_names(self.uri)) - {LOCK}
        if found and not known:
            raise CheckpointError(
                f"{self.uri} holds {', '.join(sorted(found))} but no {_SEARCH}, so it is no "
                "search; choose another name, or move them away"
            )

    def _begin(self, uri: str) -> None:
        # the search goes first and comes last: what stands beside it is ours to remove
        for name in _CONTENT:
            storage.remove(storage.join(self.uri, name))
        train = self.config.train
        self.config = self.config.resolved(
            micro_batches=train.micro_batches or max(train.max_workers, 1),
            # one each, so that as many trials as cores go on at a time
            threads=train.threads or 1,
        )
        values = _SearchFile(config=portable(self.config), fingerprint=self._fingerprint)
        storage.write_bytes(uri, values.model_dump_json(indent=1).encode())

    def _refuse_others(self, first: RunConfig, fingerprint: str) -> None:
        here = parse(RunConfig, portable(self.config))
        differing = here.differing(first)
        mine, its = (
            {leaf.path: leaf.value for leaf in leaves(config.tune, "tune.") if not leaf.runtime}
            for config in (here, first)
        )
        differing += [(path, mine[path], its[path]) for path in mine if mine[path] != its[path]]
        order = [list(config.tune.space) for config in (here, first)]
        if order[0] != order[1] and set(order[0]) == set(order[1]):
            # it decides a grid's order, and what is drawn for which field
            differing.append(("tune.space's order", order[0], order[1]))
        told = [f"{path} is {mine!r}, the search has {its!r}" for path, mine, its in differing]
        if self._fingerprint != fingerprint:
            told.append(
                f"the dataset is {self._fingerprint[:12]}, the search has {fingerprint[:12]}"
            )
        if told:
            raise CheckpointError(
                f"{self.uri} is another search: {'; '.join(told)}. Choose another name, or start "
                "over with --fresh"
            )

    @property
    def trials(self) -> Sequence[Trial]:
        """All trials, in order of number."""
        return self._trials

    def append(self, kind: Kind, trial: int, **values: Any) -> None:
        """Writes the next event.

        Raises:
            CheckpointError: another driver writes events too.
        """
        event = Event(kind=kind, trial=trial, time=time.time(), **values)
        name = f"{_EVENTS}/{_file_name(len(self.events))}"
        content = event.model_dump_json(exclude_defaults=True).encode()
        if not storage.compare_and_put(storage.join(self.uri, name), content, expected=None):
            raise CheckpointError(
                f"{self.uri}: another start of the search has gone on with it; this one stops here"
            )
        self.replay(event)

    def replay(self, event: Event) -> None:
        """Takes an event that is written already.

        Raises:
            CheckpointError: it does not follow from those before.
        """
        self.events.append(event)
        if event.kind == "begin":
            if event.trial != len(self._trials) or event.params is None:
                raise self._damaged(event)
            self._trials.append(Trial(event.trial, event.params))
            self.of.append([event])
            return
        if event.trial >= len(self._trials):
            raise self._damaged(event)
        self._trials[event.trial] = _after(self._trials[event.trial], event)
        self.of[event.trial].append(event)

    def _damaged(self, event: Event) -> CheckpointError:
        name = _file_name(len(self.events) - 1)
        return CheckpointError(
            f"{self.uri}/{_EVENTS}/{name}: {event.kind} of trial {event.trial} does not follow "
            "from the events before; start over with --fresh"
        )

    def write_table(self) -> None:
        """Replaces `trials.parquet`: a row a trial, derived from the events."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [row_of(trial) for trial in self._trials]
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = {name: _column([row.get(name) for row in rows]) for name in names}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), sink)
        storage.write_bytes(storage.join(self.uri, _TABLE), sink.getvalue().to_pybytes())


def read_search(uri: str) -> Record:
    """The record of the search at `uri` to read from, also while another process writes it.

    Raises:
        CheckpointError: there is no search, or it is damaged.
    """
    name = storage.join(uri, _SEARCH)
    stored = parsed(name, storage.read_if_exists(name), _SearchFile)
    if stored is None:
        raise CheckpointError(f"{uri}: no search here ({_SEARCH} is missing)")
    record = Record(parse(RunConfig, stored.config, name=name), stored.fingerprint)
    record.uri = uri
    for event in _read_events(storage.join(uri, _EVENTS)):
        record.replay(event)
    return record


def row_of(trial: Trial) -> dict[str, Any]:
    """A trial as a row of `trials.parquet`."""
    facts = trial.facts
    last = trial.results[-1] if trial.results else None
    return {
        "trial": trial.number,
        "state": trial.state,
        "value": trial.values[0] if trial.values else last.value if last else None,
        "epochs": facts.get("epochs", last.epochs if last else 0),
        **{name: facts.get(name) for name in ("best_epoch", "seconds", "parameters", "error")},
        **{f"params/{path}": value for path, value in trial.params.items()},
        **{
            f"{split}/{name}": value
            for split in ("val", "test")
            for name, value in facts.get(split, {}).items()
        },
    }


def _column(values: list[Any]) -> list[Any]:
    """`values` as one type: those of a setting may be of several, which are written as JSON."""
    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) <= 1 and not kinds & {list, dict}) or kinds == {int, float}:
        return values
    return [None if value is None else json.dumps(value) for value in values]


def _after(trial: Trial, event: Event) -> Trial:
    if event.kind == "result":
        assert event.epochs is not None
        value = math.nan if event.value is None else event.value
        results = (*trial.results, Result(event.epochs, value))
        took_over = trial.took_over or event.source is not None
        params = event.params or trial.params
        return replace(trial, params=params, results=results, took_over=took_over)
    if event.kind in ("lost", "promote"):
        return trial
    values = None if event.values is None else tuple(event.values)
    assert event.state is not None
    return replace(trial, state=event.state, values=values, facts=event.facts)


def _file_name(number: int) -> str:
    return f"{number:06d}.json"


def _read_events(folder: str) -> Iterable[Event]:
    names = sorted(name for name in storage.list_names(folder) if name.endswith(".json"))
    if names != [_file_name(i) for i in range(len(names))]:
        missing = next(i for i, name in enumerate(names) if name != _file_name(i))
        raise CheckpointError(
            f"{folder}: {_file_name(missing)} is missing, and later ones are there; put it back, "
            "or start over with --fresh"
        )
    uris = [storage.join(folder, name) for name in names]
    with ThreadPoolExecutor(_READERS) as pool:
        contents = list(pool.map(storage.read_bytes, uris))
    mend = "start over with --fresh, or under another name"
    found = (parsed(uri, data, Event, mend=mend) for uri, data in zip(uris, contents, strict=True))
    return [event for event in found if event is not None]


def facts_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the record keeps of a run's result; a metric that is no number is left out."""
    kept = ("run", "epochs", "best_epoch", "seconds", "parameters")
    splits = {
        split: {name: value for name, value in result[split].items() if math.isfinite(value)}
        for split in ("val", "test")
    }
    return {name: result[name] for name in kept} | splits
