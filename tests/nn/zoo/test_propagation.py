import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import to_dense_adj

from dnformer.errors import ConfigError, DataError
from dnformer.nn.zoo.propagation import OfGraph, adjacency
from tests.nn.helpers import EDGES, features


def dense(*, loops: bool) -> Tensor:
    """A[i, j] = 1 where i is the destination and j the source of an edge."""
    a = torch.zeros(8, 8, dtype=torch.float64)
    a[EDGES[1], EDGES[0]] = 1
    return torch.maximum(a, torch.eye(8, dtype=torch.float64)) if loops else a


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "none"])
@pytest.mark.parametrize("norm", ["symmetric", "row", "column"])
def test_adjacency_equals_dense(norm: str, loops: bool) -> None:
    a = dense(loops=loops)
    into, out_of = a.sum(1), a.sum(0)
    scale = {
        "symmetric": torch.outer(into, into).rsqrt(),
        "row": (1 / into)[:, None].expand_as(a),
        "column": (1 / out_of).expand_as(a),
    }[norm]
    expected = torch.where((a > 0) & scale.isfinite(), a * scale, 0)
    found = adjacency(EDGES, 8, norm=norm, loops=loops, dtype=torch.float64)
    x = features().requires_grad_()
    out = found @ x
    torch.testing.assert_close(out, expected @ x)
    weight = features(width=5).flip(0)
    torch.testing.assert_close(torch.autograd.grad(out, x, weight)[0], expected.T @ weight)


def test_adjacency_equals_gcn_norm() -> None:
    edges, weight = gcn_norm(EDGES, num_nodes=8, dtype=torch.float64)
    expected = to_dense_adj(edges, edge_attr=weight, max_num_nodes=8)[0].T
    shuffled = EDGES[:, torch.randperm(EDGES.shape[1], generator=torch.Generator().manual_seed(0))]
    found = adjacency(shuffled, 8, norm="symmetric", loops=True, dtype=torch.float64)
    torch.testing.assert_close(found @ torch.eye(8, dtype=torch.float64), expected)


def test_adjacency_no_edges() -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    found = adjacency(none, 3, norm="symmetric", loops=False, dtype=torch.float32)
    assert torch.equal(found @ torch.ones(3, 2), torch.zeros(3, 2))


def test_adjacency_wrong_input() -> None:
    with pytest.raises(ConfigError, match="norm = 'left' is not one of symmetric, row, column"):
        adjacency(EDGES, 8, norm="left", loops=True, dtype=torch.float32)
    with pytest.raises(DataError, match="source 6, but there are 4 source nodes"):
        adjacency(EDGES, 4, norm="row", loops=True, dtype=torch.float32)


def test_of_graph_keeps_two() -> None:
    made = []

    def make(edge_index: Tensor, num_nodes: int) -> int:
        made.append(num_nodes)
        return int(edge_index.sum()) + num_nodes

    of_graph = OfGraph(make)
    first, second, third = EDGES.clone(), EDGES[:, :3].clone(), EDGES[:, :2].clone()
    ordered = EdgeIndex(first, sparse_size=(8, 8))
    assert of_graph(first, 8) == of_graph(ordered, 8) == of_graph(first, 8)
    of_graph(second, 8)
    of_graph(first, 8)
    assert made == [8, 8]
    of_graph(third, 8)
    of_graph(second, 8)
    assert made == [8, 8, 8]
    of_graph(first, 8)
    assert made == [8] * 4
    first[0, 0] = 3
    assert of_graph(first, 8) == int(first.sum()) + 8
    assert of_graph(first, 9) == int(first.sum()) + 9
