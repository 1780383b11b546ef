"""What runs there are, how they stand, how two differ, and how they go."""

import statistics
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.errors import CheckpointError, ConfigError, InUseError
from dnformer.parsing import leaves
from dnformer.training.objectives import better, main_metric
from dnformer.training.run import holder, read_result, read_run
from dnformer.training.sinks import read_metrics
from dnformer.tuning.record import read_search

Kind = Literal["run", "repeats", "search"]
State = Literal["finished", "going on", "stopped", "damaged"]

# a run's name may lead through so many folders
_DEPTH = 4
_NAMES = ("name", "storage_path")


class Entry(NamedTuple):
    """A run, the repeats of one, or a search.

    Attributes:
        uri: its folder.
        name: below the storage path it was found in.
        kind: what it is.
        state: "stopped" also where a start on another host may still go on.
        done: epochs of a run, finished runs of repeats, ended trials of a search.
        of: of how many at most.
        metric: its main one.
        val: at the best epoch so far; the best trial's; the repeats' mean.
        test: likewise, once it is finished.
        std: of the repeats' test.
        dataset: its URI.
        changed_s: seconds since 1970 at which it was last written, where the store tells.
        bytes: of all its files.
        problem: what is damaged.
    """

    uri: str
    name: str
    kind: Kind
    state: State
    done: int = 0
    of: int = 0
    metric: str | None = None
    val: float | None = None
    test: float | None = None
    std: float | None = None
    dataset: str = ""
    changed_s: float | None = None
    bytes: int = 0
    problem: str | None = None


class Difference(NamedTuple):
    """Something that two runs do not share; None where one lacks it."""

    name: str
    one: Any
    other: Any


def list_runs(storage_path: str) -> list[Entry]:
    """All runs, repeats and searches below `storage_path`, by name."""
    root = storage.absolute(storage_path)
    return [_entry(uri, name, kind) for uri, name, kind in _found(root, "", _DEPTH)]


def find_run(uri: str) -> Entry:
    """What is in the folder `uri`.

    Raises:
        CheckpointError: neither a run nor repeats nor a search.
    """
    uri = storage.absolute(uri)
    kind = _kind(storage.list_names(uri))
    if kind is None:
        raise CheckpointError(f"{uri}: no run here; dnformer runs ls shows those there are")
    return _entry(uri, uri.rstrip("/").rpartition("/")[2], kind)


def parts(entry: Entry) -> list[Entry]:
    """The runs that repeats or a search consist of; a run's own entry."""
    if entry.kind == "run":
        return [entry]
    below = _found(entry.uri, f"{entry.name}/", _DEPTH)
    return [_entry(uri, name, kind) for uri, name, kind in below]


def settings_of(entry: Entry) -> dict[str, Any]:
    """By dotted path what the config of a run says beside the defaults; nothing of a damaged one.

    Of repeats it is the first one's config.
    """
    if entry.state == "damaged":
        return {}
    if entry.kind == "search":
        config = read_search(entry.uri).config
    else:
        config, _ = read_run(parts(entry)[0].uri)
    return {leaf.path: leaf.value for leaf in config.given()}


def differences(one: str, other: str) -> tuple[list[Difference], list[Difference]]:
    """(fields of the config, metrics) in which two runs differ.

    Raises:
        CheckpointError: a folder holds no run.
    """
    one, other = storage.absolute(one), storage.absolute(other)
    facts, metrics = [], []
    for uri in (one, other):
        config, fingerprint = read_run(uri)
        values = {leaf.path: leaf.value for leaf in leaves(config) if leaf.path not in _NAMES}
        facts.append(values | {"dataset": fingerprint[:12]})
        metrics.append(_metrics(uri))
    return _differing(*facts), _differing(*metrics)


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[Difference]:
    return [
        Difference(name, one.get(name), other.get(name))
        for name in dict.fromkeys([*one, *other])
        if one.get(name) != other.get(name)
    ]


def _metrics(uri: str) -> dict[str, Any]:
    result = read_result(uri)
    if result is None:
        return {}
    values = {name: result[name] for name in ("best_epoch", "epochs", "seconds", "parameters")}
    splits = {f"{s}/{name}": v for s in ("val", "test") for name, v in result[s].items()}
    return splits | values


