"""Every config in jobs/configs loads, and names itself after its file."""

from pathlib import Path

import numpy as np
import pytest

from dnformer.config import load_config
from dnformer.tuning.space import Space

FOLDER = Path(__file__).parents[2] / "jobs" / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))
GRAPHS = ("citeseer", "computers", "cora", "cs", "photo", "physics", "pubmed")


def test_configs_cover_the_seven_graphs_and_the_demo():
    assert {file.stem for file in FILES} == {
        "demo", *GRAPHS, *(f"tune-{graph}" for graph in GRAPHS),
    }  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS)
def test_search_of_a_graph_can_be_tried(graph):
    config = load_config(FOLDER / f"tune-{graph}.yaml")
    space, random = Space(config), np.random.default_rng(0)
    assert {"model.heads", "model.layers", "optim.lr"} <= config.tune.space.keys()
    for _ in range(50):
        space.config(space.sample(random))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_config_loads(file):
    config = load_config(file)
    assert config.name == file.stem
    assert config.data.uri == f"cache/{file.stem.removeprefix('tune-')}"
