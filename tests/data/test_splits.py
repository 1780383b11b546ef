import io
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.splits import make_splits, unlabelled
from dnformer.errors import DataError


def splits(
    recipe: dict[str, Any], y: Any, *, seed: int = 0, stored: Any = None
) -> dict[str, list[int]]:
    y = np.asarray(y, dtype=np.int64)
    codes = None if stored is None else np.asarray(stored, dtype=np.int8)
    parts = make_splits(
        SplitConfig(**recipe),
        y=y,
        num_classes=int(y.max(initial=-1)) + 1,
        stored=codes,
        seed=seed,
    )
    assert list(parts) == ["train", "val", "test"]
    found = {name: nodes.tolist() for name, nodes in parts.items()}
    assert all(nodes == sorted(nodes) for nodes in found.values())
    everyone = [node for nodes in found.values() for node in nodes]
    assert len(set(everyone)) == len(everyone)
    return found


def sizes(found: dict[str, list[int]]) -> list[int]:
    return [len(nodes) for nodes in found.values()]


RANDOM = {"random": (0.6, 0.2, 0.2)}


@pytest.mark.parametrize(
    ("num_nodes", "expected"),
    [
        pytest.param(10, [6, 2, 2], id="even"),
        pytest.param(11, [6, 2, 3], id="rounded-down"),
        pytest.param(14, [8, 2, 4], id="the-rest-tests"),
        pytest.param(2708, [1624, 541, 543], id="cora"),
    ],
)
def test_make_splits_random_has_the_documented_sizes(num_nodes: int, expected: list[int]) -> None:
    assert sizes(splits(RANDOM, np.zeros(num_nodes))) == expected


@given(
    num_nodes=st.integers(12, 200),
    shares=st.tuples(st.floats(0.1, 0.6), st.floats(0.1, 0.3)),
    seed=st.integers(0, 2**32),
)
def test_make_splits_random_cuts_one_permutation(
    num_nodes: int, shares: tuple[float, float], seed: int
) -> None:
    train, val = shares
    recipe = {"random": (train, val, 1 - train - val)}
    found = splits(recipe, np.zeros(num_nodes), seed=seed)
    assert sizes(found)[:2] == [int(train * num_nodes), int(val * num_nodes)]
    assert sum(sizes(found)) == num_nodes


def test_make_splits_random_is_pinned() -> None:
    assert splits(RANDOM, np.zeros(10), seed=0) == {
        "train": [0, 3, 4, 6, 8, 9],
        "val": [5, 7],
        "test": [1, 2],
    }
    assert splits(RANDOM, np.zeros(10), seed=1)["test"] == [1, 3]


def test_make_splits_random_seeds_differ_and_repeat() -> None:
    found = [json.dumps(splits(RANDOM, np.zeros(40), seed=seed)) for seed in (0, 1, 2, 0)]
    assert len(set(found)) == 3
    assert found[0] == found[3]


Y = np.array([0, 1, -1, 0, 2, -1, 1, 0, 0, 2, 1, 0, 2, 1, 0, -1, 2, 0, 1, 0])


@pytest.mark.parametrize(
    "recipe", [RANDOM, {"per_class": (0.4, 0.3, 0.3)}], ids=["random", "per_class"]
)
def test_make_splits_unlabelled_nodes_are_in_none(recipe: dict[str, Any]) -> None:
    for seed in range(5):
        found = splits(recipe, Y, seed=seed)
        assert sum(sizes(found)) == 17
        assert all(Y[node] >= 0 for nodes in found.values() for node in nodes)


def test_make_splits_per_class_follows_the_formula() -> None:
    # 17 labelled of 3 classes: round(0.5 · 17 / 3 = 2.83) = 3 of each, then int(0.2 · 17) = 3
    found = splits({"per_class": (0.5, 0.2, 0.3)}, Y)
    assert np.bincount(Y[found["train"]]).tolist() == [3, 3, 3]
    assert sizes(found) == [9, 3, 5]


