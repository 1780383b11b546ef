"""Runs that are analysed, one or repeated, and which of two are pairs."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from dnformer import storage
from dnformer.analysis.findings import Subject
from dnformer.config import RunConfig, StorageConfig
from dnformer.errors import CheckpointError, ConfigError
from dnformer.training.loss_weights import objective_for
from dnformer.training.run import read_run
from dnformer.training.trained import open_trained


class Opened(NamedTuple):
    """A run, or one that was repeated.

    Attributes:
        uri: as the user named it, absolute.
        repeats: folder of each run, by number; a run that was not repeated is number 0.
    """

    uri: str
    repeats: dict[int, str]

    @property
    def label(self) -> str:
        """Its short name."""
        return self.uri.rstrip("/").rpartition("/")[2]


def find(uri: str) -> Opened:
    """The run, or its repeats, in the folder `uri`.

    Raises:
        CheckpointError: there is none.
    """
    uri = storage.absolute(uri)
    if storage.exists(storage.join(uri, "run.json")):
        return Opened(uri, {0: uri})
    found = {
        int(match[1]): storage.join(uri, name)
        for name in storage.list_names(uri)
        if (match := re.fullmatch(r"repeat-(\d+)", name))
    }
    if not found:
        raise CheckpointError(
            f"{uri}: no run and no repeats here (run.json, repeat-0); give STORAGE_PATH/NAME"
        )
    return Opened(uri, dict(sorted(found.items())))


def common(runs: Sequence[Opened]) -> list[int]:
    """The repeats that all runs have; each is of one dataset, split in one way.

    Raises:
        ConfigError: there are none, or two runs of one number are no pair.
    """
    numbers = [number for number in runs[0].repeats if all(number in r.repeats for r in runs)]
    if not numbers:
        raise ConfigError(
            f"{runs[0].uri} has repeats {_listed(runs[0])}, and not each of them in "
            f"{', '.join(run.uri for run in runs[1:])}: train the same repeats of both"
        )
    for number in numbers:
        first, *others = (run.repeats[number] for run in runs)
        for other in others:
            _check_pair(first, other)
    return numbers


def _listed(run: Opened) -> str:
    return ", ".join(map(str, run.repeats))


def _check_pair(one: str, other: str) -> None:
    (mine, dataset), (its, its_dataset) = read_run(one), read_run(other)
    differing = [
        what
        for what, equal in (
            ("dataset", dataset == its_dataset),
            ("data.label", mine.data.label == its.data.label),
            ("data.split", mine.data.split == its.data.split),
            ("data.seed", mine.data_seed == its.data_seed),
        )
        if not equal
    ]
    if differing:
        raise ConfigError(
            f"{one} and {other} differ in {' and '.join(differing)}; compare runs of one dataset "
            "and split"
        )


def open_subject(
    run: str, reached: StorageConfig, *, most_nodes: int | None
) -> tuple[Subject, RunConfig]:
    """The best model of the run in the folder `run` on its dataset, and the run's config.

    Raises:
        DNFormerError: it is no DNFormer, has no best weights, or its dataset is gone.
    """
    trained = open_trained(run, reached)
    config = trained.config
    model, graph = trained.dnformer(), trained.graph()
    objective = objective_for(graph, config.loss, config.train.monitor)
    seed = config.data_seed
    return Subject(model, graph, objective, seed=seed, most_nodes=most_nodes), config
