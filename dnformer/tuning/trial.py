"""A trial in its own process: an ordinary run that tells its milestones and its end."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.driver import Record
from dnformer.errors import ConfigError, DataError, InUseError, LostError, TrainError
from dnformer.parsing import parse
from dnformer.training.gate import Gate

# between two words of a trial on how far it is
_LIVE_EVERY_S = 2.0
_FREE_WITHIN_S, _LOOK_S = 120.0, 1.0

Message = dict[str, Any]
Report = Callable[[Message], None]


@dataclass(frozen=True)
class Task:
    """A trial as it travels to its process: plain values.

    Attributes:
        number: of the trial.
        config: its run, as `RunConfig.dump` gives it.
        gate: where it asks what becomes of it.
        monitor: what it is judged by, as `train.monitor`.
        in_legs: it is one run from milestone to milestone, each with a config of its own, which
            comes with the verdict.
    """

    number: int
    config: dict[str, Any]
    gate: Gate
    monitor: str
    in_legs: bool = False


def run_trial(task: Task, report: Report) -> None:
    """Trains a trial to its end, or until it is told that this is enough.

    `report` takes, each with `kind`: "result" (`epochs`, `value`) at each milestone, also again
    those of earlier starts; "live" (likewise, `seconds`) now and then; last "end" (`result` of the
    run) or "failed" (`error`).

    Raises:
        DNFormerError: it could not go on, and another start may: workers were lost, a store is
            out of reach.
    """
    # torch is loaded here, in the trial's process
    from dnformer.training import launch
    from dnformer.training.run import run_uri
    from dnformer.training.sinks import read_metrics

    config = parse(RunConfig, task.config)
    storage.configure(config.storage)
    teller = Teller(task, report)
    train = partial(launch.train, progress=launch.Progress(record=teller.take))
    try:
        if task.in_legs:
            result = _in_legs(task, config, train, teller)
        else:
            # a milestone may have been passed when nobody recorded it any more
            for record in read_metrics(run_uri(config)):
                teller.take(record)
            result = _when_free(partial(train, config, gate=task.gate))
    except (ConfigError, DataError, TrainError) as error:
        if isinstance(error, LostError):
            raise
        report({"kind": "failed", "error": str(error)})
    else:
        report({"kind": "end", "result": result})


def _in_legs(
    task: Task, config: RunConfig, train: Callable[[RunConfig], dict[str, Any]], teller: "Teller"
) -> dict[str, Any]:
    """The result of the last leg; those that an earlier start finished give theirs again."""
    metric = task.monitor.removeprefix("val/")
    for epochs in task.gate.milestones:
        result = _when_free(partial(train, config))
        if result["epochs"] < epochs:  # out of patience
            return result
        teller.tell("result", epochs, result["val"][metric])
        config = parse(RunConfig, task.gate.verdict(epochs)["config"])
    return _when_free(partial(train, config))


def _when_free(train: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`train()`; processes of a driver that was killed may live, and write, for a while."""
    give_up = time.monotonic() + _FREE_WITHIN_S
    while True:
        try:
            return train()
        except InUseError:
            if time.monotonic() > give_up:
                raise
            time.sleep(_LOOK_S)


@final
class Teller:
    """Turns the records of a run into messages of its trial."""

    def __init__(self, task: Task, report: Report) -> None:
        from dnformer.training.objectives import better

        # the legs of a trial tell theirs when they have ended
        self._milestones = () if task.in_legs else task.gate.milestones
        self._monitor, self._report = task.monitor, report
        self._better, self._best = better, math.nan
        self._begun = self._told = time.monotonic()

    def take(self, record: Record) -> None:
        """Tells of an epoch where there is something to tell."""
        if record["kind"] != "epoch":
            return
        value = record.get(self._monitor)
        if value is not None and self._better(self._monitor, value, self._best):
            self._best = value
        epochs = record["epoch"] + 1
        if epochs in self._milestones:
            self.tell("result", epochs, self._best)
        elif time.monotonic() - self._told >= _LIVE_EVERY_S:
            self._told = time.monotonic()
            self.tell("live", epochs, self._best, seconds=self._told - self._begun)

    def tell(self, kind: str, epochs: int, value: float, **more: float) -> None:
        """Reports a value, None where it is no number."""
        known = {"epochs": epochs, "value": value if math.isfinite(value) else None}
        self._report({"kind": kind, **known, **more})
