"""Drill: training on features of four times the memory that the process may use.

Makes a power-law graph (once), trains it by `dnformer train` within a cgroup's memory limit and
without one, reads the rows that missed the hot ones in plain random order from the same disk, and
says whether limited <= unlimited + 1.3 x reads holds from the second epoch on. `make drill-memory`.

Needs Linux, a cgroup that it may make and limit (root, or a delegated one), and 14 GB of disk.
"""

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_BYTES = 1536 << 20
NUM_NODES, NUM_FEATURES = 3_200_000, 512
TRAIN_NODES, VAL_NODES = 30_000, 4_000
FAN_OUT, BATCH_SIZE, EPOCHS = [10, 10], 512, 6
WANTED_HITS, ALLOWED, ROUNDS = 0.8, 1.3, 2
READERS, SECTOR = 16, 512
MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")
ENTER = "--enter-cgroup"
RUN, READS = "run.yaml", "reads.json"


class Limited(NamedTuple):
    """A cgroup with a memory limit: its folder, and the names of its files."""

    folder: Path
    members: str
    peak: str


@contextmanager
def limited_memory(limit: int) -> Iterator[Limited]:
    """A new cgroup (v1 or v2) in which processes may use `limit` bytes, page cache included."""
    name = f"dnformer-drill-{os.getpid()}"
    try:
        if MEMORY.is_dir():
            group = Limited(MEMORY / name, "tasks", "memory.max_usage_in_bytes")
            group.folder.mkdir()
            (group.folder / "memory.limit_in_bytes").write_text(str(limit))
        else:
            (UNIFIED / "cgroup.subtree_control").write_text("+memory")
            group = Limited(UNIFIED / name, "cgroup.procs", "memory.peak")
            group.folder.mkdir()
            (group.folder / "memory.max").write_text(str(limit))
            if (group.folder / "memory.swap.max").exists():
                (group.folder / "memory.swap.max").write_text("0")
    except OSError as error:
        sys.exit(f"a cgroup with a memory limit can't be made ({error}); run this as root")
    try:
        yield group
    finally:
        group.folder.rmdir()


def enter(members: str, command: list[str]) -> None:
    """Becomes `command` inside a cgroup; before anything large is loaded."""
    Path(members).write_text(str(os.getpid()))
    os.execv(command[0], command)


def train(name: str, folder: Path, settings: list[str], group: Limited | None) -> list[Any]:
    """The epochs' records of a run by the command line."""
    from dnformer.training.sinks import read_metrics

    command = [sys.executable, "-m", "dnformer.cli", "train", str(folder / RUN), "--fresh"]
    for setting in (f"name={name}", *settings):
        command += ["--set", setting]
    if group is not None:
        members = str(group.folder / group.members)
        command = [sys.executable, __file__, ENTER, members, *command]
    code = subprocess.run(command, check=False).returncode
    if code == -signal.SIGKILL and group is not None:
        sys.exit(f"the run {name!r} was killed: it takes more than the limit")
    if code:
        sys.exit(f"the run {name!r} ended with exit status {code}")
    return [record for record in read_metrics(str(folder / "runs" / name))
            if record["kind"] == "epoch"]  # fmt: skip


def seconds(record: Any) -> float:
    """An epoch's training alone: no validation, no checkpoint."""
    stages = record["stage_seconds"]
    return float(record["seconds"] - stages.get("evaluate", 0) - stages.get("checkpoint", 0))


def make_dataset(folder: Path) -> Any:
    """The graph and its node-local store; made if missing."""
    import numpy as np

    from dnformer.config import SplitConfig
    from dnformer.data.graph import open_graph
    from dnformer.data.ingest.run import ingest
    from dnformer.data.sources.synthetic import SyntheticSource

    data, split = folder / "data", folder / "split.npz"
    if not (data / "manifest.json").exists():
        print("making the graph (once)", flush=True)
        source = SyntheticSource(
            kind="power_law", nodes=NUM_NODES, degree=10, exponent=2.1, features=NUM_FEATURES,
            classes=16,
        )  # fmt: skip
        ingest(source, str(data))
    order = np.random.default_rng(0).permutation(NUM_NODES)
    cuts = np.cumsum([TRAIN_NODES, VAL_NODES, VAL_NODES])
    parts = [np.sort(part) for part in np.split(order, cuts)[:3]]
    np.savez(split, train=parts[0], val=parts[1], test=parts[2])
    recipe = SplitConfig(file=str(split))
    return open_graph(data, split=recipe, cache_dir=folder / "stores", say=print)


