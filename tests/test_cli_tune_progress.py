"""What a log and a terminal say of a search, from trials as its record has them."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from dnformer.cli_tune_progress import Board, Story, setting_names, setting_text, trials_table
from dnformer.config import RunConfig
from dnformer.parsing import parse
from dnformer.tuning.search import Live
from dnformer.tuning.trials import Result, Trial

from .commands import Clock

NOTHING: dict[int, Live] = {}
SPACE = {
    "model.heads": {"choice": [1, 2]},
    "optim.lr": {"loguniform": [1e-4, 1e-2]},
    "loader.num_neighbors": {"choice": [[5], [10, 5]]},
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tell(clock: Clock, monitor: str = "val/accuracy") -> Story:
    values = {
        "name": "search", "data": {"uri": "data"}, "train": {"epochs": 100, "monitor": monitor},
        "tune": {"num_trials": 4, "space": SPACE},
    }  # fmt: skip
    return Story(parse(RunConfig, values), clock=clock)


@pytest.fixture
def story(clock) -> Story:
    return tell(clock)


def trial(number: int, state: Any = "running", *results: Result, **facts: Any) -> Trial:
    params = {"model.heads": 2, "optim.lr": 0.00123456, "loader.num_neighbors": [10, 5]}
    values = None
    if state in ("finished", "stopped"):
        values = (facts.pop("value"),)
        facts = {"epochs": results[-1].epochs if results else 100, "seconds": 30.25} | facts
    return Trial(number, params, state, results, values, facts)


SETTINGS = "heads 2, lr 0.00123, num_neighbors [10, 5]"


def test_log_has_a_line_for_each_begin_rung_and_end(story, clock):
    assert story.lines([], NOTHING) == []
    assert story.lines([trial(0)], NOTHING) == [f"trial 0 begins: {SETTINGS}"]
    rung = trial(0, "running", Result(11, 0.5))
    assert story.lines([rung], NOTHING) == [
        "trial 0  epoch 11/100  val accuracy 50.00 %  best so far 50.00 % (trial 0)"
    ]
    assert story.lines([rung], {0: Live(20, 0.75, 9.0)}) == []
    clock.now += 60
    ended = trial(0, "stopped", Result(11, 0.5), Result(33, 0.75), value=0.75)
    assert story.lines([ended, trial(1)], NOTHING) == [
        "trial 0  epoch 33/100  val accuracy 75.00 %  best so far 75.00 % (trial 0)",
        "trial 0 stopped after 33 of 100 epochs  val accuracy 75.00 %  30.2 s  "
        "best so far 75.00 % (trial 0)  1/4 have ended  left about 0:03:00",
        f"trial 1 begins: {SETTINGS}",
    ]
    # the search itself says why
    assert story.lines([ended, trial(1, "failed", error="boom")], NOTHING) == []


def test_log_of_a_search_that_goes_on_says_where_it_is(story, clock):
    first = trial(0, "finished", value=0.5)
    assert story.lines([first, trial(1, "running", Result(11, 0.625))], NOTHING) == [
        "goes on with 2 of 4 trials: 1 running, 1 finished  best so far 62.50 % (trial 1)",
        "trials that go on: 1",
    ]
    clock.now += 10
    # what was done before does not count: 0.89 trials in 10 s, 2 are left
    (line,) = story.lines([first, trial(1, "finished", Result(11, 0.625), value=0.75)], NOTHING)
    assert line.endswith("best so far 75.00 % (trial 1)  2/4 have ended  left about 0:00:22")


def test_log_of_a_search_that_has_just_begun_tells_its_first_trial(story):
    assert story.lines([trial(0)], NOTHING) == [f"trial 0 begins: {SETTINGS}"]


def test_log_says_that_a_trial_took_over_other_settings(story):
    story.lines([trial(0)], NOTHING)
    other = replace(trial(0, "running", Result(11, 0.5)), params={"model.heads": 1})
    assert story.lines([other], NOTHING) == [
        "trial 0  epoch 11/100  val accuracy 50.00 %  best so far 50.00 % (trial 0)",
        "trial 0 goes on with heads 1",
    ]


def test_best_is_the_lowest_loss_and_never_no_number(clock):
    story = tell(clock, "val/loss")
    nan = trial(0, "running", Result(11, float("nan")))
    assert story.best([nan], NOTHING) is None
    trials = [nan, trial(1, "finished", value=0.5), trial(2), trial(3, "finished", value=0.5)]
    assert story.best(trials, NOTHING) == (1, 0.5)
    assert story.best(trials, {2: Live(3, 0.25, 1.0)}) == (2, 0.25)
    # what it said before it was judged last is no news
    judged = trial(2, "running", Result(11, 0.125))
    assert story.best([*trials[:2], judged], {2: Live(10, 0.25, 1.0)}) == (2, 0.125)
    failed = trial(2, "failed", Result(11, 0.125))
    assert story.best([*trials[:2], failed], NOTHING) == (1, 0.5)
    (line,) = story.lines([nan], NOTHING)[:1]
    assert "best so far" not in line


def test_time_left_is_not_told_before_there_is_a_pace(story, clock):
    assert story.head([], NOTHING) == ["no trial has begun", ""]
    # Ray starts
    clock.now += 30
    assert story.head([trial(0)], NOTHING) == ["1 of 4 trials: 1 running", "no value so far"]
    clock.now += 50
    assert story.left_s([trial(0)], {0: Live(50, None, 50.0)}) == 350
    assert story.left_s([trial(n, "failed") for n in range(4)], NOTHING) == 0
    assert story.head([trial(0)], {0: Live(50, 0.5, 50.0)}) == [
        "1 of 4 trials: 1 running  left about 0:05:50",
        f"best so far val accuracy 50.00 %  trial 0: {SETTINGS}",
    ]


def test_a_grid_has_no_more_trials_than_combinations(clock):
    values = {
        "name": "search", "data": {"uri": "data"}, "train": {"monitor": "val/loss"},
        "tune": {"search": "grid", "space": {"model.heads": {"choice": [1, 2, 4]}}},
    }  # fmt: skip
    assert Story(parse(RunConfig, values), clock=clock).num_trials == 3


def test_setting_names_are_as_short_as_they_can_be():
    assert setting_names(["model.dropout", "optim.lr", "a.name", "b.name"]) == {
        "model.dropout": "dropout", "optim.lr": "lr", "a.name": "a.name", "b.name": "b.name",
    }  # fmt: skip
    assert [setting_text(value) for value in (0.00123456, 1e30, 2, "adam", [5], None)] == [
        "0.00123", "1e+30", "2", "adam", "[5]", "None",
    ]  # fmt: skip


TRIALS = [
    trial(0, "stopped", Result(11, 0.5), value=0.5),
    trial(1, "running", Result(11, 0.625)),
    trial(2, "finished", Result(11, 0.25), Result(33, 0.5), value=0.75, epochs=100, seconds=1234.5),
    Trial(3, {"model.heads": 16}, "failed", facts={"error": "boom"}),
    trial(4),
]
LIVE = {1: Live(15, 0.65, 4.5)}


def shown(what: Any, width: int, height: int = 40) -> list[str]:
    console = Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )
    if isinstance(what, Story):
        board = Board(what, console)
        board.show(TRIALS, LIVE)
        what = board
    with console.capture() as captured:
        console.print(what)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_table_has_what_goes_on_first_then_the_newest(story):
    assert shown(trials_table(story, TRIALS, LIVE, rows=9), 85) == [
        "trial  heads  lr       num_neighbors       rung  accuracy   epochs  seconds  state",
        "    4  2      0.00123  [10, 5]                               0/100           running",
        "    1  2      0.00123  [10, 5]               11   65.00 %   15/100        4  running",
        "    3  16                                                    0/100           failed",
        "    2  2      0.00123  [10, 5]               33   75.00 %  100/100    1,234  finished",
        "    0  2      0.00123  [10, 5]               11   50.00 %   11/100       30  stopped",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_board_fits_the_terminal(story, width):
    story.head([], NOTHING)
    lines = shown(story, width)
    assert max(map(len, lines)) <= width
    assert len(lines) == 2 + 1 + len(TRIALS)
    assert lines[0].startswith("5 of 4 trials: 2 running, 1 finished, 1 stopped, 1 failed")
    assert lines[1].startswith("best so far val accuracy 75.00 %  trial 2: heads 2, lr 0")
    # figures are never cut
    assert lines[6].split()[0] == "2"
    assert lines[6].endswith("33   75.00 %  100/100    1,234  finished")


def test_board_has_as_many_rows_as_the_terminal_has_room_for(story):
    lines = shown(story, 80, height=8)
    assert len(lines) == 7
    assert [line.split()[0] for line in lines[3:6]] == ["4", "1", "3"]
    assert lines[6] == "and 2 more"


def test_board_says_lines_above_the_table(story):
    file = io.StringIO()
    with Board(story, Console(file=file, width=80)) as board:
        board.say("trial [1] failed")
        board.show(TRIALS, LIVE)
    assert "trial [1] failed\n" in file.getvalue()