def remove_run(entry: Entry) -> None:
    """Removes a run, repeats or a search, with all files.

    Raises:
        InUseError: a start on this host writes in it, or in a part of it.
    """
    for uri in {entry.uri, *(part.uri for part in parts(entry))}:
        who = holder(uri)
        if who is not None:
            raise InUseError(f"{uri} is being written ({who}); stop it first")
    storage.remove(entry.uri)


def _found(folder: str, prefix: str, depth: int) -> Iterator[tuple[str, str, Kind]]:
    """(URI, name, kind) below a folder."""
    for name in storage.list_names(folder):
        if name.startswith("."):
            continue
        uri, path = storage.join(folder, name), f"{prefix}{name}"
        kind = _kind(storage.list_names(uri))
        if kind is not None:
            yield uri, path, kind
        elif depth > 1:
            yield from _found(uri, f"{path}/", depth - 1)


def _kind(names: list[str]) -> Kind | None:
    if "run.json" in names:
        return "run"
    if "search.json" in names:
        return "search"
    return "repeats" if any(name.startswith("repeat-") for name in names) else None


def _entry(uri: str, name: str, kind: Kind) -> Entry:
    try:
        entry = {"run": _run, "repeats": _repeats, "search": _search}[kind](uri, name)
    except (CheckpointError, ConfigError) as error:
        entry = Entry(uri, name, kind, "damaged", problem=str(error))
    return entry._replace(bytes=storage.total_bytes(uri))


def _run(uri: str, name: str) -> Entry:
    config, _ = read_run(uri)
    most = min(config.train.epochs, config.train.stop_after or config.train.epochs)
    result = read_result(uri)
    newest = "attempt.json" if result is None else "result.json"
    entry = Entry(
        uri, name, "run", "finished", of=most, dataset=config.data.uri,
        changed_s=storage.modified(storage.join(uri, newest)),
    )  # fmt: skip
    if result is None:
        return _unfinished(entry, config)
    metric = main_metric(result["test"])
    val, test = (result[split].get(metric) for split in ("val", "test"))
    return entry._replace(done=result["epochs"], metric=metric, val=val, test=test)


def _unfinished(entry: Entry, config: RunConfig) -> Entry:
    epochs = [record for record in read_metrics(entry.uri) if record["kind"] == "epoch"]
    monitor = config.train.monitor or "val/loss"
    best = None
    for value in (record[monitor] for record in epochs if monitor in record):
        best = value if better(monitor, value, best) else best
    done = epochs[-1]["epoch"] + 1 if epochs else 0
    metric = monitor.removeprefix("val/")
    return entry._replace(state=_open_state(entry.uri), done=done, metric=metric, val=best)


def _open_state(uri: str) -> State:
    return "stopped" if holder(uri) is None else "going on"


def _repeats(uri: str, name: str) -> Entry:
    each = [
        _entry(found, path, kind)
        for found, path, kind in _found(uri, f"{name}/", 1)
        if path.rpartition("/")[2].startswith("repeat-")
    ]
    finished = [run for run in each if run.state == "finished"]
    tests = [run.test for run in finished if run.test is not None]
    states = {run.state for run in each}
    state: State = next(s for s in ("going on", "stopped", "damaged", "finished") if s in states)
    return Entry(
        uri,
        name,
        "repeats",
        state,
        done=len(finished),
        of=len(each),
        metric=each[0].metric,
        val=_mean([run.val for run in finished if run.val is not None]),
        test=_mean(tests),
        std=statistics.stdev(tests) if len(tests) > 1 else None,
        dataset=each[0].dataset,
        changed_s=max((run.changed_s for run in each if run.changed_s is not None), default=None),
    )


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _search(uri: str, name: str) -> Entry:
    record = read_search(uri)
    config, trials = record.config, record.trials
    ended = [trial for trial in trials if trial.state != "running"]
    monitor = config.train.monitor or "val/loss"
    metric = monitor.removeprefix("val/")
    best, test = None, None
    for trial in ended:
        if trial.values and better(monitor, trial.values[0], best):
            best, test = trial.values[0], trial.facts["test"].get(metric)
    whole = len(ended) == len(trials) and (
        # a grid may have fewer trials than were asked for
        len(trials) >= config.tune.num_trials or storage.exists(storage.join(uri, "best.yaml"))
    )
    return Entry(
        uri,
        name,
        "search",
        "finished" if whole else _open_state(uri),
        done=len(ended),
        of=max(config.tune.num_trials, len(trials)),
        metric=metric,
        val=best,
        test=test,
        dataset=config.data.uri,
        changed_s=record.events[-1].time if record.events else None,
    )
