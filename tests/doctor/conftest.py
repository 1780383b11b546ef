"""Runs to be: a small dataset and a config."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dnformer.data.cache import write_cache
from dnformer.data.table import GraphTable

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def write_run(make_table: Callable[..., GraphTable], tmp_path: Path) -> Write:
    """Writes a dataset of 200 nodes and a config with other sections; the config's path."""

    def write(**sections: Any) -> Path:
        ring = [(i, (i + step) % 200) for i in range(200) for step in (1, 2, 3)]
        y = [i % 2 for i in range(200)]
        table = make_table(ring, x=[[float(label), 1.0] for label in y], y=y, num_classes=2)
        write_cache(table, str(tmp_path / "data"), source="test")
        values: dict[str, Any] = {
            "name": "run",
            "storage_path": str(tmp_path / "runs"),
            "data": {"uri": str(tmp_path / "data"), "split": {"random": [0.6, 0.2, 0.2]}},
            "cache": {"dir": str(tmp_path / "stores")},
            "loader": {"batch_size": 8, "num_neighbors": [2], "threads": 1},
            "model": {"hidden": 8},
            "train": {"epochs": 2, "threads": 1},
        }
        for name, section in sections.items():
            values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
        return tmp_path / "run.yaml"

    return write
