import logging
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.edge_index import EdgeIndex

from dnformer.data.clean import Policies, clean
from dnformer.data.sources.pyg import from_data
from dnformer.data.table import EdgeColumns, Target
from dnformer.errors import DataError

EDGES = torch.tensor([[0, 2, 2], [1, 1, 0]])


def mask(*nodes: int) -> torch.Tensor:
    chosen = torch.zeros(3, dtype=torch.bool)
    chosen[list(nodes)] = True
    return chosen


def test_from_data_everything_is_read() -> None:
    data = Data(
        x=torch.tensor([[1.0, -0.0], [0.5, 2.0], [3.0, 4.0]]),
        edge_index=EDGES,
        y=torch.tensor([1, -1, 0]),
        train_mask=mask(2),
        val_mask=mask(0),
        test_mask=mask(1),
    )
    before = data.clone()
    raw = from_data(data)
    assert raw.src.tolist() == [0, 2, 2]
    assert raw.dst.tolist() == [1, 1, 0]
    assert raw.where(1) == "edge 1: 2 -> 1"
    nodes = raw.nodes
    assert isinstance(nodes.x, np.ndarray)
    assert nodes.x.dtype == np.float32
    assert nodes.x.tolist() == [[1, 0], [0.5, 2], [3, 4]]
    assert not np.signbit(nodes.x).any()
    ((target, y),) = nodes.targets
    assert target == Target(name="label", kind="class", num_outputs=2)
    assert y.dtype == np.int64
    assert y.tolist() == [1, -1, 0]
    assert nodes.split is not None
    assert nodes.split.dtype == np.int8
    assert nodes.split.tolist() == [2, 3, 1]
    assert (nodes.num_nodes, nodes.ids, nodes.time) == (3, None, None)
    assert torch.signbit(data.x[0, 1])  # the caller's tensors are left alone
    assert all(torch.equal(data[name], before[name]) for name in data.keys())  # noqa: SIM118


def test_from_data_edges_alone() -> None:
    raw = from_data(Data(edge_index=EDGES.to(torch.int32)))
    assert raw.src.dtype == np.int64
    assert raw.nodes.num_nodes == 3
    assert raw.nodes.x is raw.nodes.split is None
    assert raw.nodes.targets == ()
    assert raw.edges == EdgeColumns()


@pytest.mark.parametrize(
    "parts",
    [{"num_nodes": 5}, {"x": torch.ones(5, 2)}, {"y": torch.tensor([0, 1, 0, 1, 0])}],
    ids=["num_nodes", "x", "y"],
)
def test_from_data_isolated_nodes_count(parts: dict[str, Any]) -> None:
    raw = from_data(Data(edge_index=EDGES, **parts))
    assert raw.nodes.num_nodes == 5
    assert clean(raw, Policies()).counts["isolated_nodes"] == 2


def test_from_data_edge_index_class_is_read() -> None:
    edge_index = EdgeIndex(EDGES, sparse_size=(3, 3))
    raw = from_data(Data(edge_index=edge_index, num_nodes=3))
    assert type(raw.src) is np.ndarray
    assert raw.src.tolist() == [0, 2, 2]


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_from_data_sparse_features(layout: str) -> None:
    dense = torch.zeros(3, 64)
    dense[0, 5], dense[2, 1], dense[2, 0] = 1.5, 2, 3
    x = dense.to_sparse_csr()
    if layout == "coo":  # an entry in two parts, not sorted
        at = torch.tensor([[2, 0, 2, 0], [1, 5, 0, 5]])
        x = torch.sparse_coo_tensor(at, torch.tensor([2.0, 1.0, 3.0, 0.5]), (3, 64))
    found = from_data(Data(x=x, edge_index=EDGES)).nodes.x
    assert sp.issparse(found)
    assert np.array_equal(found.toarray(), dense.numpy())
    assert isinstance(
        from_data(Data(x=x, edge_index=EDGES), feature_layout="dense").nodes.x, np.ndarray
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.bool])
def test_from_data_any_real_type_is_features(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0], [0, 1], [1, 1]]).to(dtype)
    found = from_data(Data(x=x.requires_grad_(x.is_floating_point()), edge_index=EDGES)).nodes.x
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[1, 0], [0, 1], [1, 1]]


def test_from_data_half_precision_stays_where_dense() -> None:
    x = torch.tensor([[0.1, -0.0], [1, 2], [3, 4]], dtype=torch.float16)
    found = from_data(Data(x=x, edge_index=EDGES)).nodes.x
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float16
    assert np.array_equal(found, x.numpy())
    assert not np.signbit(found).any()
    sparse = from_data(Data(x=x, edge_index=EDGES), feature_layout="sparse").nodes.x
    assert sp.issparse(sparse)
    assert sparse.dtype == np.float32


