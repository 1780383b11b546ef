"""Two starts of one run never write together, in whatever order their accesses come."""

import re
import uuid
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from dnformer.config import RunConfig
from dnformer.parsing import parse
from dnformer.training.checkpoints import Meta, Snapshot, newest_checkpoint, read_checkpoint
from dnformer.training.run import Attempt, Run, first_attempt, run_uri
from dnformer.training.sinks import read_metrics
from dnformer.training.writer import Writer

from .resume.turns import PROTOCOL, Actor, TurnsFileSystem, at_once, register

STEPS, EVERY = 8, 2
# `--hypothesis-profile` may ask for more
FEW = settings.default.max_examples if settings.default else 100


@pytest.fixture(scope="module", autouse=True)
def turns() -> None:
    register()


def make_config(path: str, **sections: Any) -> RunConfig:
    values = {
        "name": "r",
        "storage_path": path,
        "data": {"uri": "/data"},
        "checkpoint": {"background": False, "keep": 1},
    }
    return parse(RunConfig, values | sections)


@dataclass
class Story:
    """In the place of a state: which attempt did each step."""

    by: list[int]
    ranked: list[Any] = field(default_factory=list)

    @property
    def steps_done(self) -> int:
        return len(self.by)

    def snapshot(self) -> Snapshot:
        return Snapshot(len(self.by), {"by": torch.tensor(self.by)}, {"steps_done": len(self.by)})


def read_story(run: str) -> tuple[list[int], int | None]:
    """(who did which step, the attempt that saved it) of the newest checkpoint."""
    found = newest_checkpoint(run)
    if found is None:
        return [], None
    tensors, document = read_checkpoint(*found)
    return tensors["by"].long().tolist(), document.attempt


def newest_attempt(run: str) -> int:
    """The last attempt of the run that has published a checkpoint, found without our reader."""
    found = re.findall(rf"{run.rpartition(':/')[2]}/checkpoints/step-\d+-(\d+)/state.json",
                       "\n".join(TurnsFileSystem.store))  # fmt: skip
    return max((int(attempt) for attempt in found if int(attempt) >= first_attempt(run)), default=0)


def work(start: Attempt, config: RunConfig) -> tuple[int, int]:
    """What a group of workers does to the store: (attempt, the step it began at)."""
    # the claim is a conditional put: nobody comes between
    attempt, published = at_once("claim", lambda: (start.claim(), newest_attempt(start.run)))
    by, after = read_story(attempt.run)
    # nothing of an older attempt is the newest once a later one has published
    assert (after or 0) >= published
    story = Story(by)
    began = story.steps_done
    record = {"kind": "start", "epoch": 0, "step": began, "attempt": attempt.number, "after": after}
    meta = Meta(config=config.dump(), fingerprint="f", versions={})
    with Writer(config, meta, attempt, story, record) as writer:
        while story.steps_done < STEPS:
            story.by.append(attempt.number)
            writer.record({"kind": "step", "epoch": 0, "step": len(story.by), "by": story.by[-1]})
            if story.steps_done % EVERY == 0:
                writer.save()
    return attempt.number, began


@dataclass
class Scene:
    """A run, those who write into it, and what they are."""

    path: str
    seed: int = 0
    starts: list[tuple[Attempt, RunConfig]] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)

    def start(self, *, fresh: bool = False) -> None:
        """A start of another host: it takes over; a fresh one begins another run."""
        self.seed += fresh
        config = make_config(self.path, seed=self.seed)
        with Run(config, "f", start="fresh" if fresh else "any") as run:
            self.starts.append((run.attempt, run.config))
        self.group()

    def group(self) -> None:
        """Another group of workers of the last start."""
        start, config = self.starts[-1]
        self.actors.append(Actor(lambda: work(start, config)))

    def turns(self, who: int, number: int) -> None:
        """Lets one of them do so many accesses."""
        for _ in range(number):
            self.actors[who % len(self.actors)].take_turn()

    def brink(self, who: int) -> None:
        """One of them goes on to where a checkpoint is about to be complete: its check is past."""
        actor = self.actors[who % len(self.actors)]
        actor.take_turn()
        while not actor.ended and not re.fullmatch(r"put .*/step.*/state\.json", actor.next):
            actor.take_turn()

    def kill(self, who: int) -> None:
        """One of them dies."""
        self.actors[who % len(self.actors)].kill()


