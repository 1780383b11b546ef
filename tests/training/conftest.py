"""A small synthetic dataset and configs of runs on it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnformer.config import RunConfig
from dnformer.data.cache import write_cache
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.data.table import EdgeColumns, GraphTable, NodeColumns, Target, TargetColumn
from dnformer.parsing import parse


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of a graph of 300 nodes."""
    folder = tmp_path_factory.mktemp("dataset")
    source = SyntheticSource(nodes=300, classes=3, features=8, degree=6, noise=0.5)
    ingest(source, str(folder / "sbm"))
    return str(folder / "sbm")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of a graph of 150 nodes with labels of each kind and edge attributes."""
    random = np.random.default_rng(0)
    n = 150
    x = random.normal(size=(n, 4)).astype(np.float32)
    tags = (x[:, :3] > 0.5).astype(np.int8)
    tags[random.random((n, 3)) < 0.2] = -1
    size = (x[:, :2] * [100, 0.1] + [5000, 7]).astype(np.float32)
    size[random.random((n, 2)) < 0.2] = np.nan
    targets = (
        TargetColumn(Target(name="topic", kind="class", num_outputs=2),
                     (x[:, 0] > 0).astype(np.int64)),
        TargetColumn(Target(name="tags", kind="multilabel", num_outputs=3), tags),
        TargetColumn(Target(name="size", kind="regression", num_outputs=2), size),
    )  # fmt: skip
    dst = np.repeat(np.arange(n), 2)
    table = GraphTable(
        nodes=NodeColumns(num_nodes=n, x=x, targets=targets),
        src=np.sort(np.stack([(np.arange(n) + 1) % n, (np.arange(n) * 7 + 3) % n], 1)).ravel(),
        dst=dst,
        policies={"direction": "directed"},
        counts={},
        edges=EdgeColumns(
            attr=random.normal(size=(2 * n, 2)).astype(np.float32), attr_names=("far", "old")
        ),
    )
    uri = str(tmp_path_factory.mktemp("mixed") / "data")
    write_cache(table, uri, source="test")
    return uri


@pytest.fixture(scope="session")
def values(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """A run's config as YAML would give it; keyword arguments are added to the sections."""
    store = str(tmp_path_factory.mktemp("store"))

    def make(storage_path: object, **sections: dict[str, Any]) -> dict[str, Any]:
        defaults: dict[str, Any] = {
            "name": "run",
            "storage_path": str(storage_path),
            "data": {"uri": dataset, "split": {"random": [0.6, 0.2, 0.2]}},
            "loader": {"num_neighbors": 4, "batch_size": 20, "threads": 1},
            "model": {"hidden": 8, "layers": 2, "heads": 2, "dropout": 0.2},
            "train": {"epochs": 3, "threads": 1, "log_every": 1},
            "cache": {"dir": store},
        }
        return {
            name: {**defaults.get(name, {}), **sections.get(name, {})}
            if isinstance(sections.get(name, defaults.get(name)), dict)
            else sections.get(name, defaults.get(name))
            for name in {**defaults, **sections}
        }

    return make


@pytest.fixture(scope="session")
def make_config(values: Callable[..., dict[str, Any]]) -> Callable[..., RunConfig]:
    """The same, parsed."""

    def make(storage_path: object, **sections: Any) -> RunConfig:
        return parse(RunConfig, values(storage_path, **sections))

    return make
