"""The command `tune`."""

import json
import math
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Never

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dnformer import config as configs
from dnformer.cli_common import Ended, Json, Settings, say, waiting
from dnformer.errors import ConfigError, Stopped, TrainError

if TYPE_CHECKING:
    from dnformer.tuning.results import Repeats
    from dnformer.tuning.search import Found
    from dnformer.tuning.trials import Trial

_TOP = 3
# of fewer, importance is mostly chance
_TELLING_TRIALS = 20


def tune(  # noqa: PLR0913 - one parameter an option
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="YAML of the run to vary.")],
    settings: Settings = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Search heads, layers and learning rate.")
    ] = False,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Try so many; the same as tune.num_trials.")
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(min=2, help="Then train CONFIG and the best trials with so many seeds each."),
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help=f"Trials that --repeat takes; {_TOP} if not given.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what the search holds.")] = False,
    as_json: Json = False,
) -> None:
    """Search for better settings of a run; the same command goes on where it was stopped."""
    if top is not None and repeat is None:
        raise ConfigError(f"--top {top} says how many trials --repeat trains; give --repeat too")
    given = [*(settings or []), *([] if trials is None else [f"tune.num_trials={trials}"])]
    base = _with_space(config, configs.load_config(config, given), quick=quick)
    try:
        found = _search(base, start="fresh" if fresh else "any")
        outcome = _Outcome(found)
        repeats = _repeated(base, outcome, repeat, top or _TOP) if repeat else []
    except Stopped as stopped:
        _stop(str(stopped), stopped.exit_code, fresh=fresh)
    except KeyboardInterrupt as interrupt:
        _stop(str(interrupt) or "stopped", 130, fresh=fresh)
    if as_json:
        print(json.dumps(_finite(outcome.as_json(repeats)), allow_nan=False))
    else:
        _show(outcome, repeats)


def _stop(text: str, code: int, *, fresh: bool) -> Never:
    without = " without --fresh" if fresh else ""
    raise Ended(f"{text}; the same command{without} goes on", code)


def _with_space(path: str, config: configs.RunConfig, *, quick: bool) -> configs.RunConfig:
    """`config` with something to search."""
    if not quick and not config.tune.space:
        raise ConfigError(
            f"{path}: tune.space is empty; name what to search, as in tune: {{space: {{optim.lr: "
            "{loguniform: [1e-4, 1e-2]}}}, or give --quick for heads, layers and learning rate"
        )
    if not quick:
        return config
    if config.tune.space:
        raise ConfigError(f"{path} has a tune.space; leave out --quick, which brings its own")
    from dnformer.tuning.space import quick as with_the_papers_space

    return with_the_papers_space(config)


def _search(config: configs.RunConfig, *, start: Literal["any", "fresh"]) -> "Found":
    with waiting("loading torch"):
        from dnformer import storage
        from dnformer.cli_tune_progress import search_progress
        from dnformer.data.manifest import read_manifest
        from dnformer.training import launch
        from dnformer.tuning import search

    storage.configure(config.storage)
    manifest = read_manifest(storage.absolute(config.data.uri))
    with search_progress(launch.decided(config, manifest)) as watch:
        return search.tune(config, start=start, watch=watch)


class _Outcome:
    """What a search found, with its best trial's config, which it writes to SEARCH/best.yaml."""

    def __init__(self, found: "Found") -> None:
        from dnformer.training.objectives import METRICS
        from dnformer.tuning.ranking import ranked
        from dnformer.tuning.results import best_config, importance, stored_config, write_best
        from dnformer.tuning.space import Space

        self.found, tuned = found, found.config.tune
        if found.best is None:
            raise TrainError(_nothing_found(found))
        monitor = found.config.train.monitor
        assert monitor is not None
        self.best, self.monitor, self.metric = found.best, monitor, monitor.removeprefix("val/")
        higher = not METRICS[self.metric].lower_is_better
        self.order = ranked(found.trials, tuned.objectives, higher=higher)
        self.config = best_config(stored_config(found.uri, self.best), self.best)
        self.file = write_best(found.uri, self.config, self.best, monitor=monitor)
        self.importance = importance(Space(found.config).dimensions, found.trials, higher=higher)

    def objectives(self, trial: "Trial") -> dict[str, float]:
        """The values of a trial that has ended, by objective."""
        names = self.found.config.tune.objectives
        return dict(zip(names, trial.values or (), strict=bool(trial.values)))

    def as_json(self, repeats: "Sequence[Repeats]") -> dict[str, Any]:
        """For programs; a value may be no number."""
        from dnformer.tuning.results import changed

        return {
            "search": self.found.uri,
            "best": {
                "trial": self.best.number,
                "value": self.objectives(self.best)["metric"],
                "config": changed(self.config),
                "file": self.file,
            },
            "monitor": self.monitor,
            "trials": [
                {
                    "trial": trial.number,
                    "params": trial.params,
                    "state": trial.state,
                    "epochs": trial.facts.get("epochs"),
                    "value": self.objectives(trial).get("metric"),
                    "objectives": self.objectives(trial),
                    **{key: trial.facts.get(key) for key in ("seconds", "val", "test", "error")},
                }
                for trial in self.found.trials
            ],
            "front": [trial.number for trial in self.found.front],
            "importance": self.importance,
            "repeats": [
                each._asdict() | {"against": each.against._asdict() if each.against else None}
                for each in repeats
            ],
        }


