"""How good predictions are where labels are known: sums a part at a time, metrics at the end."""

from collections.abc import Iterable
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dnformer.data.graph import Graph
from dnformer.inference.exact import Nodes
from dnformer.training.loss_weights import target_of
from dnformer.training.objectives import Objective
from dnformer.training.scores import known_nodes

Array = npt.NDArray[Any]

Sums = dict[str, tuple[list[float], int]]
# of a graph whose splits mean nothing to the run
_ALL = "known"


@final
class Known:
    """Labels to compare with.

    Args:
        graph: with its labels.
        objective: what is measured.
        splits: whether nodes are told apart by the graph's splits; those in none do not count.
    """

    def __init__(self, graph: Graph, objective: Objective, *, splits: bool) -> None:
        self._graph, self._objective = graph, objective
        self.names = list(graph.splits) if splits else [_ALL]
        self._code = np.zeros(graph.num_nodes, np.int8)
        if splits:
            for number, nodes in enumerate(graph.splits.values()):
                self._code[nodes] = number + 1
        else:
            self._code[:] = 1

    @property
    def compared(self) -> str:
        """The nodes on which ways of computing are compared."""
        return self.names[-1]

    def members(self, name: str, wanted: Array | None) -> Array:
        """Those of `wanted` (None: all) in a split whose labels are known, ascending."""
        number = self.names.index(name) + 1
        nodes = np.flatnonzero(self._code == number) if wanted is None else wanted
        nodes = nodes[self._code[nodes] == number]
        found: Array = nodes[known_nodes(self._y(nodes)).numpy()]
        return found

    def sums(self, nodes: Nodes, values: Tensor) -> Sums:
        """By split, what metrics are made of, and how many nodes it has among `nodes`."""
        ids = np.asarray(nodes)
        y, code = self._y(ids), torch.from_numpy(self._code[ids])
        known = known_nodes(y)
        found: Sums = {}
        for number, name in enumerate(self.names, start=1):
            chosen = known & (code == number)
            if chosen.any():
                counts = self._objective.count(values[chosen].double(), y[chosen])
                found[name] = (counts.tolist(), int(chosen.sum()))
        return found

    def _y(self, nodes: Array) -> Tensor:
        return target_of(self._graph, torch.from_numpy(nodes))


def metrics_of(
    objective: Objective, sums: Iterable[tuple[str, list[float], int]]
) -> dict[str, dict[str, float]]:
    """Metrics by split of (split, sums, nodes)."""
    return {
        name: objective.running(torch.tensor(counts, dtype=torch.float64))
        for name, counts, _ in sums
    }
