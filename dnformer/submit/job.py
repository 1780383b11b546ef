"""What a job is, whether it may be shipped, and what it means beside earlier ones of its name."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.errors import ConfigError
from dnformer.parsing import Section
from dnformer.storage.connect import EXTRAS
from dnformer.storage.paths import protocol_of

Command = Literal["train", "tune", "ingest", "predict"]
_LIVE = ("pending", "running")
_MOST_NAMED = 3
# settings that name files or folders, by dotted path
_PLACES = frozenset({
    "storage_path", "data.uri", "data.split.file", "loss.mask", "train.continue_from", "cache.dir",
    "tracking.mlflow", "out", "pyg.root", "ogb.root", "table.edges", "table.nodes",
    "table.features_file", "split.file", "engine.temp_dir", "run", "data", "nodes", "temp_dir",
})  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A command with its whole config, to run on a cluster.

    Attributes:
        command: of the command line.
        target: what it writes, the folder of a run, a dataset or predictions: its identity.
        config: plain values, complete.
        options: further words of the command line, as in `--repeat 3`.
    """

    command: Command
    target: str
    config: dict[str, Any]
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people: the run's name, or the last part of the folder that it writes."""
        return str(self.config.get("name") or self.target.rpartition("/")[2])

    @property
    def id(self) -> str:
        """Ray's submission id of the first attempt, a function of command and target alone."""
        digest = hashlib.sha256(f"{self.command} {self.target}".encode()).hexdigest()
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-.")[:40]
        return f"dnformer-{self.command}-{slug}-{digest[:8]}"

    @property
    def metadata(self) -> dict[str, str]:
        """What the cluster keeps of it."""
        return {
            "job_name": self.name,
            "command": self.command,
            "target": self.target,
            "config": json.dumps(self.config, sort_keys=True),
            "options": " ".join(self.options),
        }

    def places(self) -> list[tuple[str, str]]:
        """(setting, path or URI) of all files and folders that it names."""
        return [(path, value) for path, value in _texts(self.config) if path in _PLACES]

    def extras(self) -> list[str]:
        """Optional parts of dnformer that it needs."""
        protocols = {protocol_of(uri) for _, uri in self.places() if not storage.is_local(uri)}
        found = {EXTRAS[protocol] for protocol in protocols & EXTRAS.keys()}
        if (self.config.get("tracking") or {}).get("mlflow"):
            found.add("mlflow")
        return sorted(found)


def run_job(command: Literal["train", "tune"], config: RunConfig, options: Sequence[str]) -> Job:
    """The job that trains `config`, or searches around it.

    Raises:
        ConfigError: a setting means nothing on another machine, or is a secret.
    """
    # before `absolute` makes a folder of this machine of it
    _check(config)
    folder = storage.absolute(config.storage_path)
    return Job(command, storage.join(folder, config.name), config.dump(), tuple(options))


def folder_job(command: Literal["ingest", "predict"], config: Section, out: str) -> Job:
    """The job that writes the folder `out`; `config` is an `IngestConfig` or a `PredictConfig`.

    Raises:
        ConfigError: a setting means nothing on another machine, or is a secret.
    """
    _check(config)
    plain = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return Job(command, storage.absolute(out), plain)


def _check(config: Section) -> None:
    for path, value in _texts(config.model_dump(mode="json", by_alias=True)):
        if storage.redacted(value) != " ".join(value.split()):
            raise ConfigError(
                f"{path} holds a credential, which a job would show to all who see the cluster; "
                "leave it out: the cluster's own environment says who may reach its stores"
            )
        if path in _PLACES and not _means_the_same_elsewhere(value):
            raise ConfigError(
                f"{path}: {value} is a path of this machine alone; give an absolute path that all "
                "nodes of the cluster have, or a URI, as in s3://bucket/folder"
            )


def _means_the_same_elsewhere(place: str) -> bool:
    # MLflow's own name of its service
    if place.startswith("databricks"):
        return True
    return not storage.is_local(place) or place.removeprefix("file://").startswith("/")


def _texts(values: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, value) of every text; those of a list have its path."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _texts(value, f"{path}.{key}" if path else str(key))
    elif isinstance(values, list):
        for value in values:
            yield from _texts(value, path)
    elif isinstance(values, str):
        yield path, values


class JobState(NamedTuple):
    """A job as its cluster tells it.

    Attributes:
        status: pending, running, succeeded, failed or stopped.
        started: seconds since the epoch, by the head's clock; likewise `ended`.
        message: why it failed.
        config: it was submitted with; None: it is none of ours.
    """

    id: str
    name: str
    command: str
    target: str
    status: str
    started: float | None
    ended: float | None
    exit_code: int | None
    message: str
    config: dict[str, Any] | None
    options: str

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.status in _LIVE


def state_of(details: Any) -> JobState:
    """The state in Ray's `JobDetails`."""
    status, metadata = details.status.value.lower(), details.metadata or {}
    config = metadata.get("config")
    return JobState(
        id=details.submission_id,
        name=metadata.get("job_name") or details.entrypoint[:40],
        command=metadata.get("command", ""),
        target=metadata.get("target", ""),
        status=status,
        started=None if details.start_time is None else details.start_time / 1e3,
        ended=None if details.end_time is None else details.end_time / 1e3,
        exit_code=details.driver_exit_code,
        message=_reason(details.message or "") if status == "failed" else "",
        config=json.loads(config) if config else None,
        options=metadata.get("options", ""),
    )


def _reason(message: str) -> str:
    """The line that says most: our own error, else Ray's last word."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1].removeprefix("error: ")


def decide(job: Job, others: Sequence[JobState]) -> JobState | str:
    """The earlier job that `job` is, or the id under which it is to start.

    Raises:
        ConfigError: it is running with other settings.
    """
    found = {attempt: other for other in others if (attempt := _attempt(job, other.id))}
    if not found:
        return job.id
    number = max(found)
    last, anew = found[number], f"{job.id}-{number + 1}"
    differing = _differing(job, last)
    if last.live and differing:
        more = ["..."] if len(differing) > _MOST_NAMED else []
        raise ConfigError(
            f"{last.id} is {last.status} and writes {job.target} with other settings "
            f"({'; '.join(differing[:_MOST_NAMED] + more)}); stop it first, or choose another name"
        )
    # an ingest sees by itself whether there is something to do, and its files may have changed
    done = last.status == "succeeded" and job.command != "ingest" and "--fresh" not in job.options
    return last if last.live or (done and not differing) else anew


def _attempt(job: Job, id: str) -> int | None:
    """The attempt at `job` that has this id."""
    found = re.fullmatch(rf"{re.escape(job.id)}(?:-(\d+))?", id)
    return None if found is None else int(found[1] or 1)


def _differing(job: Job, other: JobState) -> list[str]:
    """Settings that are not equal, as in `optim.lr: 0.1 there, 0.2 here`."""
    there, here = dict(_flat(other.config or {})), dict(_flat(job.config))
    there["options"], here["options"] = other.options or None, " ".join(job.options) or None
    return [
        f"{path}: {there.get(path)} there, {here.get(path)} here"
        for path in sorted(there.keys() | here.keys())
        if there.get(path) != here.get(path)
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
