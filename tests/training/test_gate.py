"""A trial waits for the verdict at a milestone, and finds it again after a restart."""

import threading

import pytest

from dnformer.training.gate import Gate


@pytest.fixture
def gate(tmp_path):
    return Gate(str(tmp_path), milestones=(1, 3, 9))


@pytest.mark.parametrize("stop", [True, False])
def test_stops_says_what_was_published(gate, stop):
    gate.publish(3, {"stop": stop})
    assert gate.stops(3) is stop


@pytest.mark.parametrize("epochs", [0, 2, 4, 10])
def test_stops_asks_at_milestones_only(gate, epochs):
    assert gate.stops(epochs) is False


def test_stops_waits_for_the_verdict_on_its_epochs(gate):
    gate.publish(1, {"stop": False})
    found = []
    thread = threading.Thread(target=lambda: found.append(gate.stops(3)))
    thread.start()
    thread.join(0.2)
    assert found == []
    gate.publish(3, {"stop": True})
    thread.join(10)
    assert found == [True]


def test_verdicts_of_all_milestones_stay(gate):
    for epochs in gate.milestones:
        gate.publish(epochs, {"stop": epochs == 9, "config": {"name": f"leg-{epochs}"}})
    assert [gate.stops(epochs) for epochs in gate.milestones] == [False, False, True]
    assert gate.verdict(3)["config"] == {"name": "leg-3"}