def test_make_splits_per_class_takes_all_of_a_smaller_class() -> None:
    y = [0] * 18 + [1] * 2
    found = splits({"per_class": (0.6, 0.2, 0.2)}, y)
    assert sizes(found) == [8, 4, 8]
    assert {18, 19} <= set(found["train"])


def test_make_splits_planetoid_has_the_documented_sizes() -> None:
    y = np.arange(2000) % 7
    found = splits({"planetoid": 20}, y)
    assert sizes(found) == [140, 500, 1000]
    assert np.bincount(y[found["train"]]).tolist() == [20] * 7
    assert found != splits({"planetoid": 20}, y, seed=1)


def test_make_splits_planetoid_of_a_small_graph_is_refused() -> None:
    with pytest.raises(DataError, match="planetoid needs 1640 labelled nodes, found 1639"):
        splits({"planetoid": 20}, np.arange(1639) % 7)
    assert sizes(splits({"planetoid": 20}, np.arange(1640) % 7)) == [140, 500, 1000]


@pytest.mark.parametrize(
    "recipe",
    [RANDOM, {"per_class": (0.6, 0.2, 0.2)}, {"planetoid": 1}],
    ids=["random", "per_class", "planetoid"],
)
def test_make_splits_without_a_labelled_node_is_refused(recipe: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="no node has a label"):
        splits(recipe, [-1, -1, -1])


def test_make_splits_column_gives_the_stored_codes() -> None:
    stored = [1, 0, 3, 2, 1]
    assert splits({"column": True}, np.zeros(5), stored=stored) == {
        "train": [0, 4],
        "val": [3],
        "test": [2],
    }


def test_make_splits_column_that_is_not_there_says_what_to_set() -> None:
    with pytest.raises(DataError, match=r"no split came with this dataset; set data\.split"):
        splits({"column": True}, np.zeros(3))


@pytest.mark.parametrize(
    ("recipe", "stored", "empty"),
    [
        pytest.param({"random": (1.0, 0.0, 0.0)}, None, "val", id="random"),
        pytest.param({"random": (0.1, 0.5, 0.4)}, None, "train", id="rounded-to-none"),
        pytest.param({"column": True}, [1, 2, 0, 0], "test", id="column"),
    ],
)
def test_make_splits_empty_part_is_named(recipe: dict[str, Any], stored: Any, empty: str) -> None:
    with pytest.raises(DataError, match=f"split '{empty}' is empty"):
        splits(recipe, np.zeros(4), stored=stored)


PARTS = {"train": [4, 0], "val": [1], "test": [3]}


def npz(path: Path, arrays: dict[str, Any], **kwargs: Any) -> str:
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()}, **kwargs)
    return str(path)


def from_file(path: str | Path) -> dict[str, list[int]]:
    return splits({"file": str(path)}, np.zeros(5))


@pytest.mark.parametrize("name", ["val", "valid"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_make_splits_file_npz(tmp_path: Path, name: str, dtype: Any) -> None:
    arrays = {"train": [4, 0], name: [1], "test": [3]}
    path = npz(tmp_path / "s.npz", {key: np.array(v, dtype) for key, v in arrays.items()})
    assert from_file(path) == {"train": [0, 4], "val": [1], "test": [3]}


@pytest.mark.parametrize("name", ["val", "valid"])
def test_make_splits_file_json(tmp_path: Path, name: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"train": [4, 0], name: [1], "test": [3]}))
    assert from_file(path) == {"train": [0, 4], "val": [1], "test": [3]}


def test_make_splits_file_anywhere() -> None:
    uri = f"memory://{uuid.uuid4().hex}/s.json"
    storage.write_bytes(uri, json.dumps(PARTS).encode())
    assert from_file(uri)["train"] == [0, 4]


