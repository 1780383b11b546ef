"""`dnformer init`: a config that fits the dataset, explains itself and trains as it is."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dnformer.config import SplitConfig, load_config
from dnformer.data.cache import write_cache
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.data.table import GraphTable, NodeColumns, Target, TargetColumn

from .commands import Result, run_command


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in a folder with a dataset `My data`, in this process."""
    monkeypatch.chdir(tmp_path)
    ingest(SyntheticSource(nodes=60, classes=2, features=4, degree=4), "My data")
    return partial(run_command, capsys)


def write(uri: Path, kind: str, **columns: object) -> str:
    """A dataset of 200 nodes with one target of a kind."""
    nodes, edges = 200, np.arange(200)
    values = {
        "class": edges % 3,
        "multilabel": np.stack([edges % 2, edges % 3 == 0], 1).astype(np.int8),
        "regression": edges[:, None].astype(np.float32),
    }[kind]
    outputs = 3 if kind == "class" else values.shape[1]
    target = TargetColumn(Target(name="aim", kind=kind, num_outputs=outputs), values)
    x = np.ones((nodes, 2), dtype=np.float32)
    table = GraphTable(
        nodes=NodeColumns(**{"num_nodes": nodes, "x": x, "targets": (target,)} | columns),
        src=edges, dst=edges, policies={}, counts={},
    )  # fmt: skip
    write_cache(table, str(uri), source="test")
    return str(uri)


def test_init_writes_a_config_that_trains(run):
    result = run("init", "My data")
    assert result.returncode == 0, result.stderr
    assert "dnformer train run.yaml" in result.stdout
    config = load_config("run.yaml")
    assert (config.name, config.data.uri) == ("My-data", "My data")
    assert config.data.split.recipe() == {"random": (0.6, 0.2, 0.2)}
    small = ["--set", "train.epochs=1", "--set", "model.hidden=4", "--set", "cache.dir=stores"]
    assert run("train", "run.yaml", *small).returncode == 0


def test_every_field_is_explained(run):
    run("init", "My data")
    lines = Path("run.yaml").read_text().splitlines()
    assert max(map(len, lines)) <= 100
    settings = [i for i, line in enumerate(lines) if ": " in line and "#" not in line]
    assert len(settings) > 10
    assert all(lines[i - 1].lstrip().startswith("# ") for i in settings)
    assert "initialisation, order of the data, dropout" in "\n".join(lines)


@pytest.mark.parametrize(
    ("kind", "monitor"),
    [("class", "val/accuracy"), ("multilabel", "val/auc"), ("regression", "val/mae")],
)
def test_init_measures_what_fits_the_label(run, tmp_path, kind, monitor):
    facts = json.loads(run("init", write(tmp_path / kind, kind), "--json").stdout)
    assert facts["file"] == "run.yaml"
    assert facts["train.monitor"] == monitor
    assert load_config("run.yaml").train.monitor == monitor


def test_init_takes_the_split_that_came_with_the_data(run, tmp_path):
    split = (np.arange(200) % 3 + 1).astype(np.int8)
    facts = json.loads(run("init", write(tmp_path / "d", "class", split=split), "--json").stdout)
    assert facts["data.split"] == {"column": True}
    assert "the data came with it" in Path("run.yaml").read_text()


def test_init_takes_the_recipe_that_ingest_recorded(run):
    source = SyntheticSource(nodes=900, classes=2, features=4, degree=4)
    ingest(source, "recorded", split=SplitConfig(planetoid=20))
    facts = json.loads(run("init", "recorded", "--json").stdout)
    assert facts["data.split"] == {"planetoid": 20}
    assert "recorded by ingest" in Path("run.yaml").read_text()


def test_batches_grow_with_the_graph(run):
    ingest(SyntheticSource(nodes=20_000, classes=2, features=4, degree=2), "large")
    sizes = []
    for uri in ("My data", "large"):
        facts = json.loads(run("init", uri, "--force", "--json").stdout)
        sizes.append((facts["loader.batch_size"], facts["train.epochs"]))
    assert sizes == [(32, 200), (1024, 200)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no dataset here"),
        (["My data", "--out", "taken.yaml"], "--force replaces it"),
        (["My data", "--out", "My data", "--force"], "it is a folder"),
        (["bare"], "has no labels"),
    ],
    ids=["no dataset", "taken", "folder", "no labels"],
)
def test_init_refuses(run, arguments, message):
    Path("taken.yaml").write_text("mine")
    write_cache(
        GraphTable(nodes=NodeColumns(num_nodes=2), src=np.array([0]), dst=np.array([1]),
                   policies={}, counts={}), "bare", source="test",
    )  # fmt: skip
    result = run("init", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert Path("taken.yaml").read_text() == "mine"


def test_force_replaces_a_file(run):
    Path("run.yaml").write_text("mine")
    assert run("init", "My data", "--force").returncode == 0
    assert load_config("run.yaml").name == "My-data"
