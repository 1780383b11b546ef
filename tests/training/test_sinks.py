"""Metric records: whole, in order, and none twice after a resume."""

import os
import threading
from pathlib import Path

import pytest

from dnformer import storage
from dnformer.training.sinks import Follower, MetricsFile, read_metrics


@pytest.fixture(params=["local", "memory"])
def run(request, tmp_path) -> str:
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/m"


def record(step: int, **values: object) -> dict:
    return {"kind": "epoch", "step": step, **values}


def write(run: str, attempt: int, first_step: int, records: list[dict]) -> None:
    file = MetricsFile(run, attempt=attempt, first_step=first_step)
    for one in records:
        file.write(one)
    file.publish()


def test_read_metrics_gives_records_in_order(run):
    write(run, 1, 0, [record(2, loss=0.5), record(4, loss=0.25)])
    assert read_metrics(run) == [record(2, loss=0.5), record(4, loss=0.25)]


def start(step: int, attempt: int, after: int | None) -> dict:
    return {"kind": "start", "step": step, "attempt": attempt, "after": after}


def test_read_metrics_drops_records_past_a_resumed_step(run):
    write(run, 1, 0, [start(0, 1, None), record(2), record(4), record(6, lost=True)])
    write(run, 2, 4, [start(4, 2, 1), record(6, lost=False), record(8)])
    steps = [record(2), record(4), record(6, lost=False), record(8)]
    assert [r for r in read_metrics(run) if r["kind"] == "epoch"] == steps


def test_read_metrics_goes_by_number_of_the_attempt(run):
    for attempt, step, after in ((9, 0, None), (10, 4, 9)):
        write(run, attempt, step, [start(step, attempt, after), record(step + 2, by=attempt)])
    assert [r["by"] for r in read_metrics(run) if r["kind"] == "epoch"] == [9, 10]


def test_read_metrics_leaves_out_attempts_beside_the_line(run):
    # 3 went on from what 1 still wrote after 2 had begun; 0 stood there before --fresh
    write(run, 0, 0, [start(0, 0, None), record(2, by=0)])
    write(run, 1, 0, [start(0, 1, None), record(2, by=1), record(4, by=1), record(6, by=1)])
    write(run, 2, 2, [start(2, 2, 1), record(4, by=2)])
    write(run, 3, 6, [start(6, 3, 1), record(8, by=3)])
    found = [(r["step"], r["by"]) for r in read_metrics(run) if r["kind"] == "epoch"]
    assert found == [(2, 1), (4, 1), (6, 1), (8, 3)]


def test_metrics_file_opened_again_at_the_same_step_keeps_the_last_of_each(run):
    write(run, 1, 0, [record(2, start=1)])
    write(run, 1, 0, [record(2, start=2), record(4, start=2)])
    assert read_metrics(run) == [record(2, start=2), record(4, start=2)]


def test_metrics_file_drops_a_line_that_a_kill_cut(tmp_path):
    run = str(tmp_path)
    write(run, 1, 0, [record(2)])
    path = Path(storage.join(run, "metrics/1-0.jsonl"))
    path.write_bytes(path.read_bytes() + b'{"kind": "ep')
    assert read_metrics(run) == [record(2)]
    write(run, 1, 0, [record(4)])
    assert read_metrics(run) == [record(2), record(4)]


def test_metrics_file_is_read_at_once_from_a_local_disk(tmp_path):
    file = MetricsFile(str(tmp_path), attempt=1, first_step=0)
    file.write(record(2))
    assert read_metrics(str(tmp_path)) == [record(2)]


@pytest.fixture
def synced(monkeypatch) -> list[int]:
    """Sizes of the files that were synced, in order."""
    sizes: list[int] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    return sizes


def test_metrics_file_syncs_what_a_checkpoint_relies_on(tmp_path, synced):
    file = MetricsFile(str(tmp_path), attempt=1, first_step=0)
    for step in range(20):
        file.write(record(step))
    synced.clear()
    file.publish()
    size = (tmp_path / "metrics/1-0.jsonl").stat().st_size
    assert synced == [size]


