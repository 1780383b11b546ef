"""Drill: the driver is killed, and the same command started again at once."""

import sys

from harness.drill import HALFWAY, Drill, Scene, main


def act(scene: Scene) -> str:
    """SIGKILL for the driver; the workers are left to find out."""
    scene.training.wait_for_step(HALFWAY)
    with scene.fault():
        scene.training.kill_driver()
    scene.training.start()
    return "the same command was started at once"


DRILL = Drill("stop_driver", "the driver is killed", act, is_noticed=False)

if __name__ == "__main__":
    sys.exit(main(DRILL))
