"""The objective of a config on a graph, and each training node's weight."""

import io
import uuid

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dnformer import storage
from dnformer.config import LossConfig
from dnformer.data.table import Target, TargetColumn
from dnformer.errors import ConfigError, DataError
from dnformer.training.loss_weights import (
    balanced,
    objective_for,
    read_mask,
    target_of,
    training_weights,
)
from dnformer.training.objectives import RegressionObjective

# four training nodes, of which 3 has no class, then two of validation and two of test
CLASSES = [0, 0, 1, -1, 0, 1, 1, 0]
SPLIT = [1, 1, 1, 1, 2, 2, 3, 3]
EDGES = [(0, 1), (1, 2)]


def file_of(values: object) -> str:
    content = io.BytesIO()
    np.save(content, np.asarray(values))
    uri = f"memory://{uuid.uuid4().hex}/mask.npy"
    storage.write_bytes(uri, content.getvalue())
    return uri


@pytest.fixture(scope="module")
def graph(make_graph):
    return make_graph(EDGES, num_nodes=8, y=CLASSES, num_classes=3, split=SPLIT)


def other(make_graph, kind: str, values: object):
    values = np.asarray(values, dtype=np.int8 if kind == "multilabel" else np.float32)
    target = Target(name="label", kind=kind, num_outputs=values.shape[1])
    return make_graph(EDGES, num_nodes=8, split=SPLIT, targets=(TargetColumn(target, values),))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([True, False, True], id="bool"),
        pytest.param(np.array([2, 0, 7], dtype=np.uint8), id="uint8"),
        pytest.param(np.array([0.5, 0, 1e-3], dtype=np.float16), id="float16"),
        pytest.param(np.array([1, 0, 3], dtype=">i4"), id="big-endian"),
        pytest.param(np.array([1.5, 0, 3], order="F"), id="float64"),
    ],
)
def test_read_mask(values):
    found = read_mask(file_of(values), 3)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, np.asarray(values, dtype=np.float64))


def test_read_mask_of_a_local_file(tmp_path, monkeypatch):
    np.save(tmp_path / "mask.npy", [1.0, 0.0])
    monkeypatch.chdir(tmp_path)
    assert read_mask("mask.npy", 2).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param([1.0, -0.5, -1.0], r"row 1: -0\.5 is no weight", id="negative"),
        pytest.param([1.0, 0.0, np.nan], "row 2: nan is no weight", id="nan"),
        pytest.param([np.inf, 0.0, 1.0], "row 0: inf is no weight", id="inf"),
        pytest.param([1e39, 0.0, 1.0], r"row 0: 1e\+39 is no weight", id="past-float32"),
        pytest.param([1, -1, 1], "row 1: -1 is no weight", id="int"),
        pytest.param([1.0, 1.0], r"found float64 of shape \[2\]; a mask has 3", id="short"),
        pytest.param([[1.0], [1.0], [1.0]], r"shape \[3, 1\]; a mask has 3 booleans", id="matrix"),
        pytest.param(1.0, r"shape \[\]; a mask has 3 booleans", id="one-number"),
        pytest.param(["a", "b", "c"], r"found <U1 of shape \[3\]", id="text"),
        pytest.param([1j, 0, 0], "found complex128 of shape", id="complex"),
        pytest.param(
            np.zeros(3, dtype="datetime64[s]"), r"found datetime64\[s\] of shape", id="time"
        ),
    ],
)
def test_read_mask_names_what_is_wrong(values, expected):
    uri = file_of(values)
    with pytest.raises(DataError, match=expected) as caught:
        read_mask(uri, 3)
    assert str(caught.value).startswith(f"{uri}: ")
    assert "\n" not in str(caught.value)


def cut(values: object) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()[:-5]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"0\n1\n", id="text"),
        pytest.param(b"\x93NUMPY", id="cut-header"),
        pytest.param(cut(np.ones(3)), id="cut-values"),
        pytest.param(b"PK\x03\x04half", id="npz"),
    ],
)
def test_read_mask_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "mask.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"mask\.npy: no \.npy file of plain values .*numpy\.save"):
        read_mask(str(tmp_path / "mask.npy"), 3)


def test_read_mask_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.npy: no such file"):
        read_mask(str(tmp_path / "none.npy"), 3)