def test_from_data_column_of_labels_and_num_classes() -> None:
    raw = from_data(Data(edge_index=EDGES, y=torch.tensor([[0], [4], [0]])), num_classes=6)
    assert raw.nodes.targets[0].values.tolist() == [0, 4, 0]
    assert raw.nodes.targets[0].target.num_outputs == 6


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
def test_from_data_several_labels_a_node(dtype: torch.dtype) -> None:
    y = torch.tensor([[1, 0], [0, 0], [1, 1]]).to(dtype)
    ((target, values),) = from_data(Data(edge_index=EDGES, y=y)).nodes.targets
    assert target == Target(name="label", kind="multilabel", num_outputs=2)
    assert values.dtype == np.int8
    assert values.tolist() == [[1, 0], [0, 0], [1, 1]]


def test_from_data_unknown_labels_and_a_bool_per_node() -> None:
    y = torch.tensor([[1, -1], [-1, -1], [0, 1]])
    assert from_data(Data(edge_index=EDGES, y=y)).nodes.targets[0].values.tolist() == y.tolist()
    ((target, values),) = from_data(Data(edge_index=EDGES, y=mask(1))).nodes.targets
    assert (target.kind, values.tolist()) == ("multilabel", [[0], [1], [0]])


@pytest.mark.parametrize(
    "y", [[0.5, float("nan"), -0.0], [[1.0, 2.0], [float("nan"), 0.0], [3.0, 4.0]]], ids=["1", "2"]
)
def test_from_data_numbers_to_predict(y: list[Any]) -> None:
    ((target, values),) = from_data(Data(edge_index=EDGES, y=torch.tensor(y))).nodes.targets
    expected = np.array(y, np.float32).reshape(3, -1)
    assert (target.kind, target.num_outputs) == ("regression", expected.shape[1])
    assert values.dtype == np.float32
    assert np.array_equal(values, expected, equal_nan=True)
    assert not np.signbit(values).any()


def test_from_data_edge_columns_and_times() -> None:
    data = Data(
        edge_index=EDGES,
        edge_weight=torch.tensor([1, 2, 3]),
        edge_attr=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.bfloat16),
        edge_time=torch.tensor([7, 8, 9], dtype=torch.int32),
        time=torch.tensor([2017, 2018, 2019]),
    )
    raw = from_data(data)
    edges = raw.edges
    assert edges.weight is not None
    assert edges.weight.dtype == np.float32
    assert edges.weight.tolist() == [1, 2, 3]
    assert edges.attr is not None
    assert edges.attr.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert edges.attr_names == ("edge_attr_0", "edge_attr_1")
    assert edges.time is not None
    assert edges.time.dtype == np.int64
    assert edges.time.tolist() == [7, 8, 9]
    assert raw.nodes.time is not None
    assert raw.nodes.time.tolist() == [2017, 2018, 2019]


def test_from_data_one_attribute_an_edge_and_no_edges() -> None:
    found = from_data(Data(edge_index=EDGES, edge_attr=torch.tensor([1.0, 2.0, 3.0]))).edges
    assert found.attr is not None
    assert found.attr.tolist() == [[1], [2], [3]]
    data = Data(edge_index=EDGES[:, :0], num_nodes=2, edge_attr=torch.ones(0, 4))
    empty = from_data(data).edges
    assert empty.attr is not None
    assert empty.attr.shape == (0, 4)


def test_from_data_time_of_the_length_of_edges_is_theirs() -> None:
    raw = from_data(Data(edge_index=EDGES, num_nodes=4, time=torch.tensor([3, 1, 2])))
    assert raw.nodes.time is None
    assert raw.edges.time is not None
    assert raw.edges.time.tolist() == [3, 1, 2]


def test_from_data_masks_may_be_missing() -> None:
    raw = from_data(Data(edge_index=EDGES, train_mask=mask(0), test_mask=mask(2)))
    assert raw.nodes.split is not None
    assert raw.nodes.split.tolist() == [1, 0, 3]


