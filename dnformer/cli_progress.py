"""What a person sees of a training that goes on: a bar on a terminal, lines in a log."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Self, final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from dnformer.cgroup import cores
from dnformer.cli_common import say
from dnformer.config import RunConfig
from dnformer.driver import Record
from dnformer.training.advice import advice
from dnformer.training.launch import Progress as Told
from dnformer.training.objectives import main_metric, shown

# in an epoch that takes longer, a log has lines on its steps, at most one each 30 s
_LONG_EPOCH_S, _STEP_LINE_EVERY_S = 60.0, 30.0
# a shorter run is over before advice is of use
_ADVISED_RUN_S = 20.0
# what the loader's threads do beside the other stages
_BESIDE = ("sample", "gather")


@contextmanager
def training_progress(config: RunConfig, *, repeats: int = 1) -> Iterator[Told]:
    """Shows on stderr how `repeats` runs of `config`, one after the other, go."""
    story = Story(config, cores=_cores(config), one_run=repeats == 1)
    if sys.stderr.isatty():
        with Bar(story, Console(stderr=True)) as bar:
            yield Told(bar.say, bar.record)
        return

    def record(values: Record) -> None:
        for line in story.lines(values):
            say(line)

    yield Told(say, record)


def _cores(config: RunConfig) -> int | None:
    """Of the machine that the workers share; None where they may run on others."""
    if config.train.max_workers and os.environ.get("RAY_ADDRESS"):
        return None
    return cores()


@final
class Story:
    """Turns the records of a run into lines.

    Args:
        config: the run.
        cores: of the machine that the workers share; None: not known.
        one_run: whether all records are of one run, so that a second start is a restart.
        clock: seconds that only grow.

    Attributes:
        epochs: at most.
        steps_per_epoch: None until a record tells it.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        cores: int | None,
        one_run: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = config.train.epochs
        self.steps_per_epoch: int | None = None
        self._config, self._cores, self._one_run, self._clock = config, cores, one_run, clock
        self._world_size: int | None = None
        self._advised: set[str] = set()
        self._begin(0)

    def _begin(self, step: int) -> None:
        """Workers start, with so many steps done."""
        self._first_step, self._epochs_seen = step, 0
        self._begun = self._epoch_begun = self._last_line = self._clock()

    def lines(self, record: Record) -> list[str]:
        """What a log says of a record."""
        news = self.news(record)
        if record["kind"] == "epoch":
            return [epoch_line(record, self.epochs), *news]
        return [*news, *self._step_lines(record)]

    def news(self, record: Record) -> list[str]:
        """What a terminal says of it beside the bar: starts, and advice."""
        self.steps_per_epoch = record.get("steps_per_epoch", self.steps_per_epoch)
        if record["kind"] == "start":
            return [self._start(record)]
        if record["kind"] == "epoch":
            self.steps_per_epoch = record["step"] // (record["epoch"] + 1)
            self._epochs_seen += 1
            self._epoch_begun = self._last_line = self._clock()
            return self._advice(record)
        return []

    def _start(self, record: Record) -> str:
        step, workers = record["step"], record["world_size"]
        again = self._one_run and self._world_size is not None
        text = "starts"
        if step:
            text = f"goes on from step {step:,}, in epoch {record['epoch'] + 1}"
        if again:
            text = f"workers were started again: {text}"
        if self._world_size not in (None, workers):
            text += f", with {workers} worker{'s' if workers > 1 else ''}"
        self._world_size = workers
        self._begin(step)
        return text

    def _advice(self, record: Record) -> list[str]:
        # the first epoch of a start compiles kernels and reads cold files
        if self._epochs_seen < 2 or record["seconds"] * self.epochs < _ADVISED_RUN_S:
            return []
        found = advice(record, self._config, cores=self._cores)
        if found is None or found.stage in self._advised:
            return []
        self._advised.add(found.stage)
        return [f"advice: {found.text}"]

    def _step_lines(self, record: Record) -> list[str]:
        """One line where the epoch is long and the last line was a while ago."""
        now = self._clock()
        short = now - self._epoch_begun < _LONG_EPOCH_S
        if record["kind"] != "step" or short or now - self._last_line < _STEP_LINE_EVERY_S:
            return []
        self._last_line = now
        total, left = "", ""
        if self.steps_per_epoch is not None:
            steps = self.steps_per_epoch * self.epochs
            total = f"/{steps:,}"
            seconds = (now - self._begun) / max(record["step"] - self._first_step, 1)
            left = f"  left at most {_span(seconds * (steps - record['step']))}"
        return [
            f"epoch {record['epoch'] + 1}/{self.epochs}  step {record['step']:,}{total}  "
            f"{scores(record)}  {record['seeds_per_s']:,.0f} seeds/s{left}"
        ]

    def done(self, record: Record) -> float:
        """Epochs done, the one that goes on counted by its steps where their number is known."""
        if record["kind"] == "epoch":
            return float(record["epoch"] + 1)
        if self.steps_per_epoch is None:
            return float(record["epoch"])
        return float(record["step"] / self.steps_per_epoch)


