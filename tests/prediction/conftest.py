"""Graphs with original ids and labels of each kind, and runs that were trained on them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dnformer.config import RunConfig, StorageConfig
from dnformer.data.cache import write_cache
from dnformer.data.graph import open_graph
from dnformer.data.table import EdgeColumns, GraphTable, NodeColumns, Target, TargetColumn
from dnformer.parsing import parse
from dnformer.training.launch import train
from dnformer.training.trained import open_trained

N = 90


def people(seed: int, *, nodes: int = N, features: int = 4, attrs: int = 2) -> GraphTable:
    """Nodes named as strings, not in the order of any number; a target of each kind."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(nodes, features)).astype(np.float32)
    tags = (x[:, :3] > 0.3).astype(np.int8)
    tags[random.random((nodes, 3)) < 0.2] = -1
    size = (x[:, :2] * [100, 0.1] + [5000, 7]).astype(np.float32)
    topic = (x[:, 0] > 0).astype(np.int64)
    topic[:10] = -1
    targets = (
        TargetColumn(Target(name="topic", kind="class", num_outputs=2, classes=["cats", "dogs"]),
                     topic),
        TargetColumn(Target(name="tags", kind="multilabel", num_outputs=3), tags),
        TargetColumn(Target(name="size", kind="regression", num_outputs=2,
                            classes=["length", "width"]), size),
    )  # fmt: skip
    degree = random.integers(0, 5, nodes)
    dst = np.repeat(np.arange(nodes), degree)
    src = np.concatenate(
        [np.sort(random.choice(nodes, count, replace=False)) for count in degree]
    ).astype(np.int64)
    ids = sorted((f"n{number}é" for number in random.permutation(nodes)), key=str.encode)
    attr = random.normal(size=(len(dst), attrs)).astype(np.float32)
    return GraphTable(
        nodes=NodeColumns(num_nodes=nodes, x=x, targets=targets, ids=ids),
        src=src,
        dst=dst,
        policies={"direction": "directed"},
        counts={},
        edges=EdgeColumns(attr=attr, attr_names=tuple("abc"[:attrs])),
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset `people`, and `others` of the same schema."""
    folder = tmp_path_factory.mktemp("prediction")
    write_cache(people(0), str(folder / "people"), source="test")
    write_cache(people(1, nodes=40), str(folder / "others"), source="test")
    return folder


@pytest.fixture(scope="session")
def make_run(folder: Path) -> Callable[..., str]:
    """A run on `people`, trained for an epoch; keyword arguments are sections of its config."""

    def make(name: str, **sections: dict[str, Any]) -> str:
        values: dict[str, Any] = {
            "data": {"uri": str(folder / "people"), "split": {"random": [0.5, 0.2, 0.3]}},
            "loader": {"num_neighbors": 2, "batch_size": 20, "threads": 1},
            "model": {"hidden": 8, "layers": 2, "heads": 2},
            "train": {"epochs": 1, "threads": 1},
            "cache": {"dir": str(folder / "stores")},
        }
        for section, given in sections.items():
            values[section] = values.get(section, {}) | given
        config = parse(RunConfig, {"name": name, "storage_path": str(folder / "runs"), **values})
        return str(train(config)["run"])

    return make


@pytest.fixture(scope="session")
def run(make_run: Callable[..., str]) -> str:
    """A run that tells cats from dogs."""
    return make_run("topic")


def expected_logits(run: str, uri: Path) -> torch.Tensor:
    """What the run's model gives for each node of a dataset, by one pass over the whole graph."""
    from dnformer.loader import FullLoader

    trained = open_trained(run, StorageConfig())
    graph = open_graph(uri, cache_dir=trained.config.cache.dir, label=trained.target.name)
    batch = next(iter(FullLoader(graph, torch.arange(graph.num_nodes), sparse=True)))
    with torch.no_grad():
        return trained.model()(batch.x, batch.edge_index, edge_attr=batch.edge_attr)