def test_make_splits_file_and_column_leave_out_unlabelled_nodes(tmp_path: Path) -> None:
    y = [-1, 0, 0, 0, 0]
    path = npz(tmp_path / "s.npz", PARTS)
    assert splits({"file": path}, y)["train"] == [4]
    assert splits({"column": True}, y, stored=[1, 2, 3, 0, 1])["train"] == [4]
    with pytest.raises(DataError, match=r"s\.npz: split 'train' has 2 nodes, none with a label"):
        splits({"file": path}, [-1] * 5)


def test_unlabelled_counts_what_a_given_split_leaves_out(tmp_path: Path) -> None:
    y, stored = np.array([-1, 0, 0, -1, 0]), np.array([1, 2, 1, 3, 0], dtype=np.int8)
    file = SplitConfig(file=npz(tmp_path / "s.npz", PARTS))
    assert unlabelled(file, y=y, stored=None) == {"train": 1, "val": 0, "test": 1}
    column = SplitConfig(column=True)
    assert unlabelled(column, y=y, stored=stored) == {"train": 1, "val": 0, "test": 1}
    numbers = np.array([[np.nan, 1], [0, 0], [np.nan, np.nan], [1, 1], [0, 1]])
    assert unlabelled(column, y=numbers, stored=stored) == {"train": 1, "val": 0, "test": 0}
    assert unlabelled(SplitConfig(random=(0.6, 0.2, 0.2)), y=y, stored=stored) == {}


# node 2 has no value at all, node 5 one of two
MULTILABEL = np.array([[0, 1], [1, 1], [-1, -1], [0, 0], [1, 0], [-1, 0]] * 2, dtype=np.int8)
NUMBERS = np.where(MULTILABEL < 0, np.nan, MULTILABEL).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "y"), [("multilabel", MULTILABEL), ("regression", NUMBERS)], ids=["labels", "numbers"]
)
def test_make_splits_of_other_kinds_take_nodes_with_any_value(kind: str, y: Any) -> None:
    def parts(recipe: SplitConfig, stored: Any = None) -> dict[str, Any]:
        return make_splits(recipe, y=y, num_classes=2, stored=stored, seed=0, kind=kind)

    drawn = parts(SplitConfig(random=(0.6, 0.2, 0.2)))
    assert sorted(np.concatenate(list(drawn.values()))) == [0, 1, 3, 4, 5, 6, 7, 9, 10, 11]
    stored = np.array([1, 2, 1, 3] + [0] * 8, dtype=np.int8)
    assert parts(SplitConfig(column=True), stored)["train"].tolist() == [0]
    for recipe in (SplitConfig(per_class=(0.6, 0.2, 0.2)), SplitConfig(planetoid=1)):
        with pytest.raises(DataError, match=f"each class, but the label is of kind {kind}"):
            parts(recipe)


@pytest.mark.parametrize("kind", ["npz", "json"])
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param({"val": [0]}, "node 0 is in 'train' and in 'val'", id="train-val"),
        pytest.param({"test": [2, 4]}, "node 4 is in 'train' and in 'test'", id="train-test"),
        pytest.param({"test": [1]}, "node 1 is in 'val' and in 'test'", id="val-test"),
        pytest.param(
            {"val": [1, 5]}, r"'val' position 1: node 5 is not in 0\.\.4", id="out-of-range"
        ),
        pytest.param({"val": [-1]}, "'val' position 0: node -1 is not in", id="negative"),
        pytest.param({"test": [3, 2, 3]}, "'test' has node 3 more than once", id="twice"),
        pytest.param({"val": [1.0]}, "'val' must be a list of node indices; .*float", id="float"),
        pytest.param({"val": [True]}, "'val' must be a list of node indices; .*bool", id="mask"),
        pytest.param({"val": ["1"]}, "'val' must be a list of node indices", id="text"),
        pytest.param({"val": 1}, "'val' must be a list of node indices", id="one-number"),
        pytest.param({"val": [[1]]}, "'val' must be a list of node indices", id="matrix"),
        pytest.param({"val": []}, "split 'val' is empty", id="empty"),
        pytest.param({"valid": [2]}, "has both 'val' and 'valid'", id="val-and-valid"),
    ],
)
def test_make_splits_file_wrong_nodes_are_named(
    tmp_path: Path, kind: str, changed: dict[str, Any], expected: str
) -> None:
    path = tmp_path / f"s.{kind}"
    if kind == "npz":
        npz(path, PARTS | changed)
    else:
        path.write_text(json.dumps(PARTS | changed))
    with pytest.raises(DataError, match=expected) as caught:
        from_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**70])
