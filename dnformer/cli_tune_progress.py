"""What a person sees of a search that goes on: a table on a terminal, lines in a log."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, final

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dnformer.cli_common import say
from dnformer.cli_progress import Screen
from dnformer.config import RunConfig
from dnformer.training.objectives import better, shown
from dnformer.tuning.search import Live, Watch
from dnformer.tuning.space import Space
from dnformer.tuning.trials import Params, Result, Trial

# lines of the terminal that the table's rows leave to what is above and below them
_LINES_BESIDE = 5


@contextmanager
def search_progress(config: RunConfig) -> Iterator[Watch]:
    """Shows on stderr how the search of `config` goes, whose `train.monitor` is decided."""
    story = Story(config)
    if sys.stderr.isatty():
        with Board(story, Console(stderr=True)) as board:
            yield Watch(board.say, board.show)
        return

    def show(trials: Sequence[Trial], live: Mapping[int, Live]) -> None:
        for line in story.lines(trials, live):
            say(line)

    yield Watch(say, show)


def setting_names(paths: Sequence[str]) -> dict[str, str]:
    """Each dotted path as a person reads it: its last part, where no other ends so."""
    lasts = [path.rpartition(".")[2] for path in paths]
    return {
        path: last if lasts.count(last) == 1 else path
        for path, last in zip(paths, lasts, strict=True)
    }


def setting_text(value: Any) -> str:
    """A setting's value in few letters."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def epochs_of(trial: Trial) -> int:
    """Epochs that the record knows of."""
    last = trial.results[-1].epochs if trial.results else 0
    return int(trial.facts.get("epochs", last))


