"""What the model's tests share: a literal graph and sampled blocks of it."""

import torch
from torch import Tensor

# 8 nodes: 7 has no edge at all, 2 has a loop of its own, 5 has one in-neighbour
EDGES = torch.tensor(
    [
        [1, 2, 3, 0, 2, 0, 2, 6, 4, 0, 5, 4, 3, 1],
        [0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 6],
    ]
)


def features(num_nodes: int = 8, width: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    """Fixed random features."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_nodes, width, generator=generator, dtype=torch.float64).to(dtype)


def sampled_block(
    edge_index: Tensor, seeds: list[int], num_hops: int
) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """n_id, edge_index, num_sampled_nodes and num_sampled_edges with every neighbour taken."""
    nodes, row, col = list(seeds), [], []
    num_nodes, num_edges = [len(seeds)], []
    frontier = range(len(seeds))
    for _ in range(num_hops):
        found = len(row)
        for i in frontier:
            for j in edge_index[0, edge_index[1] == nodes[i]].tolist():
                if j not in nodes:
                    nodes.append(j)
                row.append(nodes.index(j))
                col.append(i)
        frontier = range(sum(num_nodes), len(nodes))
        num_nodes.append(len(frontier))
        num_edges.append(len(row) - found)
    return torch.tensor(nodes), torch.tensor([row, col]), num_nodes, num_edges
