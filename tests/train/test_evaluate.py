"""Metrics of a split: exact, and sampled, which at full fan-out is the same."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dnformer.config import EvalConfig, LoaderConfig
from dnformer.group import Group
from dnformer.inference import exact_logits
from dnformer.nn import DNFormer
from dnformer.train.evaluate import Evaluator

EDGES = [(1, 0), (2, 0), (3, 0), (5, 0), (0, 1), (2, 1), (1, 2), (0, 3), (5, 5), (3, 5)]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    split = [1, 1, 2, 2, 3, 3]  # train, val, test
    return make_graph(EDGES, x=x, y=[0, 1, 2, 0, 1, 2], num_classes=3, split=split)


def make_evaluator(graph, mode: str, fan_out: int) -> tuple[DNFormer, Evaluator]:
    torch.manual_seed(0)
    model = DNFormer(5, 8, 3, 2, 2).double()
    loader = LoaderConfig(num_neighbors=[fan_out], batch_size=1)
    evaluator = Evaluator(
        model, graph, Group(), config=EvalConfig(mode=mode), loader=loader, seed=3
    )
    return model, evaluator


def test_evaluator_exact_is_cross_entropy_and_accuracy_on_the_split(graph):
    model, evaluator = make_evaluator(graph, "exact", 1)
    nodes = graph.split("val")
    logits, y = exact_logits(model, graph, Group())[nodes], torch.tensor(graph.y[nodes])
    metrics = evaluator(["val"])["val"]
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-12)
    assert metrics["accuracy"] == (logits.argmax(1) == y).double().mean().item()


def test_evaluator_sampled_at_full_fan_out_is_exact(graph):
    exact = make_evaluator(graph, "exact", 1)[1](["val", "test"])
    sampled = make_evaluator(graph, "sampled", -1)[1](["val", "test"])
    for split in ("val", "test"):
        assert sampled[split] == pytest.approx(exact[split], abs=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_evaluator_sampled_draws_the_same_each_time_and_keeps_the_mode(graph, training):
    model, evaluator = make_evaluator(graph, "sampled", 1)
    model.train(training)
    assert evaluator(["test"]) == evaluator(["test"])
    assert model.training is training
