"""A run before it starts: its config, dataset and storage, and the estimate of what it takes."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dnformer.config import RunConfig
from dnformer.data.graph import open_graph
from dnformer.data.ingest.run import ingest
from dnformer.data.manifest import read_manifest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.doctor import Check, examine
from dnformer.doctor.estimate import Estimate, estimate, expected_batch, store_bytes
from dnformer.doctor.standin import random_graph, stand_in
from dnformer.loader import NeighborLoader, NeighborSampler

Write = Callable[..., Path]
CORES = len(os.sched_getaffinity(0))


def failed(config: Path) -> list[Check]:
    return [check for check in examine(config=str(config)).checks if not check.ok]


def test_examine_of_a_good_run_finds_nothing_and_leaves_nothing(
    write_run: Write, tmp_path: Path
) -> None:
    report = examine(config=str(write_run()))
    assert report.ok, report.checks
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "run.yaml"]
    assert report.estimate is not None
    parts = report.estimate["memory_bytes"]
    assert report.estimate["memory_per_worker_bytes"] == sum(parts.values())


@pytest.mark.parametrize(
    ("sections", "name", "found", "mend"),
    [
        ({"model": {"hiden": 8}}, "config", "hidden", "correct it"),
        ({"data": {"uri": "none/here"}}, "dataset", "no dataset here", "dnformer ingest"),
        ({"data": {"label": "age"}}, "dataset", "no label 'age'", "data.label"),
        ({"data": {"split": {"file": "none.npz"}}}, "data.split.file", "no such file", "path"),
        ({"loss": {"mask": "none.npy"}}, "loss.mask", "no such file", "path"),
        ({"storage_path": "/dev/null/runs"}, "storage_path", "write: /dev/null", ""),
        ({"train": {"threads": 512}}, "threads", "512 of a worker", "set train.threads: "),
        ({"train": {"workers": CORES + 1}}, "threads", "worker(s)", "set train.workers: "),
        ({"loader": {"threads": 512}}, "threads", "512 of the loader", "set loader.threads: "),
        ({"loader": {"sampler": "pyg-lib"}}, "pyg-lib", "not installed", "data.pyg.org/whl/torch-"),
    ],
    ids=["key", "dataset", "label", "split", "mask", "storage", "threads", "workers", "loader",
         "pyg-lib"],
)  # fmt: skip
def test_examine_of_a_run_names_what_is_wrong(
    write_run: Write, sections: dict[str, Any], name: str, found: str, mend: str
) -> None:
    (check,) = failed(write_run(**sections))
    assert check.name == name
    assert found in check.found
    assert mend in check.mend


def test_examine_of_a_damaged_manifest_says_to_ingest_again(
    write_run: Write, tmp_path: Path
) -> None:
    config = write_run()
    (tmp_path / "data" / "manifest.json").write_text("{")
    (check,) = failed(config)
    assert (check.name, "--overwrite" in check.mend) == ("dataset", True)


def test_examine_with_a_cluster_asks_nothing_of_this_machine(write_run: Write) -> None:
    train = {"threads": 512, "workers": 8, "use_gpu": True}
    config = write_run(train=train, cache={"dir": "/dev/null/nvme"})
    checks = examine(config=str(config), address="ray://head:10001").checks
    assert [check.name for check in checks if not check.ok] == ["ray head"]
    found = {check.name: check.found for check in checks}
    for name in ("dataset", "storage_path"):
        assert found[name].endswith("a local path: all machines must share it")


@pytest.mark.parametrize("fan_out", [[5], [15, 10], [-1, 3]], ids=str)
def test_expected_batch_is_what_the_sampler_draws(fan_out: list[int]) -> None:
    graph = random_graph(20_000, 1_200_000)
    degree = graph.num_edges / graph.num_nodes
    sample = NeighborSampler(graph, fan_out).sample(np.arange(256), 0)
    found = expected_batch(graph.num_nodes, degree, fan_out, 256)
    # the sum of 256 geometric degrees wavers by 6 %
    assert found.nodes == pytest.approx(len(sample.n_id), rel=0.1)
    assert found.edges == pytest.approx(len(sample.row), rel=0.1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("estimate")
    source = SyntheticSource(kind="power_law", nodes=3000, degree=12, features=16)
    ingest(source, str(folder / "data"))
    return folder


def config_of(folder: Path, **sections: Any) -> RunConfig:
    values = {
        "name": "run",
        "data": {"uri": str(folder / "data"), "split": {"random": [0.5, 0.25, 0.25]}},
        "cache": {"dir": str(folder / "stores")},
        "loader": {"batch_size": 100, "num_neighbors": [4, 3]},
        "model": {"hidden": 16},
        "train": {"epochs": 7, "threads": 1},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}  # type: ignore[dict-item]
    return RunConfig.model_validate(values)


def estimated(folder: Path, **sections: Any) -> Estimate:
    config = config_of(folder, **sections)
    return estimate(config, read_manifest(config.data.uri), threads=1)


def test_estimate_counts_what_an_epoch_has(dataset: Path) -> None:
    before = estimated(dataset)
    graph = open_graph(
        dataset / "data", cache_dir=dataset / "stores", split=config_of(dataset).data.split
    )
    loader = NeighborLoader(graph, graph.split("train"), num_neighbors=[4, 3], batch_size=100)
    edges = sum(batch.edge_index.shape[1] for batch in loader)
    after = estimated(dataset)
    for found in (before, after):
        assert (found.train_nodes, found.steps_per_epoch, found.epochs) == (1500, 15, 7)
        assert found.seconds_per_epoch is not None
        assert found.hours == pytest.approx(found.seconds_per_epoch * 7 / 3600)
    assert after.edges_per_epoch == pytest.approx(edges, rel=0.1)
    # a manifest does not tell how degrees are spread
    assert before.edges_per_epoch == pytest.approx(edges, rel=0.3)


def test_estimate_knows_the_stores_size(dataset: Path) -> None:
    uri = str(dataset / "data")
    open_graph(uri, cache_dir=dataset / "sized")
    (store,) = (path for path in (dataset / "sized").iterdir() if path.is_dir())
    found = sum(path.stat().st_size for path in store.glob("*.npy"))
    assert store_bytes(read_manifest(uri)) == found


def test_estimate_shares_an_epoch_out_among_workers(dataset: Path) -> None:
    train = {"workers": 4, "micro_batches": 4}
    found = estimated(dataset, train=train, **{"eval": {"mode": "sampled"}})
    assert (found.steps_per_epoch, found.workers) == (4, 4)
    assert found.hours is not None
    assert found.worker_hours == pytest.approx(4 * found.hours)
    assert (found.gpu_hours, found.memory_bytes["evaluation"]) == (0, 0)


def test_estimate_of_the_whole_graph_is_one_step(dataset: Path) -> None:
    manifest = read_manifest(str(dataset / "data"))
    found = estimated(dataset, loader={"kind": "full"})
    assert found.steps_per_epoch == 1
    assert found.edges_per_epoch == manifest.num_edges


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_estimate_without_the_gpu_knows_no_hours(dataset: Path) -> None:
    found = estimated(dataset, train={"use_gpu": True})
    assert (found.hours, found.gpu_hours, found.seconds_per_epoch) == (None, None, None)
    memory = found.memory_bytes
    assert found.gpu_memory_bytes == memory["activations"] + memory["model"] + memory["evaluation"]
    assert found.memory_per_worker_bytes + found.gpu_memory_bytes == sum(memory.values())
    assert "no GPU here" in found.basis


def test_estimate_says_what_it_guessed(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text("{}")
    data = {"split": {"file": str(tmp_path / "split.json")}}
    found = estimated(dataset, data=data, cache={"dir": str(tmp_path / "none")})
    assert found.train_nodes == 1800
    assert "60 % of the nodes are taken to train" in found.basis


@pytest.mark.parametrize(
    "update",
    [
        {"num_nodes": 10**9, "num_edges": 2 * 10**10},
        {"features": "sparse", "num_values": 60_000, "num_features": 5000},
        {"feature_dtype": "int8", "feature_scale": [0.5] * 16},
        {"edge_weight": True, "edge_time": True, "node_time": True, "edge_attr_names": ["a", "b"]},
    ],
    ids=["large", "sparse", "int8", "columns"],
)
def test_stand_in_has_the_columns_of_the_dataset(dataset: Path, update: dict[str, Any]) -> None:
    manifest = read_manifest(str(dataset / "data")).model_copy(update=update)
    graph = stand_in(manifest, max_nodes=2000, max_edges=10**6)
    assert graph.num_nodes == 2000
    degree = manifest.num_edges / manifest.num_nodes
    assert graph.num_edges / 2000 == pytest.approx(degree, rel=0.1)
    loader = NeighborLoader(graph, torch.arange(2000), num_neighbors=[3], batch_size=500)
    batch = next(iter(loader))
    assert batch.x.shape[1] == manifest.num_features
    assert math.isfinite(float(batch.x.sum()))
