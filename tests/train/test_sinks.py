"""Metric records: whole, in order, and none twice after a resume."""

from pathlib import Path

import pytest

from dnformer import storage
from dnformer.train.sinks import MetricsFile, read_metrics


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


def test_read_metrics_drops_records_past_a_resumed_step(run):
    write(run, 1, 0, [record(2), record(4), record(6, lost=True)])
    write(run, 2, 4, [record(6, lost=False), record(8)])
    assert read_metrics(run) == [record(2), record(4), record(6, lost=False), record(8)]


def test_read_metrics_orders_attempts_by_number(run):
    for attempt, step in ((9, 0), (10, 4)):
        write(run, attempt, step, [record(step + 2, attempt=attempt)])
    assert [r["attempt"] for r in read_metrics(run)] == [9, 10]


def test_read_metrics_of_one_attempt_leaves_the_others_out(run):
    write(run, 1, 0, [record(2)])
    write(run, 2, 2, [record(4)])
    assert read_metrics(run, attempt=2) == [record(4)]


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


def test_metrics_file_is_on_disk_after_each_local_record(tmp_path):
    file = MetricsFile(str(tmp_path), attempt=1, first_step=0)
    file.write(record(2))
    assert read_metrics(str(tmp_path)) == [record(2)]


def test_read_metrics_ignores_other_files(run):
    write(run, 1, 0, [record(2)])
    storage.write_bytes(storage.join(run, "metrics/notes.txt"), b"hello")
    assert read_metrics(run) == [record(2)]


def test_read_metrics_without_a_run_is_empty(run):
    assert read_metrics(run) == []
