"""Checkpoints on storage: complete or none, whose they are, which stay."""

import json
import threading
from pathlib import Path

import pytest
import torch

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.errors import CheckpointError
from dnformer.parsing import parse
from dnformer.training.checkpoints import (
    Checkpointer,
    Keeping,
    Meta,
    Snapshot,
    folder,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from dnformer.training.run import Attempt, Run

META = Meta(config={"name": "run"}, fingerprint="f", versions={})


def make_snapshot(step: int, value: float = 0.0) -> Snapshot:
    return Snapshot(step, {"model.w": torch.full((3,), value)}, {"steps_done": step})


@pytest.fixture(params=["local", "memory"])
def config(request, tmp_path) -> RunConfig:
    path = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"
    return parse(RunConfig, {"name": "r", "storage_path": path, "data": {"uri": "/data"}})


def claimed(config: RunConfig) -> Attempt:
    """The attempt of a new start of the run, which ends an older one's."""
    with Run(config, "f") as run:
        return run.attempt.claim()


def write(attempt: Attempt, step: int, *, keep: int = 5, best: tuple[int, ...] = ()) -> None:
    write_checkpoint(attempt, make_snapshot(step), meta=META, keeping=Keeping(keep, best))


def newest(run: str) -> tuple[int, int]:
    """(step, attempt) of the newest checkpoint."""
    found = newest_checkpoint(run)
    assert found is not None
    tensors, document = read_checkpoint(*found)
    assert tensors["model.w"].shape == (3,)
    return document.state["steps_done"], document.attempt


def test_newest_checkpoint_is_what_was_written(config):
    attempt = claimed(config)
    assert newest_checkpoint(attempt.run) is None
    snapshot = make_snapshot(7, 2.5)
    write_checkpoint(attempt, snapshot, meta=META, keeping=Keeping(1, ()))
    found = newest_checkpoint(attempt.run)
    assert found is not None
    tensors, document = read_checkpoint(*found)
    assert torch.equal(tensors["model.w"], snapshot.tensors["model.w"])
    assert (document.state, document.meta, document.attempt) == (snapshot.values, META, 1)


def test_write_checkpoint_keeps_the_last_and_the_best(config):
    attempt = claimed(config)
    for step in range(1, 6):
        write(attempt, step, keep=2, best=(1,))
    assert storage.list_names(folder(attempt.run)) == ["step-1-1", "step-4-1", "step-5-1"]


def test_newest_checkpoint_is_by_number_not_by_name(config):
    attempt = claimed(config)
    for step in (9, 10):
        write(attempt, step)
    assert newest(attempt.run) == (10, 1)


def test_newest_checkpoint_is_the_latest_attempts_whatever_an_older_one_wrote(config):
    first = claimed(config)
    write(first, 20)
    second = claimed(config)
    write(second, 10)
    assert newest(first.run) == (10, 2)


def test_superseded_attempt_writes_no_checkpoint_and_removes_none(config):
    first = claimed(config)
    write(first, 1)
    second = claimed(config)
    write(second, 1)
    with pytest.raises(CheckpointError, match="attempt 1 was superseded"):
        write(first, 2)
    assert storage.list_names(folder(first.run)) == ["step-1-1", "step-1-2"]
    write(second, 2, keep=1)
    assert storage.list_names(folder(first.run)) == ["step-2-2"]


def test_newest_checkpoint_leaves_out_what_stood_there_before_fresh(config):
    attempt = claimed(config)
    left = storage.join(folder(attempt.run), "step-9-1/state.json")
    with Run(config, "f", start="fresh") as run:
        # an attempt that does not know yet
        storage.write_bytes(left, b"anything")
        assert newest_checkpoint(run.uri) is None


@pytest.mark.parametrize("damage", ["no state", "no tensors", "cut tensors", "flipped byte"])
def test_newest_checkpoint_passes_over_an_incomplete_one(config, damage, caplog):
    attempt = claimed(config)
    for step in (1, 2):
        write(attempt, step)
    target = storage.join(folder(attempt.run), "step-2-1")
    (name,) = (n for n in storage.list_names(target) if n.endswith(".safetensors"))
    tensors = storage.join(target, name)
    content = bytearray(storage.read_bytes(tensors))
    if damage == "no state":
        storage.remove(storage.join(target, "state.json"))
    elif damage == "no tensors":
        storage.remove(tensors)
    elif damage == "cut tensors":
        storage.write_bytes(tensors, bytes(content[:-5]))
    else:
        content[-1] ^= 1
        storage.write_bytes(tensors, bytes(content))
    assert newest(attempt.run) == (1, 1)
    assert "step-2-1" in caplog.text


@pytest.mark.parametrize("name", ["step-²-1", "step-1", "epoch=3.ckpt", "step--1-1"])
def test_newest_checkpoint_ignores_other_names(config, name):
    attempt = claimed(config)
    storage.write_bytes(storage.join(folder(attempt.run), f"{name}/state.json"), b"{}")
    assert newest_checkpoint(attempt.run) is None


def state_file(attempt: Attempt) -> Path:
    write(attempt, 1)
    return Path(folder(attempt.run), "step-1-1", "state.json")


@pytest.fixture
def attempt(tmp_path) -> Attempt:
    values = {"name": "r", "storage_path": str(tmp_path), "data": {"uri": "/data"}}
    return claimed(parse(RunConfig, values))


def test_newest_checkpoint_refuses_a_newer_format(attempt):
    path = state_file(attempt)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2, this version reads 1"):
        newest_checkpoint(attempt.run)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"\x80\x04."], ids=repr)
