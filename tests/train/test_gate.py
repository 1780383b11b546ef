"""A trial waits for the verdict at a milestone, and finds it again after a restart."""

import threading

import pytest

from dnformer.train.gate import Gate


@pytest.fixture
def gate(tmp_path):
    return Gate(str(tmp_path / "verdict.json"), milestones=(1, 3, 9))


@pytest.mark.parametrize("stop", [True, False])
def test_stops_says_what_was_published(gate, stop):
    gate.publish(3, stop=stop)
    assert gate.stops(3) is stop


@pytest.mark.parametrize("epochs", [0, 2, 4, 10])
def test_stops_asks_at_milestones_only(gate, epochs):
    assert gate.stops(epochs) is False


def test_stops_waits_for_the_verdict_on_its_epochs(gate):
    gate.publish(1, stop=False)
    found = []
    thread = threading.Thread(target=lambda: found.append(gate.stops(3)))
    thread.start()
    thread.join(0.2)
    assert found == []
    gate.publish(3, stop=True)
    thread.join(10)
    assert found == [True]


def test_stops_goes_on_over_epochs_that_it_passed_before(gate):
    gate.publish(9, stop=True)
    assert gate.stops(1) is False
    assert gate.stops(3) is False
    assert gate.stops(9) is True
