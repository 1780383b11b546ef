"""Drill: the disk that holds the run is full for a while."""

import sys
import time
from pathlib import Path

from harness.drill import HALFWAY, Drill, Scene, main
from harness.places import fill, small_disk

PATIENCE_S = 90


def act(scene: Scene) -> str:
    """Fills the disk, makes room, and starts the same command where the run had stopped."""
    training, ballast = scene.training, scene.place.switch
    training.wait_for_step(HALFWAY)
    with scene.fault():
        fill(ballast)
    deadline = time.monotonic() + PATIENCE_S
    while not training.ended and time.monotonic() < deadline:
        time.sleep(0.1)
    half_written = len(list(Path(training.run).rglob("*.tmp")))
    ballast.unlink()
    if not training.ended:
        return f"it waited for room; half-written files: {half_written}"
    training.start()
    return f"it stopped, the same command went on; half-written files: {half_written}"


DRILL = Drill("fill_disk", "the disk is full", act, place=small_disk)

if __name__ == "__main__":
    sys.exit(main(DRILL))