def test_metrics_file_syncs_at_most_each_second(tmp_path, synced, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    file = MetricsFile(str(tmp_path), attempt=1, first_step=0)
    synced.clear()
    for step in range(40):
        file.write(record(step))
        now += 0.0625
    assert len(synced) == 2


def test_metrics_file_elsewhere_goes_on_in_another_file_when_it_grew(tmp_path):
    run = f"memory://{tmp_path.name}/rolled"
    file = MetricsFile(run, attempt=1, first_step=4, file_bytes=1000)
    wide = "x" * 1000
    file.write(record(6, note=wide))
    file.publish()
    file.write(record(8))
    file.publish()
    assert storage.list_names(f"{run}/metrics") == ["1-4.jsonl", "1-6.jsonl"]
    assert storage.size(f"{run}/metrics/1-6.jsonl") < 100
    assert read_metrics(run) == [record(6, note=wide), record(8)]


def test_metrics_file_loses_nothing_that_is_written_while_it_publishes(tmp_path):
    run = f"memory://{tmp_path.name}/threads"
    file = MetricsFile(run, attempt=1, first_step=0, file_bytes=1000)
    written = threading.Event()

    def publish() -> None:
        while not written.is_set():
            file.publish()

    thread = threading.Thread(target=publish)
    thread.start()
    records = [record(step) for step in range(3000)]
    for one in records:
        file.write(one)
    written.set()
    thread.join()
    # what is there is more than a file takes, so that the next record begins another
    file.publish()
    file.write(record(3000))
    file.publish()
    assert len(storage.list_names(f"{run}/metrics")) > 1
    assert read_metrics(run) == [*records, record(3000)]


def test_follower_gives_each_record_once(run):
    file = MetricsFile(run, attempt=1, first_step=0)
    follower = Follower(run)
    for step in (2, 4):
        file.write(record(step))
        file.publish()
        assert follower.poll() == [record(step)]
        assert follower.poll() == []


def test_follower_goes_on_with_the_next_start(run):
    follower = Follower(run, since_attempt=2)
    write(run, 1, 0, [record(2)])
    assert follower.poll() == []
    first = MetricsFile(run, attempt=2, first_step=2)
    first.write(record(4))
    first.publish()
    assert follower.poll() == [record(4)]
    first.write(record(6, lost=True))
    first.publish()
    write(run, 3, 4, [record(6, lost=False)])
    assert follower.poll() == [record(6, lost=True), record(6, lost=False)]
    assert follower.poll() == []


def test_follower_waits_for_the_end_of_a_line(tmp_path):
    run = str(tmp_path)
    write(run, 1, 0, [record(2)])
    path, line = tmp_path / "metrics/1-0.jsonl", b'{"kind": "epoch", "step": 4, "n": "\xc3\xa9"}\n'
    follower = Follower(run)
    whole = path.read_bytes()
    path.write_bytes(whole + line[:-4])  # in the middle of a letter
    assert follower.poll() == [record(2)]
    assert follower.poll() == []
    path.write_bytes(whole + line)
    assert follower.poll() == [record(4, n="é")]


def test_follower_of_a_run_that_has_not_begun_waits(run):
    follower = Follower(run)
    assert follower.poll() == []
    write(run, 1, 0, [record(2)])
    assert follower.poll() == [record(2)]


def test_read_metrics_ignores_other_files(run):
    write(run, 1, 0, [record(2)])
    storage.write_bytes(storage.join(run, "metrics/notes.txt"), b"hello")
    assert read_metrics(run) == [record(2)]


def test_read_metrics_without_a_run_is_empty(run):
    assert read_metrics(run) == []


def test_follower_reads_only_what_was_added_on_s3(s3):
    run = f"{s3}/run"
    file, follower = MetricsFile(run, attempt=1, first_step=0), Follower(run)
    for step in (2, 4):
        file.write(record(step))
        file.publish()
        assert follower.poll() == [record(step)]
        assert follower.poll() == []
