"""Drill: a node loses its power, and another one joins."""

import sys
import time

from harness.drill import HALFWAY, Drill, Scene, main


def act(scene: Scene) -> str:
    """Cuts the first node's link and kills all of its processes; then adds a node."""
    scene.training.wait_for_step(HALFWAY)
    with scene.fault():
        scene.cluster.kill_node(scene.nodes[0])
    scene.nodes += scene.cluster.add_nodes(1)
    return f"the new node was there after {time.monotonic() - scene.fault_at:.0f} s"


DRILL = Drill("kill_node", "a node is lost, another joins", act)

if __name__ == "__main__":
    sys.exit(main(DRILL))
