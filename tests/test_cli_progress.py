"""What a log and a terminal say of a run, from records as the loop makes them."""

import io
import logging
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dnformer.cli_progress import Bar, Story
from dnformer.config import RunConfig
from dnformer.parsing import parse

from .commands import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def story(clock) -> Story:
    return tell(clock)


def tell(clock: Callable[[], float], one_run: bool = True, **train: Any) -> Story:
    values = {"name": "run", "data": {"uri": "data"}, "train": {"epochs": 20, "workers": 2} | train}
    return Story(parse(RunConfig, values), cores=2, one_run=one_run, clock=clock)


def start(step: int = 0, world_size: int = 2) -> dict:
    return {"kind": "start", "epoch": step // 40, "step": step, "world_size": world_size}


def epoch(number: int, **values: Any) -> dict:
    stages = {"sample": 0.4, "gather": 0.2, "wait": 0.1, "copy": 0.0, "forward": 1.0,
              "backward": 0.5, "reduce": 0.25, "optimizer": 0.05, "evaluate": 0.0}  # fmt: skip
    stages |= values.pop("stages", {})
    return {
        "kind": "epoch", "epoch": number, "step": 40 * (number + 1), "train/loss": 0.5,
        "train/accuracy": 0.75, "train/f1_macro": 0.5, "seconds": 2.0, "seeds_per_s": 1234.5,
        "world_size": 2, "stage_seconds": {k: {"mean": v, "max": v} for k, v in stages.items()},
        "cache_hit_rate": {"mean": 0.0, "max": 0.0},
        "feature_bytes_read": {"mean": 2.0**21, "max": 2.0**21},
    } | values  # fmt: skip


def step(number: int, **values: Any) -> dict:
    return epoch(number // 40, kind="step", step=number, **values)


def test_log_has_a_line_an_epoch(story):
    assert story.lines(start()) == ["starts"]
    assert story.lines(epoch(0, **{"val/accuracy": 0.5, "val/loss": 1.0})) == [
        "epoch 1/20  loss 0.5000  train accuracy 75.00 %  val accuracy 50.00 %  2.00 s "
        "(forward 1.00, backward 0.50, reduce 0.25, wait 0.10; loader: sample 0.40, gather 0.20)  "
        "1,234 seeds/s"
    ]


def test_log_says_what_the_loader_does_only_where_batches_are_waited_for(story):
    (line,) = story.lines(epoch(0, stages={"wait": 0.0}))
    assert "(forward 1.00, backward 0.50, reduce 0.25, optimizer 0.05)" in line


def test_log_says_what_hot_rows_saved(story):
    (line,) = story.lines(epoch(0, cache_hit_rate={"mean": 0.25, "max": 0.5}))
    assert line.endswith("  hot 25.0 %, 2 MiB read")


def test_log_of_a_metric_that_is_undefined_shows_the_rest(story):
    record = epoch(0, **{"val/loss": 1.0})
    del record["train/accuracy"], record["train/f1_macro"]
    (line,) = story.lines(record)
    assert "  loss 0.5000  val loss 1  2.00 s" in line


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        ([start(90)], ["goes on from step 90, in epoch 3"]),
        ([start(), start()], ["starts", "workers were started again: starts"]),
        (
            [start(), start(1090)],
            ["starts", "workers were started again: goes on from step 1,090, in epoch 28"],
        ),
        (
            [start(), start(90, 1), start(130, 2)],
            [
                "starts",
                "workers were started again: goes on from step 90, in epoch 3, with 1 worker",
                "workers were started again: goes on from step 130, in epoch 4, with 2 workers",
            ],
        ),
    ],
    ids=["resumed", "again", "restarted", "other workers"],
)
def test_log_says_where_workers_start(story, records, lines):
    assert [line for record in records for line in story.lines(record)] == lines


def test_log_of_several_runs_calls_none_a_restart(clock):
    story = tell(clock, one_run=False)
    assert story.lines(start()) == ["starts"]
    assert story.lines(start()) == ["starts"]


def test_advice_comes_after_the_second_epoch_and_once(story):
    slow = {"evaluate": 4.0}
    told = [story.news(epoch(i, stages=slow)) for i in range(4)]
    assert [len(lines) for lines in told] == [0, 1, 0, 0]
    assert told[1][0].startswith("advice: validation is 68 % of the time")
    # a stage of its own
    assert "checkpoints" in story.news(epoch(4, stages={"checkpoint": 9.0}))[0]


