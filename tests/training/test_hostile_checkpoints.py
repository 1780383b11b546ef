"""Checkpoints that somebody made: refused or passed over by name, no traceback, nothing is run."""

import hashlib
import json
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from dnformer.config import OptimConfig
from dnformer.errors import CheckpointError
from dnformer.training.checkpoints import (
    Document,
    Keeping,
    Meta,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from dnformer.training.launch import train
from dnformer.training.optim import Optim, Position
from dnformer.training.run import Attempt
from dnformer.training.state import TrainState

ATTEMPT = {"start": 1, "attempt": 1, "token": "t", "taken": True, "host": "h", "pid": 1,
           "started": 0.0}  # fmt: skip


def make_state() -> TrainState:
    """A linear model that took two steps, with all kinds of tensors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optim = Optim(
        model, OptimConfig(ema_decay=0.9), precision="float32", device=torch.device("cpu")
    )
    state = TrainState(model, optim, epoch=1, step=2, totals=[1.0], recent=[1.0])
    for _ in range(2):
        optim.backward(model(torch.ones(1, 3)).square().sum())
        optim.step(Position(state.steps_done, 5, 2))
        state.steps_done += 1
    state.keep_best(0.5)
    state.rank(0.5, 1, lower_is_better=True)
    return state


Files = tuple[bytes, dict[str, Any]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """(tensors, state.json) of a good checkpoint."""
    run = tmp_path_factory.mktemp("good")
    (run / "attempt.json").write_text(json.dumps(ATTEMPT))
    meta = Meta(config={"name": "x"}, fingerprint="f", versions={"torch": "2"})
    attempt = Attempt(str(run), 1, 1, "t")
    write_checkpoint(attempt, make_state().snapshot(), meta=meta, keeping=Keeping(1, []))
    found = newest_checkpoint(str(run))
    assert found is not None
    return found[0], json.loads(found[1])


def signed(tensors: bytes, document: dict[str, Any]) -> dict[str, Any]:
    """`document` for other tensors."""
    sha256 = hashlib.sha256(tensors).hexdigest()
    named = {"file": file_of(tensors), "bytes": len(tensors), "sha256": sha256}
    return document | {"tensors": named}


def file_of(tensors: bytes) -> str:
    return f"{hashlib.sha256(tensors).hexdigest()[:16]}.safetensors"


def lay(run: Path, tensors: bytes, document: bytes, file: str | None = None) -> str:
    """Puts a checkpoint's files where a run looks for them; the tensors by their own name."""
    folder = run / "checkpoints" / "step-2-1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (file or file_of(tensors))).write_bytes(tensors)
    (folder / "state.json").write_bytes(document)
    return str(run)


def load(run: str) -> Document | None:
    """What a worker does with a run's newest checkpoint; None where it is passed over."""
    found = newest_checkpoint(run)
    if found is None:
        return None
    tensors, document = read_checkpoint(*found)
    make_state().restore(tensors, document.state)
    return document


def as_json(document: Any) -> bytes:
    return json.dumps(document).encode()


def refused(run: Path, tensors: bytes, document: Any) -> str:
    """The one line with which the checkpoint is refused."""
    content = document if isinstance(document, bytes) else as_json(document)
    with pytest.raises(CheckpointError) as caught:
        load(lay(run, tensors, content))
    text = str(caught.value)
    assert "\n" not in text
    assert "checkpoint" in text
    return text


def test_load_takes_a_good_checkpoint(good, tmp_path):
    """Without this, the others would show nothing."""
    tensors, document = good
    found = load(lay(tmp_path, tensors, as_json(document)))
    assert found is not None
    assert found.state["steps_done"] == 2


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["pickle", "torch.save"])
@pytest.mark.parametrize("file", ["tensors", "state"])
def test_load_never_unpickles(good, tmp_path, kind, file):
    tensors, document = good
    evil = Evil(tmp_path / "executed")
    if kind == "pickle":
        content = pickle.dumps(evil)
    else:
        torch.save(evil, tmp_path / "file")
        content = (tmp_path / "file").read_bytes()
    if file == "tensors":
        refused(tmp_path, content, signed(content, document))
    else:
        refused(tmp_path, tensors, content)
    assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(evil))  # noqa: S301 - our own: it does what it says
    assert (tmp_path / "executed").exists()


