"""Drill: what STAGNN's paper claims of depth: its accuracy beside other models', and its limit.

    python jobs/drills/stagnn.py cache/cora

Accuracy: STAGNN, APPNP, SGC and GCN of each depth, one split, whole graph. Decay: how fast
attention to subtrees of k hops goes over to attention to all nodes, beside the second largest
eigenvalue of the graph's random walk, which bounds it. Runs that ended are not trained again.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor

from dnformer.config import RunConfig
from dnformer.data.graph import Graph, open_graph
from dnformer.nn.zoo.neighbours import neighbours
from dnformer.nn.zoo.stagnn import global_attention, subtree_attention
from dnformer.parsing import parse
from dnformer.training.launch import train

# the official settings for Cora, and what goes with them
MODELS: dict[str, dict[str, Any]] = {
    "stagnn": {"hidden": 64, "heads": 4, "dropout": 0.6, "input_dropout": 0.6},
    "appnp": {"hidden": 64, "dropout": 0.5, "input_dropout": 0.5},
    "sgc": {},
    "gcn": {"hidden": 64, "dropout": 0.5, "options": {"residual": True}},
}
DEPTHS = (1, 3, 10, 30, 100)
# distances below are the constant in the denominators, not the walk
FLOOR = 1e-3


class Decay(NamedTuple):
    """How attention to subtrees nears attention to all nodes.

    Attributes:
        distance: relative, by hops.
        rate: of the distance in a hop, from the slope of its logarithm.
        eigenvalue: second largest of the walk, by absolute value.
    """

    distance: dict[int, float]
    rate: float
    eigenvalue: float


def main() -> None:
    """Prints both parts as Markdown, then as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", metavar="URI", help="a dataset, as `dnformer ingest` made it")
    parser.add_argument("--epochs", type=int, default=200, help="of each run")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="hops; []: none")
    parser.add_argument("--steps", type=int, default=1500, help="hops of the decay")
    parser.add_argument("--out", default="cache/drills", help="folder of the runs")
    given = parser.parse_args()
    rows = {depth: accuracies(given, depth) for depth in given.depths}
    print(f"| model | {' | '.join(f'K = {depth}' for depth in rows)} |")
    print(f"|---|{'---|' * len(rows)}")
    for name in MODELS:
        print(f"| {name} | {' | '.join(f'{100 * row[name]:.1f}' for row in rows.values())} |")
    found = decay(open_graph(given.data), given.steps)
    print(
        f"\nSTA_k to global attention: the distance falls by {found.rate:.5f} a hop, the walk's "
        f"second eigenvalue is {found.eigenvalue:.5f}"
    )
    print(json.dumps({"accuracy": rows, "decay": found._asdict()}))


def accuracies(given: argparse.Namespace, depth: int) -> dict[str, float]:
    """Test accuracy of each model at the best validation."""
    return {name: train(config(given, name, depth))["test"]["accuracy"] for name in MODELS}


def config(given: argparse.Namespace, name: str, depth: int) -> RunConfig:
    """The run of a model of a depth."""
    values = {
        "name": f"stagnn-drill/{Path(given.data).name}-{given.epochs}/{name}-{depth}",
        "storage_path": given.out,
        "data": {"uri": given.data, "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"kind": "full"},
        "model": {"name": name, "layers": depth, **MODELS[name]},
        "optim": {"lr": 0.01, "weight_decay": 1e-4, "norm_weight_decay": 0},
        "train": {"epochs": given.epochs},
        "checkpoint": {"every_epochs": 50},
    }
    return parse(RunConfig, values)


def decay(graph: Graph, steps: int) -> Decay:
    """Of random queries, keys and values on the graph's largest component."""
    adjacency = largest_component(graph)
    generator = torch.Generator().manual_seed(0)

    def draw(width: int) -> Tensor:
        return torch.rand(adjacency.shape[0], 1, width, generator=generator, dtype=torch.float64)

    q, k, v = draw(8), draw(8), draw(4) - 0.5
    row, col = adjacency.nonzero()
    edges = neighbours(torch.from_numpy(np.stack([col, row]).astype(np.int64)), len(q))
    limit = global_attention(q, k, v)
    distance = {
        hop: float((found - limit).norm() / limit.norm())
        for hop, found in enumerate(subtree_attention(q, k, v, edges, steps), start=1)
    }
    # the slope of the last half above the floor, where the second eigenvector is what is left
    hops = [hop for hop, far in distance.items() if far > FLOOR]
    hops = hops[len(hops) // 2 :]
    slope = np.polyfit(hops, [math.log(distance[hop]) for hop in hops], 1)[0]
    shown = {hop: distance[hop] for hop in (*DEPTHS, 300, 1000) if hop in distance}
    return Decay(shown, math.exp(slope), second_eigenvalue(adjacency))


def largest_component(graph: Graph) -> sp.csr_array:
    """Its adjacency, without loops and weights."""
    row, n = graph.store.row, graph.num_nodes
    found = sp.csr_array((np.ones(len(row)), row, graph.store.colptr), shape=(n, n))
    found.setdiag(0)
    found.eliminate_zeros()
    _, label = connected_components(found)
    nodes = np.flatnonzero(label == np.bincount(label).argmax())
    return found[nodes][:, nodes]


def second_eigenvalue(adjacency: sp.csr_array) -> float:
    """Of D^-1/2 A D^-1/2, which has the walk's eigenvalues; by absolute value."""
    root = sp.diags_array(1 / np.sqrt(adjacency.sum(1)))
    values = eigsh(root @ adjacency @ root, k=3, which="LM", return_eigenvectors=False)
    return float(np.sort(np.abs(values))[-2])


if __name__ == "__main__":
    main()
