"""Starts that are killed anywhere: the next goes on, and the run equals one nobody stopped."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.training.sinks import read_metrics

from .resume.harness import Ended, Starts, Workers, complete_steps, leftovers, tear, told
from .resume.kills import DRIVER, Kill
from .resume.reading import resumable_step, weights
from .resume.watched_s3 import WatchedS3

STEPS_PER_EPOCH, EPOCHS = 8, 3
STEPS = STEPS_PER_EPOCH * EPOCHS
MOST = 3
RECIPES: dict[str, dict[str, Any]] = {
    "float32": {"optim": {"schedule": "cosine"}},
    "float64": {
        "train": {"precision": "float64", "patience": 2},
        "optim": {"name": "adamw", "warmup_steps": 5, "schedule": "plateau",
                  "plateau_patience": 1, "clip_norm": 0.5, "ema_decay": 0.9},
        "loss": {"label_smoothing": 0.1, "class_weights": "balanced"},
        "eval": {"mode": "sampled"},
    },
}  # fmt: skip


@dataclass
class Place:
    """Where the runs of this module are, and what starts them."""

    folder: Path
    starts: Starts
    s3: WatchedS3
    straight: dict[tuple[str, int], Path]

    def config(self, name: str, recipe: str, **sections: dict[str, Any]) -> dict[str, Any]:
        """A run of `STEPS` steps with dropout, each of three micro-batches."""
        values: dict[str, Any] = {
            "name": name,
            "storage_path": str(self.folder / "runs"),
            "data": {"uri": str(self.folder / "sbm"), "split": {"random": [0.6, 0.2, 0.2]}},
            "loader": {"num_neighbors": 4, "batch_size": 6, "threads": 1},
            "model": {"hidden": 8, "layers": 2, "heads": 2, "dropout": 0.2},
            "train": {"epochs": EPOCHS, "threads": 1, "log_every": 1, "micro_batches": MOST,
                      "monitor": "val/loss"},
            "cache": {"dir": str(self.folder / "store")},
        }  # fmt: skip
        for section, keys in (*RECIPES[recipe].items(), *sections.items()):
            values[section] = values.get(section, {}) | keys
        return values

    def uninterrupted(self, recipe: str, workers: int) -> str:
        """The run that nobody stopped."""
        if (recipe, workers) not in self.straight:
            name = f"straight-{recipe}-{workers}"
            ended = self.starts.start(self.config(name, recipe), Workers(workers))
            assert "result" in ended.told, ended.told
            self.straight[recipe, workers] = self.folder / "runs" / name
        return str(self.straight[recipe, workers])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("resume")
    source = SyntheticSource(nodes=240, classes=3, features=8, degree=6, noise=0.5)
    ingest(source, str(folder / "sbm"))
    with WatchedS3() as s3, Starts(folder, **s3.environment) as starts:
        found = Place(folder, starts, s3, {})
        for recipe in RECIPES:
            starts.warm_up(found.config(f"straight-{recipe}-0", recipe))
            found.straight[recipe, 0] = folder / "runs" / f"straight-{recipe}-0"
        yield found


@dataclass(frozen=True)
class Death:
    """A start that is killed, and what it is like to it."""

    groups: tuple[Workers, ...]
    patient: bool = False
    slow_s: float = 0.0
    torn: bool = False


def interval(checkpoint: dict[str, Any]) -> int:
    """Steps between two checkpoints at most."""
    by_epochs = checkpoint["every_epochs"] * STEPS_PER_EPOCH
    return min(checkpoint["every_steps"] or by_epochs, by_epochs)


def resumed_at(run: Path) -> int:
    """The step at which the last group of workers began, by the name of its records."""
    names = [file.stem.split("-") for file in run.glob("metrics/*.jsonl")]
    return max((int(attempt), int(first)) for attempt, first in names)[1]


def steps_recorded(run: Path) -> int:
    """The last step of which there is a record, also a cut one's predecessor."""
    return max((record["step"] for record in read_metrics(str(run))), default=0)


def run_and_die(place: Place, config: dict[str, Any], death: Death) -> Ended:
    ended = place.starts.start(config, *death.groups, slow_s=death.slow_s, patient=death.patient)
    assert ended.killed or "result" in ended.told, ended.told
    return ended


