"""Rank 0's hand: who writes the records and checkpoints of an attempt."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any, final

from dnformer.config import RunConfig
from dnformer.driver import Record
from dnformer.training.checkpoints import Checkpointer, Keeping, Meta
from dnformer.training.run import Attempt, first_attempt
from dnformer.training.sinks import MetricsFile
from dnformer.training.state import TrainState
from dnformer.training.trackers import Tracker, open_trackers


@final
class Writer:
    """Writes the records and checkpoints of one attempt; use as a context manager.

    Args:
        config: the run's.
        meta: what belongs to each checkpoint.
        attempt: the right to write.
        state: what is saved, as it is at each `save`; where it stands now, the attempt begins.
        start: the record of that.
    """

    def __init__(
        self,
        config: RunConfig,
        meta: Meta,
        attempt: Attempt,
        state: TrainState,
        start: Record,
    ) -> None:
        self._config, self._attempt, self._state, self._start = config, attempt, state, start
        self._checkpointer = Checkpointer(
            attempt, meta=meta, before=self._publish, background=config.checkpoint.background
        )
        self._metrics: list[MetricsFile] = []
        self._trackers: list[Tracker] = []

    def __enter__(self) -> "Writer":
        run, step = self._attempt.run, self._state.steps_done
        self._metrics.append(MetricsFile(run, attempt=self._attempt.number, first_step=step))
        self._trackers += open_trackers(
            self._config.tracking,
            run,
            name=self._config.name,
            params=self._config.dump(),
            first_step=step,
        )
        self.record(self._start)
        self._publish()
        # after its record: whoever goes on from here finds where this attempt began
        if self._attempt.number > first_attempt(run):
            # what an older attempt may still write is not the newest from here on
            self.save()
            self._checkpointer.wait()
        return self

    def __exit__(self, *exception: Any) -> None:
        with ExitStack() as stack:
            for tracker in self._trackers:
                stack.callback(tracker.close, finished=exception[0] is None)
            self._checkpointer.__exit__(*exception)

    def record(self, record: Record) -> None:
        """Adds a record of metrics."""
        for sink in self._sinks():
            sink.write(record)

    def save(self) -> None:
        """Publishes a checkpoint of the state as it is now, and all records before it."""
        best = {step for _, step in self._state.ranked}
        keeping = Keeping(self._config.checkpoint.keep, best)
        self._checkpointer.save(self._state.snapshot(), keeping)

    def _sinks(self) -> Iterable[MetricsFile | Tracker]:
        return (*self._metrics, *self._trackers)

    def _publish(self) -> None:
        for sink in self._sinks():
            sink.publish()
