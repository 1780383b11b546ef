"""What each worker of a prediction does, in this process or under Ray.

That is its share of every layer but the last, and its parts of that one.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy.typing as npt
import torch

from dnformer.data.graph import Graph, open_graph
from dnformer.data.ingest.workspace import workspace
from dnformer.data.threads import in_threads
from dnformer.driver import Driver
from dnformer.group import Group
from dnformer.inference.exact import Nodes
from dnformer.parsing import parse
from dnformer.prediction import progress
from dnformer.prediction.columns import Columns
from dnformer.prediction.computing import (
    AtOnce,
    Computing,
    LayerByLayer,
    Room,
    Sampled,
    Work,
    sampled_logits,
)
from dnformer.prediction.folder import Folder, added
from dnformer.prediction.ids import Ids
from dnformer.prediction.known import Known, Sums, metrics_of
from dnformer.prediction.options import PredictConfig
from dnformer.prediction.results import Comparison, Identity, Manifest
from dnformer.training.trained import Trained, open_trained

Array = npt.NDArray[Any]

# a part is held in memory three times at most
PART_ROWS, _PART_BYTES = 1 << 16, 32 << 20
# so few nodes are sampled for comparison without being asked
_CHEAP_NODES = 20_000


@dataclass(frozen=True)
class Job:
    """A prediction as it travels to a worker: plain values.

    Attributes:
        options: as `PredictConfig.portable` gives them.
        identity: of the predictions.
        listed: the nodes that were named one by one; None: others.
        threads: of each worker.
        part_rows: of a part at most.
        progress: file for what the first one says; None: the driver is told.
    """

    options: dict[str, Any]
    identity: dict[str, Any]
    listed: Array | None
    threads: int
    part_rows: int
    progress: str | None = None


def run_worker(job: Job, group: Group, driver: Driver) -> str:
    """Makes the parts of this worker that are missing; the first one publishes them all.

    Args:
        job: what to predict.
        group: this worker and the others.
        driver: told how far it is, where there is no file for it.

    Returns:
        The folder of the predictions.

    Raises:
        DNFormerError: a file is damaged, or does not fit the run.
    """
    options = parse(PredictConfig, job.options)
    trained = open_trained(options.run, options.storage)
    torch.set_num_threads(job.threads)  # the operator's number too
    told = _progress(job, group, driver)
    told.stage("opening the graph")
    graph = _open(trained, options)
    wanted = graph.split(options.split).numpy() if options.split else job.listed
    with workspace(options.temp_dir, options.memory_limit, job.threads) as space:
        work = Work(trained.model(), trained.config, graph, group,
                    Room(space.memory, space.folder), told.told)  # fmt: skip
        folder = Folder(options.out, Identity(**job.identity), space.folder)
        task = _Task(job, options, trained, work, wanted, folder)
        _write_parts(task, told)
        told.stage("finishing")
        comparison = _compared(task)
        # no rank is still writing
        group.any(False)
        if group.rank == 0:
            _publish(task, comparison)
    return folder.uri


def _progress(job: Job, group: Group, driver: Driver) -> progress.Progress:
    if group.rank > 0:
        return progress.Progress(progress.silent)
    if job.progress is not None:
        return progress.into_file(job.progress)
    return progress.Progress(lambda state: driver.report(state._asdict()))


def _open(trained: Trained, options: PredictConfig) -> Graph:
    if options.data is None:
        return trained.graph()
    cache = trained.config.cache
    return open_graph(
        options.data,
        cache_dir=Path(cache.dir) if cache.dir else None,
        max_bytes=cache.max_bytes,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )


@final
class _Task:
    """A prediction with all that it needs.

    Attributes:
        options: what was asked for.
        trained: the run.
        work: what there is to compute with.
        wanted: the nodes, ascending; None: all.
        folder: where they go.
        columns: what outputs become.
        known: labels to compare with; None: there are none.
    """

    def __init__(
        self, job: Job, options: PredictConfig, trained: Trained, work: Work,
        wanted: Array | None, folder: Folder,
    ) -> None:  # fmt: skip
        self.options, self.trained, self.work = options, trained, work
        self.wanted, self.folder = wanted, folder
        self.columns = Columns(trained.target, trained.units)
        self.known = _known(trained, work.graph, self.columns, own=options.data is None)
        self.nodes: Nodes = range(work.graph.num_nodes) if wanted is None else wanted
        extra = trained.config.model.hidden * (
            options.embeddings + options.layers * (trained.config.model.layers + 1)
        )
        self.row_bytes = self.columns.row_bytes(extra)
        self._part_rows = max(1, min(job.part_rows, _PART_BYTES // self.row_bytes))

    @property
    def num_parts(self) -> int:
        """At least one, so that no node is a table, too."""
        return max(1, -(-len(self.nodes) // self._part_rows))

    def part(self, number: int) -> Nodes:
        """The nodes of a part."""
        return self.nodes[number * self._part_rows : (number + 1) * self._part_rows]

    def computing(self) -> Computing:
        """How outputs come about.

        Raises:
            ConfigError: the memory that is allowed is too little.
        """
        options = self.options
        if options.mode == "sampled":
            return Sampled(self.work, self.wanted)
        if not self.trained.layerwise:
            return AtOnce(self.work)
        return LayerByLayer(
            self.work, self.wanted, embeddings=options.embeddings, layers=options.layers
        )


def _known(trained: Trained, graph: Graph, columns: Columns, *, own: bool) -> Known | None:
    """The labels of a graph, where they are of the kind that the run has learnt."""
    if own:
        return Known(graph, columns.objective, splits=True)
    if trained.target not in graph.manifest.targets:
        return None
    uri, name = graph.uri, trained.target.name
    labelled = Graph(uri, graph.manifest, graph.store, label=name)
    return Known(labelled, columns.objective, splits=False)


class _Part(NamedTuple):
    """A part as it is written."""

    number: int
    table: Any
    sums: Sums


def _write_parts(task: _Task, told: progress.Progress) -> None:
    """This rank's share of the parts that are not there yet."""
    group = task.work.group
    missing = _missing(task)
    if not missing:
        return
    computing = task.computing()
    told.expect(-(-computing.num_done // group.world_size))
    told.stage("computing layers")
    computing.prepare()
    told.stage("writing predictions")

    def write(part: _Part) -> None:
        task.folder.write(part.number, part.table, task.row_bytes, part.sums)

    for _ in in_threads(write, _parts(task, computing, missing[group.rank :: group.world_size]), 1):
        pass


def _missing(task: _Task) -> list[int]:
    """Numbers of the parts that are not done, equal on all ranks: rank 0 looks."""
    group, numbers = task.work.group, range(task.num_parts)
    content = None
    if group.rank == 0:
        done = task.folder.done(numbers)
        content = json.dumps([number for number in numbers if number not in done]).encode()
    found: list[int] = json.loads(group.broadcast(content) or b"[]")
    return found


def _parts(task: _Task, computing: Computing, numbers: list[int]) -> Iterator[_Part]:
    graph = task.work.graph
    ids = Ids(graph.uri, graph.manifest)
    for number in numbers:
        nodes = task.part(number)
        made = computing.outputs(nodes)
        values = task.columns.values(made.logits)
        table = task.columns.table(ids.of(nodes), values, made.extra)
        sums = {} if task.known is None else task.known.sums(nodes, values)
        yield _Part(number, table, sums)


def _compared(task: _Task) -> dict[str, Any] | None:
    """Metrics of sampled outputs, where that is asked for, or cheap; all ranks call it."""
    options, known, config = task.options, task.known, task.trained.config
    if options.mode == "sampled" or known is None or config.loader.kind == "full":
        return None
    nodes = known.members(known.compared, task.wanted)
    if not len(nodes) or not (options.compare_sampled or len(nodes) <= _CHEAP_NODES):
        return None
    unheard = task.work._replace(told=lambda done: None)
    values = task.columns.values(sampled_logits(unheard, nodes))
    sums = known.sums(nodes, values)
    found = metrics_of(task.columns.objective, [(name, *each) for name, each in sums.items()])
    return {"nodes": len(nodes), "num_neighbors": config.loader.fan_out(config.model.layers),
            "split": known.compared, "sampled": found[known.compared]}  # fmt: skip


def _publish(task: _Task, compared: dict[str, Any] | None) -> None:
    notes = [note for _, note in sorted(task.folder.done(range(task.num_parts)).items())]
    sums, trained = list(added(notes)), task.trained
    metrics = metrics_of(task.columns.objective, sums)
    comparison = None
    if compared is not None:
        comparison = Comparison(exact=metrics[compared["split"]], **compared)
    task.folder.publish(
        Manifest(
            identity=task.folder.identity,
            name=trained.config.name,
            target=trained.target,
            trained_on=trained.manifest.fingerprint,
            num_nodes=len(task.nodes),
            columns=notes[0].columns,
            metrics=metrics,
            counts={split: count for split, _, count in sums},
            comparison=comparison,
            created_by=f"dnformer {version('dnformer')}",
            files=[note.file for note in notes],
        )
    )