def test_from_data_other_attributes_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dnformer"):
        from_data(Data(edge_index=EDGES, pos=torch.ones(3, 2), name="mine"))
    assert caplog.messages == ["Data: name, pos not read"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"edge_index": None}, r"^data has no edge_index; it must be an integer tensor"),
        ({"edge_index": [[0], [1]]}, r"^data.edge_index is a list; it must be a tensor$"),
        ({"edge_index": EDGES.float()}, r"^data.edge_index is float32 \[2, 3\]; it must be int"),
        ({"edge_index": EDGES.T}, r"^data.edge_index is int64 \[3, 2\]; it must be integer \[2,"),
        ({"edge_index": EDGES[:, :0]}, r"^data has no nodes$"),
        ({"num_nodes": 4, "x": torch.ones(3, 1)}, r"number of nodes: num_nodes 4, x 3$"),
        ({"x": torch.ones(3, 1), "y": torch.ones(2).long()}, r"number of nodes: x 3, y 2$"),
        ({"x": torch.tensor(1.0)}, r"^data.x is float32 \[\]; its first dimension must be the no"),
        ({"x": torch.ones(3)}, r"^data.x is float32 \[3\]; it must be \[num_nodes, num_features"),
        ({"x": torch.ones(3, 1) * 1j}, r"^features are complex64 of shape \[3, 1\]; give real"),
        (
            {"x": torch.tensor([[1.0], [float("nan")], [1.0]])},
            r"^Data: node 1: feature 0 is nan; it must be a finite number",
        ),
        ({"y": torch.ones(3, 0)}, r"^data.y is float32 \[3, 0\]; it must be classes \[num_nodes"),
        ({"y": torch.ones(3, 2, 2)}, r"^data.y is float32 \[3, 2, 2\]; it must be classes"),
        (
            {"y": torch.tensor([[0, 1], [1, 2], [0, 0]])},
            r"^Data: node 1: y\[1\] is 2; several labels a node are 0, 1, .* y.argmax\(1\)$",
        ),
        (
            {"y": torch.tensor([0.0, float("-inf"), 1.0])},
            r"^Data: node 1: y\[0\] is -inf; it must be a finite number",
        ),
        (
            {"edge_weight": torch.ones(3, 2)},
            r"^data.edge_weight is float32 \[3, 2\]; it must be \[num_edges\]$",
        ),
        (
            {"edge_attr": torch.ones(2, 2)},
            r"^data.edge_attr is float32 \[2, 2\]; it must be dense, \[3\] or \[3, A\]",
        ),
        (
            {"edge_attr": torch.tensor([[1.0], [float("inf")], [1.0]])},
            r"^edge 1: 2 -> 1: edge_attr\[0\] is inf; it must be a finite number",
        ),
        (
            {"edge_time": torch.ones(3)},
            r"^data.edge_time is float32 \[3\]; it must be integer \[3\]: whole numbers",
        ),
        ({"time": torch.ones(5).long()}, r"^data.time is int64 \[5\]; it must be integer \[3\]"),
        ({"y": torch.tensor([0, -2, 1])}, r"^Data: node 1: label -2 is negative"),
        ({"y": torch.tensor([0, 7, -1])}, r"^Data: node 1: label 7 makes 8 classes, but only 2"),
        (
            {"train_mask": mask(0, 1), "test_mask": mask(1, 2)},
            r"^node 1 is in both train_mask and test_mask, as are 0 more; a node is in one split$",
        ),
        ({"val_mask": mask()}, r"^data.val_mask selects no node; leave it out or fill it$"),
        ({"val_mask": mask(1).long()}, r"^data.val_mask is int64 \[3\]; it must be bool"),
        (
            {"train_mask": torch.ones(3, 10, dtype=torch.bool)},
            r"^data.train_mask is bool \[3, 10\], several splits; pick one, for example "
            r"data.train_mask = data.train_mask\[:, 0\]$",
        ),
    ],
    ids=str,
)
def test_from_data_bad_part_is_refused(parts: dict[str, Any], message: str) -> None:
    data = Data(edge_index=EDGES)
    for name, value in parts.items():
        data[name] = value
    with pytest.raises(DataError, match=message) as caught:
        from_data(data)
    assert "\n" not in str(caught.value)


def test_from_data_endpoint_that_is_no_node_is_refused_by_clean() -> None:
    raw = from_data(Data(edge_index=EDGES, num_nodes=2))
    with pytest.raises(DataError, match=r"^edge 1: 2 -> 1: 2 is no node; the 2 nodes are 0 to 1$"):
        clean(raw, Policies())


@pytest.mark.parametrize("kind", [HeteroData, TemporalData, dict])
def test_from_data_other_class_is_refused(kind: Any) -> None:
    message = rf"^a {kind.__name__} is not supported, only torch_geometric.data.Data"
    with pytest.raises(DataError, match=message) as caught:
        from_data(kind())
    assert ("to_homogeneous" in str(caught.value)) == (kind is HeteroData)


def test_from_data_num_classes_of_numbers_is_refused() -> None:
    data = Data(edge_index=EDGES, y=torch.ones(3))
    with pytest.raises(DataError, match=r"^data.y is float32 \[3\], but num_classes is 4; leave"):
        from_data(data, num_classes=4)
