"""Training without Ray beside one and two workers; tests/test_cli_bench.py does so with Ray."""

import io
import os
import threading
from pathlib import Path

import pytest
from rich.console import Console

from dnformer.bench import train
from dnformer.bench.train import ALONE, CONTENDERS, ONE, TWO, Contender, Settings, Timed
from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.manifest import read_manifest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.driver import Driver
from dnformer.errors import BackendError, ConfigError, DataError
from dnformer.group import Group
from dnformer.parsing import parse
from dnformer.training.run import Run, portable
from dnformer.training.worker import Job

SMALL = Settings(repeats=1, nodes=200, changes=["train.epochs=3", "loader.batch_size=30"])


def timed(*seconds: float, sample: float = 0.5) -> Timed:
    """Epochs of 120 seeds, whose records leave out a tenth of the time."""
    records = [
        {
            "seconds": 0.9 * wall,
            "seeds_per_s": 120 / (0.9 * wall),
            "edges_per_s": 1200 / (0.9 * wall),
            "stage_seconds": {"sample": {"mean": sample, "max": 9.0}},
        }
        for wall in seconds
    ]
    return Timed(list(seconds), records)


def test_compare_takes_the_median_of_the_rounds_ratios() -> None:
    rounds = {
        ALONE.impl: [timed(1.0, 1.0), timed(2.0, 2.0), timed(4.0, 4.0)],
        # the last round met a busy machine
        ONE.impl: [timed(1.0, 1.2), timed(2.2, 2.2), timed(40.0, 40.0)],
        TWO.impl: [timed(0.5, 0.5, sample=0.1), timed(1.1, 1.1, sample=0.3), timed(8.0, 8.0)],
    }
    found = train.compare("some", rounds)
    assert [(row.impl, row.workers, row.graph) for row in found.rows] == [
        (contender.impl, contender.workers, "some") for contender in CONTENDERS
    ]
    two = found.rows[2]
    assert (two.seconds, two.low, two.high, two.epochs) == (1.1, 0.5, 8.0, 6)
    assert two.seeds == 120
    assert two.seeds_per_s == pytest.approx(120 / 1.1)
    assert two.edges_per_s == pytest.approx(1200 / (0.9 * 1.1))
    assert two.stages == pytest.approx({"sample": (0.1 * 2 + 0.3 * 2 + 0.5 * 2) / 6})
    speed, share = found.targets
    assert (speed.found, speed.at_least, speed.met) == (pytest.approx(2.2), 1.6, True)
    assert share.found == pytest.approx(1.1)
    assert (share.at_most, share.met) == (None, True)


def test_compare_bounds_rays_share_of_long_epochs() -> None:
    rounds = {ALONE.impl: [timed(60.0)], ONE.impl: [timed(62.0)], TWO.impl: [timed(40.0)]}
    speed, share = train.compare("some", rounds).targets
    assert (speed.found, speed.met) == (pytest.approx(1.55), False)
    assert (share.found, share.at_most, share.met) == (pytest.approx(62 / 60), 1.03, False)


def test_in_turns_begins_each_round_with_the_next_contender() -> None:
    order: list[tuple[str, int]] = []

    def fake(contender: Contender, turn: int) -> Timed:
        order.append((contender.impl, turn))
        return timed(float(len(order)))

    found = train.in_turns(2, fake)
    a, b, c = (contender.impl for contender in CONTENDERS)
    assert order == [(a, 0), (b, 0), (c, 0), (b, 1), (c, 1), (a, 1)]
    assert [each.seconds for each in found[a]] == [[1.0], [6.0]]


def test_confined_binds_threads_old_and_new() -> None:
    before, found = os.sched_getaffinity(0), []
    begun, go = threading.Event(), threading.Event()

    def look() -> None:
        begun.set()
        go.wait()
        found.append(os.sched_getaffinity(0))

    old = threading.Thread(target=look)
    old.start()
    begun.wait()
    with train.confined(1):
        new = threading.Thread(target=look)
        new.start()
        go.set()
        for thread in (old, new):
            thread.join()
        assert found == [{min(before)}] * 2
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.workers=3", "--set train.workers=3: the bench decides name, storage_path"),
        ("train={epochs: 3}", "the bench decides"),
        ("train.epochs=1", "the first is not timed"),
        ("train.epoch=3", "unknown key 'train.epoch'"),
    ],
)
def test_run_refuses_a_change(change: str, message: str) -> None:
    settings = SMALL._replace(changes=[change])
    with pytest.raises(ConfigError, match=message.replace("{", r"\{")):
        train.run(settings, say=lambda text: None)


def test_run_of_a_graph_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no dataset here"):
        train.run(SMALL._replace(graph=str(tmp_path / "none")), say=lambda text: None)


def test_run_on_one_core_is_refused() -> None:
    with train.confined(1), pytest.raises(BackendError, match="may use 1"):
        train.run(SMALL, say=lambda text: None)


def test_train_timed_gives_the_epochs_after_the_first(tmp_path: Path) -> None:
    uri = str(tmp_path / "data")
    ingest(SyntheticSource(nodes=40, degree=4, features=3, classes=2), uri)
    values = {
        "name": "run",
        "storage_path": str(tmp_path),
        "data": {"uri": uri, "split": {"random": [0.6, 0.2, 0.2]}},
        "train": {"epochs": 3, "monitor": "val/loss"},
        "cache": {"dir": str(tmp_path / "store")},
    }
    config = parse(RunConfig, values)
    fingerprint = read_manifest(uri).fingerprint
    told: list[str] = []
    with Run(config, fingerprint) as opened:
        job = Job(portable(opened.config), fingerprint, opened.attempt)
        found = train.train_timed(
            job, Group(), Driver(report=lambda record: told.append(record["kind"]))
        )
    assert [record["epoch"] for record in found.records] == [1, 2]
    assert len(found.seconds) == 2
    # the record's own time ends before its checkpoint is written
    for wall, record in zip(found.seconds, found.records, strict=True):
        assert wall > record["seconds"] > 0
    assert told.count("epoch") == 3
    assert told[0] == "start"


def test_show_prints_contenders_stages_and_targets() -> None:
    rounds = {contender.impl: [timed(60.0)] for contender in CONTENDERS}
    console = Console(file=io.StringIO(), width=150)
    train.show(train.compare("some", rounds), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "train: some, 120 seeds" in text
    assert "Ray, 2 workers" in text
    assert "sample 0.50" in text
    assert "not met" in text
    assert "torch" in train.header()
