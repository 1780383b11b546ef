"""Drill: does the memory of a training process grow? `python tests/drills/leak.py`.

Trains 1,000 epochs in this process, on Cora where it is beside the checkout, else on a graph of its
size; prints resident memory every 50 epochs, and its growth from epoch 100 to the end, which has
to stay below 2 %.
"""

import argparse
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import psutil

from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.raw import RawSource
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.parsing import parse
from dnformer.training.launch import Progress, train

CORA = Path(__file__).parents[3] / "shared" / "data" / "Cora"
EVERY, WARM_UP, ALLOWED = 50, 100, 0.02


def make_dataset(folder: Path) -> str:
    """The URI of the graph; made if missing."""
    uri = folder / "data"
    if not uri.exists():
        source = (
            RawSource(name="Planetoid/Cora", root=str(CORA))
            if CORA.is_dir()
            else SyntheticSource(nodes=2708, classes=7, features=1433, degree=4)
        )
        ingest(source, str(uri))
    return str(uri)


def make_config(folder: Path, epochs: int, kind: str, storage_path: str) -> RunConfig:
    """A run that does everything every epoch: steps, validation, records and a checkpoint."""
    return parse(
        RunConfig,
        {
            "name": "leak",
            "storage_path": storage_path,
            "data": {"uri": make_dataset(folder), "split": {"random": [0.6, 0.2, 0.2]}},
            "loader": {"kind": kind, "num_neighbors": 5, "batch_size": 1024, "threads": 1},
            "model": {"hidden": 16, "layers": 2, "heads": 2},
            "train": {"epochs": epochs, "patience": None, "log_every": 1, "threads": 1},
            "cache": {"dir": str(folder / "store")},
        },
    )


def growth(sizes: dict[int, int], warm_up: int) -> float:
    """By how much the last of the sizes by epoch is above that of epoch `warm_up`."""
    return sizes[max(sizes)] / sizes[warm_up] - 1


def show_allocations(before: tracemalloc.Snapshot) -> None:
    """What Python has allocated since `before`, the most first."""
    for entry in tracemalloc.take_snapshot().compare_to(before, "lineno")[:15]:
        print(entry, flush=True)


def drill(config: RunConfig, *, trace: bool) -> bool:
    """Trains, prints, and says whether memory stayed where it was."""
    sizes: dict[int, int] = {}
    snapshots: list[tracemalloc.Snapshot] = []
    process = psutil.Process()

    def look(record: dict[str, Any]) -> None:
        done = record["epoch"] + 1
        if record["kind"] != "epoch" or done % EVERY:
            return
        sizes[done] = process.memory_info().rss
        print(f"epoch {done:5}: {sizes[done] / 2**20:8.2f} MiB", flush=True)
        if trace and done == WARM_UP:
            snapshots.append(tracemalloc.take_snapshot())

    if trace:
        tracemalloc.start(5)
    train(config, start="fresh", progress=Progress(record=look))
    if trace:
        show_allocations(snapshots[0])
    found = growth(sizes, WARM_UP)
    holds = found < ALLOWED
    print(f"from epoch {WARM_UP} to {max(sizes)}: {found:+.2%}, allowed {ALLOWED:.0%}: "
          f"{'holds' if holds else 'DOES NOT HOLD'}")  # fmt: skip
    return holds


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--kind", choices=["neighbor", "full"], default="neighbor")
    parser.add_argument("--folder", type=Path, default=f"{tempfile.gettempdir()}/dnformer-leak")
    parser.add_argument("--storage-path", help="of the run, any URI; default: in the folder")
    parser.add_argument("--trace", action="store_true", help="show what Python allocated")
    given = parser.parse_args()
    folder = given.folder.resolve()
    storage_path = given.storage_path or str(folder / "runs")
    config = make_config(folder, given.epochs, given.kind, storage_path)
    return 0 if drill(config, trace=given.trace) else 1


if __name__ == "__main__":
    sys.exit(main())
