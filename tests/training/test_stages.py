"""Seconds by stage."""

import time

import pytest

from dnformer.training.stages import Stages


def test_stages_add_up_and_say_what_runs():
    stages = Stages()
    assert stages.current.stage == ""
    with stages.timed("forward"):
        assert stages.current.stage == "forward"
        assert stages.current.since <= time.monotonic()
        time.sleep(0.002)
    first = stages.seconds()["forward"]
    assert first >= 0.002
    stages.add("forward", 1.0)
    stages.add("sample", 2.0)
    assert stages.seconds() == {"forward": pytest.approx(first + 1), "sample": 2.0}
    assert stages.current.stage == ""


def test_stages_count_a_stage_that_fails():
    stages = Stages()
    with pytest.raises(ZeroDivisionError), stages.timed("backward"):
        1 / 0  # noqa: B018
    assert stages.current.stage == ""
    assert "backward" in stages.seconds()