def test_advice_waits_again_after_a_restart(story):
    slow = {"evaluate": 4.0}
    assert story.news(epoch(0, stages=slow)) == []
    story.news(start(40))
    assert story.news(epoch(1, stages=slow)) == []
    assert len(story.news(epoch(2, stages=slow))) == 1


def test_advice_is_not_for_runs_that_are_over_soon(story):
    assert [story.news(epoch(i, stages={"evaluate": 4.0}, seconds=0.9)) for i in range(3)] == [
        []
    ] * 3


def test_log_of_a_long_epoch_has_a_line_on_its_steps_each_30_s(story, clock):
    story.lines(start() | {"steps_per_epoch": 40})
    said = {}
    for number in range(1, 40):
        clock.now += 10
        for line in story.lines(step(number)):
            said[number] = line
    # from a minute on
    assert list(said) == [6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39]
    assert said[6] == (
        "epoch 1/20  step 6/800  loss 0.5000  train accuracy 75.00 %  1,234 seeds/s  "
        "left at most 2:12:20"
    )


def test_log_of_short_epochs_has_no_steps(story, clock):
    story.lines(start())
    for number in range(1, 400):
        clock.now += 1
        assert story.lines(step(number)) == []
        if number % 40 == 39:
            story.lines(epoch(number // 40))


def test_steps_left_are_not_told_before_they_are_known(story, clock):
    story.lines(start())
    clock.now += 100
    (line,) = story.lines(step(7))
    assert line == "epoch 1/20  step 7  loss 0.5000  train accuracy 75.00 %  1,234 seeds/s"
    story.lines(epoch(0))
    clock.now += 100
    (line,) = story.lines(step(50))
    assert "step 50/800" in line
    assert line.endswith("left at most 0:50:00")


def test_time_left_counts_from_this_start(story, clock):
    story.lines(start(400) | {"steps_per_epoch": 40})
    clock.now += 100
    (line,) = story.lines(step(410))
    assert line.endswith("left at most 1:05:00")


def shown(bar: Bar, width: int) -> list[str]:
    """The lines that change, on a terminal so wide."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with console.capture() as captured:
        console.print(bar)
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [40, 80, 150])
def test_bar_is_two_lines_of_the_terminals_width(story, width):
    bar = Bar(story, Console(file=io.StringIO(), width=width))
    bar.record(start(40))
    bar.record(epoch(1, **{"val/accuracy": 0.5}))
    # not validated: the last value stays
    bar.record(epoch(2, **{"train/loss": 0.25}))
    scores, times = shown(bar, width)
    text = "loss 0.2500  train accuracy 75.00 %  val accuracy 50.00 %  1,234 seeds/s"
    assert scores.rstrip() == (text if width >= 80 else text[: width - 1] + "…")
    assert max(len(scores), len(times)) <= width
    assert times.startswith("epoch 4/20 ")
    if width >= 80:
        assert "15 %" in times
        assert "left at most" in times


def test_bar_moves_within_epochs(story):
    bar = Bar(story, Console(file=io.StringIO()))
    bar.record(start() | {"steps_per_epoch": 40})
    bar.record(step(20 * 8, **{"train/loss": 0.125}))
    scores, times = shown(bar, 80)
    assert scores.startswith("loss 0.1250")
    assert " 20 %" in times


def test_bar_says_what_happens_above_it(story):
    terminal = io.StringIO()
    bar = Bar(story, Console(file=terminal))
    bar.record(start())
    bar.say("worker 1 failed: [Errno 5]; started again")
    bar.record(start(90, 1))
    assert terminal.getvalue().splitlines() == [
        "starts",
        "worker 1 failed: [Errno 5]; started again",
        "workers were started again: goes on from step 90, in epoch 3, with 1 worker",
    ]


def test_bar_takes_warnings_above_it_too(story, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    handler = logging.StreamHandler(terminal)
    logging.getLogger().addHandler(handler)
    try:
        console = Console(file=terminal, force_terminal=True, width=80, color_system=None)
        with Bar(story, console) as bar:
            bar.record(start())
            logging.getLogger("dnformer").warning("a disk is slow")
            assert handler.stream is not terminal
        # over the first of the two lines, which are drawn again below
        assert "\x1b[1A\x1b[2Ka disk is slow\n" in terminal.getvalue()
        assert handler.stream is terminal
    finally:
        logging.getLogger().removeHandler(handler)
