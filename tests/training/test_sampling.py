"""A run's draws are those that its config asks for, in training and in sampled evaluation."""

import numpy as np
import pytest
import torch

from dnformer.config import LoaderConfig, LossConfig
from dnformer.data.manifest import read_manifest
from dnformer.data.table import EdgeColumns
from dnformer.driver import Driver
from dnformer.group import Group
from dnformer.loader import NeighborSampler
from dnformer.nn import DNFormer
from dnformer.training.build import build_loader, build_parts, open_run_graph
from dnformer.training.evaluate import Evaluator
from dnformer.training.loss_weights import objective_for
from dnformer.training.run import Run, portable
from dnformer.training.worker import Job, run_worker

RNG = np.random.default_rng(0)
EDGES = [tuple(edge) for edge in RNG.integers(0, 60, (600, 2)).tolist()]


def columns(weight: np.ndarray) -> dict:
    nodes = {"x": RNG.normal(size=(60, 4)).astype(np.float32), "y": RNG.integers(0, 3, 60)}
    edges = EdgeColumns(weight=weight.astype(np.float32), time=RNG.integers(0, 50, 600))
    return nodes | {"num_classes": 3, "time": RNG.integers(0, 50, 60), "edge_columns": edges}


@pytest.fixture(scope="module")
def graph(make_graph):
    return make_graph(EDGES, **columns(RNG.random(600)))


@pytest.mark.parametrize(
    "draws",
    [
        {"replace": True},
        {"sampling": "weighted"},
        {"sampling": "labor"},
        {"temporal": True, "sampling": "weighted", "replace": True},
    ],
    ids=["replace", "weighted", "labor", "temporal"],
)
def test_run_trains_on_the_draws_of_its_config(make_config, tmp_path, graph, draws):
    config = make_config(
        tmp_path,
        data={"uri": graph.uri},
        loader=draws,
        train={"epochs": 2},
        eval={"mode": "sampled"},
    )
    fingerprint = read_manifest(graph.uri).fingerprint
    opened = open_run_graph(config, fingerprint)
    parts = build_parts(config, opened, Group())
    loader = build_loader(config, opened, parts, torch.device("cpu"))
    sampler, seeds = NeighborSampler(opened, [4, 4], **draws), opened.split("train").numpy()
    for index, batch in enumerate(loader):
        expected = sampler.sample(seeds[batch.input_id], loader.key(index))
        assert batch.e_id.tolist() == expected.e_id.tolist()
    with Run(config, fingerprint) as run:
        job = Job(portable(run.config), fingerprint, run.attempt)
    assert run_worker(job, Group(), Driver())["epochs"] == 2


@pytest.mark.parametrize(
    ("draws", "same"),
    [({"sampling": "weighted"}, True), ({}, False)],
    ids=["weighted", "uniform"],
)
def test_sampled_evaluation_draws_as_its_config_says(make_graph, draws, same):
    # edges that weigh nothing are as if they were not there
    split = [1] * 20 + [2] * 20 + [3] * 20
    values = columns(np.zeros(600)) | {"split": split}
    weightless = make_graph(EDGES, **values)
    bare = make_graph([], **(values | {"edge_columns": EdgeColumns()}), num_nodes=60)
    torch.manual_seed(0)
    options = LoaderConfig(num_neighbors=[5, 5], batch_size=7, **draws)
    model, found = DNFormer(4, 8, 3, 2, 2).double(), []
    for graph, mode in ((weightless, "sampled"), (bare, "exact")):
        evaluator = Evaluator(
            model,
            graph,
            Group(),
            objective=objective_for(graph, LossConfig()),
            loader=options if mode == "sampled" else None,
            seed=3,
        )
        found.append(evaluator(["val"])["val"]["loss"])
    assert (found[0] == pytest.approx(found[1], abs=1e-12)) is same