class Bomb:
    """What unpickling would run."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self):
        return (open, (self.marker, "w"))


def test_read_mask_never_unpickles(tmp_path):
    marker, path = tmp_path / "was-run", tmp_path / "mask.npy"
    np.save(path, np.array([Bomb(str(marker))], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"mask\.npy: no \.npy file of plain values"):
        read_mask(str(path), 1)
    assert not marker.exists()


def test_balanced_gives_each_class_that_is_there_the_same_share():
    y, weight = torch.tensor([0, 0, 0, 1, 3, -1]), torch.tensor([1, 1, 1, 1, 0.5, 9]).double()
    found = balanced(y, weight, 4)
    assert found.dtype == torch.float64
    total = [float((weight * found[y.clamp(min=0)])[y == label].sum()) for label in (0, 1, 3)]
    assert total == pytest.approx([4.5 / 4] * 3)
    assert found[2] == 1


def test_training_weights_are_one_each_by_default(graph):
    objective = objective_for(graph, LossConfig())
    weights = training_weights(graph, objective, LossConfig())
    # node 3 has no class, so no split has it
    assert graph.split("train").tolist() == [0, 1, 2]
    assert weights.dtype == torch.float64
    assert weights.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("class_weights", "expected"),
    [
        (None, [1, 3, 1]),
        ([0.5, 2.0, 9.0], [0.5, 1.5, 2.0]),
        # of a total of 5, class 0 has 4 and class 1 has 1, and there are three classes
        ("balanced", [5 / 12, 15 / 12, 5 / 3]),
    ],
    ids=["none", "listed", "balanced"],
)
def test_training_weights_are_class_weight_times_mask(graph, class_weights, expected):
    # what the other nodes have there means nothing
    loss = LossConfig(class_weights=class_weights, mask=file_of([1, 3, 1, 9, 9, 9, 9, 9]))
    objective = objective_for(graph, loss)
    assert training_weights(graph, objective, loss).tolist() == pytest.approx(expected)


def test_objective_for_has_the_loss_of_its_config(graph):
    loss = LossConfig(label_smoothing=0.2, class_weights=[0.5, 2.0, 9.0])
    objective = objective_for(graph, loss)
    y, out = target_of(graph, graph.split("train")), torch.randn(3, 3)
    weights = training_weights(graph, objective, loss)
    expected = F.cross_entropy(out, y, torch.tensor([0.5, 2.0, 9.0]), label_smoothing=0.2)
    found = objective.loss(out, y, weights.float()) / weights.sum()
    torch.testing.assert_close(found.float(), expected)


def test_class_weights_of_another_number_are_refused(graph):
    with pytest.raises(ConfigError, match=r"has 2 values, but the label has 3 classes; give 3"):
        objective_for(graph, LossConfig(class_weights=[1.0, 2.0]))


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
@pytest.mark.parametrize(
    "asked", [{"label_smoothing": 0.1}, {"class_weights": "balanced"}], ids=["smoothing", "weights"]
)
def test_class_settings_of_another_kind_are_refused(make_graph, kind, asked):
    graph = other(make_graph, kind, [[0], [1]] * 4)
    (name,) = asked
    with pytest.raises(ConfigError, match=rf"loss\.{name} is for labels of kind class.*{kind}; le"):
        objective_for(graph, LossConfig(**asked))


def test_mask_of_nothing_but_zeros_on_the_training_nodes_is_refused(graph):
    loss = LossConfig(mask=file_of([0, 0, 0, 1, 1, 1, 1, 1]))
    with pytest.raises(DataError, match=r"all 3 training nodes weigh 0.*change loss\.mask or"):
        objective_for(graph, loss)


def test_regression_units_follow_the_mask(make_graph):
    numbers = [[1.0], [3.0], [1e9], [np.nan], [0.0], [1.0], [2.0], [3.0]]
    graph = other(make_graph, "regression", numbers)
    loss = LossConfig(mask=file_of([1, 1, 0, 1, 1, 1, 1, 1]))
    objective = objective_for(graph, loss)
    assert objective.values() == {"mean": [2.0], "scale": [1.0]}
    assert isinstance(objective, RegressionObjective)
    assert training_weights(graph, objective, loss).tolist() == [1, 1, 0]


def test_objective_for_multilabel_without_auc_names_the_split(make_graph):
    # validation has both values, test has not
    graph = other(make_graph, "multilabel", [[0], [1], [0], [1], [0], [1], [1], [1]])
    with pytest.raises(DataError, match=r"'test': no label has both .* no auc; choose another"):
        objective_for(graph, LossConfig())


@pytest.mark.parametrize(
    ("kind", "values", "monitor", "expected"),
    [
        pytest.param("class", [0, 1, 0, 1, 1, 1, 0, 1], "val/auc", "no label has both", id="auc"),
        pytest.param(
            "regression",
            [[0], [1], [2], [3], [5], [5], [6], [7]],
            "val/r2",
            "no number of the label has two different values",
            id="r2",
        ),
    ],
)
def test_objective_for_refuses_a_monitor_that_validation_cannot_have(
    make_graph, kind, values, monitor, expected
):
    if kind == "class":
        graph = make_graph(EDGES, num_nodes=8, y=values, num_classes=2, split=SPLIT)
    else:
        graph = other(make_graph, kind, values)
    objective_for(graph, LossConfig())
    with pytest.raises(DataError, match=f"split 'val': {expected}"):
        objective_for(graph, LossConfig(), monitor)
