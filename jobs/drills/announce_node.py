"""Drill: a node is announced to go, as a spot node is; then it goes, and another one joins."""

import sys
import time

from harness.drill import HALFWAY, Drill, Scene, main

NOTICE_S = 12
NODE_ID = """
import sys, ray
ray.init(logging_level="ERROR", log_to_driver=False)
print(next(n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == sys.argv[1]))
"""


def act(scene: Scene) -> str:
    """Drains the first node with a deadline, and kills all its processes when that has come."""
    node, cluster = scene.nodes[0], scene.cluster
    node_id = cluster.ask([sys.executable, "-c", NODE_ID, node.host.address]).split()[-1]
    scene.training.wait_for_step(HALFWAY // 3)
    with scene.fault():
        cluster.ask([
            sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.address,
            "--node-id", node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message", "drill", "--deadline-remaining-seconds", str(NOTICE_S),
        ])  # fmt: skip
    time.sleep(NOTICE_S)
    cluster.kill_node(node)
    scene.nodes += cluster.add_nodes(1)
    return f"announced {NOTICE_S} s ahead; the new node was there after it"


DRILL = Drill("announce_node", "a node is announced to go", act)

if __name__ == "__main__":
    sys.exit(main(DRILL))
