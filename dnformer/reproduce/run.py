"""Runs what is missing of a table: one after the other, or side by side as Ray tasks."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from dnformer import ray_runtime, storage
from dnformer.config import RunConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.manifest import read_manifest
from dnformer.data.sources.raw import RawSource
from dnformer.errors import ConfigError, TrainError
from dnformer.parsing import parse
from dnformer.reproduce.grid import DATASETS, Cell, changed
from dnformer.reproduce.rows import Row, Rows, digest
from dnformer.training import launch
from dnformer.training.objectives import main_metric, shown

_VERSIONS = ("dnformer", "torch", "torch_geometric")


@dataclass(frozen=True)
class Sitting:
    """How the runs of a sitting are made.

    Attributes:
        storage_path: where their folders are; a run that was stopped goes on there.
        workers: runs at a time, as Ray tasks of one thread each; 0: one at a time, in this process.
        root: folder of raw files, from which a dataset that is not there is ingested.
        max_hours: no run begins after so many.
        say: takes a line about what is going on.
    """

    storage_path: str
    workers: int = 0
    root: Path | None = None
    max_hours: float | None = None
    say: Callable[[str], None] = print


class Outcome(NamedTuple):
    """What a sitting has done.

    Attributes:
        fingerprints: of the datasets, by name.
        added: rows.
        failed: runs, with the reason.
        left: runs that did not begin.
    """

    fingerprints: dict[str, str]
    added: int
    failed: list[tuple[Cell, str]]
    left: int


def _fingerprints(cells: Sequence[Cell], sitting: Sitting) -> dict[str, str]:
    """The fingerprint of each cell's dataset, which is ingested where it is not there."""
    uris = {cell.dataset: cell.config.data.uri for cell in cells}
    return {name: _fingerprint(name, uri, sitting) for name, uri in uris.items()}


def _fingerprint(name: str, uri: str, sitting: Sitting) -> str:
    if not storage.exists(storage.join(storage.absolute(uri), "manifest.json")):
        source = DATASETS.get(name)
        if sitting.root is None or source is None:
            raise ConfigError(
                f"{uri}: there is no dataset; give --root, the folder of its raw files, or: "
                f"dnformer ingest {source or 'SOURCE'} --root RAW --out {uri}"
            )
        sitting.say(f"ingesting {source} into {uri}")
        ingest(RawSource(name=source.removeprefix("pyg:"), root=str(sitting.root)), uri)
    return read_manifest(storage.absolute(uri)).fingerprint


def run_cells(cells: Sequence[Cell], rows: Rows, sitting: Sitting) -> Outcome:
    """Runs the cells that have no row, in their order; each that ends adds its row.

    Args:
        cells: of a table.
        rows: what is there, and where rows are added.
        sitting: how they are run.

    Raises:
        ConfigError: a dataset is missing, or a setting does not fit it.
        Stopped: it was told to stop; the run that was going on is saved, and goes on next time.
    """
    found = _fingerprints(cells, sitting)
    missing = [cell for cell in cells if rows.of(cell, found[cell.dataset]) is None]
    sitting.say(f"{len(cells) - len(missing)} of {len(cells)} runs are there")
    added, failed, begun = 0, list[tuple[Cell, str]](), time.monotonic()
    for cell, result in _results(_in_time(missing, sitting), sitting):
        number = added + len(failed) + 1
        left = (time.monotonic() - begun) / number * (len(missing) - number)
        done = f"{number}/{len(missing)} (some {_span(left)} left) {_name(cell)}"
        if isinstance(result, str):
            failed.append((cell, result))
            sitting.say(f"{done}: failed: {result}")
            continue
        row = _row(cell, found[cell.dataset], result)
        rows.add(row)
        added += 1
        sitting.say(f"{done}: {_shown(result)}, {result['seconds']:.0f} s")
    return Outcome(found, added, failed, len(missing) - added - len(failed))


def _in_time(cells: Sequence[Cell], sitting: Sitting) -> Iterator[Cell]:
    """The cells that begin before time is up."""
    begun = time.monotonic()
    for cell in cells:
        if sitting.max_hours is not None and time.monotonic() - begun > sitting.max_hours * 3600:
            sitting.say(f"{sitting.max_hours:g} hours are over")
            return
        yield cell


def _results(
    cells: Iterator[Cell], sitting: Sitting
) -> Iterator[tuple[Cell, dict[str, Any] | str]]:
    """Each cell with its result, or why its training failed, as they end."""
    if sitting.workers == 0:
        for cell in cells:
            yield cell, _train(_config(cell, sitting).dump())
        return
    first = next(cells, None)
    if first is None:
        return
    config = _config(first, sitting)
    gpus = config.train.gpu_share if config.train.use_gpu else 0
    needed = ray_runtime.Resources(sitting.workers, config.train.threads or 1, gpus)
    with ray_runtime.session(needed, sitting.say):
        from dnformer.ray_runtime.tasks import run_tasks

        payloads = ((cell, _config(cell, sitting).dump()) for cell in chain([first], cells))
        yield from run_tasks(_train, payloads, needed)


def _config(cell: Cell, sitting: Sitting) -> RunConfig:
    """The run of a cell, in its own folder."""
    name = f"{cell.dataset}/{digest(cell.settings)}-{cell.protocol}/{cell.seed}"
    changes: dict[str, Any] = {"name": name, "storage_path": sitting.storage_path}
    # the same bits wherever it is run
    return changed(cell.config, changes | {"train.workers": 0, "train.threads": 1})


def _train(config: dict[str, Any]) -> dict[str, Any] | str:
    """The result of a run, or why it failed."""
    try:
        return launch.train(parse(RunConfig, config))
    except TrainError as error:
        return str(error)


def _row(cell: Cell, fingerprint: str, result: dict[str, Any]) -> Row:
    return Row(
        dataset=cell.dataset, fingerprint=fingerprint, protocol=cell.protocol, seed=cell.seed,
        settings=cell.settings, val=result["val"], test=result["test"], epochs=result["epochs"],
        best_epoch=result["best_epoch"], seconds=round(result["seconds"], 3),
        versions={name: version(name) for name in _VERSIONS},
    )  # fmt: skip


def _span(seconds: float) -> str:
    """Seconds in words that are as exact as a guess."""
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _name(cell: Cell) -> str:
    return f"{cell.dataset}, {cell.label}, seed {cell.seed}"


def _shown(result: dict[str, Any]) -> str:
    # candidates are chosen by it alone, so no eye shall meet their test figures
    metric = main_metric(result["val"])
    return f"validation {metric} {shown(metric, result['val'][metric])}"
