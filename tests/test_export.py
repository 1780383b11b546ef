"""An exported model: the folder, the model that comes back, the program, and what is refused."""

import json
import re
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from dnformer import storage
from dnformer.config import load_config
from dnformer.data.cache import write_cache
from dnformer.data.graph import open_graph
from dnformer.data.table import EdgeColumns, GraphTable, NodeColumns, Target, TargetColumn
from dnformer.errors import CheckpointError, DataError
from dnformer.export import LoadedModel, export, load
from dnformer.training.evaluate import target_of
from dnformer.training.launch import train
from dnformer.training.objectives import shown

from .commands import Result, run_command

NODES, FILES = 60, ["README.md", "config.json", "model.safetensors"]


def _table() -> GraphTable:
    random = np.random.default_rng(0)
    x = random.normal(size=(NODES, 4)).astype(np.float32)
    targets = (
        TargetColumn(
            Target(name="topic", kind="class", num_outputs=2, classes=["blue", "red"]),
            (x[:, 0] > 0).astype(np.int64),
        ),
        TargetColumn(Target(name="size", kind="regression", num_outputs=1), x[:, :1] * 100 + 5000),
        TargetColumn(
            Target(name="tags", kind="multilabel", num_outputs=3), (x[:, :3] > 0).astype(np.int8)
        ),
    )
    of = np.arange(NODES)
    return GraphTable(
        nodes=NodeColumns(num_nodes=NODES, x=x, targets=targets),
        src=np.sort(np.stack([(of + 1) % NODES, (of * 7 + 3) % NODES], 1)).ravel(),
        dst=np.repeat(of, 2),
        policies={"direction": "directed"},
        counts={},
        edges=EdgeColumns(
            attr=random.normal(size=(2 * NODES, 2)).astype(np.float32), attr_names=("far", "old")
        ),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset `data` and finished runs on each of its labels."""
    folder = tmp_path_factory.mktemp("export")
    write_cache(_table(), str(folder / "data"), source="test")
    for label in ("topic", "size", "tags"):
        values = {
            "name": label,
            "storage_path": str(folder / "runs"),
            "data": {"uri": str(folder / "data"), "label": label,
                     "split": {"random": [0.6, 0.2, 0.2]}},
            "loader": {"num_neighbors": 3, "batch_size": 20, "threads": 1},
            "model": {"hidden": 8},
            "train": {"epochs": 2, "threads": 1},
            "cache": {"dir": str(folder / "stores")},
        }  # fmt: skip
        (folder / f"{label}.yaml").write_text(yaml.safe_dump(values))
        train(load_config(folder / f"{label}.yaml"))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs a command in `folder`, in this process."""
    monkeypatch.chdir(folder)
    return partial(run_command, capsys)


def outputs(folder: Path, model: torch.nn.Module) -> torch.Tensor:
    """Of all nodes of the dataset."""
    table = _table()
    edge_index = torch.from_numpy(np.stack([table.src, table.dst]))
    with torch.no_grad():
        return model(
            torch.from_numpy(table.nodes.x),
            edge_index,
            edge_attr=torch.from_numpy(table.edges.attr),
        )


def test_export_writes_plain_files(run, folder):
    result = run("export", "runs/topic", "--out", "plain", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["uri"] == str(folder / "plain")
    assert sorted(path.name for path in (folder / "plain").iterdir()) == sorted(facts["files"])
    assert sorted(facts["files"]) == FILES
    assert facts["metrics"].keys() == {"val", "test"}
    weights = load_file(folder / "plain" / "model.safetensors")
    network = load(str(folder / "plain")).network
    assert {name: list(value.shape) for name, value in weights.items()} == {
        name: list(value.shape) for name, value in network.state_dict().items()
    }


def test_card_says_what_it_was_trained_on_and_how_well(run, folder):
    facts = json.loads(run("export", "runs/topic", "--out", "card", "--json").stdout)
    card = (folder / "card" / "README.md").read_text()
    fingerprint = json.loads((folder / "data" / "manifest.json").read_text())["fingerprint"]
    accuracy = shown("accuracy", facts["metrics"]["test"]["accuracy"])
    said = ("60 nodes, 120 edges, 4 features", "far, old", "blue, red", "Intended use and limits",
            "dnformer.load", "torch 2")  # fmt: skip
    for text in (fingerprint, f"{accuracy} |", *said):
        assert text in card
    # nothing of this machine is given away
    assert str(folder) not in card + (folder / "card" / "config.json").read_text()


def test_load_gives_the_best_model_of_the_run(folder):
    export(str(folder / "runs" / "topic"), str(folder / "best"))
    model = load(str(folder / "best"))
    assert not model.training
    assert model.classes == ["blue", "red"]
    assert model.config.model.hidden == 8
    graph = open_graph(
        folder / "data", split=model.config.data.split, cache_dir=folder / "stores", label="topic"
    )
    test = graph.split("test")
    probabilities = model.decide(outputs(folder, model))
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(NODES))
    hits = probabilities[test].argmax(dim=1) == target_of(graph, test)
    assert hits.double().mean().item() == pytest.approx(model.about.metrics["test"]["accuracy"])


def test_numbers_come_in_the_labels_own_units(folder):
    export(str(folder / "runs" / "size"), str(folder / "numbers"))
    model = load(str(folder / "numbers"))
    values = model.decide(outputs(folder, model))
    # labels are 5000 on average, 100 apart
    assert 4800 < values.mean() < 5200
    graph = open_graph(
        folder / "data", split=model.config.data.split, cache_dir=folder / "stores", label="size"
    )
    test = graph.split("test")
    error = (values[test] - target_of(graph, test)).abs().mean().item()
    assert error == pytest.approx(model.about.metrics["test"]["mae"], rel=1e-4)


def test_labels_are_decided_one_by_one(folder):
    export(str(folder / "runs" / "tags"), str(folder / "labels"))
    model = load(str(folder / "labels"))
    out = outputs(folder, model)
    assert torch.equal(model.decide(out), out.sigmoid())


def test_export_to_another_store_and_back(folder):
    uri = "memory://exported/topic"
    export(str(folder / "runs" / "topic"), uri)
    export(str(folder / "runs" / "topic"), str(folder / "here"))
    assert storage.list_names(uri) == FILES
    assert torch.equal(outputs(folder, load(uri)), outputs(folder, load(str(folder / "here"))))


@pytest.fixture
def symbols_for_sizes() -> Iterator[None]:
    """While torch records a program, sizes are symbols, which jaxtyping takes for no int."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("symbols_for_sizes")
def test_program_gives_what_the_model_gives(run, folder):
    result = run("export", "runs/topic", "--out", "with-program", "--program")
    assert "model.pt2" in result.stdout
    program = torch.export.load(folder / "with-program" / "model.pt2").module()
    model = load(str(folder / "with-program"))
    assert torch.equal(outputs(folder, program), outputs(folder, model))
    # other numbers of nodes and edges, in any order
    generator = torch.Generator().manual_seed(0)
    for nodes, edges in ((9, 31), (40, 3)):
        x = torch.randn(nodes, 4, generator=generator)
        edge_index = torch.randint(nodes, (2, edges), generator=generator)
        edge_attr = torch.randn(edges, 2, generator=generator)
        with torch.no_grad():
            expected = model(x, edge_index, edge_attr=edge_attr)
            assert torch.equal(program(x, edge_index, edge_attr=edge_attr), expected)


@pytest.mark.usefixtures("symbols_for_sizes")
def test_existing_folder_is_replaced_only_when_told(run, folder):
    assert run("export", "runs/topic", "--out", "twice", "--program").returncode == 0
    result = run("export", "runs/size", "--out", "twice")
    assert result.returncode == 2
    assert "holds an exported model; --overwrite replaces it" in result.stderr
    assert run("export", "runs/size", "--out", "twice", "--overwrite").returncode == 0
    assert load(str(folder / "twice")).target.name == "size"
    # the old program would be another model
    assert not (folder / "twice" / "model.pt2").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/nothing", "--out", "x"], "runs/nothing: no run here"),
        (["runs/topic", "--out", "data", "--overwrite"], "holds edges, manifest.json, nodes and "
         "no exported model"),
        (["runs/topic", "--out", "topic.yaml"], "topic.yaml is a file; choose a folder"),
        (["runs/topic"], "Missing parameter: out"),
    ],
    ids=["no run", "foreign folder", "file", "no out"],
)  # fmt: skip
def test_export_refuses(run, arguments, message):
    result = run("export", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_export_that_fails_leaves_nothing(folder):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # less than the weights take
    try:
        with pytest.raises(OSError, match="File too large"):
            export(str(folder / "runs" / "topic"), str(folder / "half"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (folder / "half").exists()
    with pytest.raises(CheckpointError, match=re.escape("config.json is missing")):
        load(str(folder / "half"))


@pytest.fixture
def damaged(folder, tmp_path) -> Path:
    """An exported model to damage."""
    export(str(folder / "runs" / "topic"), str(tmp_path / "model"))
    return tmp_path / "model"


def test_load_refuses_other_weights(damaged):
    content = bytearray((damaged / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="was changed since it was written"):
        load(str(damaged))
    (damaged / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        load(str(damaged))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2 of an exported model, this version reads 1"),
        ({"weights": {"file": "../secret.safetensors"}}, r"weights\.file"),
        ({"weights": {"file": "/etc/passwd"}}, r"weights\.file"),
        ({"dataset": {"num_features": 5}}, "projection.weight is .4, 8. torch.float32, the model"),
        ({"config": {"model": {"hidden": 16}}}, "do not fit the model"),
    ],
    ids=["newer", "outside", "absolute", "features", "width"],
)
def test_load_refuses_what_it_should_not_trust(damaged, change, message):
    values = json.loads((damaged / "config.json").read_text())
    for section, value in change.items():
        values[section] = {**values[section], **value} if isinstance(value, dict) else value
    (damaged / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=message):
        load(str(damaged))


def test_export_needs_the_dataset_of_the_run(folder, tmp_path):
    moved = tmp_path / "data"
    (folder / "data").rename(moved)
    try:
        with pytest.raises(DataError, match="no dataset here"):
            export(str(folder / "runs" / "topic"), str(tmp_path / "x"))
    finally:
        moved.rename(folder / "data")


def test_loaded_model_trains_on(folder):
    export(str(folder / "runs" / "topic"), str(folder / "tuned"))
    model: LoadedModel = load(str(folder / "tuned"))
    table = _table()
    model.train()
    out = model(
        torch.from_numpy(table.nodes.x),
        torch.from_numpy(np.stack([table.src, table.dst])),
        edge_attr=torch.from_numpy(table.edges.attr),
    )
    out.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