def write_config(folder: Path, hot_bytes: int) -> None:
    (folder / RUN).write_text(f"""
name: drill
storage_path: {folder / "runs"}
data: {{uri: {folder / "data"}, split: {{file: {folder / "split.npz"}}}}}
loader: {{num_neighbors: {FAN_OUT}, batch_size: {BATCH_SIZE}, threads: 2, prefetch: 1}}
model: {{hidden: 64, layers: 2, heads: 2, dropout: 0.1}}
train: {{epochs: {EPOCHS}, threads: 2}}
eval: {{mode: sampled, every_epochs: {EPOCHS}}}
cache: {{dir: {folder / "stores"}, hot_bytes: {hot_bytes}, readers: {READERS}}}
""")


def batches(graph: Any, epoch: int) -> Iterator[Any]:
    """The nodes of each training batch of an epoch, as the run draws them."""
    from dnformer.loader import NeighborLoader

    loader = NeighborLoader(
        graph, graph.split("train"), num_neighbors=FAN_OUT, batch_size=BATCH_SIZE, prefetch=1
    )
    loader.set_epoch(epoch)
    for batch in loader:
        yield batch.n_id.numpy()


def rank_nodes(graph: Any) -> Any:
    """Nodes by how often training is expected to meet them, the most first."""
    import numpy as np

    from dnformer.loader import Visits
    from dnformer.loader.hot_cache import expected_visits

    visits = Visits(graph.split("train").numpy(), FAN_OUT, BATCH_SIZE)
    return np.argsort(-expected_visits(graph.store, visits), kind="stable")


def rows_for(graph: Any, ranked: Any, share: float) -> int:
    """How many of the hottest rows take `share` of an epoch's accesses."""
    import numpy as np

    accesses = np.zeros(graph.num_nodes, np.int64)
    for nodes in batches(graph, 0):
        accesses[nodes] += 1
    covered = np.cumsum(accesses[ranked])
    return int(np.searchsorted(covered, share * covered[-1])) + 1


def missed_rows(graph: Any, hot: Any, epoch: int) -> Any:
    """The accesses of an epoch that are not hot, in order."""
    import numpy as np

    is_hot = np.zeros(graph.num_nodes, bool)
    is_hot[hot] = True
    return np.concatenate([nodes[~is_hot[nodes]] for nodes in batches(graph, epoch)])


