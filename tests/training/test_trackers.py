"""TensorBoard reads each number of a run once, also after kills."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dnformer import storage
from dnformer.config import TrackingConfig
from dnformer.parsing import parse
from dnformer.training.sinks import scalars
from dnformer.training.trackers import TensorBoard, Tracker, open_trackers


@pytest.fixture(autouse=True)
def clock(monkeypatch) -> None:
    """Each start has a second of its own, by which TensorBoard orders files."""
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time.time",
                        lambda: float(next(seconds)))  # fmt: skip


@pytest.fixture(params=["local", "memory"])
def run(request, tmp_path) -> str:
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/tb"


def epoch(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "epoch", "epoch": step // 4, "step": step, "train/loss": loss}


def read(run: str, copy: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves as TensorBoard shows them; the files of a run elsewhere are copied first."""
    folder = storage.join(run, "tensorboard")
    if not storage.is_local(run):
        copy.mkdir()
        for name in storage.list_names(folder):
            (copy / name).write_bytes(storage.read_bytes(storage.join(folder, name)))
        folder = str(copy)
    events = EventAccumulator(folder, size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def open_one(run: str, first_step: int = 0) -> Tracker:
    config = parse(TrackingConfig, {"tensorboard": True})
    (tracker,) = open_trackers(config, run, name="run", params={}, first_step=first_step)
    return tracker


def test_tensorboard_has_the_numbers_of_every_record(run, tmp_path):
    tracker = open_one(run)
    tracker.write({"kind": "start", "epoch": 0, "step": 0})
    tracker.write({"kind": "step", "epoch": 0, "step": 4, "train/loss": 0.75})
    tracker.write(epoch(4, 0.5))
    tracker.write(epoch(8, 0.25))
    tracker.close()
    assert read(run, tmp_path / "copy") == {
        "epoch": [(4, 1.0), (8, 2.0)],
        "step/epoch": [(4, 0.0)],
        "train/loss": [(4, 0.5), (8, 0.25)],
        "step/train/loss": [(4, 0.75)],
    }


def test_tensorboard_after_a_kill_shows_no_step_twice(run, tmp_path):
    killed = open_one(run)
    for step in (4, 8, 12):
        killed.write(epoch(step, 1.0))
    killed.publish()  # a checkpoint at step 4 is the last one that was finished
    again = open_one(run, first_step=4)
    for step in (8, 12, 16):
        again.write(epoch(step, 0.5))
    again.close()
    assert read(run, tmp_path / "copy")["train/loss"] == [(4, 1.0), (8, 0.5), (12, 0.5), (16, 0.5)]
    killed.close()


def test_tensorboard_after_a_kill_that_lost_records_goes_on(run, tmp_path):
    killed = open_one(run)
    killed.write(epoch(4, 1.0))
    killed.publish()
    killed.write(epoch(8, 1.0))  # was on its way
    again = open_one(run, first_step=4)
    again.write(epoch(8, 0.5))
    again.close()
    assert read(run, tmp_path / "copy")["train/loss"] == [(4, 1.0), (8, 0.5)]
    killed.close()


def test_tensorboard_elsewhere_goes_on_in_another_file_when_it_grew(tmp_path):
    run = f"memory://{tmp_path.name}/rolled"
    tracker = TensorBoard(run, first_step=0, file_bytes=1000)
    for step in range(40):
        tracker.write(epoch(step, 0.5))
        tracker.publish()
    tracker.close()
    files = storage.list_names(f"{run}/tensorboard")
    assert len(files) > 2
    assert all(storage.size(f"{run}/tensorboard/{name}") < 2000 for name in files)
    assert [step for step, _ in read(run, tmp_path / "copy")["train/loss"]] == list(range(40))


def test_tensorboard_elsewhere_leaves_nothing_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tracker = TensorBoard(f"memory://{tmp_path.name}/clean", first_step=0)
    assert list(tmp_path.iterdir())
    tracker.close()
    assert not list(tmp_path.iterdir())


def test_open_trackers_opens_none_that_nobody_asked_for(tmp_path):
    assert open_trackers(TrackingConfig(), str(tmp_path), name="run", params={}, first_step=0) == []
    assert not list(tmp_path.iterdir())


def test_scalars_flattens_and_leaves_words_out():
    record = {
        "kind": "epoch", "epoch": 1, "step": 8, "lr": 0.5, "world_size": 2, "note": "x",
        "steps_per_epoch": 4,
        "grad_norm": None, "stage_seconds": {"wait": {"mean": 1.0, "max": 2.0}},
        "peak_rss_bytes": {"mean": 3, "max": 4},
    }  # fmt: skip
    assert scalars(record) == {
        "epoch": 1.0, "lr": 0.5, "world_size": 2.0, "stage_seconds/wait/mean": 1.0,
        "stage_seconds/wait/max": 2.0, "peak_rss_bytes/mean": 3.0, "peak_rss_bytes/max": 4.0,
    }  # fmt: skip