def assert_lost_little(run: Path, checkpoint: dict[str, Any], *, before: int) -> int:
    """The step from which the next start goes on, which is `before` at least."""
    step, complete = resumable_step(str(run)), complete_steps(run)
    assert step in (complete or [0])
    assert step >= before, "a complete checkpoint was lost"
    # one in the background is complete before the next one begins
    most = interval(checkpoint) * (2 if checkpoint["background"] else 1)
    assert steps_recorded(run) - step <= most, "more steps run twice than the interval"
    return step


def records(run: str, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run) if record["kind"] == kind]


def assert_equal_runs(run: str, straight: str, *, same: bool, precision: str) -> None:
    """Records without gap or repetition, and what DESIGN section 6 says of losses and weights."""
    for kind in ("step", "epoch"):
        positions = [[(r["epoch"], r["step"]) for r in records(each, kind)]
                     for each in (run, straight)]  # fmt: skip
        assert positions[0] == positions[1]
    losses = [[r["train/loss"] for r in records(each, "step")] for each in (run, straight)]
    tensors = [weights(each) for each in (run, straight)]
    assert tensors[0].keys() == tensors[1].keys()
    if same:
        assert losses[0] == losses[1]
        assert [name for name in tensors[0] if not tensors[0][name].equal(tensors[1][name])] == []
    elif precision == "float32":
        np.testing.assert_allclose(losses[0][:20], losses[1][:20], rtol=0, atol=1e-5)
    else:
        np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-9)
        for name, tensor in tensors[0].items():
            torch.testing.assert_close(tensor, tensors[1][name], rtol=0, atol=1e-9, msg=name)


CHECKPOINTS = st.fixed_dictionaries(
    {
        "every_steps": st.sampled_from([1, 2, 3, 5, None]),
        "every_epochs": st.sampled_from([1, 2]),
        "keep": st.sampled_from([1, 2]),
        "background": st.booleans(),
    }
)


@st.composite
def a_group(draw: st.DrawFn, least: int) -> Workers:
    workers = draw(st.integers(least, MOST))
    rank = draw(st.integers(0, max(workers - 1, 0)))
    kill = Kill(rank, draw(st.integers(0, STEPS)), draw(st.integers(0, 25)))
    if workers > 1 and draw(st.integers(0, 5)) == 0:
        kill = Kill(DRIVER, 0, draw(st.integers(1, 25)))
    return Workers(workers, kill)


@st.composite
def a_death(draw: st.DrawFn) -> Death:
    first = draw(a_group(0))
    more = draw(st.lists(a_group(1), max_size=1)) if first.workers else []
    return Death(
        (first, *more),
        patient=draw(st.booleans()),
        slow_s=draw(st.sampled_from([0.0, 0.01])),
        torn=draw(st.booleans()),
    )


# as many as take a minute; `--hypothesis-profile=long` takes more
FEW = settings.default.max_examples // 6 if settings.default else 15


@settings(max_examples=FEW)
@given(
    recipe=st.sampled_from(sorted(RECIPES)),
    deaths=st.lists(a_death(), min_size=1, max_size=2),
    last=st.integers(0, MOST),
    checkpoint=CHECKPOINTS,
)
def test_run_killed_anywhere_goes_on_and_equals_the_straight_one(
    place, recipe, deaths, last, checkpoint
):
    config = place.config("killed", recipe, checkpoint=checkpoint)
    run = place.folder / "runs" / "killed"
    shutil.rmtree(run, ignore_errors=True)
    step = 0
    for death in deaths:
        ended = run_and_die(place, config, death)
        note(f"{death}: ended {ended.status}, {complete_steps(run)}, at {steps_recorded(run)}")
        if not ended.killed:
            break
        if death.torn:
            tear(run, after=resumable_step(str(run)))
        step = assert_lost_little(run, checkpoint, before=step)
    finished = (run / "result.json").exists()
    ended = place.starts.start(config, Workers(last))
    assert "result" in ended.told, ended.told
    assert finished or resumed_at(run) == step
    sizes = {max(group.workers, 1) for death in deaths for group in death.groups} | {max(last, 1)}
    same = len(sizes) == 1
    straight = place.uninterrupted(recipe, sizes.pop() if same else 0)
    assert_equal_runs(str(run), straight, same=same, precision=recipe)
    assert leftovers(run) == []


