"""Ctrl-C and SIGTERM: one stops after a step, the second at once."""

import os
import signal
import threading

import pytest

from dnformer.errors import Stopped
from dnformer.training.signals import stopper


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_stopper_while_steps_run_asks_for_a_stop(number):
    said: list[str] = []
    with stopper(said.append) as told:
        assert not told.pending()
        os.kill(os.getpid(), number)
        assert told.pending()
        assert told.attend() == "stop"
    assert "after this step" in said[0]


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)], ids=str
)
@pytest.mark.parametrize("stepping", [False, True], ids=["before the first step", "second time"])
def test_stopper_stops_at_once(number, error, stepping):
    def tell() -> None:
        with stopper(lambda text: None) as told:
            if stepping:
                told.pending()
                os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    with pytest.raises(error):
        tell()


def test_stopper_gives_ctrl_c_back_as_keyboard_interrupt():
    def tell() -> None:
        with stopper(lambda text: None) as told:
            told.pending()
            os.kill(os.getpid(), signal.SIGINT)
            raise Stopped("stopped at step 3")

    with pytest.raises(KeyboardInterrupt, match="stopped at step 3"):
        tell()


def test_stopper_puts_the_handlers_back():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with stopper(lambda text: None):
        pass
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_stopper_in_another_thread_leaves_signals_alone():
    before, found = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with stopper(lambda text: None) as told:
            found.append((told.pending(), signal.getsignal(signal.SIGTERM) == before))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, True)]
