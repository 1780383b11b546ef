import pytest
import torch
from torch_geometric import EdgeIndex

from dnformer.errors import DataError
from dnformer.nn.topology import Edges, add_self_loops, to_edges
from dnformer.ops import Topology


def test_to_edges_unsorted() -> None:
    edge_index = torch.tensor([[5, 1, 4, 0, 2], [2, 0, 2, 3, 0]])
    found = to_edges(edge_index, num_dst=4, num_src=6).topology
    assert found.colptr.tolist() == [0, 2, 2, 4, 5]
    # each destination's edges keep their order
    assert found.row.tolist() == [1, 2, 5, 4, 0]
    assert found.dst().tolist() == [0, 0, 2, 2, 3]


def test_to_edges_attributes_go_with_their_edges() -> None:
    edge_index = torch.tensor([[5, 1, 4, 0, 2], [2, 0, 2, 3, 0]])
    attr = torch.arange(10.0).view(5, 2)
    found = to_edges(edge_index, attr, num_dst=4, num_src=6)
    assert found.attr[:, 0].tolist() == [2, 8, 0, 4, 6]
    # already in order, so not even copied
    again = torch.stack([found.topology.row, found.topology.dst()])
    assert to_edges(again, attr, num_dst=4, num_src=6).attr is attr


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_to_edges_edge_index(dtype: torch.dtype) -> None:
    edges = EdgeIndex(
        torch.tensor([[5, 1, 4], [0, 0, 2]], dtype=dtype), sparse_size=(6, 6), sort_order="col"
    )
    found = to_edges(edges, num_dst=3, num_src=6).topology
    assert found.colptr.tolist() == [0, 2, 2, 3]
    assert found.row.tolist() == [5, 1, 4]
    assert type(found.row) is torch.Tensor
    assert found.row.dtype == torch.int64


def test_to_edges_no_edges() -> None:
    found = to_edges(torch.empty(2, 0, dtype=torch.int64), num_dst=2, num_src=3).topology
    assert found.colptr.tolist() == [0, 0, 0]
    assert found.row.tolist() == []


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 6], [0, 1]], "source 6, but there are 6 source nodes: indices go from 0 to 5"),
        ([[0, -1], [0, 1]], "source -1"),
        ([[0, 1], [0, 4]], "destination 4, but there are 4 destination nodes"),
        ([[0, 1], [-2, 1]], "destination -2"),
    ],
)
def test_to_edges_out_of_range(edges: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        to_edges(torch.tensor(edges), num_dst=4, num_src=6)


def test_add_self_loops_missing_only() -> None:
    # 0 has none, 1 has its loop in the middle, 2 has edges but no loop, 3 has no edge
    topology = Topology(torch.tensor([0, 1, 4, 6, 6]), torch.tensor([2, 0, 1, 3, 0, 1]))
    found, attr = add_self_loops(Edges(topology))
    assert attr is None
    assert found.colptr.tolist() == [0, 2, 5, 8, 9]
    assert found.row.tolist() == [2, 0, 0, 1, 3, 0, 1, 2, 3]
    again = add_self_loops(Edges(found)).topology
    assert torch.equal(again.row, found.row)
    assert torch.equal(again.colptr, found.colptr)


def test_add_self_loops_marks_them_in_a_column_of_attributes() -> None:
    topology = Topology(torch.tensor([0, 1, 4, 6, 6]), torch.tensor([2, 0, 1, 3, 0, 1]))
    attr = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    found = add_self_loops(Edges(topology, attr)).attr
    # node 1's own loop, with the attribute 3, is none that was added
    assert found[:, 0].tolist() == [1, 0, 2, 3, 4, 5, 6, 0, 0]
    assert found[:, 1].tolist() == [0, 1, 0, 0, 0, 0, 0, 1, 1]


def test_add_self_loops_of_some_nodes() -> None:
    # destinations 4 and 5 of a larger graph: an edge from node 0 to its first is no loop
    topology = Topology(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 5, 3]))
    found = add_self_loops(Edges(topology), torch.tensor([4, 5])).topology
    assert found.colptr.tolist() == [0, 3, 5]
    assert found.row.tolist() == [0, 1, 4, 5, 3]


def test_add_self_loops_no_destinations() -> None:
    topology = Topology(torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    assert add_self_loops(Edges(topology)).topology.colptr.tolist() == [0]
