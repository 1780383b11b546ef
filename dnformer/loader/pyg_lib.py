"""pyg-lib's neighbour sampler behind our interface, where pyg-lib is installed.

Its generator is global to the process, so its draws are no function of the key: batches differ
from run to run and a resumed run does not repeat them.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from dnformer.errors import BackendError, ConfigError
from dnformer.loader.draws import Sampling, Structure
from dnformer.loader.sampler import Sample


def is_available() -> bool:
    """Whether pyg-lib can be imported."""
    return importlib.util.find_spec("pyg_lib") is not None


@final
class PygLibSampler:
    """Uniform sampling without replacement by `torch.ops.pyg.neighbor_sample` (pyg-lib 0.5 on).

    Args:
        graph: an open graph, or its structure; that is copied to memory.
        num_neighbors: fan-out of each hop; -1 takes all neighbours.
        sampling, replace, temporal: as in `NeighborSampler`, of which only the defaults are here.

    Raises:
        ConfigError: other draws were asked for.
        BackendError: pyg-lib is not installed.
    """

    def __init__(
        self,
        graph: Structure,
        num_neighbors: Sequence[int],
        *,
        sampling: Sampling = "uniform",
        replace: bool = False,
        temporal: bool = False,
    ) -> None:
        if sampling != "uniform" or replace or temporal:
            raise ConfigError(
                "sampler pyg-lib draws uniformly without replacement; use sampler dnformer"
            )
        if not is_available():
            raise BackendError(
                "loader.sampler pyg-lib: pyg-lib is not installed. It is not on PyPI; take the "
                "wheel for your torch from PyG's own index, or use loader.sampler=dnformer"
            )
        importlib.import_module("pyg_lib")
        self.num_neighbors = list(num_neighbors)
        self._colptr = torch.from_numpy(graph.store.colptr.astype(np.int64))
        self._row = torch.from_numpy(graph.store.row.astype(np.int64))

    def seed_times(self, nodes: npt.NDArray[Any], given: npt.NDArray[Any] | None = None) -> None:
        """There are none.

        Raises:
            ConfigError: some were given.
        """
        if given is not None:
            raise ConfigError("sampler pyg-lib takes no times; use sampler dnformer")

    def sample(
        self, seeds: npt.NDArray[Any], key: int, time: npt.NDArray[Any] | None = None
    ) -> Sample:
        """The neighbourhood of distinct `seeds`; `key` cannot reach pyg-lib's generator."""
        self.seed_times(seeds, time)
        none = None
        row, col, n_id, e_id, num_nodes, num_edges = torch.ops.pyg.neighbor_sample(
            self._colptr, self._row, torch.from_numpy(seeds), self.num_neighbors,
            none, none, none, none,  # node time, edge time, seed time, edge weight
            True, False, True, False,  # csc, replace, directed, disjoint
            "uniform", True,  # temporal strategy, return edge ids
        )  # fmt: skip
        edge_index = torch.stack([row, col]).numpy()
        return Sample(n_id.numpy(), edge_index, e_id.numpy(), list(num_nodes), list(num_edges))
