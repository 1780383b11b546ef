"""Short runs of each kind of target on a graph whose ids and class names try to be HTML."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnformer.config import RunConfig
from dnformer.data.cache import write_cache
from dnformer.data.table import GraphTable, NodeColumns, Target, TargetColumn
from dnformer.parsing import parse
from dnformer.report.kinds import Options
from dnformer.training import launch
from dnformer.tuning.record import Record

NUM_NODES = 90
CLASSES = ["</script><script>window.hacked=1</script>", "<b>bold</b> & more", "$s1"]
EVIL = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'


def _silent(text: str) -> None:
    pass


OPTIONS = Options(say=_silent)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URI of a graph with a class, labels and numbers to learn."""
    random, n = np.random.default_rng(0), NUM_NODES
    y = np.arange(n) % 3
    x = (np.eye(3)[y] + random.normal(size=(n, 3)) * 0.4).astype(np.float32)
    tags = (x[:, :2] > 0.4).astype(np.int8)
    tags[random.random((n, 2)) < 0.2] = -1
    targets = (
        TargetColumn(Target(name="topic", kind="class", num_outputs=3, classes=CLASSES), y),
        TargetColumn(Target(name="tags", kind="multilabel", num_outputs=2), tags),
        TargetColumn(
            Target(name="size", kind="regression", num_outputs=1),
            (100 * x[:, :1] + 5000).astype(np.float32),
        ),
    )
    table = GraphTable(
        nodes=NodeColumns(
            num_nodes=n, x=x, targets=targets, ids=[f"{i:02d} {EVIL}" for i in range(n)]
        ),
        src=np.stack([(np.arange(n) + 3 * step) % n for step in (1, 2, 3, 5)], 1).ravel(),
        dst=np.repeat(np.arange(n), 4),
        policies={"direction": "directed"},
        counts={},
    )
    uri = str(tmp_path_factory.mktemp("report") / "data")
    order = np.lexsort((table.src, table.dst))
    write_cache(
        GraphTable(nodes=table.nodes, src=table.src[order], dst=table.dst,
                   policies=table.policies, counts={}),
        uri, source="test",
    )  # fmt: skip
    return uri


@pytest.fixture(scope="session")
def values(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """A run's config as YAML would give it."""
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str, **sections: dict[str, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = {
            "name": name,
            "storage_path": str(folder),
            "data": {"uri": dataset, "split": {"random": [0.5, 0.25, 0.25]}},
            "loader": {"batch_size": 30},
            "model": {"hidden": 8},
            "train": {"epochs": 3, "threads": 1},
            "cache": {"dir": str(folder / "stores")},
        }
        for key, section in sections.items():
            plain[key] = {**plain.get(key, {}), **section}
        return plain

    return make


@pytest.fixture(scope="session")
def trained(values: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """The folder of a run that was trained; each is trained once."""
    known: dict[str, str] = {}

    def make(name: str, **sections: dict[str, Any]) -> str:
        if name not in known:
            config = parse(RunConfig, values(name, **sections))
            known[name] = launch.train(config)["run"]
        return known[name]

    return make


@pytest.fixture(scope="session")
def run(trained: Callable[..., str]) -> str:
    """The folder of a run on classes, with records of its steps."""
    return trained("plain", train={"epochs": 3, "threads": 1, "log_every": 1})


@pytest.fixture(scope="session")
def search(values: Callable[..., dict[str, Any]]) -> str:
    """The folder of a search with trials of all states, as its record has it."""
    tune = {
        "num_trials": 8,
        "space": {
            "model.heads": {"choice": [1, 2, 4]},
            "model.layers": {"int": [1, 3]},
            "optim.lr": {"loguniform": [0.001, 0.1]},
            "model.norm": {"choice": ["post", "pre"], "when": {"model.layers": [2, 3]}},
        },
    }
    config = parse(
        RunConfig,
        values("search", tune=tune, train={"epochs": 9, "threads": 1, "monitor": "val/accuracy"}),
    )
    with Record(config, "0" * 64) as record:
        for number in range(7):
            layers = 1 + number % 3
            params = {"model.heads": 2 ** (number % 3), "model.layers": layers,
                      "optim.lr": 0.001 * 2**number}  # fmt: skip
            if layers > 1:
                params["model.norm"] = ["post", "pre"][number % 2]
            record.append("begin", number, params=params)
            _go_on(record, number)
    return record.uri


def _go_on(record: Record, number: int) -> None:
    """What becomes of a trial: it fails, is stopped, runs on or finishes."""
    value = 0.5 + 0.05 * number
    if number == 5:
        record.append("end", number, state="failed", facts={"error": f"a step was {EVIL}"})
        return
    record.append("result", number, epochs=1, value=value - 0.1)
    if number in (1, 6):
        if number == 1:
            facts = _facts(record, number, 1, value - 0.1)
            record.append("end", number, state="stopped", values=[value - 0.1], facts=facts)
        return
    record.append("result", number, epochs=3, value=value)
    facts = _facts(record, number, 9, value + 0.1)
    record.append("end", number, state="finished", values=[value + 0.1], facts=facts)


def _facts(record: Record, number: int, epochs: int, value: float) -> dict[str, Any]:
    return {
        "run": f"{record.uri}/trials/{number:04d}", "epochs": epochs, "best_epoch": epochs - 1,
        "seconds": 2.5, "parameters": 1000, "val": {"accuracy": value},
        "test": {"accuracy": value - 0.01},
    }  # fmt: skip