def test_newest_checkpoint_refuses_a_foreign_state_file(attempt, content):
    state_file(attempt).write_bytes(content)
    with pytest.raises(CheckpointError, match="no checkpoint of DNFormer"):
        newest_checkpoint(attempt.run)


def test_write_checkpoint_uses_no_pickle(attempt):
    write(attempt, 1)
    kinds = sorted(p.suffix for p in Path(folder(attempt.run)).rglob("*") if p.is_file())
    assert kinds == [".json", ".safetensors"]


def test_write_checkpoint_at_one_step_again_leaves_the_new_one(config):
    attempt = claimed(config)
    for value in (1.0, 2.0):
        write_checkpoint(attempt, make_snapshot(3, value), meta=META, keeping=Keeping(1, ()))
    found = newest_checkpoint(attempt.run)
    assert found is not None
    assert read_checkpoint(*found)[0]["model.w"][0] == 2.0
    assert len(storage.list_names(storage.join(folder(attempt.run), "step-3-1"))) == 2


def test_run_removes_what_a_killed_write_left(tmp_path):
    values = {"name": "r", "storage_path": str(tmp_path), "data": {"uri": "/data"}}
    config = parse(RunConfig, values)
    target = Path(folder(claimed(config).run), "step-3-1")
    target.mkdir(parents=True)
    left, mine = target / ".x.safetensors.01234567.tmp", target / ".mine.tmp"
    for path in (left, mine):
        path.write_bytes(b"half")
    claimed(config)
    assert not left.exists()
    assert mine.exists()


@pytest.mark.parametrize("background", [True, False])
def test_checkpointer_writes_in_turn_and_after_the_records(config, background):
    attempt, published = claimed(config), []
    with Checkpointer(
        attempt, meta=META, before=lambda: published.append(1), background=background
    ) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(make_snapshot(step), Keeping(5, ()))
    assert newest(attempt.run) == (3, 1)
    assert len(published) == 3


def test_checkpointer_in_the_background_returns_before_it_is_written(config):
    attempt, go = claimed(config), threading.Event()
    with Checkpointer(
        attempt, meta=META, before=lambda: go.wait(30) or None, background=True
    ) as checkpointer:
        checkpointer.save(make_snapshot(1), Keeping(5, ()))
        assert newest_checkpoint(attempt.run) is None
        go.set()
        checkpointer.wait()
        assert newest(attempt.run) == (1, 1)


@pytest.mark.parametrize("background", [True, False])
def test_checkpointer_raises_what_a_write_raised(config, background):
    attempt = claimed(config)
    claimed(config)

    def run() -> None:
        with Checkpointer(
            attempt, meta=META, before=lambda: None, background=background
        ) as checkpointer:
            checkpointer.save(make_snapshot(1), Keeping(5, ()))

    with pytest.raises(CheckpointError, match="superseded"):
        run()
