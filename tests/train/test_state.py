"""Checkpoints: what is saved comes back, what is incomplete is passed over, what is old goes."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dnformer import storage
from dnformer.errors import CheckpointError
from dnformer.train.state import (
    TrainState,
    folder,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def make_state(*, steps: int = 0, seed: int = 0) -> TrainState:
    """A linear model that took `steps` steps."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    state = TrainState(model, torch.optim.Adam(model.parameters(), lr=0.1))
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        state.optimizer.step()
        state.steps_done += 1
    return state


def restored(run: str) -> tuple[TrainState, dict]:
    found = newest_checkpoint(run)
    assert found is not None
    tensors, document = read_checkpoint(*found)
    state = make_state(seed=1)
    state.restore(tensors, document["state"])
    return state, document


@pytest.fixture(params=["local", "memory"])
def run(request, tmp_path) -> str:
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/run"


def test_checkpoint_round_trip_gives_the_same_next_step(run):
    state = make_state(steps=3)
    state.epoch, state.step, state.stale, state.seconds = 1, 2, 4, 5.5
    state.totals = {"loss": 0.5, "seeds": 7.0}
    state.keep_best(0.75)
    state.stale = 4
    write_checkpoint(run, state, meta={"fingerprint": "f"}, keep=2)
    again, document = restored(run)
    assert document["meta"] == {"fingerprint": "f"}
    assert again.values() == state.values()
    for one in (state, again):
        one.optimizer.zero_grad()
        one.model(torch.ones(1, 3)).sum().backward()
        one.optimizer.step()
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, again.tensors()[name]), name


def test_checkpoint_keeps_the_last_and_the_best(run):
    state = make_state(steps=1)
    state.keep_best(1.0)
    write_checkpoint(run, state, meta={}, keep=2)
    for _ in range(4):
        state.steps_done += 1
        write_checkpoint(run, state, meta={}, keep=2)
    assert storage.list_names(folder(run)) == ["step-1", "step-4", "step-5"]


def test_newest_checkpoint_is_by_number_not_by_name(run):
    state = make_state(steps=1)
    for step in (9, 10):
        state.steps_done = step
        write_checkpoint(run, state, meta={}, keep=5)
    assert restored(run)[0].steps_done == 10


@pytest.mark.parametrize("damage", ["no state", "no tensors", "cut tensors", "flipped byte"])
def test_newest_checkpoint_passes_over_an_incomplete_one(run, damage, caplog):
    state = make_state(steps=1)
    write_checkpoint(run, state, meta={}, keep=5)
    state.steps_done = 2
    write_checkpoint(run, state, meta={}, keep=5)
    step = storage.join(folder(run), "step-2")
    tensors = storage.join(step, "tensors.safetensors")
    content = bytearray(storage.read_bytes(tensors))
    if damage == "no state":
        storage.remove(storage.join(step, "state.json"))
    elif damage == "no tensors":
        storage.remove(tensors)
    elif damage == "cut tensors":
        storage.write_bytes(tensors, bytes(content[:-5]))
    else:
        content[-1] ^= 1
        storage.write_bytes(tensors, bytes(content))
    assert restored(run)[0].steps_done == 1
    assert "step-2" in caplog.text


def test_newest_checkpoint_without_any_is_none(run):
    assert newest_checkpoint(run) is None


def test_newest_checkpoint_refuses_a_newer_format(tmp_path):
    state = make_state(steps=1)
    write_checkpoint(str(tmp_path), state, meta={}, keep=1)
    path = tmp_path / "checkpoints" / "step-1" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="format 2, this version reads 1"):
        newest_checkpoint(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"\x80\x04."], ids=repr)
def test_newest_checkpoint_refuses_a_foreign_state_file(tmp_path, content):
    write_checkpoint(str(tmp_path), make_state(steps=1), meta={}, keep=1)
    (tmp_path / "checkpoints" / "step-1" / "state.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="no checkpoint of DNFormer"):
        newest_checkpoint(str(tmp_path))


def test_restore_refuses_another_model(tmp_path):
    write_checkpoint(str(tmp_path), make_state(steps=1), meta={}, keep=1)
    found = newest_checkpoint(str(tmp_path))
    assert found is not None
    tensors, document = read_checkpoint(*found)
    model = nn.Linear(3, 4)
    other = TrainState(model, torch.optim.Adam(model.parameters()))
    with pytest.raises(CheckpointError, match="does not fit the model"):
        other.restore(tensors, document["state"])


def test_read_checkpoint_refuses_tensors_that_are_none():
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(b"nonsense", b"{}")


def test_write_checkpoint_uses_no_pickle(tmp_path):
    write_checkpoint(str(tmp_path), make_state(steps=1), meta={}, keep=1)
    names = sorted(p.name for p in Path(tmp_path).rglob("*") if p.is_file())
    assert names == ["state.json", "tensors.safetensors"]


def test_keep_best_does_not_follow_the_model(tmp_path):
    state = make_state(steps=1)
    state.keep_best(1.0)
    before = state.best_model["0.weight"].clone()
    with torch.no_grad():
        state.model[0].weight += 1
    assert torch.equal(state.best_model["0.weight"], before)