def assert_one_story(run: str) -> None:
    """Checkpoint and records agree on who did which step, without gap or repetition."""
    story, _ = read_story(run)
    steps = [record for record in read_metrics(run) if record["kind"] == "step"]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert [record["by"] for record in steps] == story


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.booleans()),
        st.tuples(st.just("group")),
        st.tuples(
            st.just("turns"), st.integers(0, 3), st.sampled_from([1, 2, 3, 5, 8, 13, 21, 34])
        ),
        st.tuples(
            st.just("turns"), st.integers(0, 3), st.sampled_from([1, 2, 3, 5, 8, 13, 21, 34])
        ),
        st.tuples(
            st.just("turns"), st.integers(0, 3), st.sampled_from([1, 2, 3, 5, 8, 13, 21, 34])
        ),
        st.tuples(st.just("brink"), st.integers(0, 3)),
        st.tuples(st.just("brink"), st.integers(0, 3)),
        st.tuples(st.just("kill"), st.integers(0, 3)),
    ),
    max_size=20,
)


@settings(max_examples=FEW)
@given(actions=ACTIONS)
def test_writers_of_one_run_leave_one_story(actions: list[tuple[Any, ...]]) -> None:
    scene = Scene(f"{PROTOCOL}://{uuid.uuid4().hex}")
    scene.start()
    for name, *arguments in actions:
        options = {"fresh": arguments[0]} if name == "start" else {}
        getattr(scene, name)(*([] if options else arguments), **options)
    # the last one lives on beside whoever is left, then those come to their ends
    scene.group()
    for actor in reversed(scene.actors):
        actor.finish()
        note(f"{actor.result} {actor.error}")
    last = scene.actors[-1]
    assert last.error is None
    for actor in scene.actors[:-1]:
        assert actor.error is None or actor.died or "superseded" in str(actor.error)
    assert_one_story(run_uri(make_config(scene.path)))


@pytest.fixture
def scene() -> Scene:
    return Scene(f"{PROTOCOL}://{uuid.uuid4().hex}")


def test_start_between_two_others_leaves_no_gap_in_the_records(scene: Scene) -> None:
    scene.start()
    first = scene.actors[0]
    first.before("put", "step-4-1/state.json")
    scene.start()
    second = scene.actors[1]
    second.before("put", "step-2-2/state.json")
    first.take_turn()
    scene.start()
    third = scene.actors[2]
    third.before("put", "step-4-3/state.json")
    second.finish()
    third.finish()
    assert third.result == (3, 4)
    assert_one_story(run_uri(make_config(scene.path)))


def test_start_finds_the_checkpoint_that_an_older_writer_exchanges_meanwhile(scene: Scene) -> None:
    scene.start()
    first = scene.actors[0]
    first.before("put", "step-4-1/state.json")
    scene.start()
    second = scene.actors[1]
    second.before("read", "step-2-1/state.json")
    first.finish()
    second.finish()
    assert "superseded" in str(first.error)
    assert second.result == (2, 4)
    assert_one_story(run_uri(make_config(scene.path)))


def test_checkpoint_of_an_older_writer_that_lands_late_is_not_the_newest(scene: Scene) -> None:
    scene.start()
    first = scene.actors[0]
    first.before("put", "step-4-1/state.json")
    scene.start()
    second = scene.actors[1]
    second.before("put", "step-4-2/state.json")
    first.finish()
    second.kill()
    scene.start()
    third = scene.actors[2]
    third.finish()
    assert third.result == (3, 2)
    assert_one_story(run_uri(make_config(scene.path)))