@pytest.mark.parametrize(
    ("first", "then", "background"),
    [(0, 0, False), (0, 0, True), (1, 3, False), (2, 2, False), (3, 2, True)],
    ids=str,
)
def test_run_killed_mid_epoch_resumes_at_its_last_checkpoint(place, first, then, background):
    checkpoint = {"every_steps": 3, "every_epochs": 1, "keep": 1, "background": background}
    config = place.config("mid", "float32", checkpoint=checkpoint)
    run = place.folder / "runs" / "mid"
    shutil.rmtree(run, ignore_errors=True)
    death = Death((Workers(first, Kill(0, 14, 0)),))
    assert run_and_die(place, config, death).killed
    step = assert_lost_little(run, checkpoint, before=0)
    assert step == 12 or (background and step == 9)
    assert step % STEPS_PER_EPOCH, "the checkpoint is in the middle of an epoch"
    ended = place.starts.start(config, Workers(then))
    assert "result" in ended.told, ended.told
    assert resumed_at(run) == step
    same = max(first, 1) == max(then, 1)
    straight = place.uninterrupted("float32", then if same else 0)
    assert_equal_runs(str(run), straight, same=same, precision="float32")


@pytest.fixture
def s3(place: Place) -> Iterator[WatchedS3]:
    """The server, to which the environment of this process leads."""
    import boto3
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in place.s3.environment.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=place.s3.bucket.removeprefix("s3://"))
        yield place.s3
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize(
    ("ending", "number", "stored", "step", "workers"),
    [(".jsonl", 5, True, 10, (0, 0)), (".safetensors", 4, True, 10, (0, 2)),
     ("state.json", 4, True, 15, (2, 2)), ("state.json", 4, False, 10, (0, 0))],
    ids=["metrics", "tensors", "state", "no-state"],
)  # fmt: skip
def test_run_on_s3_killed_at_a_write_goes_on_and_equals_the_straight_one(
    place, s3, ending, number, stored, step, workers
):
    # checkpoints at 5, 8, 10 and 15; the records go before each, and once at the start
    name = f"s3-{ending.strip('.')}-{stored}"
    config = place.config(name, "float32", checkpoint={"every_steps": 5})
    config["storage_path"] = s3.bucket
    run = f"{s3.bucket}/{name}"
    s3.kill_at(ending, number, stored=stored)
    assert place.starts.start(config, Workers(workers[0])).killed
    assert resumable_step(run) == step
    ended = place.starts.start(config, Workers(workers[1]))
    assert "result" in ended.told, ended.told
    assert records(run, "start")[-1]["step"] == step
    same = max(workers[0], 1) == max(workers[1], 1)
    straight = place.uninterrupted("float32", workers[1] if same else 0)
    assert_equal_runs(run, straight, same=same, precision="float32")


@pytest.mark.parametrize("where", ["local", "s3"])
def test_workers_that_outlive_their_start_stop_when_the_next_one_has_begun(place, s3, where):
    config = place.config(f"outlived-{where}", "float32", checkpoint={"every_steps": 3})
    if where == "s3":
        config["storage_path"] = s3.bucket
    run = f"{config['storage_path']}/{config['name']}"
    first = place.starts.start(config, Workers(2, Kill(DRIVER, 5, 0)), outlived=True)
    assert first.killed
    written = len(s3.writes)
    assert resumable_step(run) == 3
    ended = place.starts.start(config, Workers(2))
    assert "result" in ended.told, ended.told
    said = told(first.folder, "0-0", wait_s=60)
    assert said["kind"] == "CheckpointError"
    assert "attempt 1 was superseded" in said["error"]
    assert_equal_runs(run, place.uninterrupted("float32", 2), same=True, precision="float32")
    later = s3.writes[written:]
    theirs = [write for write in later if write.pid == s3.writes[written - 1].pid]
    # its own records at most, in a file that nobody reads beyond where the next one began
    assert {write.path.rpartition("/")[2] for write in theirs} <= {"1-0.jsonl"}
    assert bool(later) == (where == "s3")