@final
class Story:
    """What there is to say of a search, from its trials.

    Args:
        config: of the search; `train.monitor` is decided.
        clock: seconds that only grow.

    Attributes:
        num_trials: that are tried at most.
        epochs: of a trial at most.
        metric: what a trial's value is.
    """

    def __init__(self, config: RunConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        train, self.num_trials = config.train, config.tune.num_trials
        if config.tune.search == "grid":
            self.num_trials = min(self.num_trials, len(Space(config).grid()))
        self.epochs = min(train.epochs, train.stop_after or train.epochs)
        assert train.monitor is not None
        self.monitor, self.metric = train.monitor, train.monitor.removeprefix("val/")
        self._names = setting_names(list(config.tune.space))
        self._clock, self._begun = clock, clock()
        self._told: Sequence[Trial] | None = None
        self._first_done: float | None = None

    def value(self, value: float | None) -> str:
        """A value as a person reads it."""
        return "" if value is None else shown(self.metric, value)

    def settings(self, params: Params) -> str:
        """The settings of a trial."""
        named = ((self._names.get(path, path), value) for path, value in params.items())
        return ", ".join(f"{name} {setting_text(value)}" for name, value in named)

    def setting_columns(self, rows: Sequence[Params]) -> list[str]:
        """The names of the settings in one text, then those of each row, in line with them."""
        texts = [list(self._names.values())] + [
            [setting_text(params[path]) if path in params else "" for path in self._names]
            for params in rows
        ]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        return [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in texts
        ]

    def lines(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> list[str]:
        """What a log says since the last call: a line for each begin, rung and end."""
        told, self._told = self._told, list(trials)
        self._start(trials)
        lines = []
        if told is None:
            known = any(trial.results or trial.state != "running" for trial in trials)
            told = trials if known else []
            lines = self._found(told, live)
        best = self._best(trials, live)
        for number, trial in enumerate(trials):
            before = told[number] if number < len(told) else None
            if before is None:
                lines.append(f"trial {number} begins: {self.settings(trial.params)}")
            seen = len(before.results) if before else 0
            lines += [self._rung(number, result) + best for result in trial.results[seen:]]
            if before is not None and before.params != trial.params:
                lines.append(f"trial {number} goes on with {self.settings(trial.params)}")
            # that one failed is said by the search itself
            ended = trial.state in ("finished", "stopped")
            if ended and (before is None or before.state == "running"):
                lines.append(self._end(trial) + best + self._rest(trials, live))
        return lines

    def _found(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> list[str]:
        """Of a search that goes on, where it is."""
        if not trials:
            return []
        going = [str(trial.number) for trial in trials if trial.state == "running"]
        lines = [f"goes on with {self.counts(trials)}{self._best(trials, live)}"]
        return lines + ([f"trials that go on: {', '.join(going)}"] if going else [])

    def _rung(self, number: int, result: Result) -> str:
        return f"trial {number}  epoch {result.epochs}/{self.epochs}  {self._named(result.value)}"

    def _end(self, trial: Trial) -> str:
        value = trial.values[0] if trial.values else None
        seconds = trial.facts.get("seconds")
        took = "" if seconds is None else f"  {seconds:.1f} s"
        return (
            f"trial {trial.number} {trial.state} after {epochs_of(trial)} of {self.epochs} epochs  "
            f"{self._named(value)}{took}"
        )

    def _named(self, value: float | None) -> str:
        return f"{self.monitor.replace('/', ' ')} {self.value(value)}"

    def _best(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> str:
        best = self.best(trials, live)
        return "" if best is None else f"  best so far {self.value(best[1])} (trial {best[0]})"

    def _rest(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> str:
        ended = sum(trial.state != "running" for trial in trials)
        return f"  {ended}/{self.num_trials} have ended{self._left(trials, live)}"

    def _left(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> str:
        left_s = self.left_s(trials, live)
        return f"  left about {timedelta(seconds=round(left_s))}" if left_s else ""

    def best(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> tuple[int, float] | None:
        """(trial, value) of the best value so far, also of trials that go on."""
        best: tuple[int, float] | None = None
        for trial in trials:
            value = None if trial.state == "failed" else value_of(trial, live)
            if value is not None and better(self.monitor, value, None if best is None else best[1]):
                best = trial.number, value
        return best

    def counts(self, trials: Sequence[Trial]) -> str:
        """How many trials are in which state."""
        counts = {
            state: sum(trial.state == state for trial in trials)
            for state in ("running", "finished", "stopped", "failed")
        }
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        return f"{len(trials)} of {self.num_trials} trials: {states}"

    def head(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> list[str]:
        """Two lines above the table: how far the search is, and its best trial so far."""
        self._start(trials)
        if not trials:
            return ["no trial has begun", ""]
        lines = [f"{self.counts(trials)}{self._left(trials, live)}", "no value so far"]
        best = self.best(trials, live)
        if best is not None:
            number, value = best
            params = next(trial.params for trial in trials if trial.number == number)
            lines[1] = f"best so far {self._named(value)}  trial {number}: {self.settings(params)}"
        return lines

    def _start(self, trials: Sequence[Trial]) -> None:
        """What was done before this start says nothing about its pace."""
        if trials and self._first_done is None:
            self._begun, self._first_done = self._clock(), self._done(trials, {})

    def _done(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> float:
        """Trials that are done, those that go on by their epochs."""
        return sum(
            min(epochs_so_far(trial, live) / self.epochs, 1) if trial.state == "running" else 1
            for trial in trials
        )

    def left_s(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> float | None:
        """Seconds left at the pace of this start; None before there is one."""
        done = self._done(trials, live)
        gained = done - (self._first_done or 0)
        if gained <= 0:
            return None
        return max(self.num_trials - done, 0) * (self._clock() - self._begun) / gained


def value_of(trial: Trial, live: Mapping[int, Live]) -> float | None:
    """The trial's best value as far as it is known."""
    if trial.values is not None:
        return trial.values[0]
    said = _said(trial, live)
    if said is not None and said.value is not None:
        return said.value
    return trial.results[-1].value if trial.results else None


def epochs_so_far(trial: Trial, live: Mapping[int, Live]) -> int:
    """Epochs done, also those that no record has yet."""
    said = _said(trial, live)
    return epochs_of(trial) if said is None else said.epochs


def _said(trial: Trial, live: Mapping[int, Live]) -> Live | None:
    """What a trial that goes on said since it was last judged."""
    said = live.get(trial.number) if trial.state == "running" else None
    return said if said is not None and said.epochs > epochs_of(trial) else None


def trials_table(
    story: Story, trials: Sequence[Trial], live: Mapping[int, Live], *, rows: int
) -> Table:
    """At most `rows` trials, those that go on first, then the newest."""
    order = sorted(trials, key=lambda trial: (trial.state != "running", -trial.number))[:rows]
    heading, *settings = story.setting_columns([trial.params for trial in order])
    table = Table(box=None, pad_edge=False, expand=True)
    table.add_column("trial", justify="right", no_wrap=True, min_width=5)
    table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1)
    for name, width in (
        ("rung", 4), (story.metric, max(len(story.metric), 7)), ("epochs", 7), ("seconds", 7),
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    table.add_column("state", no_wrap=True, min_width=8)
    best = story.best(trials, live)
    for trial, text in zip(order, settings, strict=True):
        is_best = best is not None and best[0] == trial.number
        number, *rest = _cells(story, trial, live)
        table.add_row(*map(Text, (number, text, *rest)), style="bold" if is_best else "")
    return table


def _cells(story: Story, trial: Trial, live: Mapping[int, Live]) -> list[str]:
    seconds = trial.facts.get("seconds")
    if trial.state == "running" and trial.number in live:
        seconds = live[trial.number].seconds
    return [
        str(trial.number),
        str(trial.results[-1].epochs) if trial.results else "",
        story.value(value_of(trial, live)),
        f"{epochs_so_far(trial, live)}/{story.epochs}",
        "" if seconds is None else f"{seconds:,.0f}",
        trial.state,
    ]


@final
class Board(Screen):
    """The table of a search.

    Args:
        story: of the search.
        console: the terminal.
    """

    def __init__(self, story: Story, console: Console) -> None:
        super().__init__(console, per_second=2)
        self._story = story
        self._trials: Sequence[Trial] = ()
        self._live: Mapping[int, Live] = {}

    def __rich__(self) -> Group:
        trials, live = self._trials, self._live
        # as many as the terminal has room for now: it may have been resized
        rows = max(self._console.height - _LINES_BESIDE, 1)
        parts: list[Any] = [
            Text(line, no_wrap=True, overflow="ellipsis") for line in self._story.head(trials, live)
        ]
        if trials:
            parts.append(trials_table(self._story, trials, live, rows=rows))
        if len(trials) > rows:
            parts.append(Text(f"and {len(trials) - rows} more", style="dim"))
        return Group(*parts)

    def show(self, trials: Sequence[Trial], live: Mapping[int, Live]) -> None:
        """Shows the trials as they are now."""
        self._trials, self._live = tuple(trials), dict(live)