def safetensors_file(header: Any, body: bytes = b"") -> bytes:
    text = as_json(header)
    return struct.pack("<Q", len(text)) + text + body


def one(dtype: str, shape: list[int], offsets: list[int]) -> dict[str, Any]:
    return {"model.0.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(struct.pack("<Q", 1 << 62) + b"{}", id="header-of-2^62-bytes"),
        pytest.param(struct.pack("<Q", 1 << 30) + b"{}", id="header-longer-than-the-file"),
        pytest.param(struct.pack("<Q", 2) + b"[]", id="header-is-a-list"),
        pytest.param(struct.pack("<Q", 2) + b"\xff\xff", id="header-is-no-text"),
        pytest.param(safetensors_file({}), id="no-tensors"),
        pytest.param(safetensors_file(one("F32", [1 << 40], [0, 1 << 42])), id="4-TiB"),
        pytest.param(safetensors_file(one("F32", [1 << 40, 1 << 40], [0, 0])), id="overflow"),
        pytest.param(safetensors_file(one("F32", [1], [0, 8]), bytes(8)), id="offsets-too-wide"),
        pytest.param(safetensors_file(one("F32", [1], [-4, 0]), bytes(4)), id="offsets-below-0"),
        pytest.param(safetensors_file(one("F32", [1], [100, 104]), bytes(4)), id="offsets-outside"),
        pytest.param(safetensors_file(one("EVIL", [1], [0, 4]), bytes(4)), id="unknown-dtype"),
        pytest.param(safetensors_file(one("F32", [-1], [0, 4]), bytes(4)), id="shape-below-0"),
        pytest.param(safetensors_file(one("F32", [0], [0, 0])), id="other-shape"),
        pytest.param(safetensors_file({"__metadata__": {"a": {"b": 1}}}), id="nested-metadata"),
    ],
)  # fmt: skip
def test_load_refuses_tensors_that_are_none(good, tmp_path, content):
    refused(tmp_path, content, signed(content, good[1]))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.999])
