"""Drill: a node is announced to go, as a spot node is; then it goes, and another one joins."""

import sys
import time

from harness.drill import HALFWAY, Drill, Scene, main

NOTICE_S = 60
NODE_ID = """
import sys, ray
ray.init(logging_level="ERROR", log_to_driver=False)
print(next(n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == sys.argv[1]))
"""


def act(scene: Scene) -> str:
    """Drains the first node, and kills all its processes when the workers have saved."""
    node, cluster, training = scene.nodes[0], scene.cluster, scene.training
    node_id = cluster.ask([sys.executable, "-c", NODE_ID, node.host.address]).split()[-1]
    training.wait_for_step(HALFWAY // 3)
    with scene.fault():
        cluster.ask([
            sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.address,
            "--node-id", node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message", "drill", "--deadline-remaining-seconds", str(NOTICE_S),
        ])  # fmt: skip
    training.until(lambda: bool(training.files().checkpoint), "a checkpoint")
    saved_s = time.monotonic() - scene.fault_at
    cluster.kill_node(node)
    scene.nodes += cluster.add_nodes(1)
    return f"the only checkpoint is the notice's, after {saved_s:.0f} s"


SETTINGS = ("checkpoint.every_steps=null", "checkpoint.every_epochs=1000")
DRILL = Drill("announce_node", "a node is announced to go, and goes", act, SETTINGS)

if __name__ == "__main__":
    sys.exit(main(DRILL))