def epoch_line(record: Record, epochs: int) -> str:
    """The line on an epoch: its scores, and where its time went."""
    return (
        f"epoch {record['epoch'] + 1}/{epochs}  {scores(record)}  {record['seconds']:.2f} s "
        f"({_stages(record)})  {record['seeds_per_s']:,.0f} seeds/s{_cache(record)}"
    )


def scores(record: Record) -> str:
    """The loss, and the main metric of each split that the record has."""
    text = f"loss {record['train/loss']:.4f}"
    for split in ("train", "val"):
        names = [key.removeprefix(f"{split}/") for key in record if key.startswith(f"{split}/")]
        if names:
            metric = main_metric(names)
            if metric != "loss" or split == "val":
                text += f"  {split} {metric} {shown(metric, record[f'{split}/{metric}'])}"
    return text


def _stages(record: Record) -> str:
    """The longest stages; and what the loader's threads do, where batches are waited for."""
    means = {stage: of["mean"] for stage, of in record["stage_seconds"].items()}
    longest = sorted(means.keys() - set(_BESIDE), key=lambda stage: (-means[stage], stage))[:4]
    text = ", ".join(f"{stage} {means[stage]:.2f}" for stage in longest)
    if "wait" in longest:
        beside = ", ".join(f"{s} {means[s]:.2f}" for s in _BESIDE if s in means)
        text += f"; loader: {beside}" if beside else ""
    return text


def _cache(record: Record) -> str:
    """What the hot rows saved; nothing without any."""
    rate = record["cache_hit_rate"]["mean"]
    if not rate:
        return ""
    read = record["feature_bytes_read"]["mean"] / 2**20
    return f"  hot {100 * rate:.1f} %, {read:,.0f} MiB read"


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


class Screen:
    """What changes at the foot of a terminal, with lines above it; use as a context manager.

    Args:
        console: the terminal.
        per_second: times that it is drawn anew.
    """

    def __init__(self, console: Console, *, per_second: float) -> None:
        self._console, self._per_second, self._stack = console, per_second, ExitStack()

    def __rich__(self) -> Group:
        """What is shown now."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        live = Live(
            self, console=self._console, transient=True, refresh_per_second=self._per_second
        )
        self._stack.enter_context(live)
        # stderr is now what writes above it
        self._stack.enter_context(logs_to(sys.stderr))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def say(self, text: str) -> None:
        """A line above what changes."""
        self._console.print(text, highlight=False, markup=False)


@final
class Bar(Screen):
    """Two lines that change: the scores, and a bar with the time left.

    Args:
        story: of the run.
        console: the terminal.
    """

    def __init__(self, story: Story, console: Console) -> None:
        super().__init__(console, per_second=4)
        self._story, self._known = story, dict[str, Any]()
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=None),
            TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(),
            TextColumn("left at most"), TimeRemainingColumn(),
            # of epochs that may take minutes
            speed_estimate_period=3600, expand=True, console=console,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=story.epochs)
        self._scores = Text(no_wrap=True, overflow="ellipsis")

    def __rich__(self) -> Group:
        return Group(self._scores, self._progress)

    def record(self, record: Record) -> None:
        """Moves the bar, and says what is new."""
        for line in self._story.news(record):
            self.say(line)
        done = self._story.done(record)
        epoch = min(int(done) + 1, self._story.epochs)
        description = f"epoch {epoch}/{self._story.epochs}"
        if record["kind"] == "start":
            self._known = {}
            # steps of an earlier start say nothing about the pace of this one
            self._progress.reset(self._task, completed=done, description=description)  # type: ignore[arg-type]
            return
        self._progress.update(self._task, completed=done, description=description)
        # not each epoch is validated
        self._known |= {key: value for key, value in record.items() if "/" in key}
        pace = f"  {record['seeds_per_s']:,.0f} seeds/s"
        self._scores.plain = scores(self._known) + pace


@contextmanager
def logs_to(stream: Any) -> Iterator[None]:
    """Warnings on stderr go to `stream`, which writes above the bar, while the block runs."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if type(handler) is logging.StreamHandler
    ]
    before = [handler.setStream(stream) for handler in handlers]
    try:
        yield
    finally:
        for handler, old in zip(handlers, before, strict=True):
            if old is not None:
                handler.setStream(old)
