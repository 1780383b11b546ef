"""All drills, one after the other; their table goes into cluster/README.md."""

import sys

import announce_node
import break_s3
import cut_link
import fill_disk
import kill_node
import kill_worker
import stop_driver
from harness.drill import main

DRILLS = (
    kill_worker.DRILL,
    kill_node.DRILL,
    announce_node.DRILL,
    stop_driver.DRILL,
    cut_link.BLINK,
    cut_link.DRILL,
    fill_disk.DRILL,
    break_s3.DRILL,
)

if __name__ == "__main__":
    sys.exit(main(*DRILLS, table=True))
