"""What a search leaves: its best config, which fields mattered, and whether the best is better."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
import yaml

from dnformer import storage
from dnformer.config import RunConfig, TuneConfig
from dnformer.parsing import leaves, put_all
from dnformer.training.objectives import main_metric
from dnformer.training.run import read_result, read_run
from dnformer.tuning.proposals import coded, distribution, quiet
from dnformer.tuning.ranking import counts
from dnformer.tuning.space import Dimension
from dnformer.tuning.trials import Trial

BASELINE = "baseline"

# best.yaml says them also where they are the default: they decide a run's last bits
_ALWAYS = ("seed", "data.seed", "train.micro_batches", "train.threads")
_RESAMPLES, _CONFIDENCE = 9999, 0.95
# with fewer, no outcome of Wilcoxon's test is below 0.05: 2 / 2^5 = 0.0625
_FEWEST_PAIRS = 6
# without so many, nothing is said of what matters; of more, so many are called good
_FEWEST_TRIALS, _GOOD_TRIALS = 4, 5


def stored_config(search: str, trial: Trial) -> RunConfig:
    """The config of a trial that has ended, as its run in the folder of the search stored it."""
    # the search may have been moved since
    within = trial.facts["run"].rpartition("/trials/")[2]
    config, _ = read_run(storage.join(search, f"trials/{within}"))
    if trial.took_over:
        return config
    # one that paused went on as if it had not
    train = config.train.model_copy(update={"continue_from": None, "stop_after": None})
    return config.model_copy(update={"train": train})


def best_config(config: RunConfig, trial: Trial) -> RunConfig:
    """A run that computes what a trial did, named `<search>-best`.

    Args:
        config: the trial's, as its run stored it.
        trial: which has ended; one that was stopped early is trained as far as it came.
    """
    train = config.train
    if trial.state == "stopped":
        train = train.model_copy(update={"stop_after": trial.facts["epochs"]})
    search = config.name.rpartition("/trials/")[0]
    update = {"name": f"{search}-best", "train": train, "tune": TuneConfig()}
    return config.model_copy(update=update)


def changed(config: RunConfig) -> dict[str, Any]:
    """What a YAML file of `config` has: what differs from the defaults, and what decides bits."""
    given = {leaf.path for leaf in config.given()} | {"name", "data.uri", *_ALWAYS}
    return put_all({}, {leaf.path: leaf.value for leaf in leaves(config) if leaf.path in given})


def write_best(search: str, config: RunConfig, trial: Trial, *, monitor: str) -> str:
    """Writes `config`, the best trial's, to SEARCH/best.yaml; gives the file's URI."""
    assert trial.values is not None
    header = (
        f"# The best of the search {search}: trial {trial.number}, "
        f"{monitor} {trial.values[0]!r} in {trial.facts['epochs']} epochs.\n"
        "# It trains to the same value: dnformer train best.yaml\n"
    )
    if config.train.continue_from is not None:
        header += "# It goes on from train.continue_from, whose folder it needs.\n"
    text = yaml.safe_dump(changed(config), sort_keys=False, default_flow_style=None, width=100)
    uri = storage.join(search, "best.yaml")
    storage.write_bytes(uri, (header + text).encode())
    return uri


def importance(
    dimensions: Sequence[Dimension], trials: Sequence[Trial], *, higher: bool
) -> dict[str, float]:
    """How much of the difference between good and other trials each field tells, adding up to 1.

    PED-ANOVA (Watanabe et al., IJCAI 2023) of the first objective. Left out are fields that not
    every trial sets, and those of which one value was tried; with few trials there is nothing.

    Args:
        dimensions: of the search's space.
        trials: of which those that have ended with a metric count.
        higher: whether a higher metric is better.
    """
    ended = [(trial, trial.values[0]) for trial in trials if counts(trial) and trial.values]
    if len(ended) < _FEWEST_TRIALS:
        return {}
    share = min(max(0.1, _GOOD_TRIALS / len(ended)), 0.5)
    losses = sorted(-value if higher else value for _, value in ended)
    if losses[math.ceil(share * len(losses)) - 1] == losses[-1]:  # none is worse than the good
        return {}
    told = [
        one
        for one in dimensions
        if all(one.path in trial.params for trial, _ in ended)
        and len({str(trial.params[one.path]) for trial, _ in ended}) > 1
    ]
    return _ped_anova(told, ended, share, higher=higher) if told else {}


def _ped_anova(
    dimensions: Sequence[Dimension],
    ended: Sequence[tuple[Trial, float]],
    share: float,
    *,
    higher: bool,
) -> dict[str, float]:
    import optuna

    distributions = {one.path: distribution(one) for one in dimensions}
    with quiet():
        study = optuna.create_study(direction="maximize" if higher else "minimize")
        for trial, value in ended:
            params = {one.path: coded(one, trial.params[one.path]) for one in dimensions}
            study.add_trial(
                optuna.trial.create_trial(params=params, distributions=distributions, value=value)
            )
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


class Paired(NamedTuple):
    """Whether values are other than those of a baseline in the same circumstances.

    Attributes:
        mean_difference: values minus the baseline's.
        low: of the 95 % bootstrap interval of the mean difference; None of a single pair.
        high: likewise.
        p: two-sided, of Wilcoxon's signed-rank test.
        num_pairs: how many there are.
    """

    mean_difference: float
    low: float | None
    high: float | None
    p: float
    num_pairs: int

    @property
    def note(self) -> str:
        """What a person must know of the test; nothing where there are enough pairs."""
        if self.num_pairs >= _FEWEST_PAIRS:
            return ""
        return (
            f"p of {self.num_pairs} pairs is never below 0.05, and their interval is too narrow; "
            f"give --repeat {_FEWEST_PAIRS} or more"
        )


def paired(baseline: Sequence[float], values: Sequence[float]) -> Paired:
    """`values` against those of `baseline` at the same places: the same seed and split."""
    from scipy.stats import wilcoxon

    differences = np.subtract(values, baseline)
    pairs = len(differences)
    low = high = None
    if pairs > 1:
        drawn = np.random.default_rng(0).integers(pairs, size=(_RESAMPLES, pairs))
        tail = (1 - _CONFIDENCE) / 2
        low, high = map(float, np.quantile(differences[drawn].mean(axis=1), [tail, 1 - tail]))
    # without any difference there is nothing to rank
    p = float(wilcoxon(differences).pvalue) if differences.any() else 1.0
    return Paired(float(differences.mean()), low, high, p, pairs)


class Repeats(NamedTuple):
    """A config trained with several seeds and splits.

    Attributes:
        label: of the config.
        metric: on the test nodes.
        mean: of `values`.
        std: of the sample.
        values: one each repeat.
        against: the baseline; None of itself.
    """

    label: str
    metric: str
    mean: float
    std: float
    values: list[float]
    against: Paired | None


def repeat_configs(base: RunConfig, top: Sequence[tuple[Trial, RunConfig]]) -> dict[str, RunConfig]:
    """The runs of `repeat_top` by label: the search's own config, and those of its best trials.

    All have the base's seeds, so that repeat i of each has one split. None is ended early, and
    none begins with another's state: one of pbt has its last settings from the first epoch on.

    Args:
        base: of the search.
        top: trials with their configs, as their runs stored them.
    """

    def named(label: str, config: RunConfig) -> RunConfig:
        name = f"{base.name}/repeats/{label}"
        train = config.train.model_copy(
            update={
                field: getattr(base.train, field)
                for field in ("stop_after", "continue_from", "threads", "workers")
            }
        )
        data = config.data.model_copy(update={"seed": base.data.seed})
        update = {"name": name, "seed": base.seed, "data": data, "train": train}
        return config.model_copy(update={**update, "tune": TuneConfig()})

    trials = {f"trial-{trial.number}": config for trial, config in top}
    return {label: named(label, config) for label, config in {BASELINE: base, **trials}.items()}


def repeat_top(
    configs: Mapping[str, RunConfig], repeat: Callable[[RunConfig], dict[str, Any]]
) -> list[Repeats]:
    """Each config repeated, and compared with the one labelled "baseline".

    Args:
        configs: by label; the baseline is the first.
        repeat: `train.launch.repeat`, with everything but the config given.
    """
    results = {label: repeat(config) for label, config in configs.items()}
    metric = results[BASELINE]["metric"]
    return _compared(metric, {label: result["values"] for label, result in results.items()})


def read_repeats(search: str) -> list[Repeats]:
    """What the repeats in the folder of a search give up to now, the baseline first.

    Compared are the repeats that all configs have finished; one without any is left out.

    Raises:
        CheckpointError: a file of a run there is damaged.
    """
    folder = storage.join(search, "repeats")
    found = {label: _finished(storage.join(folder, label)) for label in storage.list_names(folder)}
    found = {label: tests for label, tests in found.items() if tests}
    common = set.intersection(*map(set, found.values())) if BASELINE in found else set()
    if not common:
        return []
    metric = main_metric(found[BASELINE][min(common)])
    values = {label: [tests[i][metric] for i in sorted(common)] for label, tests in found.items()}
    return _compared(metric, {BASELINE: values.pop(BASELINE), **values})


def _finished(uri: str) -> dict[int, dict[str, float]]:
    """The test metrics of each finished repeat in the folder of a repeated run."""
    numbers = (name.removeprefix("repeat-") for name in storage.list_names(uri))
    results = {
        int(i): read_result(storage.join(uri, f"repeat-{i}")) for i in numbers if i.isdecimal()
    }
    return {i: result["test"] for i, result in results.items() if result is not None}


def _compared(metric: str, values: Mapping[str, list[float]]) -> list[Repeats]:
    """Each label's values, and against the baseline's."""
    return [
        Repeats(
            label, metric, fmean(each), stdev(each) if len(each) > 1 else 0.0, each,
            None if label == BASELINE else paired(values[BASELINE], each),
        )
        for label, each in values.items()
    ]  # fmt: skip
