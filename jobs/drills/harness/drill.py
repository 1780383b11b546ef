"""A drill: the same small run undisturbed and with a fault, and one row on what that did."""

import argparse
import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from harness.cluster import Cluster, Node
from harness.network import Network, why_impossible
from harness.places import Place, plain_folder
from harness.table import Row, write_table
from harness.training import Training

RUN = """\
name: run
data: {{uri: {data}, split: {{random: [0.6, 0.2, 0.2]}}}}
loader: {{num_neighbors: [10, 5], batch_size: 128, threads: 1}}
model: {{hidden: 32}}
optim: {{schedule: cosine}}
train:
  {{epochs: 40, workers: 2, threads: 1, micro_batches: 2, patience: null, log_every: 1}}
eval: {{every_epochs: 5}}
checkpoint: {{every_steps: 25, every_epochs: 1000}}
"""
# 60 % of the nodes, 128 to a micro-batch, 2 of these a step
NODES, STEPS_PER_EPOCH = 5000, 12
# within an epoch, and between the checkpoints of steps 225 and 250
HALF_OF_THE_EPOCHS = 20
HALFWAY = HALF_OF_THE_EPOCHS * STEPS_PER_EPOCH - 7


@dataclass
class Scene:
    """A run that trains, for the drill to disturb.

    Attributes:
        cluster: it has a head and the worker nodes.
        nodes: the worker nodes.
        training: the run.
        place: where its files are.
        fault_at: when the fault began, by the monotonic clock.
    """

    cluster: Cluster
    nodes: list[Node]
    training: Training
    place: Place
    fault_at: float = field(default=float("nan"))

    @contextmanager
    def fault(self) -> Iterator[None]:
        """Around what breaks something: notes when."""
        say("the fault")
        self.fault_at = time.monotonic()
        yield


@dataclass(frozen=True)
class Drill:
    """One fault, and how it is made.

    Attributes:
        name: of the drill's files.
        fault: what happens, for the table.
        act: disturbs a run that has begun to train; gives a remark for the table, or "".
        settings: of the run, beside those of all drills.
        place: where the run lies.
        is_noticed: whether the run itself has something to notice.
    """

    name: str
    fault: str
    act: Callable[[Scene], str]
    settings: tuple[str, ...] = ()
    place: Callable[[Network, Path], AbstractContextManager[Place]] = plain_folder
    is_noticed: bool = True


class Ended(NamedTuple):
    """How a run ended: its result, and the hash of its last checkpoint's tensors."""

    result: dict[str, Any]
    tensors: str


def say(text: str) -> None:
    """A line on how the drill goes."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Bench(NamedTuple):
    """What a drill is made on: a cluster with two worker nodes, a place for the run, a folder."""

    cluster: Cluster
    nodes: list[Node]
    place: Place
    folder: Path


def run_drill(drill: Drill, folder: Path) -> Row:
    """Makes a drill on a cluster of its own."""
    with (
        Network() as network,
        drill.place(network, folder) as place,
        Cluster(network, place.environment) as cluster,
    ):
        say("the head is up")
        nodes = cluster.add_nodes(2)
        say("two nodes have joined")
        return perform(drill, Bench(cluster, nodes, place, folder))


def perform(drill: Drill, bench: Bench) -> Row:
    """Trains with the drill's fault, and before it once without, where that is not there yet."""
    config, folder = _prepare(bench.folder), bench.folder
    baseline = _baseline(bench.cluster, config, folder)
    settings = [f"name={drill.name}", f"storage_path={bench.place.uri}", *drill.settings]
    run, log = f"{bench.place.uri}/{drill.name}", folder / f"{drill.name}.log"
    _forget(run)
    with Training(bench.cluster, config, settings, run=run, log=log) as training:
        scene = Scene(bench.cluster, bench.nodes, training, bench.place)
        remark = drill.act(scene)
        _expect_success(training)
        return _row(drill, scene, remark, baseline)


def _prepare(folder: Path) -> Path:
    """Makes the dataset and the config."""
    from dnformer.data.ingest.run import ingest
    from dnformer.data.sources.synthetic import SyntheticSource

    folder.mkdir(parents=True, exist_ok=True)
    data, config = folder / "data", folder / "run.yaml"
    if not (data / "manifest.json").exists():
        ingest(SyntheticSource(nodes=NODES, classes=8, features=32, noise=2.0), str(data))
    config.write_text(RUN.format(data=data))
    return config


def _forget(run: str) -> None:
    if "://" not in run:
        shutil.rmtree(run, ignore_errors=True)


def _baseline(cluster: Cluster, config: Path, folder: Path) -> Ended:
    """The undisturbed run's end, which the next drill finds in a file."""
    file = folder / "baseline.json"
    if not file.exists():
        say("the undisturbed run")
        run = str(folder / "runs" / "baseline")
        _forget(run)
        settings = ["name=baseline", f"storage_path={folder / 'runs'}"]
        log = folder / "baseline.log"
        with Training(cluster, config, settings, run=run, log=log) as training:
            _expect_success(training)
            file.write_text(json.dumps([training.result(), training.files().checkpoint]))
    return Ended(*json.loads(file.read_text()))


def _expect_success(training: Training) -> None:
    code = training.wait()
    if code:
        raise RuntimeError(f"the driver ended with exit status {code}:\n{training.tail()}")


def _row(drill: Drill, scene: Scene, remark: str, baseline: Ended) -> Row:
    training, at = scene.training, scene.fault_at
    times, files = training.times(), training.files()
    before = [time for time in times if time <= at][-1:]
    around = before + [time for time in times if time > at]
    gaps = [later - earlier for earlier, later in itertools.pairwise(around)]
    sign = training.first_sign(at) if drill.is_noticed else None
    return Row(
        fault=drill.fault,
        noticed_s=None if sign is None else sign - at,
        pause_s=max(gaps, default=0.0),
        repeated=files.repeated,
        accuracy=training.result()["test"]["accuracy"],
        baseline=baseline.result["test"]["accuracy"],
        equal=files.checkpoint == baseline.tensors != "",
        remark=remark,
    )


def main(*drills: Drill, table: bool = False) -> int:
    """The command line of a drill, or of several; with `table` their rows go into the page."""
    parser = argparse.ArgumentParser(
        description="Breaks something under a run, and says what then."
    )
    parser.add_argument("--folder", type=Path, default=Path("cache/drills"), help="for its files")
    parser.add_argument("--fresh", action="store_true", help="train the undisturbed run anew")
    given = parser.parse_args()
    reason = why_impossible()
    if reason is not None:
        sys.exit(f"no drill: {reason}")
    # whoever ends a drill politely finds nothing left of it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = given.folder.resolve()
    if given.fresh:
        (folder / "baseline.json").unlink(missing_ok=True)
    rows = []
    for drill in drills:
        say(drill.fault)
        rows.append(run_drill(drill, folder))
        print(rows[-1].line(), flush=True)
    if table:
        write_table(rows)
    return 0
