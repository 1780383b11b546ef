"""The record: events that are written once, and what is refused."""

import json

import pytest

from dnformer.errors import CheckpointError
from dnformer.tuning.record import Record, row_of
from dnformer.tuning.trials import Result, Trial

from . import fake


@pytest.fixture
def config(tmp_path):
    return fake.config_of(tmp_path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs/search"


def fill(record: Record) -> None:
    record.append("begin", 0, params={"optim.lr": 0.1})
    record.append("result", 0, epochs=1, value=0.5, stop=False)
    record.append("begin", 1, params={"optim.lr": 0.2})
    record.append("result", 1, epochs=1, value=None, stop=True)
    record.append("end", 0, state="finished", values=[0.7], facts={"epochs": 9})


def test_record_has_the_trials_that_its_events_make(config):
    with Record(config, "f") as record:
        fill(record)
        first, second = record.trials
    assert first == Trial(
        0, {"optim.lr": 0.1}, "finished", (Result(1, 0.5),), (0.7,), {"epochs": 9}
    )
    assert second.state == "running"
    assert second.results[0].value != second.results[0].value
    with Record(config, "f") as again:
        assert again.trials[0] == first
        assert len(again.events) == 5


def test_two_writers_find_the_number_taken(config, folder):
    with Record(config, "f") as record:
        fill(record)
        name = folder / "trials/events/000005.json"
        name.write_bytes(b"{}")
        with pytest.raises(CheckpointError, match="another start of the search has gone on"):
            record.append("lost", 1)
        assert name.read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda events: (events / "000002.json").unlink(), "000002.json is missing"),
        (lambda events: (events / "000002.json").write_text("{"), "000002.json: damaged"),
        (
            lambda events: (events / "000000.json").write_text(
                json.dumps({"kind": "end", "trial": 0, "time": 0, "state": "finished"})
            ),
            "000000.json: end of trial 0 does not follow",
        ),
    ],
)
def test_damaged_events_are_named(config, folder, damage, message):
    with Record(config, "f") as record:
        fill(record)
    damage(folder / "trials/events")
    with pytest.raises(CheckpointError, match=message), Record(config, "f"):
        pass


def test_a_folder_of_something_else_is_refused(config, folder):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    refused = pytest.raises(CheckpointError, match=r"holds run\.json but no search\.json")
    with refused, Record(config, "f"):
        pass
    assert (folder / "run.json").exists()


def test_another_dataset_is_refused(config):
    with Record(config, "f" * 20):
        pass
    refused = pytest.raises(CheckpointError, match="dataset is gggggggggggg, the search has ffff")
    with refused, Record(config, "g" * 20):
        pass


def test_threads_and_micro_batches_stay_as_the_first_start_decided(config):
    train = config.train.model_copy(update={"threads": 2, "micro_batches": 3, "workers": 2})
    with Record(config.model_copy(update={"train": train}), "f"):
        pass
    with Record(config, "f") as record:
        assert (record.config.train.threads, record.config.train.micro_batches) == (2, 3)


def test_row_of_a_trial_that_goes_on_has_its_last_result():
    trial = Trial(3, {"model.heads": 2}, results=(Result(1, 0.2), Result(3, 0.4)))
    row = row_of(trial)
    assert (row["trial"], row["value"], row["epochs"], row["params/model.heads"]) == (3, 0.4, 3, 2)
