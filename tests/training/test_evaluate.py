"""Metrics of a split: exact, and sampled, which at full fan-out is the same."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dnformer.config import LoaderConfig, LossConfig
from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import exact_logits
from dnformer.nn import DNFormer
from dnformer.training.evaluate import Evaluator
from dnformer.training.loss_weights import objective_for

EDGES = [(1, 0), (2, 0), (3, 0), (5, 0), (0, 1), (2, 1), (1, 2), (0, 3), (5, 5), (3, 5)]


@pytest.fixture(scope="module")
def graph(make_graph):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    split = [1, 1, 2, 2, 3, 3]  # train, val, test
    return make_graph(EDGES, x=x, y=[0, 1, 2, 0, 1, 2], num_classes=3, split=split)


def make_model(seed: int = 0) -> DNFormer:
    torch.manual_seed(seed)
    return DNFormer(5, 8, 3, 2, 2).double()


def evaluator_of(
    model: DNFormer, graph: Graph, fan_out: int | None, group: Group | None = None
) -> Evaluator:
    """A sampled one, or an exact one where `fan_out` is None."""
    loader = None if fan_out is None else LoaderConfig(num_neighbors=[fan_out] * 2, batch_size=1)
    objective = objective_for(graph, LossConfig())
    return Evaluator(model, graph, group or Group(), objective=objective, loader=loader, seed=3)


def test_evaluator_exact_is_cross_entropy_and_accuracy_on_the_split(graph):
    model = make_model()
    nodes = graph.split("val")
    logits, y = exact_logits(model, graph, Group())[nodes], torch.tensor(graph.y[nodes])
    metrics = evaluator_of(model, graph, None)(["val"])["val"]
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, y).item(), abs=1e-12)
    assert metrics["accuracy"] == (logits.argmax(1) == y).double().mean().item()
    assert metrics.keys() == {"loss", "accuracy", "f1_macro"}


def test_evaluator_sampled_at_full_fan_out_is_exact(graph):
    exact = evaluator_of(make_model(), graph, None)(["val", "test"])
    sampled = evaluator_of(make_model(), graph, -1)(["val", "test"])
    for split in ("val", "test"):
        assert sampled[split] == pytest.approx(exact[split], abs=1e-12)


@pytest.mark.parametrize("fan_out", [None, 1], ids=["exact", "sampled"])
def test_evaluator_gives_a_split_the_same_whichever_others_it_is_asked_for(graph, fan_out):
    evaluator = evaluator_of(make_model(), graph, fan_out)
    assert evaluator(["val", "test"])["test"] == evaluator(["test"])["test"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fan_out", [None, 1], ids=["exact", "sampled"])
def test_evaluator_gives_the_same_each_time_and_keeps_the_mode(graph, training, fan_out):
    model = make_model().train(training)
    evaluator = evaluator_of(model, graph, fan_out)
    assert evaluator(["test"]) == evaluator(["test"])
    assert model.training is training


@pytest.mark.parametrize("fan_out", [None, -1], ids=["exact", "sampled"])
def test_evaluator_keeps_the_mode_when_it_fails(graph, fan_out):
    model = make_model().train()
    evaluator = evaluator_of(model, graph, fan_out)
    model.head = torch.nn.Linear(3, 3).double()
    with pytest.raises(RuntimeError):
        evaluator(["val"])
    assert model.training


@pytest.mark.parametrize("fan_out", [None, 2], ids=["exact", "sampled"])
def test_evaluator_reads_the_weights_at_each_call(graph, fan_out):
    model, other = make_model(), make_model(seed=1)
    evaluator = evaluator_of(model, graph, fan_out)
    before = evaluator(["val"])
    expected = evaluator_of(other, graph, fan_out)(["val"])
    assert before != expected
    swapped = [(p, p.data) for p in model.parameters()]
    for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data = new.data
    assert evaluator(["val"]) == expected
    for parameter, old in swapped:
        parameter.data = old
    assert evaluator(["val"]) == before


@pytest.mark.parametrize("fan_out", [None, 2], ids=["exact", "sampled"])
def test_evaluator_computes_in_the_dtype_of_the_weights_also_under_autocast(graph, fan_out):
    evaluator = evaluator_of(make_model().float(), graph, fan_out)
    expected = evaluator(["val"])
    with torch.autocast("cpu", torch.bfloat16):
        assert evaluator(["val"]) == expected


def test_evaluator_leaves_out_nodes_without_a_label(make_graph):
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    split = [1, 1, 2, 2, 3, 3]
    graph = make_graph(EDGES, x=x, y=[0, 1, 2, -1, 1, 2], num_classes=3, split=split)
    model = make_model()
    logits = exact_logits(model, graph, Group())[2:3]
    expected = F.cross_entropy(logits, torch.tensor([2])).item()
    for fan_out in (None, -1):
        found = evaluator_of(model, graph, fan_out)(["val"])["val"]
        assert found["loss"] == pytest.approx(expected, abs=1e-12)


class Together:
    """The sums of ranks that are threads."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._barrier = threading.Barrier(world_size, timeout=60)
        self._given: list[torch.Tensor] = []
        self._total = torch.empty(0)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        self._given.append(tensor)
        if self._barrier.wait() == 0:
            self._total, self._given = torch.stack(self._given).sum(dim=0), []
        self._barrier.wait()
        total = tensor.copy_(self._total)
        self._barrier.wait()
        return total


class Rank:
    """One of them, as a `Group`."""

    def __init__(self, together: Together, rank: int) -> None:
        self.rank, self.world_size, self.device = rank, together.world_size, torch.device("cpu")
        self.sum_ = together.sum_


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("fan_out", [None, 1], ids=["exact", "sampled"])
def test_evaluator_of_several_ranks_gives_the_figures_of_one(graph, fan_out, world_size):
    expected = evaluator_of(make_model(), graph, fan_out)(["val", "test"])
    together = Together(world_size)
    models = [make_model() for _ in range(world_size)]

    def evaluate(rank: int) -> object:
        group = Rank(together, rank)
        return evaluator_of(models[rank], graph, fan_out, group)(["val", "test"])

    with ThreadPoolExecutor(world_size) as pool:
        assert list(pool.map(evaluate, range(world_size))) == [expected] * world_size