def _nothing_found(found: "Found") -> str:
    errors = {str(t.facts.get("error")) for t in found.trials if t.state == "failed"}
    first = f"; the first: {min(errors)}" if errors else ""
    return f"{found.uri}: none of {len(found.trials)} trials gave a value{first}"


def _finite(value: Any) -> Any:
    """`value` with null for numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _repeated(base: configs.RunConfig, outcome: _Outcome, times: int, top: int) -> "list[Repeats]":
    from dnformer.cli_progress import training_progress
    from dnformer.training import launch
    from dnformer.tuning.results import repeat_configs, repeat_top, stored_config

    chosen = [(trial, stored_config(outcome.found.uri, trial)) for trial in outcome.order[:top]]

    def repeat(config: configs.RunConfig) -> dict[str, Any]:
        say(f"repeats of {config.name.rpartition('/')[2]}")
        if not sys.stderr.isatty():
            # a log has no line for each epoch of so many runs
            return launch.repeat(config, times, progress=launch.Progress(say))
        with training_progress(config, repeats=times) as progress:
            return launch.repeat(config, times, progress=progress)

    return repeat_top(repeat_configs(base, chosen), repeat)


def _show(outcome: _Outcome, repeats: "Sequence[Repeats]") -> None:
    console = Console()
    # lines that wrap are read more easily than cut ones
    console.width = max(console.width, 150)
    console.print(outcome.found.uri, highlight=False, markup=False, soft_wrap=True)
    console.print(_trials_table(outcome))
    for line in _lines(outcome):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if repeats:
        metric, count = repeats[0].metric, len(repeats[0].values)
        title = f"test {metric} of {count} seeds and splits, the same ones in each row"
        console.print(f"\n{title}", highlight=False)
        console.print(_repeats_table(repeats))
        note = next((each.against.note for each in repeats if each.against), "")
        if note:
            console.print(note, highlight=False)


def _lines(outcome: _Outcome) -> list[str]:
    from dnformer.storage import is_local
    from dnformer.training.objectives import main_metric, shown

    best, file = outcome.best, outcome.file
    value = shown(outcome.metric, outcome.objectives(best)["metric"])
    text = f"best: trial {best.number}, {outcome.monitor.replace('/', ' ')} {value}"
    test = best.facts.get("test")
    if test:
        metric = main_metric(test)
        text += f", test {metric} {shown(metric, test[metric])}"
    lines = [f"{text}, {best.facts['epochs']} epochs"]
    if outcome.importance:
        shares = (f"{path} {share:.0%}" for path, share in outcome.importance.items())
        count = len(outcome.order)
        hint = f" (a hint, of {count} trials)" if count < _TELLING_TRIALS else ""
        lines.append(f"  importance{hint}: {', '.join(shares)}")
    where = shlex.quote(file) if is_local(file) else f"best.yaml    # once copied from {file}"
    return [*lines, f"  the same again: dnformer train {where}"]


def _trials_table(outcome: _Outcome) -> Table:
    """All trials: the best first, then those without a value."""
    from dnformer.cli_tune_progress import epochs_of, setting_names, setting_text
    from dnformer.training.objectives import shown

    found = outcome.found
    names = setting_names(list(found.config.tune.space))
    others = found.config.tune.objectives[1:]
    front = {trial.number for trial in found.front} if others else set()
    table = Table(box=None, pad_edge=False)
    table.add_column("trial", justify="right")
    for name in names.values():
        table.add_column(name)
    for name in (outcome.metric, *(other.replace("_", " ") for other in others)):
        table.add_column(name, justify="right")
    for name in ("epochs", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("state")
    placed = {trial.number for trial in outcome.order}
    for trial in [*outcome.order, *(t for t in found.trials if t.number not in placed)]:
        values, seconds = outcome.objectives(trial), trial.facts.get("seconds")
        state = f"{trial.state}, on the front" if trial.number in front else trial.state
        cells = [
            str(trial.number),
            *(setting_text(trial.params[p]) if p in trial.params else "" for p in names),
            shown(outcome.metric, values["metric"]) if values else "",
            *(f"{values[other]:,.4g}" if values else "" for other in others),
            str(epochs_of(trial)),
            "" if seconds is None else f"{seconds:,.1f}",
            state,
        ]
        bold = trial.number == outcome.best.number
        table.add_row(*map(Text, cells), style="bold" if bold else "")
    return table


def _repeats_table(repeats: "Sequence[Repeats]") -> Table:
    from dnformer.training.objectives import METRICS, shown

    metric = repeats[0].metric
    scale, unit = (100, " points") if METRICS[metric].percent else (1, "")
    table = Table(box=None, pad_edge=False)
    for name in ("", "mean ± std", "minus the baseline's", "95 % interval", "p"):
        table.add_column(name, no_wrap=True)
    for each in repeats:
        cells = [each.label, f"{shown(metric, each.mean)} ± {shown(metric, each.std)}"]
        if each.against is not None:
            of = each.against
            ends = [f"{scale * end:+.3g}" for end in (of.low, of.high) if end is not None]
            cells += [
                f"{scale * of.mean_difference:+.3g}{unit}",
                " to ".join(ends),
                f"{of.p:.3g}",
            ]
        table.add_row(*map(Text, cells))
    return table
