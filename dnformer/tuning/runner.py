"""Runs trials with Ray Tune: it places them, starts lost ones again, and passes on what they tell.

What is tried, what is judged and what is kept is decided by the `Source`. Tune's own state is
written to a folder that is thrown away, and is never read.
"""

import json
import logging
import math
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, final

from dnformer import memory, ray_runtime
from dnformer.errors import BackendError, ConfigError, Stopped
from dnformer.ray_runtime.deaths import named_death
from dnformer.temporary import temporary_folder
from dnformer.tuning.trial import Message, Task, run_trial

_SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # its state is thrown away; once at the end is enough
    "TUNE_GLOBAL_CHECKPOINT_S": "1e6",
    "RAY_AIR_NEW_OUTPUT": "0",
}
# bytes of memory that a trial's driver asks for: Ray places nothing that asks for nothing
_NEXT_TO_NOTHING = 1
_MESSAGE = "message"
_OWN_ERROR = re.compile(r"^dnformer\.errors\.\w+: ")

Trainable = Callable[[Task, Callable[[Message], None]], None]


class Source(Protocol):
    """Where trials come from and what they tell; all is called in the driver, one at a time."""

    def next_task(self) -> Task | Literal["wait"] | None:
        """The next trial; "wait": that depends on those that go on; None: there is none left."""

    def told(self, number: int, message: Message) -> None:
        """A trial told something; it waits until this returns."""

    def again(self, number: int, reason: str) -> None:
        """A trial's process was lost; it is started again."""

    def lost(self, number: int, reason: str) -> None:
        """A trial's process was lost too often."""

    def tick(self) -> None:
        """Called about every second."""


def room_for(needed: ray_runtime.Resources, wanted: int | None) -> tuple[int, str]:
    """How many trials go on at a time, and the arithmetic of it; inside a session.

    Args:
        needed: by the workers of one trial.
        wanted: no more than so many; None: as many as there is room for.

    On a cluster that was joined, what is wanted is taken: an autoscaler may bring the rest.

    Raises:
        ConfigError: there is room for less than one, or than what is wanted.
    """
    import ray

    have = ray.cluster_resources()
    found = math.inf
    terms = []
    for name, each in (("CPU", needed.cpus), ("GPU", needed.gpus)):
        if each:
            of_trial = needed.num_workers * each
            fit = math.floor(have.get(name, 0) / of_trial + 1e-9)
            terms.append(
                f"{have.get(name, 0):g} {name} / ({needed.num_workers} x {each:g}) = {fit}"
            )
            found = min(found, fit)
    arithmetic = ", ".join(terms)
    if found >= (wanted or 1):
        return int(min(found, wanted or found)), arithmetic
    joined = bool(os.environ.get("RAY_ADDRESS"))
    if joined and wanted:
        return wanted, f"{arithmetic} now, the rest waits for more nodes"
    more = ", or set tune.max_concurrent where nodes are added when they are needed"
    raise ConfigError(
        f"the cluster has room for {found} trials at a time ({arithmetic}), not for "
        f"{wanted or 1}; lower train.workers, train.threads or tune.max_concurrent"
        f"{more if joined else ''}"
    )


def run_trials(
    source: Source,
    *,
    needed: ray_runtime.Resources,
    own_group: bool,
    at_a_time: int,
    max_failures: int,
    trainable: Trainable = run_trial,
) -> None:
    """Runs all trials of `source`; inside a session.

    Args:
        source: of the trials.
        needed: by the workers of a trial.
        own_group: its workers are Ray Train's; its own process then reserves next to nothing.
        at_a_time: trials that go on at once.
        max_failures: times that a trial whose process was lost is started again.
        trainable: an importable function, what a trial does.

    Raises:
        BackendError: Ray Tune failed.
        Stopped: it was told to stop by SIGTERM.
        DNFormerError: what `source` raised.
    """
    os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})
    from ray import tune

    state = _State(source)
    bundle = {"CPU": float(needed.cpus), "GPU": float(needed.gpus)}
    if own_group:
        bundle = {"memory": float(_NEXT_TO_NOTHING)}

    def train(config: dict[str, Any]) -> None:
        # as text: Tune flattens what is nested
        trainable(config["task"], lambda told: tune.report({_MESSAGE: json.dumps(told)}))

    with _sigterm_stops(), _silent(), temporary_folder() as folder:
        tuner = tune.Tuner(
            tune.with_resources(
                train, tune.PlacementGroupFactory([{k: v for k, v in bundle.items() if v}])
            ),
            tune_config=tune.TuneConfig(
                num_samples=-1,
                search_alg=_searcher(state),
                scheduler=_scheduler(state),
                max_concurrent_trials=at_a_time,
                # a new process loads torch anew
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=str(folder),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=max_failures),
                callbacks=[_callback(state)],
            ),
        )
        try:
            tuner.fit()
        except Exception as error:
            if state.error is not None:
                raise state.error from None
            raise BackendError(f"Ray Tune failed: {' '.join(str(error).split())[:300]}") from error
        if state.error is not None:
            raise state.error