def page_cache(folder: Path, keep: bool) -> None:
    """Reads the store's files into the page cache, or drops them from it."""
    for path in folder.rglob("*.npy"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if keep:
                while file.read(64 << 20):
                    pass
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_reader() -> Callable[..., None]:
    """A loop of plain reads, one for each row, in compiled code."""
    import numba
    import numpy as np
    from numba.core import types

    pread = types.ExternalFunction(
        "pread", types.intp(types.int32, types.uintp, types.uintp, types.int64)
    )

    @numba.njit(nogil=True)
    def read(fd, address, starts, size, align):  # type: ignore[no-untyped-def]
        for start in starts:
            begin = start // align * align
            end = (start + size + align - 1) // align * align
            if pread(np.int32(fd), np.uintp(address), np.uintp(end - begin), begin) < size:
                raise OSError("short read")

    return read


class Features(NamedTuple):
    """Where rows lie: file, the byte where they begin, bytes of each."""

    path: str
    begin: int
    row_bytes: int


def plain_reads(features: Features, ids: Any, threads: int, direct: bool) -> float:
    """Seconds that reading the rows `ids` takes, one request a row, nothing of them cached.

    Nobody may have the file mapped: what is mapped stays in the page cache.
    """
    import mmap

    import numpy as np

    size, align = features.row_bytes, SECTOR if direct else 1
    read = make_reader()
    fd = os.open(features.path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    starts = features.begin + ids * size
    buffers = [np.frombuffer(mmap.mmap(-1, size + 8192), np.uint8) for _ in range(threads)]
    read(fd, buffers[0].ctypes.data, starts[:0], size, align)
    workers = [
        threading.Thread(target=read, args=(fd, buffer.ctypes.data, part, size, align))
        for buffer, part in zip(buffers, np.array_split(starts, threads), strict=True)
    ]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    taken = time.perf_counter() - begin
    os.close(fd)
    return taken


def prepare(folder: Path) -> None:
    """Makes the graph, and the plan: which rows are hot, in numbers for whoever comes next."""
    import numpy as np

    graph = make_dataset(folder)
    x, ranked = graph.store.x, rank_nodes(graph)
    num_hot = rows_for(graph, ranked, WANTED_HITS)
    np.save(folder / "hot.npy", ranked[:num_hot])
    hot_bytes = num_hot * x.shape[1] * x.itemsize
    write_config(folder, hot_bytes)
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; features {x.nbytes >> 20:,} MiB, "
        f"limit {LIMIT_BYTES >> 20:,} MiB: {x.nbytes / LIMIT_BYTES:.2f} times; "
        f"{num_hot:,} hot rows ({num_hot / len(x):.1%}, {hot_bytes >> 20:,} MiB)",
        flush=True,
    )


def measure_reads(folder: Path) -> None:
    """Writes, for each epoch, the least seconds that plain reads of its missed rows take."""
    import numpy as np

    graph, hot = make_dataset(folder), np.load(folder / "hot.npy")
    x = graph.store.x
    features = Features(str(x.base.filename), x.base.offset, x.shape[1] * x.itemsize)
    missed = [missed_rows(graph, hot, epoch) for epoch in range(EPOCHS)]
    del graph, x
    gc.collect()
    least = []
    for epoch, ids in enumerate(missed):
        times = {
            f"{threads} threads, {'direct' if direct else 'buffered'}": plain_reads(
                features, ids, threads, direct
            )
            for threads, direct in ((1, False), (READERS, False), (READERS, True))
        }
        print(f"epoch {epoch + 1}: {len(ids):,} rows missed; plain random reads: "
              + ", ".join(f"{name} {taken:.2f} s" for name, taken in times.items()),
              flush=True)  # fmt: skip
        least.append(min(times.values()))
    (folder / READS).write_text(json.dumps(least))


def report(limited: list[Any], unlimited: list[Any], reads: list[float]) -> bool:
    """Prints the figures of all rounds, and whether the target holds for the means."""
    print("\nepoch  limited s  unlimited s  plain reads s  hit rate  MiB read")
    taken = alone = 0.0
    for epoch, read in enumerate(reads):
        one = [seconds(records[epoch]) for records in limited]
        other = [seconds(records[epoch]) for records in unlimited]
        record = limited[0][epoch]
        print(
            f"{epoch + 1:5}  {shown(one):>9}  {shown(other):>11}  {read:13.2f}  "
            f"{record['cache_hit_rate']:8.3f}  {record['feature_bytes_read'] / 2**20:8,.0f}"
        )
        if epoch:
            taken, alone = taken + sum(one) / ROUNDS, alone + sum(other) / ROUNDS
    same = all(
        a["train/loss"] == b["train/loss"] for a, b in zip(limited[0], unlimited[0], strict=True)
    )
    read = sum(reads[1:])
    allowed = alone + ALLOWED * read
    print(
        f"losses are {'equal' if same else 'NOT EQUAL'}; from the second epoch on: limited "
        f"{taken:.2f} s; unlimited {alone:.2f} s + {ALLOWED} x plain reads {read:.2f} s = "
        f"{allowed:.2f} s: {'holds' if taken <= allowed else 'DOES NOT HOLD'}"
    )
    return same and taken <= allowed


def shown(values: list[float]) -> str:
    """Seconds of each round."""
    return "/".join(f"{value:.2f}" for value in values)


def drill(folder: Path) -> bool:
    """All of it; what touches the store does so in a process of its own, which lets go of it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = [sys.executable, __file__, "--folder", str(folder)]
    subprocess.run([*own, "--stage", "prepare"], check=True)
    limited, unlimited = [], []
    for _ in range(ROUNDS):
        page_cache(folder / "stores", keep=False)
        with limited_memory(LIMIT_BYTES) as group:
            limited.append(train("limited", folder, [], group))
            peak = int((group.folder / group.peak).read_text())
        print(f"limited: peak {peak >> 20:,} MiB, page cache included", flush=True)
        page_cache(folder / "stores", keep=True)
        everything = ["cache.hot_bytes=0", "cache.reads=mmap"]
        unlimited.append(train("unlimited", folder, everything, None))
    subprocess.run([*own, "--stage", "reads"], check=True)
    return report(limited, unlimited, json.loads((folder / READS).read_text()))


def main() -> int:
    """The command line."""
    if sys.argv[1:2] == [ENTER]:
        enter(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("cache/drill-memory"))
    parser.add_argument("--stage", choices=["all", "prepare", "reads"], default="all")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.stage == "all":
        return 0 if drill(folder) else 1
    (prepare if given.stage == "prepare" else measure_reads)(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