def test_load_refuses_tensors_that_are_cut(good, tmp_path, share):
    tensors, document = good
    cut = tensors[: int(len(tensors) * share)]
    refused(tmp_path, cut, signed(cut, document))
    # as a write that was interrupted leaves it: it is passed over
    other = lay(tmp_path / "unsigned", cut, as_json(document), file_of(tensors))
    assert load(other) is None


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        pytest.param(lambda t: t.pop("model.0.bias"), "0.bias", id="model-lacks-one"),
        pytest.param(lambda t: t.update({"model.9.bias": ONE}), "9.bias", id="model-one-too-many"),
        pytest.param(lambda t: t.update({"model.0.bias": ONE}), "0.bias", id="model-shape"),
        pytest.param(
            lambda t: t.update({"model.0.bias": torch.ones(4, dtype=torch.int64)}), "0.bias",
            id="model-integers",
        ),
        pytest.param(
            lambda t: t.update({"model.0.bias": torch.ones(4, dtype=torch.float64)}), "0.bias",
            id="model-float64",
        ),
        pytest.param(lambda t: t.pop("best.0.bias"), "0.bias", id="best-lacks-one"),
        pytest.param(
            lambda t: [t.pop(n) for n in list(t) if n.startswith("best.")], "0.bias", id="no-best"
        ),
        pytest.param(lambda t: t.update({"best.0.bias": ONE}), "0.bias", id="best-shape"),
        pytest.param(lambda t: t.update({"best.x": ONE}), "x", id="best-one-too-many"),
        pytest.param(
            lambda t: t.pop("optim.0.bias.exp_avg"), "optim.0.bias.exp_avg", id="optim-lacks-one"
        ),
        pytest.param(
            lambda t: [t.pop(n) for n in list(t) if n.startswith("optim.")], "optim", id="no-optim"
        ),
        pytest.param(
            lambda t: t.update({"optim.0.bias.exp_avg": ONE}), "optim.0.bias.exp_avg",
            id="optim-shape",
        ),
        pytest.param(
            lambda t: t.update({"optim.0.bias.exp_avg": torch.ones(4, dtype=torch.int64)}),
            "optim.0.bias.exp_avg", id="optim-integers",
        ),
        pytest.param(
            lambda t: t.update({"optim.0.bias.step": torch.ones(2)}), "optim.0.bias.step",
            id="optim-steps",
        ),
        pytest.param(
            lambda t: t.update({"optim.0.bias.evil": ONE}), "optim.0.bias.evil", id="optim-slot"
        ),
        pytest.param(lambda t: t.update({"optim.": ONE}), "optim.", id="optim-no-name"),
        pytest.param(lambda t: t.pop("ema.0.bias"), "ema.0.bias", id="ema-lacks-one"),
        pytest.param(lambda t: t.update({"ema.0.bias": ONE}), "ema.0.bias", id="ema-shape"),
        pytest.param(
            lambda t: t.update({"ema.0.bias": torch.ones(4, dtype=torch.int64)}), "ema.0.bias",
            id="ema-integers",
        ),
        pytest.param(lambda t: t.update({"other.x": ONE}), "other.x", id="unknown-part"),
        pytest.param(lambda t: t.update({"": ONE}), "''", id="no-name"),
        pytest.param(lambda t: t.update({"../../x": ONE}), "../../x", id="leads-outside"),
    ],
)  # fmt: skip
def test_load_refuses_tensors_of_another_model(good, tmp_path, change, name):
    tensors: dict[str, Tensor] = safetensors.torch.load(good[0])
    change(tensors)
    content = safetensors.torch.save(tensors)
    assert name in refused(tmp_path, content, signed(content, good[1]))


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with `value` at a dotted path."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    *parents, last = path.split(".")
    inside = copy
    for name in parents:
        inside = inside[name]
    inside[last] = value
    return copy


WRONG = ["a", [], {}, {"a": {"b": {"c": 1}}}, True, None, -5, 1.5]
COUNTS = ["state.epoch", "state.step", "state.steps_done", "state.stale"]


@pytest.mark.parametrize("value", WRONG, ids=repr)
@pytest.mark.parametrize("path", [*COUNTS])
def test_load_refuses_counts_that_are_none(good, tmp_path, path, value):
    refused(tmp_path, good[0], changed(good[1], path, value))


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("state.seconds", ["a", [], {}, None, -5]),
        ("state.best_value", ["a", [], {}]),
        ("state.best_step", ["a", [], {}, None, 1.5]),
        ("state.best_epoch", ["a", [], {}, None, 1.5]),
        ("state.totals", ["a", {}, None, 1, ["a"], [[1]], [None]]),
        ("state.recent", ["a", {}, None, 1, ["a"], [[1]], [None]]),
        ("state.ranked", ["a", {}, None, 1, [1], [[1]], [[1, 2, 3]], [["a", 1]]]),
        ("state.optim", ["a", [], None, 1, {}, {"plateau": 1, "scaler": None},
                         {"plateau": {"decays": "a", "stale": 0}, "scaler": None},
                         {"plateau": {"decays": 0}, "scaler": None},
                         {"plateau": {"decays": -1, "stale": 0}, "scaler": None},
                         {"plateau": {"decays": 0, "stale": 0}, "scaler": {"scale": 1}}]),
        ("state.model", [{}]),
        ("state.restore", [1]),
        ("state.__class__", ["a"]),
        ("state", ["a", [], {}, None, 1]),
        ("tensors", ["a", [], {}, None, 1]),
        ("tensors.sha256", [1, None, []]),
        ("tensors.file", [1, None, [], "", "../../x", "/etc/passwd", "0" * 16 + ".pt",
                          "../" + "0" * 16 + ".safetensors"]),
        ("meta", ["a", [], {}, None, 1]),
        ("meta.config", ["a", [], None, 1]),
        ("meta.fingerprint", [[], {}, None, 1]),
        ("tensors.bytes", ["a", None, [], True, 1.5]),
        ("attempt", ["a", None, [], True, 1.5]),
        ("format", [0, 2, "1", None, [1], 1.5]),
        ("other", [1]),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)  # fmt: skip
