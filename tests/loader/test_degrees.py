import torch

from dnformer.loader import NeighborLoader

# 0 has a loop and three others, 1 none, 2 one, 3 a loop only
EDGES = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 2), (3, 3)]


def test_batch_brings_degrees_of_the_whole_graph_without_loops(make_graph) -> None:
    graph = make_graph(EDGES, x=torch.ones(4, 1).numpy())
    loader = NeighborLoader(
        graph, torch.arange(4), num_neighbors=[1], batch_size=2, shuffle=False, degrees=True
    )
    expected = torch.tensor([3, 0, 1, 0])
    for batch in loader:
        assert batch.degree.dtype == torch.int64
        assert torch.equal(batch.degree, expected[batch.n_id])


def test_batch_has_no_degrees_unless_asked_for(make_graph) -> None:
    graph = make_graph(EDGES, x=torch.ones(4, 1).numpy())
    loader = NeighborLoader(graph, torch.arange(4), num_neighbors=[1], batch_size=4)
    assert "degree" not in next(iter(loader))
