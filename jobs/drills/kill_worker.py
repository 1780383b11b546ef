"""Drill: a worker process is killed in the middle of an epoch."""

import os
import signal
import sys

from harness.drill import HALFWAY, Drill, Scene, main


def act(scene: Scene) -> str:
    """SIGKILL for the worker of the first node."""
    scene.training.wait_for_step(HALFWAY)
    with scene.fault():
        os.kill(scene.nodes[0].workers()[0], signal.SIGKILL)
    return ""


DRILL = Drill("kill_worker", "a worker is killed", act)

if __name__ == "__main__":
    sys.exit(main(DRILL))