def test_make_splits_file_number_past_int64_is_refused(tmp_path: Path, value: int) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(PARTS | {"val": [value]}))
    with pytest.raises(DataError, match=r"s\.json: 'val'"):
        from_file(path)


@pytest.mark.parametrize("name", ["train", "val", "test"])
def test_make_splits_file_missing_key_is_named(tmp_path: Path, name: str) -> None:
    path = npz(tmp_path / "s.npz", {key: v for key, v in PARTS.items() if key != name})
    with pytest.raises(DataError, match=rf"s\.npz: no '{name}'; it needs train, val"):
        from_file(path)


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(3))
    return file.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("s.npz", b"", id="empty"),
        pytest.param("s.npz", b"train val test", id="text"),
        pytest.param("s.npz", b"PK\x03\x04half", id="cut-zip"),
        pytest.param("s.npz", npy(), id="one-array"),
        pytest.param("s.npz", zipped("train.npy", b"\x93NUMPY"), id="cut-array"),
        pytest.param("s.npz", zipped("train.npy", npy()[:-9]), id="short-array"),
        pytest.param("s.txt", b"0\n1\n", id="other-ending"),
        pytest.param("s.json", b"{", id="cut-json"),
        pytest.param("s.json", b"[1, 2]", id="json-list"),
        pytest.param("s.json", b"[" * 100_000, id="deep-json"),
        pytest.param("s.json", b"\xff", id="not-utf8"),
        pytest.param("s.json", b'{"train": [[0], [1, 2]]}', id="ragged"),
    ],
)
def test_make_splits_file_unreadable_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    kind = r"readable \.json of node indices" if name.endswith("json") else "npz file of plain"
    with pytest.raises(DataError, match=f"{name}: no {kind}"):
        from_file(path)


def test_make_splits_file_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        from_file(tmp_path / "none.npz")


class Bomb:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.marker, "w"))

    def __init__(self, marker: str) -> None:
        self.marker = marker


def test_make_splits_file_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "was-run"
    bomb = np.array([Bomb(str(marker))], dtype=object)
    path = npz(tmp_path / "s.npz", PARTS | {"val": bomb})
    with pytest.raises(DataError, match=r"s\.npz: no npz file of plain arrays"):
        from_file(path)
    assert not marker.exists()


def test_share_that_is_no_binary_fraction_is_cut_as_python_does() -> None:
    # int(0.29 · 100) is 28: the rule is int() of the float product, nothing else
    assert int(0.29 * 100) == 28
    assert sizes(splits({"random": (0.29, 0.29, 0.42)}, np.zeros(100))) == [28, 28, 44]


def test_make_splits_time_takes_the_earliest_labelled_nodes_first() -> None:
    recipe, y = SplitConfig(time=(0.5, 0.25, 0.25)), np.array([0, 0, -1, 0, 0])
    options: dict[str, Any] = {"y": y, "num_classes": 1, "stored": None, "seed": 0}
    found = make_splits(recipe, time=np.array([7, -2, 0, 7, 9]), **options)
    assert {name: nodes.tolist() for name, nodes in found.items()} == {
        "train": [0, 1], "val": [3], "test": [4],
    }  # fmt: skip
    with pytest.raises(DataError, match="this dataset has none; ingest it with --node-time"):
        make_splits(recipe, **options)