def test_load_refuses_a_state_of_wrong_types(good, tmp_path, path, values):
    for value in values:
        refused(tmp_path, good[0], changed(good[1], path, value))


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "1e999999"])
@pytest.mark.parametrize(
    "path", [*COUNTS, "state.seconds", "state.best_value", "state.totals", "state.best_step"]
)
def test_load_refuses_numbers_that_are_not_finite(good, tmp_path, path, literal):
    value = ["@"] if path == "state.totals" else "@"
    content = as_json(changed(good[1], path, value)).replace(b'"@"', literal.encode())
    refused(tmp_path, good[0], content)


@pytest.mark.parametrize("path", ["epoch", "totals", "best_value", "optim", "ranked"])
def test_load_refuses_a_state_that_lacks_a_field(good, tmp_path, path):
    document = json.loads(json.dumps(good[1]))
    del document["state"][path]
    assert path in refused(tmp_path, good[0], document)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda text: b"", id="empty"),
        pytest.param(lambda text: text[: len(text) // 2], id="cut"),
        pytest.param(lambda text: text.decode().encode("utf-16"), id="utf-16"),
        pytest.param(lambda text: b"\xff" + text, id="no-text"),
        pytest.param(lambda text: b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", id="deep"),
        pytest.param(
            lambda text: text[:-1] + b', "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
            id="deep-beside",
        ),
        pytest.param(lambda text: b'{"format": ' + b"1" * 100_000 + b"}", id="digits"),
        pytest.param(lambda text: text[:-1] + b', "state": 5}', id="state-twice"),
        pytest.param(lambda text: b"a: !!python/object/apply:os.system [id]", id="yaml"),
    ],
)  # fmt: skip
def test_load_refuses_a_state_file_that_is_none(good, tmp_path, spoil):
    refused(tmp_path, good[0], spoil(as_json(good[1])))


@pytest.mark.parametrize("path", ["meta.config", "state.optim"])
def test_load_of_values_nested_deep_is_no_traceback(good, tmp_path, path):
    content = as_json(changed(good[1], path, {"a": "@"}))
    content = content.replace(b'"@"', b"[" * 150 + b"]" * 150)
    check_outcome(tmp_path, good[0], content)


@pytest.mark.parametrize(
    "name",
    ["step-²-1", "step-٣-1", "step-2", "step-2-", "step--1-1", "step-2-1-1", "step-x-1", "2-1",
     "step-2-1.tmp", "step-" + "9" * 200 + "-1", " step-2-1"],
)  # fmt: skip
def test_newest_checkpoint_passes_over_other_names(good, tmp_path, name):
    """A good checkpoint beside something of another name is what is found."""
    run = lay(tmp_path, good[0], as_json(good[1]))
    (tmp_path / "checkpoints" / name).mkdir()
    assert load(run) is not None


def test_newest_checkpoint_passes_over_files_and_folders_in_the_wrong_place(good, tmp_path):
    run = lay(tmp_path, good[0], as_json(good[1]))
    folder = tmp_path / "checkpoints"
    (folder / "step-3-1").write_text("a file")
    (folder / "step-4-1" / "state.json").mkdir(parents=True)
    (folder / "step-5-1" / file_of(good[0])).mkdir(parents=True)
    (folder / "step-5-1" / "state.json").write_bytes(as_json(good[1]))
    (folder / "step-6-1").symlink_to(tmp_path / "nowhere")
    assert load(run) is not None


@pytest.fixture
def finished(make_config, tmp_path) -> Callable[[], Any]:
    """A run of one epoch whose result is gone; the function goes on from its checkpoint."""
    config = make_config(tmp_path, train={"epochs": 1})
    train(config)
    (tmp_path / "run" / "result.json").unlink()
    return lambda: train(config)


def newest_state(run: Path) -> Path:
    return max(run.glob("checkpoints/*/state.json"), key=lambda path: path.stat().st_mtime)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("meta.config.seed", 7, "differs in seed"),
        ("meta.config.loader.batch_size", 21, r"differs in loader\.batch_size"),
        ("meta.fingerprint", "0" * 64, "differs in the dataset"),
        ("meta.config", {"name": 1}, "checkpoint"),
        ("meta.config.evil", 1, "checkpoint"),
    ],
)
def test_train_refuses_a_checkpoint_of_another_run(finished, tmp_path, path, value, message):
    state = newest_state(tmp_path / "run")
    state.write_bytes(as_json(changed(json.loads(state.read_bytes()), path, value)))
    with pytest.raises(CheckpointError, match=message):
        finished()


