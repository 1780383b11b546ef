"""Every config in jobs/configs loads, and names itself after its file."""

from pathlib import Path

import pytest

from dnformer.config import load_config

FOLDER = Path(__file__).parents[2] / "jobs" / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))


def test_configs_cover_the_seven_graphs_and_the_demo():
    assert {file.stem for file in FILES} >= {
        "citeseer", "computers", "cora", "cs", "demo", "photo", "physics", "pubmed",
    }  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_config_loads(file):
    config = load_config(file)
    assert config.name == file.stem
    assert config.data.uri == f"cache/{file.stem}"