@contextmanager
def _sigterm_stops() -> Iterator[None]:
    """SIGTERM while the block runs is `Stopped`; by Ray's own handler the process would abort."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = False

    def stop(number: int, frame: object) -> None:
        nonlocal told
        told = True
        # Tune goes on after many an Exception
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if told:
            raise Stopped("stopped") from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps Tune from printing why a trial's process ended, which the source is told."""
    logger = logging.getLogger("ray.tune")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@final
class _State:
    """The source, the numbers of Tune's trials, and what went wrong in a call of ours."""

    def __init__(self, source: Source | None) -> None:
        self._source, self.numbers = source, dict[str, int]()
        self.error: BaseException | None = None
        self._oom_kills = memory.oom_kills()

    def __reduce__(self) -> Any:
        # Tune saves its searcher and scheduler; nobody reads that
        return _State, (None,)

    @property
    def source(self) -> Source:
        """The source, in the driver."""
        assert self._source is not None
        return self._source

    def next_task(self, trial_id: str) -> Task | Literal["wait"] | None:
        task: Task | Literal["wait"] | None = self._call(self.source.next_task)
        if isinstance(task, Task):
            self.numbers[trial_id] = task.number
        return task

    def told(self, trial_id: str, message: Message) -> None:
        self._call(self.source.told, self.numbers[trial_id], message)

    def again(self, trial: Any) -> None:
        self._call(self.source.again, self.numbers[trial.trial_id], self._reason(trial))

    def lost(self, trial: Any) -> None:
        self._call(self.source.lost, self.numbers[trial.trial_id], self._reason(trial))

    def _reason(self, trial: Any) -> str:
        before, self._oom_kills = self._oom_kills, memory.oom_kills()
        # of all its failures; `get_error` looks where Tune copies it to later
        _, _, text = Path(trial.error_file).read_text().rpartition("Failure # ")
        death = named_death(text, before, self._oom_kills)
        if death is not None:
            return f"its process {death}"
        # the last line of a traceback says what was raised; our own errors need no name
        return _OWN_ERROR.sub("", text.strip().splitlines()[-1])[:300]

    def tick(self) -> None:
        self._call(self.source.tick)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except BaseException as error:
            # Tune wraps what it catches
            self.error = error
            raise


def _searcher(state: _State) -> Any:
    from ray.tune.search import Searcher

    class Proposals(Searcher):  # type: ignore[misc] # ray has no types
        def suggest(self, trial_id: str) -> Any:
            task = state.next_task(trial_id)
            if task == "wait":
                return None
            return Searcher.FINISHED if task is None else {"task": task}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            pass

        def save(self, checkpoint_path: str) -> None:
            pass

        def restore(self, checkpoint_path: str) -> None:
            pass

    return Proposals()


def _scheduler(state: _State) -> Any:
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler

    class Told(FIFOScheduler):  # type: ignore[misc] # ray has no types
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            if _MESSAGE in result:
                state.told(trial.trial_id, json.loads(result[_MESSAGE]))
            # a trial that is to end ends by itself, and leaves no placement group behind
            decision: str = TrialScheduler.CONTINUE
            return decision

    return Told()


def _callback(state: _State) -> Any:
    from ray.tune import Callback

    class Events(Callback):  # type: ignore[misc] # ray has no types
        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            state.tick()

        # a scheduler's `on_trial_error` is called for each of both
        def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            state.again(trial)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            state.lost(trial)

    return Events()
