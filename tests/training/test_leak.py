"""Does training keep what it should let go? `tests/drills/leak.py` asks that of 1,000 epochs.

A process of its own trains; resident memory at the end is compared with that after a warm-up.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dnformer.config import RunConfig
from dnformer.data.graph import open_graph
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.loader import NeighborLoader
from dnformer.parsing import parse
from dnformer.training.launch import Progress, train

EPOCHS, WARM_UP, NODES, FEATURES = 40, 15, 1500, 256


def growth(folder: Path, *options: str) -> float:
    """Bytes by which a training process grows an epoch, in batches."""
    command = [sys.executable, __file__, str(folder), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    sizes = np.array(found["sizes"])
    assert len(sizes) == EPOCHS
    # of three epochs each: one alone may be seen while a checkpoint is written
    grown = np.median(sizes[-3:]) - np.median(sizes[WARM_UP : WARM_UP + 3])
    return float(grown / (EPOCHS - WARM_UP) / found["batch_bytes"])


def test_training_does_not_keep_batches(tmp_path: Path) -> None:
    assert growth(tmp_path) < 0.25


def test_training_that_keeps_a_batch_an_epoch_is_noticed(tmp_path: Path) -> None:
    assert growth(tmp_path, "--leak") > 0.75


def trained(folder: Path, *, leak: bool) -> dict[str, Any]:
    """Resident bytes after each epoch of a run, and the bytes of a batch's features.

    Args:
        folder: for all files.
        leak: keep a batch after each epoch.
    """
    ingest(SyntheticSource(nodes=NODES, classes=3, features=FEATURES, degree=8), str(folder / "d"))
    config = parse(
        RunConfig,
        {
            "name": "leak",
            "storage_path": str(folder / "runs"),
            "data": {"uri": str(folder / "d"), "split": {"random": [0.6, 0.2, 0.2]}},
            "loader": {"num_neighbors": 8, "batch_size": 300, "threads": 1},
            "model": {"hidden": 8, "layers": 2, "heads": 2},
            "train": {"epochs": EPOCHS, "threads": 1, "log_every": 1},
            "cache": {"dir": str(folder / "store")},
        },
    )
    graph = open_graph(config.data.uri, split=config.data.split, cache_dir=folder / "store")
    loader = NeighborLoader(graph, graph.split("train"), num_neighbors=[8, 8], batch_size=300)
    process, sizes, kept = psutil.Process(), [], []

    def look(record: dict[str, Any]) -> None:
        if record["kind"] == "epoch":
            sizes.append(process.memory_info().rss)
            batch = next(iter(loader))
            if leak:
                kept.append(batch)

    train(config, progress=Progress(record=look))
    return {"sizes": sizes, "batch_bytes": next(iter(loader)).x.nbytes}


if __name__ == "__main__":
    print(json.dumps(trained(Path(sys.argv[1]), leak="--leak" in sys.argv)))
