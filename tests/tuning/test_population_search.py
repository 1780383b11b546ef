"""Population based training for real: legs that go on from another trial's state."""

import json

import pytest

from dnformer.cli_tune import _Outcome
from dnformer.config import load_config
from dnformer.training import launch
from dnformer.training.sinks import read_metrics
from dnformer.tuning.search import Runner, tune
from dnformer.tuning.trial import run_trial

from . import fake

SPACE = {"optim.lr": {"loguniform": [1e-5, 1e-1]}, "model.dropout": {"uniform": [0.0, 0.6]}}


@pytest.fixture
def found(tmp_path):
    config = fake.config_of(tmp_path, num_trials=6, scheduler="pbt", grace_epochs=3, space=SPACE)
    train = config.train.model_copy(update={"monitor": "val/loss"})
    config = config.model_copy(update={"train": train})
    return tune(config, runner=Runner(run_trial, fake.in_threads(1)))


def test_a_trial_takes_over_a_better_ones_state_with_other_settings(tmp_path, found):
    assert [trial.state for trial in found.trials] == ["finished"] * 6
    events = sorted((tmp_path / "runs/search/trials/events").glob("*.json"))
    takeovers = [e for e in map(json.loads, (path.read_text() for path in events))
                 if e.get("source") is not None]  # fmt: skip
    assert takeovers
    for event in takeovers:
        leg = event["epochs"] // 3
        run = f"{found.uri}/trials/{event['trial']:04d}/leg-{leg}"
        first, second = read_metrics(run)[:2]
        assert (first["kind"], first["step"], first["after"]) == ("start", event["epochs"], None)
        assert second["epoch"] == event["epochs"]
        source = found.trials[event["source"]]
        better = [result.value for result in source.results if result.epochs == event["epochs"]]
        assert better[0] < event["value"]


def test_the_best_config_gives_the_same_value_from_the_state_that_was_taken_over_or_from_none(
    found,
):
    outcome = _Outcome(found)
    config = load_config(outcome.file)
    assert (config.train.continue_from is not None) is outcome.best.took_over
    result = launch.train(config)
    assert result["val"]["loss"] == outcome.best.values[0]


def test_pbt_again_runs_nothing(tmp_path, found):
    config = fake.config_of(tmp_path, num_trials=6, scheduler="pbt", grace_epochs=3, space=SPACE)
    train = config.train.model_copy(update={"monitor": "val/loss"})

    def refuse(source, trainable):
        raise AssertionError("nothing is left to run")

    again = tune(config.model_copy(update={"train": train}), runner=Runner(run_trial, refuse))
    assert again.trials == found.trials
