"""Runs and searches from Python: `dnformer.train`, `tune` and `evaluate`.

They do what the commands of these names do, from a YAML file, a mapping or a `RunConfig`, and print
nothing unless asked to.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dnformer import storage
from dnformer.cli_common import read_text
from dnformer.cli_progress import training_progress
from dnformer.cli_tune_progress import search_progress
from dnformer.config import RunConfig
from dnformer.data.manifest import read_manifest
from dnformer.parsing import parse, put_all, read_yaml
from dnformer.training import launch
from dnformer.training.run import Start
from dnformer.tuning import search
from dnformer.tuning.results import best_config, stored_config, write_best
from dnformer.tuning.trials import Trial

# a YAML file, what stands in one, or that parsed
Config = RunConfig | Mapping[str, Any] | str | Path


class Trained(NamedTuple):
    """What a run came to.

    Attributes:
        run: its folder.
        epochs: that it trained.
        best_epoch: the epoch of its best validation, from 0.
        seconds: of training.
        parameters: of the model.
        val: metrics of the validation nodes there, by name; "loss" is one of them.
        test: likewise of the test nodes.
    """

    run: str
    epochs: int
    best_epoch: int
    seconds: float
    parameters: int
    val: dict[str, float]
    test: dict[str, float]


class Tuned(NamedTuple):
    """What a search came to.

    Attributes:
        search: its folder.
        trials: all, in order of number.
        best: by the first objective; None: no trial gave a value.
        config: of a run that computes what the best trial did, as in SEARCH/best.yaml.
        front: the trials that no other is better than in every objective.
    """

    search: str
    trials: tuple[Trial, ...]
    best: Trial | None
    config: RunConfig | None
    front: tuple[Trial, ...]


def train(
    config: Config,
    *,
    settings: Mapping[str, Any] | None = None,
    start: Start = "any",
    verbose: bool = False,
) -> Trained:
    """Trains a run to its end, from its newest checkpoint if it has one.

    Args:
        config: of the run.
        settings: on top of it, by dotted path, as in `{"optim.lr": 0.01}`.
        start: "fresh" forgets what the run's folder holds; "resume" refuses one without checkpoint.
        verbose: show on stderr how it goes.

    Raises:
        DNFormerError: a setting or the data are wrong, or the run could not go on.
    """
    parsed = _parsed(config, settings)
    with training_progress(parsed) if verbose else nullcontext() as progress:
        return _trained(launch.train(parsed, start=start, progress=progress))


def tune(
    config: Config,
    *,
    settings: Mapping[str, Any] | None = None,
    start: Literal["any", "fresh"] = "any",
    verbose: bool = False,
) -> Tuned:
    """Runs the search of `config.tune` to its end, from where an earlier start left it.

    Args:
        config: of the run to vary, with what may differ in `tune.space`.
        settings: on top of it, by dotted path, as in `{"tune.num_trials": 50}`.
        start: "fresh" forgets what the search's folder holds.
        verbose: show on stderr how it goes.

    Raises:
        DNFormerError: a setting or the data are wrong, or trials were lost.
    """
    parsed = _parsed(config, settings)
    storage.configure(parsed.storage)
    decided = launch.decided(parsed, read_manifest(storage.absolute(parsed.data.uri)))
    with search_progress(decided) if verbose else nullcontext() as watch:
        found = search.tune(parsed, start=start, watch=watch)
    best = None
    if found.best is not None:
        best = best_config(stored_config(found.uri, found.best), found.best)
        assert found.config.train.monitor is not None
        write_best(found.uri, best, found.best, monitor=found.config.train.monitor)
    return Tuned(found.uri, found.trials, found.best, best, found.front)


def evaluate(run: str | Path) -> Trained:
    """Validates and tests the best weights of the run in a folder anew.

    Raises:
        CheckpointError: there is no run, or it has no checkpoint.
    """
    return _trained(launch.evaluate(str(run)))


def _parsed(config: Config, settings: Mapping[str, Any] | None) -> RunConfig:
    if isinstance(config, RunConfig) and not settings:
        return config
    name = "config"
    if isinstance(config, RunConfig):
        # another model has other options
        values = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    elif isinstance(config, Mapping):
        values = dict(config)
    else:
        name = str(config)
        values = read_yaml(read_text(name), name=name)
    return parse(RunConfig, put_all(values, settings or {}), name=name)


def _trained(result: dict[str, Any]) -> Trained:
    return Trained(**{name: result[name] for name in Trained._fields})
