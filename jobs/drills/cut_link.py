"""Drills: a node is off the network, for a moment and for a minute."""

import sys
import time

from harness.drill import HALFWAY, Drill, Scene, main

MOMENT_S, MINUTE_S = 4, 60


def off(scene: Scene, seconds: float) -> None:
    """Takes the first node off the network in the middle of an epoch."""
    scene.training.wait_for_step(HALFWAY)
    with scene.fault():
        scene.cluster.cut_link(scene.nodes[0])
        time.sleep(seconds)
        scene.cluster.restore_link(scene.nodes[0])


def blink(scene: Scene) -> str:
    """Off for less time than the head needs to give a node up."""
    off(scene, MOMENT_S)
    return "the other worker waits"


def cut(scene: Scene) -> str:
    """Off for a minute: the head gives the node up, whose Ray ends when it hears of that."""
    off(scene, MINUTE_S)
    scene.cluster.restart_node(scene.nodes[0])
    return "workers: [1, 2]: one trains alone"


BLINK = Drill("blink", f"a link is cut for {MOMENT_S} s", blink)
DRILL = Drill("cut_link", f"a link is cut for {MINUTE_S} s", cut, ("train.workers=[1, 2]",))

if __name__ == "__main__":
    sys.exit(main(BLINK, DRILL))
