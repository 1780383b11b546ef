"""Drill: the S3 store that holds the run answers nothing but errors for a minute."""

import sys
import time

from harness.drill import HALF_OF_THE_EPOCHS, Drill, Scene, main
from harness.places import s3_server

MINUTE_S = 60


def act(scene: Scene) -> str:
    """503 to every request, for a minute."""
    scene.training.wait_for_line(rf"^epoch {HALF_OF_THE_EPOCHS}/")
    with scene.fault():
        scene.place.switch.touch()
        time.sleep(MINUTE_S)
        scene.place.switch.unlink()
    return "the pause is between epochs as the driver reads them"


DRILL = Drill("break_s3", f"S3 answers 503 for {MINUTE_S} s", act, place=s3_server)

if __name__ == "__main__":
    sys.exit(main(DRILL))
