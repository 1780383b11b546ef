"""The loader hands its draws' settings and the seeds' times to the sampler."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dnformer.data.graph import Graph
from dnformer.errors import ConfigError, DataError
from dnformer.loader import NeighborLoader, NeighborSampler

NUM_NODES = 40
RNG = np.random.default_rng(0)
EDGES = [tuple(edge) for edge in RNG.integers(0, NUM_NODES, (600, 2)).tolist()]
SEEDS = RNG.permutation(NUM_NODES)[:20]
TIMES = RNG.integers(-50, 50, NUM_NODES)


@pytest.fixture(scope="module")
def graph(make_graph: Callable[..., Graph]) -> Graph:
    x = np.arange(NUM_NODES, dtype=np.float32)[:, None]
    return make_graph(EDGES, num_nodes=NUM_NODES, x=x, y=[0] * NUM_NODES, num_classes=1, time=TIMES)


def loader(graph: Graph, **settings: Any) -> NeighborLoader:
    return NeighborLoader(graph, SEEDS, num_neighbors=[3, 2], batch_size=8, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"replace": True}, {"sampling": "labor"}, {"temporal": True}],
    ids=["uniform", "replace", "labor", "temporal"],
)
def test_batches_are_the_samplers(graph: Graph, settings: dict[str, Any]) -> None:
    batches = loader(graph, **settings)
    sampler = NeighborSampler(graph, [3, 2], **settings)
    for index, batch in enumerate(batches):
        expected = sampler.sample(SEEDS[batch.input_id], batches.key(index))
        assert batch.e_id.tolist() == expected.e_id.tolist()
        assert batch.edge_index.tolist() == expected.edge_index.tolist()
        batch.edge_index.validate()
        assert ("batch" in batch) == ("temporal" in settings)


@pytest.mark.parametrize("given", [None, np.full(20, 10), torch.arange(20)], ids=type)
def test_temporal_batches_hold_what_was_there_at_their_seeds_time(graph: Graph, given: Any) -> None:
    times = TIMES[SEEDS] if given is None else np.asarray(given)
    num_edges = 0
    for batch in loader(graph, temporal=True, input_time=given):
        assert batch.batch[: batch.batch_size].tolist() == list(range(batch.batch_size))
        latest = times[batch.input_id][batch.batch[batch.edge_index[1]]]
        assert (TIMES[graph.store.row[batch.e_id]] <= latest).all()
        assert batch.x.squeeze(1).tolist() == batch.n_id.tolist()
        num_edges += batch.num_edges
    assert num_edges > 20


def test_settings_that_the_graph_or_the_sampler_lacks_are_refused(graph: Graph) -> None:
    for settings, error, message in (
        ({"sampling": "weighted"}, DataError, "no weights"),
        ({"input_time": np.zeros(20, np.int64)}, ConfigError, "not temporal"),
        ({"temporal": True, "input_time": np.zeros(3, np.int64)}, DataError, "of the 20 seeds"),
        ({"sampling": "labor", "temporal": True}, ConfigError, "labor"),
        ({"sampler": "pyg-lib", "replace": True}, ConfigError, "use sampler dnformer"),
        ({"sampler": "pyg-lib", "temporal": True}, ConfigError, "use sampler dnformer"),
    ):
        with pytest.raises(error, match=message):
            loader(graph, **settings)
