import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dnformer.data.graph import Graph
from dnformer.errors import BackendError, ConfigError
from dnformer.loader import NeighborLoader, NeighborSampler
from dnformer.loader.pyg_lib import PygLibSampler, is_available

# 0 has four neighbours, one of them twice and itself; 6 is isolated
EDGES = [(0, 0), (1, 0), (1, 0), (2, 0), (3, 1), (0, 1), (4, 2), (5, 3), (2, 4)]

missing = pytest.mark.skipif(is_available(), reason="pyg-lib is installed")

# pyg_lib/csrc/sampler/neighbor.cpp of pyg-lib 0.5
SCHEMA = (
    "neighbor_sample(Tensor rowptr, Tensor col, Tensor seed, int[] num_neighbors, "
    "Tensor? node_time = None, Tensor? edge_time = None, Tensor? seed_time = None, "
    "Tensor? edge_weight = None, bool csc = False, bool replace = False, bool directed = True, "
    "bool disjoint = False, str temporal_strategy = 'uniform', bool return_edge_id = True) -> "
    "(Tensor, Tensor, Tensor, Tensor?, int[], int[])"
)


@pytest.fixture(scope="module")
def graph(make_graph: Callable[..., Graph]) -> Graph:
    x = [[float(node)] for node in range(7)]
    return make_graph(EDGES, num_nodes=7, x=x, y=[0] * 7, num_classes=1)


@missing
def test_pyg_lib_missing_says_what_to_do(graph: Graph) -> None:
    for make in (
        lambda: PygLibSampler(graph, [2]),
        lambda: NeighborLoader(
            graph, np.array([0]), num_neighbors=[2], batch_size=1, sampler="pyg-lib"
        ),
    ):
        with pytest.raises(BackendError, match=r"pyg-lib is not installed.*sampler=dnformer$"):
            make()


def test_pyg_lib_takes_no_other_draws(graph: Graph) -> None:
    for settings in ({"sampling": "weighted"}, {"replace": True}, {"temporal": True}):
        with pytest.raises(ConfigError, match="use sampler dnformer"):
            PygLibSampler(graph, [2], **settings)


DEFAULTS = {
    "node_time": None, "edge_time": None, "seed_time": None, "edge_weight": None, "csc": False,
    "replace": False, "directed": True, "disjoint": False, "temporal_strategy": "uniform",
    "return_edge_id": True,
}  # fmt: skip


class FakePygLib:
    """The operator's contract at full fan-out, and the settings that it was called with."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}

    def neighbor_sample(
        self, rowptr: Any, col: Any, seed: Any, num_neighbors: list[int], *settings: Any
    ) -> tuple[Any, ...]:
        # the dispatcher leaves out what is the default
        given = dict(zip(DEFAULTS, settings, strict=False))
        self.settings = {"num_neighbors": num_neighbors} | DEFAULTS | given
        assert {tensor.dtype for tensor in (rowptr, col, seed)} == {torch.int64}
        n_id, rows, cols, e_id = seed.tolist(), [], [], []
        num_nodes, num_edges, begin = [len(n_id)], [], 0
        for _ in num_neighbors:
            end, before = len(n_id), len(e_id)
            for node in range(begin, end):
                for position in range(rowptr[n_id[node]], rowptr[n_id[node] + 1]):
                    source = int(col[position])
                    if source not in n_id:
                        n_id.append(source)
                    rows.append(n_id.index(source))
                    cols.append(node)
                    e_id.append(position)
            begin = end
            num_nodes.append(len(n_id) - end)
            num_edges.append(len(e_id) - before)
        return (*(torch.tensor(v) for v in (rows, cols, n_id, e_id)), num_nodes, num_edges)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePygLib]:
    (tmp_path / "pyg_lib.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    operator, library = FakePygLib(), torch.library.Library("pyg", "FRAGMENT")
    library.define(SCHEMA)
    library.impl("neighbor_sample", operator.neighbor_sample, "CPU")
    yield operator
    library._destroy()
    sys.modules.pop("pyg_lib", None)


@missing
def test_pyg_lib_is_called_as_its_schema_says(graph: Graph, fake: FakePygLib) -> None:
    sampler = PygLibSampler(graph, [-1, -1])
    sampler.sample(np.array([0]), 0)
    assert fake.settings == DEFAULTS | {"num_neighbors": [-1, -1], "csc": True}
    with pytest.raises(ConfigError, match="takes no times"):
        sampler.seed_times(np.array([0]), np.array([1]))


@missing
def test_pyg_lib_result_is_in_our_layout(graph: Graph, fake: FakePygLib) -> None:
    seeds = np.array([4, 0, 6])
    found = PygLibSampler(graph, [-1, -1]).sample(seeds, 0)
    expected = NeighborSampler(graph, [-1, -1]).sample(seeds, 0)
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.skipif(not is_available(), reason="pyg-lib is not installed (it is not on PyPI)")
def test_pyg_lib_draws_every_neighbour_or_as_many_as_asked(graph: Graph) -> None:
    seeds = np.array([4, 0, 6])
    found = PygLibSampler(graph, [-1, -1]).sample(seeds, 0)
    expected = NeighborSampler(graph, [-1, -1]).sample(seeds, 0)
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)
    fewer = PygLibSampler(graph, [2]).sample(seeds, 0)
    assert np.bincount(fewer.col, minlength=3).tolist() == [1, 2, 0]
    assert graph.store.row[fewer.e_id].tolist() == fewer.n_id[fewer.row].tolist()
    loader = NeighborLoader(graph, seeds, num_neighbors=[2], batch_size=2, sampler="pyg-lib")
    assert [batch.batch_size for batch in loader] == [2, 1]
