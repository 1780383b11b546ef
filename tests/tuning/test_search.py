"""A search of fake trials: what it records, what it goes on with, and what it refuses."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dnformer.errors import CheckpointError, ConfigError, InUseError
from dnformer.tuning.record import Record
from dnformer.tuning.search import Runner, Watch, tune

from . import fake


def events(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted((folder / "runs/search/trials/events").glob("*.json"))
    }


def table(folder: Path) -> list[dict]:
    return pq.read_table(folder / "runs/search/trials.parquet").to_pylist()


def epochs_done(folder: Path) -> int:
    """Over all trials and starts, those done again counted again."""
    trials = (folder / "runs/search/trials").glob("*/epochs")
    return sum(len(path.read_text().splitlines()) for path in trials)


def test_search_runs_every_trial_and_finds_the_best(tmp_path):
    found = fake.search(tmp_path)
    assert [trial.number for trial in found.trials] == list(range(8))
    assert {trial.state for trial in found.trials} == {"finished"}
    values = [fake.curve({"optim": {"lr": t.params["optim.lr"]},
                          "model": {"heads": t.params["model.heads"]}}, 8)
              for t in found.trials]  # fmt: skip
    assert [trial.values for trial in found.trials] == [(value,) for value in values]
    assert found.best is not None
    assert found.best.values == (max(values),)
    assert found.front == (found.best,)
    rows = table(tmp_path)
    assert [row["value"] for row in rows] == values
    assert [row["params/optim.lr"] for row in rows] == [
        trial.params["optim.lr"] for trial in found.trials
    ]
    assert {row["epochs"] for row in rows} == {9}


def test_search_that_is_finished_runs_nothing_and_takes_more_trials(tmp_path):
    first = fake.search(tmp_path)
    before, said = events(tmp_path), []

    def refuse(source, trainable):
        raise AssertionError("nothing is left to run")

    config = fake.config_of(tmp_path)
    again = tune(config, watch=Watch(said.append), runner=Runner(fake.fake_trial, refuse))
    assert again.trials == first.trials
    assert "is finished" in said[0]
    more = fake.search(tmp_path, num_trials=10)
    assert more.trials[:8] == first.trials
    assert len(more.trials) == 10
    assert dict(list(events(tmp_path).items())[: len(before)]) == before


@pytest.mark.parametrize("at_a_time", [1, 3])
def test_asha_lets_the_best_third_go_on_from_rung_to_rung(tmp_path, at_a_time):
    found = fake.search(tmp_path, at_a_time, scheduler="asha", grace_epochs=1, num_trials=12)
    ends = sorted(trial.facts["epochs"] for trial in found.trials)
    if at_a_time == 1:
        assert ends == [1] * 8 + [3] * 2 + [9] * 2
    assert {trial.state for trial in found.trials if trial.facts["epochs"] < 9} == {"stopped"}
    assert epochs_done(tmp_path) == sum(ends) < 0.5 * 12 * 9
    best = max(found.trials, key=lambda trial: trial.results[0].value)
    assert best.facts["epochs"] == 9
    assert found.best == best
    again = fake.search(tmp_path, at_a_time, scheduler="asha", grace_epochs=1, num_trials=12)
    assert again == found


def test_asha_of_two_trials_trains_the_better_one_to_its_end(tmp_path):
    found = fake.search(tmp_path, scheduler="asha", grace_epochs=1, num_trials=2)
    assert sorted(trial.facts["epochs"] for trial in found.trials) == [1, 9]
    assert found.best is not None
    assert found.best.facts["epochs"] == 9


def test_stopping_asha_ends_trials_at_rungs_and_spends_fewer_epochs(tmp_path):
    found = fake.search(tmp_path, scheduler="asha_stopping", grace_epochs=1, num_trials=12)
    assert {trial.state for trial in found.trials} == {"finished", "stopped"}
    for trial in found.trials:
        rungs = [result.epochs for result in trial.results]
        assert rungs == [1, 3][: len(rungs)]
        assert trial.facts["epochs"] == (rungs[-1] if trial.state == "stopped" else 9)
    assert epochs_done(tmp_path) < 0.6 * 12 * 9
    again = fake.search(tmp_path, scheduler="asha_stopping", grace_epochs=1, num_trials=12)
    assert again == found


@pytest.mark.parametrize(
    ("options", "at_a_time"),
    [
        ({"search": "optuna", "scheduler": "asha_stopping", "grace_epochs": 1}, 1),
        ({"search": "optuna", "scheduler": "asha", "grace_epochs": 1}, 1),
        ({"search": "random", "scheduler": "none"}, 2),
        ({"search": "grid", "scheduler": "median", "grace_epochs": 2, "space": {
            "model.heads": {"choice": [1, 2, 4]}, "optim.lr": {"choice": [0.1, 0.01, 0.001]}}}, 1),
    ],
    ids=["tpe-stopping", "tpe-asha", "random", "grid-median"],
)  # fmt: skip
def test_search_killed_three_times_gives_the_table_of_one_never_killed(
    tmp_path, options, at_a_time
):
    options = options | {"num_trials": 9}
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    fake.search(straight, at_a_time, **options)
    command = [sys.executable, "-m", "tests.tuning.fake", str(killed), str(at_a_time)]
    draws, known = random.Random(at_a_time), dict[str, bytes]()
    fake.config_of(killed)
    for _ in range(3):
        process = subprocess.Popen([*command, json.dumps(options)])
        deadline, aim = time.monotonic() + 60, len(known) + draws.randint(1, 5)
        while len(events(killed)) < aim and time.monotonic() < deadline and process.poll() is None:
            time.sleep(draws.uniform(0, 0.03))
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = events(killed)
        assert dict(list(found.items())[: len(known)]) == known
        assert len(found) > len(known)
        known = found
    fake.search(killed, at_a_time, **options)
    found = events(killed)
    assert dict(list(found.items())[: len(known)]) == known
    assert table(killed) == table(straight)
    # a kill costs each trial that went on at most the epoch that it was in
    assert epochs_done(killed) <= epochs_done(straight) + 3 * at_a_time


def test_another_search_in_its_folder_is_refused_with_what_differs(tmp_path):
    fake.search(tmp_path)
    space = fake.SPACE | {"model.heads": {"choice": [1, 2]}}
    with pytest.raises(CheckpointError, match=r"tune\.space is .*the search has"):
        fake.search(tmp_path, space=space)
    with pytest.raises(CheckpointError, match=r"tune\.scheduler is 'asha', the search has 'none'"):
        fake.search(tmp_path, scheduler="asha")
    with pytest.raises(ConfigError, match=r"tune\.space is empty"):
        fake.search(tmp_path, space={})


def test_another_order_of_the_space_is_another_search(tmp_path):
    fake.search(tmp_path)
    with pytest.raises(CheckpointError, match=r"tune\.space's order is \['optim\.lr', 'model"):
        fake.search(tmp_path, space=dict(reversed(fake.SPACE.items())))


def test_fresh_forgets_the_trials(tmp_path):
    fake.search(tmp_path)
    config = fake.config_of(tmp_path, num_trials=2)
    runner = Runner(fake.fake_trial, fake.in_threads(1))
    assert len(tune(config, start="fresh", runner=runner).trials) == 2
    assert len(events(tmp_path)) == 4


def test_a_second_start_beside_a_live_one_is_refused(tmp_path):
    config = fake.config_of(tmp_path).resolved(micro_batches=1, threads=1)
    with Record(config, "f"), pytest.raises(InUseError, match="search that is alive"):
        fake.search(tmp_path)


def test_trials_that_fail_are_recorded_and_the_others_go_on(tmp_path):
    def trainable(task, report):
        if task.number == 1:
            report({"kind": "failed", "error": "the loss is not finite"})
        else:
            fake.fake_trial(task, report)

    said = []
    runner = Runner(trainable, fake.in_threads(1))
    found = tune(fake.config_of(tmp_path, num_trials=3), watch=Watch(said.append), runner=runner)
    assert [trial.state for trial in found.trials] == ["finished", "failed", "finished"]
    assert found.trials[1].facts == {"error": "the loss is not finite"}
    assert said == ["trial 1 failed: the loss is not finite"]
    assert table(tmp_path)[1]["error"] == "the loss is not finite"


def test_several_objectives_have_a_front(tmp_path):
    found = fake.search(
        tmp_path, search="optuna", objectives=["metric", "seconds_per_epoch", "parameters"]
    )
    assert all(len(trial.values) == 3 for trial in found.trials)
    assert found.best == found.front[0]
