import logging
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.edge_index import EdgeIndex

from dnformer.data.clean import Policies, clean
from dnformer.data.pyg import from_data
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
    assert nodes.y is not None
    assert nodes.y.tolist() == [1, -1, 0]
    assert nodes.split is not None
    assert nodes.split.dtype == np.int8
    assert nodes.split.tolist() == [2, 3, 1]
    assert (nodes.num_nodes, nodes.num_classes, nodes.classes, nodes.ids) == (3, 2, None, None)
    assert torch.signbit(data.x[0, 1])  # the caller's tensors are left alone
    assert all(torch.equal(data[name], before[name]) for name in data.keys())  # noqa: SIM118


def test_from_data_edges_alone() -> None:
    raw = from_data(Data(edge_index=EDGES.to(torch.int32)))
    assert raw.src.dtype == np.int64
    assert raw.nodes.num_nodes == 3
    assert raw.nodes.x is raw.nodes.y is raw.nodes.split is None
    assert raw.nodes.num_classes == 0


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


def test_from_data_column_of_labels_and_num_classes() -> None:
    raw = from_data(Data(edge_index=EDGES, y=torch.tensor([[0], [4], [0]])), num_classes=6)
    assert raw.nodes.y is not None
    assert raw.nodes.y.tolist() == [0, 4, 0]
    assert raw.nodes.num_classes == 6


def test_from_data_masks_may_be_missing() -> None:
    raw = from_data(Data(edge_index=EDGES, train_mask=mask(0), test_mask=mask(2)))
    assert raw.nodes.split is not None
    assert raw.nodes.split.tolist() == [1, 0, 3]


def test_from_data_other_attributes_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="dnformer"):
        from_data(Data(edge_index=EDGES, edge_attr=torch.ones(3, 2), name="mine"))
    assert caplog.messages == ["Data: edge_attr, name not read"]


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
        ({"y": torch.ones(3)}, r"^data.y is float32 \[3\]; it must be one class a node, integer"),
        ({"y": torch.ones(3, 2).long()}, r"^data.y is int64 \[3, 2\]; .*y.argmax\(1\)"),
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