@pytest.mark.parametrize(
    ("path", "value"),
    [("state.step", 10**6), ("state.totals", [1.0]), ("state.recent", [0.0] * 99)],
)  # fmt: skip
def test_train_refuses_a_position_that_cannot_be(finished, tmp_path, path, value):
    state = newest_state(tmp_path / "run")
    document = changed(json.loads(state.read_bytes()), "state.epoch", 0)
    document = changed(document, "state.step", 1)
    state.write_bytes(as_json(changed(document, path, value)))
    with pytest.raises(CheckpointError, match="checkpoint"):
        finished()


@pytest.mark.parametrize("name", ["attempt.json", "run.json", "result.json"])
@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\x80\x04.", b'{"attempt": "x"}'], ids=repr
)
def test_train_refuses_a_run_folder_with_damaged_files(finished, tmp_path, name, content):
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        finished()


@st.composite
def edits(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A function that replaces, inserts or removes a few bytes."""
    where = draw(st.floats(0, 1, exclude_max=True))
    removed = draw(st.integers(0, 12))
    added = draw(st.binary(max_size=12))

    def edit(content: bytes) -> bytes:
        start = int(where * len(content))
        return content[:start] + added + content[start + removed :]

    return edit


def check_outcome(run: Path, tensors: bytes, document: bytes) -> None:
    """Nothing but a refusal in words, or a state that could be ours."""
    found = None
    with suppress(CheckpointError):
        found = load(lay(run, tensors, document))
    if found is not None:
        assert all(type(found.state[name]) is int for name in ("epoch", "step", "steps_done"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that examples write over."""
    return tmp_path_factory.mktemp("scratch")


@given(edit=edits())
def test_load_of_edited_tensors_is_refused_or_sound(good, scratch, edit):
    tensors = edit(good[0])
    check_outcome(scratch, tensors, as_json(signed(tensors, good[1])))


@given(edit=edits())
def test_load_of_edited_tensors_without_their_hash_is_passed_over(good, scratch, edit):
    tensors = edit(good[0])
    found = load(lay(scratch, tensors, as_json(good[1]), file_of(good[0])))
    assert (found is None) == (tensors != good[0])


@given(edit=edits())
def test_load_of_an_edited_state_file_is_refused_or_sound(good, scratch, edit):
    check_outcome(scratch, good[0], edit(as_json(good[1])))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
PATHS = ["format", "state", "tensors", "meta", "attempt", "meta.config", "meta.versions",
         "tensors.sha256", "tensors.bytes", "tensors.file", *(f"state.{name}" for name in (
             "epoch", "step", "steps_done", "totals", "recent", "best_value", "best_step",
             "best_epoch", "ranked", "stale", "seconds", "optim", "optim.plateau",
             "optim.plateau.decays", "optim.scaler"))]  # fmt: skip


@given(path=st.sampled_from(PATHS), value=JSON)
@example(path="state.epoch", value=True)
def test_load_of_any_value_anywhere_is_refused_or_sound(good, scratch, path, value):
    check_outcome(scratch, good[0], as_json(changed(good[1], path, value)))
