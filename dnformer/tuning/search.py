"""A search from its first trial to its last, over as many starts as it takes.

What is proposed and what is ended early follows from the record alone; a start reads it, makes the
proposer and the judge anew, and goes on with the trials that have not ended.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, final

from dnformer import ray_runtime, storage
from dnformer.config import RunConfig
from dnformer.data.manifest import read_manifest
from dnformer.errors import ConfigError, TrainError
from dnformer.training import launch
from dnformer.training.gate import Gate, Verdict
from dnformer.training.objectives import METRICS
from dnformer.training.run import portable
from dnformer.tuning.proposals import proposer
from dnformer.tuning.ranking import best_of, front_of
from dnformer.tuning.record import Event, Record, facts_of
from dnformer.tuning.rules import Rules, rules_for
from dnformer.tuning.runner import Source, Trainable, room_for, run_trials
from dnformer.tuning.space import Space
from dnformer.tuning.trial import Message, Task, run_trial
from dnformer.tuning.trials import Params, Result, State, Trial

_TICK_S = 1.0


class Live(NamedTuple):
    """What a trial that goes on said last; it is not recorded.

    Attributes:
        epochs: done.
        value: the best monitored one up to there, if there is one yet.
        seconds: since its process began with it.
    """

    epochs: int
    value: float | None
    seconds: float


def _silent(text: str) -> None:
    pass


def _unseen(trials: Sequence[Trial], live: Mapping[int, Live]) -> None:
    pass


class Watch(NamedTuple):
    """Who is told how a search goes.

    Attributes:
        say: takes a line about what is going on.
        trials: takes all trials and what those that go on said last; after each event, and about
            every second.
    """

    say: Callable[[str], None] = _silent
    trials: Callable[[Sequence[Trial], Mapping[int, Live]], None] = _unseen


class Found(NamedTuple):
    """What a search found.

    Attributes:
        uri: its folder.
        config: what it searched around, everything decided.
        trials: all, in order of number.
        best: by the first objective; None: no trial gave a value.
        front: the trials that no other is better than in every objective.
    """

    uri: str
    config: RunConfig
    trials: tuple[Trial, ...]
    best: Trial | None
    front: tuple[Trial, ...]


class Runner(NamedTuple):
    """How trials are run; the tests have another.

    Attributes:
        trainable: an importable function, what a trial does.
        run: takes the source of the trials, and runs them all; None: with Ray Tune.
    """

    trainable: Trainable = run_trial
    run: Callable[[Source, Trainable], None] | None = None


def tune(
    config: RunConfig,
    *,
    start: Literal["any", "fresh"] = "any",
    watch: Watch | None = None,
    runner: Runner | None = None,
) -> Found:
    """Runs the search of `config.tune` to its end, from where an earlier start left it.

    Args:
        config: the base of all trials, and the space.
        start: "fresh" forgets what the search's folder holds.
        watch: who is told how it goes.
        runner: how trials are run.

    Raises:
        ConfigError: a setting is wrong, or there is no room for a trial.
        CheckpointError: the folder is another search's, or a live start writes in it.
        TrainError: trials were lost; another start goes on with them.
    """
    watch, runner = watch or Watch(), runner or Runner()
    storage.configure(config.storage)
    if not config.tune.space:
        raise ConfigError("tune.space is empty: name the fields to search, or give --quick")
    manifest = read_manifest(storage.absolute(config.data.uri))
    decided = launch.decided(config, manifest)
    Space(decided)  # refused before anything is written
    with Record(decided, manifest.fingerprint, fresh=start == "fresh") as record:
        search = Search(record, watch)
        if search.is_done:
            watch.say(f"{record.uri} is finished; a higher tune.num_trials adds trials")
        elif runner.run is not None:
            search.replay()
            runner.run(search, runner.trainable)
        else:
            _run(search, record.config, watch, runner.trainable)
        search.refuse_lost()
        return search.found()


def _run(search: "Search", config: RunConfig, watch: Watch, trainable: Trainable) -> None:
    train = config.train
    own_group = train.max_workers > 0
    needed = launch.resources(config)
    if not own_group:
        needed = replace(needed, num_workers=1, min_workers=None)
    with ray_runtime.session(needed, watch.say):
        search.replay()  # a judge may be Ray's
        at_a_time, arithmetic = room_for(needed, config.tune.max_concurrent)
        watch.say(f"{at_a_time} trial{'s' if at_a_time > 1 else ''} at a time: {arithmetic}")
        run_trials(
            search,
            needed=needed,
            own_group=own_group,
            at_a_time=at_a_time,
            max_failures=train.max_failures,
            trainable=trainable,
        )


@final
class Search:
    """The source of a search's trials, and the one who records what they tell.

    Args:
        record: opened.
        watch: who is told how it goes.
    """

    def __init__(self, record: Record, watch: Watch) -> None:
        config = record.config
        monitor = config.train.monitor
        assert monitor is not None
        self._record, self._watch, self._monitor = record, watch, monitor
        self._higher = not METRICS[monitor.removeprefix("val/")].lower_is_better
        self._space = Space(config)
        self._proposer = proposer(self._space, config.tune, seed=config.seed, higher=self._higher)
        self._rules: Rules  # from `replay` on
        self._started, self._lost = set[int](), set[int]()
        self._live: dict[int, Live] = {}
        self._ticked = -math.inf

    @property
    def is_done(self) -> bool:
        """Whether all trials have ended."""
        trials = self._record.trials
        running = any(trial.state == "running" for trial in trials)
        return not running and self._proposed() is None

    def replay(self) -> None:
        """Makes the rules, and tells them all that was recorded."""
        self._rules = rules_for(self._space, self._record.config, higher=self._higher)
        for event in self._record.events:
            number = event.trial
            if event.kind == "begin":
                assert event.params is not None
                self._rules.begin(number, event.params)
            elif event.kind == "result":
                assert event.epochs is not None
                self._rules.decide(number, Result(event.epochs, _number(event.value)))
            elif event.kind == "promote":
                self._rules.promote(number)
            elif event.kind == "end":
                self._rules.end(number, _last(self._record.trials[number]))
        self._changed()

    def next_task(self) -> Task | Literal["wait"] | None:
        """A trial that an earlier start left, one that paused, or the next one."""
        left = (trial.number for trial in self._active() if trial.number not in self._started)
        number = next(left, None)
        if number is not None:
            return self._task(number)
        params = self._proposed()
        number = self._rules.next(last=params is None)
        if number is not None:
            self._record.append("promote", number)
            self._rules.promote(number)
        elif params is not None:
            number = len(self._record.trials)
            self._record.append("begin", number, params=params)
            self._rules.begin(number, params)
        elif any(trial.number not in self._lost for trial in self._active()):
            # what they come to may let one that paused go on
            return "wait" if self._rules.pauses else None
        else:
            self._end_paused()
            return None
        self._changed()
        return self._task(number)

    def _active(self) -> list[Trial]:
        """The trials that have not ended and do not pause."""
        running = [trial for trial in self._record.trials if trial.state == "running"]
        if not self._rules.pauses:
            return running
        return [trial for trial in running if self._record.of[trial.number][-1].kind != "result"]

    def _end_paused(self) -> None:
        """Ends the trials that paused; a lost one may still let them go on, in another start."""
        if self._lost:
            return
        for trial in self._record.trials:
            if trial.state == "running":
                self._ended(trial.number, self._record.of[trial.number][-1].facts, "stopped")

    def _proposed(self) -> dict[str, Any] | None:
        number = len(self._record.trials)
        if number >= self._record.config.tune.num_trials:
            return None
        return self._proposer.propose(number, self._record.trials)

    def _task(self, number: int) -> Task:
        self._started.add(number)
        params, gate = self._params_at(number, 0), self._gate(number)
        if self._rules.pauses:
            # a leg is a task: its end is the milestone
            leg = self._leg_of(number)
            config = self._leg(number, params, leg, number if leg else None)
            return Task(number, portable(config), replace(gate, milestones=()), self._monitor)
        if self._rules.in_legs:
            config = self._leg(number, params, 0, None)
        else:
            config = self._space.config(params).model_copy(update={"name": self._name(number)})
        return Task(number, portable(config), gate, self._monitor, self._rules.in_legs)

    def _leg_of(self, number: int) -> int:
        """How often a trial has gone on after it paused."""
        return sum(event.kind == "promote" for event in self._record.of[number])

    def _name(self, number: int) -> str:
        return f"{self._record.config.name}/trials/{number:04d}"

    def _leg(self, number: int, params: Params, leg: int, source: int | None) -> RunConfig:
        """A trial's run up to milestone `leg`, from the state that `source` had at the one before.

        The last one ends with the search's epochs.
        """
        config = self._space.config(params)
        update = {
            "stop_after": (*self._rules.milestones, None)[leg],
            "continue_from": None if source is None else self._leg_uri(source, leg - 1),
        }
        train = config.train.model_copy(update=update)
        return config.model_copy(update={"name": f"{self._name(number)}/leg-{leg}", "train": train})

    def _leg_uri(self, number: int, leg: int) -> str:
        return storage.join(self._record.uri, f"trials/{number:04d}/leg-{leg}")

    def _gate(self, number: int) -> Gate:
        return Gate(storage.join(self._record.uri, f"trials/{number:04d}"), self._rules.milestones)

    def told(self, number: int, message: Message) -> None:
        """Records what a trial tells, and publishes the verdict where it waits for one."""
        kind = message["kind"]
        if self._record.trials[number].state != "running":
            return
        if kind == "result":
            self._milestone(number, Result(message["epochs"], _number(message["value"])))
        elif kind == "end" and self._pauses_at(number, message["result"]["epochs"]):
            self._paused(number, message["result"])
        elif kind == "end":
            stopped = self._is_stopped(number)
            facts = facts_of(message["result"])
            self._ended(number, facts, "stopped" if stopped else "finished")
        elif kind == "failed":
            self._failed(number, message["error"])
        else:
            self._live[number] = Live(message["epochs"], message["value"], message["seconds"])

    def _pauses_at(self, number: int, epochs: int) -> bool:
        """Whether a run that ended after `epochs` came to its milestone, and not to its end."""
        milestones, leg = self._rules.milestones, self._leg_of(number)
        return self._rules.pauses and leg < len(milestones) and epochs == milestones[leg]

    def _paused(self, number: int, result: dict[str, Any]) -> None:
        facts, epochs = facts_of(result), result["epochs"]
        value = facts["val"].get(self._monitor.removeprefix("val/"))
        self._rules.decide(number, Result(epochs, _number(value)))
        self._record.append("result", number, epochs=epochs, value=value, facts=facts)
        self._live.pop(number, None)
        self._changed()

    def _milestone(self, number: int, result: Result) -> None:
        recorded = self._recorded(number, result.epochs)
        if recorded is None:
            value = result.value if math.isfinite(result.value) else None
            decision = self._rules.decide(number, result)._asdict()
            self._record.append("result", number, epochs=result.epochs, value=value, **decision)
            recorded = self._record.events[-1]
        # also where it is told again: a verdict that was recorded may not have been published
        self._gate(number).publish(result.epochs, self._verdict(recorded))
        self._changed()

    def _recorded(self, number: int, epochs: int) -> Event | None:
        own = (event for event in self._record.of[number] if event.kind == "result")
        return next((event for event in own if event.epochs == epochs), None)

    def _verdict(self, event: Event) -> Verdict:
        """What a trial is told of its `event`."""
        verdict: Verdict = {"stop": event.stop}
        if not self._rules.in_legs:
            return verdict
        assert event.epochs is not None
        number, leg = event.trial, self._rules.milestones.index(event.epochs) + 1
        source = number if event.source is None else event.source
        config = self._leg(number, self._params_at(number, event.epochs), leg, source)
        return verdict | {"config": portable(config)}

    def _params_at(self, number: int, epochs: int) -> Params:
        """The params that a trial has from a milestone on."""
        params: Params = {}
        for event in self._record.of[number]:
            if (event.epochs or 0) <= epochs:
                params = event.params or params
        return params

    def _is_stopped(self, number: int) -> bool:
        # nobody is judged again after that
        return any(event.stop for event in self._record.of[number])

    def _ended(self, number: int, facts: dict[str, Any], state: State) -> None:
        values = self._values(facts)
        if values is None:
            self._failed(number, f"{self._monitor} is not a number at the best epoch")
            return
        self._record.append("end", number, state=state, values=values, facts=facts)
        self._close(number)

    def _failed(self, number: int, error: str) -> None:
        self._record.append("end", number, state="failed", facts={"error": error})
        self._watch.say(f"trial {number} failed: {error}")
        self._close(number)

    def _close(self, number: int) -> None:
        self._rules.end(number, _last(self._record.trials[number]))
        self._live.pop(number, None)
        self._record.write_table()
        self._changed()

    def _values(self, facts: dict[str, Any]) -> list[float] | None:
        value = facts["val"].get(self._monitor.removeprefix("val/"))
        if value is None:
            return None
        known = {
            "metric": value,
            "seconds_per_epoch": facts["seconds"] / facts["epochs"],
            "parameters": facts["parameters"],
        }
        return [float(known[name]) for name in self._record.config.tune.objectives]

    def again(self, number: int, reason: str) -> None:
        """Tells that a trial's process was lost, and another one goes on with it."""
        self._watch.say(f"trial {number}: {reason}; starting it again")

    def lost(self, number: int, reason: str) -> None:
        """Records that a trial's process was lost; a second time it has failed."""
        if any(event.kind == "lost" for event in self._record.of[number]):
            self._failed(number, f"lost in two starts: {reason}")
            return
        self._record.append("lost", number, facts={"error": reason})
        self._lost.add(number)
        self._live.pop(number, None)
        self._watch.say(f"trial {number} was lost: {reason}")

    def refuse_lost(self) -> None:
        """Raises where trials were lost in this start."""
        if self._lost:
            numbers = ", ".join(map(str, sorted(self._lost)))
            raise TrainError(
                f"{self._record.uri}: lost trial {numbers}; the same command goes on with it"
            )

    def tick(self) -> None:
        """Tells how it goes, at most once a second."""
        now = time.monotonic()
        if now - self._ticked >= _TICK_S:
            self._ticked = now
            self._changed()

    def _changed(self) -> None:
        self._watch.trials(self._record.trials, dict(self._live))

    def found(self) -> Found:
        """What there is up to now."""
        trials, objectives = tuple(self._record.trials), self._record.config.tune.objectives
        best = best_of(trials, objectives, higher=self._higher)
        front = front_of(trials, objectives, higher=self._higher)
        return Found(self._record.uri, self._record.config, trials, best, tuple(front))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _last(trial: Trial) -> Result | None:
    """What a trial came to; None of one that failed."""
    if trial.values is None:
        return None
    return Result(trial.facts["epochs"], trial.values[0])
