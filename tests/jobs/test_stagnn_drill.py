"""The drill on STAGNN's depth: its decay on a graph whose eigenvalues are known, and its runs."""

import argparse
import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

DRILL = Path(__file__).parents[2] / "jobs" / "drills" / "stagnn.py"
# a ring of nine nodes, and two nodes beside it
RING = [(i, (i + step) % 9) for i in range(9) for step in (1, -1)]


@pytest.fixture(scope="module")
def drill() -> ModuleType:
    spec = importlib.util.spec_from_file_location("jobs_stagnn", DRILL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_attention_nears_the_global_one_at_the_rate_of_the_walk(
    drill: ModuleType, make_graph: Any
) -> None:
    graph = make_graph([*RING, (9, 10), (10, 9), (9, 9)], x=np.ones((11, 1), np.float32))
    found = drill.decay(graph, 200)
    assert found.eigenvalue == pytest.approx(math.cos(math.pi / 9), abs=1e-9)
    assert found.rate == pytest.approx(found.eigenvalue, abs=2e-3)
    assert found.distance[100] < found.distance[10] < found.distance[1]


@pytest.mark.parametrize("name", ["stagnn", "appnp", "sgc", "gcn"])
def test_drill_trains_each_model_at_each_depth(drill: ModuleType, name: str) -> None:
    given = argparse.Namespace(data="cache/cora", epochs=5, out="cache/drills")
    runs = [drill.config(given, name, depth) for depth in drill.DEPTHS]
    assert [run.model.layers for run in runs] == list(drill.DEPTHS)
    assert len({run.name for run in runs}) == len(runs)
