"""The tracker for MLflow: one MLflow run for each run of ours, found again when it goes on.

A thread of its own talks to the server, so that one that is slow or gone never holds training up.
"""

import json
import logging
import os
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, final

from dnformer import storage
from dnformer.driver import Record
from dnformer.errors import BackendError
from dnformer.training.sinks import flat, scalars

_log = logging.getLogger("dnformer")

_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # stdout is for results
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # we try again ourselves, with each new record; MLflow's own 7 times take minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}
# what the server takes in one call
_MAX_METRICS, _MAX_PARAMS, _MAX_VALUE = 1000, 100, 6000
# records that wait for a server that is gone; the oldest are dropped
_MAX_WAITING = 10_000
_CLOSE_S = 30.0


class _Timed(NamedTuple):
    """A record and when it was made, in ms since 1970: the same in each try to send it."""

    record: Record
    ms: int


def open_mlflow(
    uri: str, experiment: str, run: str, *, name: str, params: dict[str, Any]
) -> "Mlflow":
    """The tracker of `run`; the server is first asked by its thread.

    Raises:
        BackendError: MLflow is not installed, or knows no such kind of address.
    """
    for setting, value in _SETTINGS.items():
        os.environ.setdefault(setting, value)
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError:
        raise BackendError(
            "tracking.mlflow needs a library that is not installed: pip install 'dnformer[mlflow]'"
        ) from None
    try:
        client = MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise BackendError(f"tracking.mlflow {uri}: {error.message}") from None
    tags = {"dnformer.id": _identity(run), "dnformer.run": run}
    texts = {path: str(value)[:_MAX_VALUE] for path, value in flat(params, ".").items()}
    return Mlflow(_Place(client, experiment, name, tags), texts, uri)


def _identity(run: str) -> str:
    """What tells this run from one of the same name before `--fresh`, which removes the file."""
    uri = storage.join(run, "metrics/mlflow.json")
    found = storage.read_if_exists(uri)
    if found is None:
        found = json.dumps({"id": uuid.uuid4().hex}).encode()
        storage.write_bytes(uri, found)
    identity: str = json.loads(found)["id"]
    return identity


class _Place(NamedTuple):
    """Where metrics go: the run of `experiment` that has the tag `dnformer.id`."""

    client: Any
    experiment: str
    name: str
    tags: dict[str, str]

    def find_run(self) -> Any:
        """The MLflow run, which is made where there is none."""
        found = self.client.get_experiment_by_name(self.experiment)
        number = found.experiment_id if found else self.client.create_experiment(self.experiment)
        query = f"tags.`dnformer.id` = '{self.tags['dnformer.id']}'"
        runs = self.client.search_runs([number], query, max_results=1)
        if runs:
            self.client.update_run(runs[0].info.run_id, status="RUNNING")
            return runs[0]
        return self.client.create_run(number, tags=self.tags, run_name=self.name)


@final
class Mlflow:
    """Sends records in the order they came; those that cannot be sent wait for the next try.

    Args:
        place: where to.
        params: the config, logged when the MLflow run is made.
        uri: the server's, for messages.
    """

    def __init__(self, place: _Place, params: dict[str, str], uri: str) -> None:
        self._place, self._params, self._uri = place, params, uri
        self._queue: queue.SimpleQueue[_Timed | None] = queue.SimpleQueue()
        self._unsent: deque[_Timed] = deque(maxlen=_MAX_WAITING)
        self._run_id: str | None = None
        # the last step sent of each kind of record: MLflow would add a second value
        self._sent: dict[str, int] = {}
        self._warned = False
        self._finished = True
        self._thread = threading.Thread(target=self._work, name="dnformer-mlflow", daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Takes a record for the thread to send."""
        self._queue.put(_Timed(record, time.time_ns() // 1_000_000))

    def publish(self) -> None:
        """Nothing: what is not sent yet is in `RUN/metrics`."""

    def close(self, *, finished: bool = True) -> None:
        """Waits for the last records to be sent, though not for long."""
        self._finished = finished
        self._queue.put(None)
        self._thread.join(_CLOSE_S)
        if self._unsent:
            _log.warning(
                "MLflow at %s lacks the last %d records; RUN/metrics has them",
                self._uri,
                len(self._unsent),
            )

    def _work(self) -> None:
        ended = False
        while not ended:
            came = [self._queue.get(), *self._waiting()]
            ended = None in came
            self._unsent.extend(timed for timed in came if timed is not None)
            self._safely(self._send)
        status = "FINISHED" if self._finished else "KILLED"
        if not self._unsent and self._run_id is not None:
            run_id = self._run_id
            self._safely(lambda: self._place.client.set_terminated(run_id, status=status))

    def _waiting(self) -> Iterator[_Timed | None]:
        with suppress(queue.Empty):
            while True:
                yield self._queue.get_nowait()

    def _safely(self, send: Callable[[], None]) -> None:
        """Runs `send`; a server that refuses or is away is said once."""
        from mlflow.exceptions import MlflowException

        try:
            send()
        # requests' own errors are OSErrors, as are those of a folder
        except (MlflowException, OSError) as error:
            if not self._warned:
                text = " ".join(str(error).split())[:300]
                _log.warning("MLflow at %s: %s; training goes on without it", self._uri, text)
            self._warned = True

    def _send(self) -> None:
        if self._run_id is None:
            self._begin()
        while self._unsent:
            self._send_batch()

    def _begin(self) -> None:
        """Finds or makes the MLflow run, and what it has."""
        from mlflow.entities import Param

        run = self._place.find_run()
        missing = [Param(k, v) for k, v in self._params.items() if k not in run.data.params]
        for start in range(0, len(missing), _MAX_PARAMS):
            batch = missing[start : start + _MAX_PARAMS]
            self._place.client.log_batch(run.info.run_id, params=batch)
        for kind in ("step", "epoch"):
            self._sent[kind] = int(run.data.tags.get(f"dnformer.logged.{kind}", -1))
        self._run_id = run.info.run_id

    def _send_batch(self) -> None:
        """Sends as many of the waiting records as one call takes, and forgets them."""
        from mlflow.entities import Metric, RunTag

        metrics: list[Any] = []
        taken, sent = 0, dict(self._sent)
        for record, ms in tuple(self._unsent):
            kind, step = record["kind"], record["step"]
            new = scalars(record) if step > sent.get(kind, -1) else {}
            if len(metrics) + len(new) > _MAX_METRICS and metrics:
                break
            metrics += [Metric(tag, value, ms, step) for tag, value in new.items()]
            sent[kind] = max(step, sent.get(kind, -1))
            taken += 1
        # beside the metrics in one call, so that a start that goes on knows what is there
        tags = [RunTag(f"dnformer.logged.{kind}", str(sent[kind])) for kind in ("step", "epoch")]
        if metrics:
            self._place.client.log_batch(self._run_id, metrics=metrics, tags=tags)
        self._sent = sent
        for _ in range(taken):
            self._unsent.popleft()
