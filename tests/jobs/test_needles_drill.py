"""The drill on needles: what it asks, what it measures, and a tiny run of it."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

DRILL = Path(__file__).parents[2] / "jobs" / "drills" / "needles.py"


@pytest.fixture(scope="module")
def drill() -> ModuleType:
    spec = importlib.util.spec_from_file_location("needles", DRILL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_draw_asks_for_needles_that_are_there_once(drill: ModuleType) -> None:
    task = drill.Task(needles=5, queries=3, length=20)
    given = drill.draw(task, 50, torch.Generator().manual_seed(0))
    assert given.words.shape == given.numbers.shape == (50, 23)
    for b in range(50):
        words, numbers = given.words[b].tolist(), given.numbers[b].tolist()
        assert sum(word < task.keys for word in words[:20]) == 5
        for asked, answer, place in zip(
            words[20:], given.answers[b].tolist(), given.places[b].tolist(), strict=False
        ):
            assert words[:20].count(asked) == 1
            assert (words[place], numbers[place]) == (asked, answer)
        assert numbers[20:] == [task.numbers] * 3


def test_models_are_of_equal_size(drill: ModuleType) -> None:
    task = drill.Task(needles=2, queries=1)
    first, second = (
        sum(p.numel() for p in drill.Model(kind, task).parameters()) for kind in drill.MODELS
    )
    assert abs(first - second) < 0.01 * second


def test_measured_of_a_model_that_looks_at_the_needle(drill: ModuleType) -> None:
    task = drill.Task(needles=3, queries=2, length=12)

    class Knowing(drill.Model):
        def forward(self, given):
            return torch.nn.functional.one_hot(given.answers, task.numbers).float()

        def maps(self, given):
            maps = torch.zeros(2, len(given.words), 2, 2, 14)
            # head 1 of layer 0: 0.5 on the needle asked for, -0.25 on another, the rest on place 12
            asked, other = given.places[:, :2, None], given.places[:, 2:, None].expand(-1, 2, -1)
            maps[0, :, 1].scatter_(2, asked, 0.5).scatter_(2, other, -0.25)[..., 12] = 0.25
            maps[1:] = 1 / 14
            return maps.where(maps.abs().sum(-1, keepdim=True) > 0, 1 / 14)

    found = drill.measured(Knowing("softmax", task), task, sequences=200)
    assert found.accuracy == 1
    assert found.by_depth == [1, 1, 1, 1]
    assert found.on_needle == pytest.approx(0.5)
    assert found.on_others == pytest.approx(0.25)


def test_interval_is_students(drill: ModuleType) -> None:
    found = drill.interval([0.1, 0.2, 0.3])
    assert found["mean"] == pytest.approx(0.2)
    # 4.303 is the quantile of two degrees of freedom
    assert found["half"] == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)


def test_drill_prints_a_row_for_each_model(
    drill: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = ["needles.py", "--tasks", "2,1", "--length", "8", "--seeds", "2", "--steps", "3"]
    monkeypatch.setattr(sys, "argv", [*tiny, "--json"])
    assert drill.main() == 0
    found = json.loads(capsys.readouterr().out)
    kinds = [row["attention"] for row in found["rows"]]
    assert kinds == ["differential", "softmax", "difference"]
    a, b, difference = (row["accuracy"]["mean"] for row in found["rows"])
    assert difference == pytest.approx(a - b)
    monkeypatch.setattr(sys, "argv", tiny)
    assert drill.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
