"""The page of several runs side by side: metrics with differences, curves, time, config."""

import math
import re
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from dnformer import storage
from dnformer.report.charts import axis, bars, label, line, named_axis
from dnformer.report.kinds import Kind, Options
from dnformer.report.page import (
    Block,
    Column,
    Facts,
    Figure,
    Page,
    Section,
    Table,
    Words,
    count,
    number,
    seconds,
    share,
)
from dnformer.report.runs import Run, open_run
from dnformer.report.settings import differences
from dnformer.report.training import TITLES, stages_of
from dnformer.training.objectives import METRICS, main_metric, shown

# fields in which repeats differ
_SEEDS = {"name", "seed", "data.seed"}
Named = Sequence[tuple[str, Run]]


def build(uri: str, options: Options) -> Page:
    """The page of the repeats in the folder `uri`, as `train --repeat` leaves them."""
    found = {
        int(match[1]): storage.join(uri, name)
        for name in storage.list_names(uri)
        if (match := re.fullmatch(r"repeat-(\d+)", name))
        and storage.exists(storage.join(uri, f"{name}/run.json"))
    }
    return build_of([found[i] for i in sorted(found)], options)


def build_of(uris: Sequence[str], options: Options) -> Page:
    """The page of the runs in some folders.

    Raises:
        CheckpointError: one holds no run, or a file of it is damaged.
    """
    runs = _named([open_run(uri, options.reached) for uri in uris])
    sections = [
        Section("summary", "Summary", _summary(runs)),
        Section("learning", "Learning curves", _curves(runs)),
        Section("time", "Where the time went", _time(runs)),
        differences([(name, run.config) for name, run in runs]),
    ]
    title = " and ".join(name for name, _ in runs) if len(runs) < 4 else f"{len(runs)} runs"
    facts = {"runs": {name: run.result for name, run in runs}}
    return Page("comparison", title, [run.uri for _, run in runs], sections, facts)


def _named(runs: Sequence[Run]) -> Named:
    """Each with a name that no other has."""
    names = [run.name for run in runs]
    return [(run.name if names.count(run.name) == 1 else run.uri, run) for run in runs]


def _summary(runs: Named) -> list[Block]:
    blocks: list[Block] = [*_spread(runs)]
    kinds = {run.fingerprint for _, run in runs}
    if len(kinds) > 1:
        blocks.append(Words("The runs are of different datasets.", notice=True))
    going = [name for name, run in runs if run.result is None]
    if going:
        blocks.append(
            Words(
                f"Without a result (yet): {', '.join(going)}; of them, what is shown are the "
                "validation metrics of the best epoch so far.",
                notice=True,
            )
        )
    return [*blocks, _metrics(runs)]


def _spread(runs: Named) -> list[Block]:
    """Mean and deviation of the test metric, where the runs differ in their seeds alone."""
    results = [run.result for _, run in runs if run.result is not None]
    first = runs[0][1].config
    others = {path for _, run in runs for path, *_ in run.config.differing(first)} - _SEEDS
    if len(results) < 2 or others:
        return []
    metric = main_metric(results[0]["test"])
    values = [result["test"][metric] for result in results]
    mean = f"{shown(metric, fmean(values))} ± {shown(metric, stdev(values))}"
    names = [(f"of {len(values)} runs, test {metric}, mean ± std", mean)]
    return [Facts("spread", names, [])]


def _measured(run: Run) -> dict[str, float]:
    """Metrics by name, as in "test/accuracy"."""
    if run.result is not None:
        return {
            f"{split}/{name}": value
            for split in ("test", "val")
            for name, value in run.result[split].items()
        }
    best = next((r for r in run.of_kind("epoch") if r["epoch"] + 1 == run.best_epoch), {})
    return {name: best[name] for name in run.metrics("val") if name in best}


def _metrics(runs: Named) -> Table:
    of_runs = [_measured(run) for _, run in runs]
    names = [
        f"{split}/{metric}"
        for split in ("test", "val")
        for metric in METRICS
        if any(f"{split}/{metric}" in each for each in of_runs)
    ]
    rows = [_metric_row(name, of_runs) for name in names]
    facts: dict[str, list[Any]] = {
        "epochs": [len(run.of_kind("epoch")) for _, run in runs],
        "best epoch": [run.best_epoch for _, run in runs],
        "seconds": [sum(r["seconds"] for r in run.of_kind("epoch")) for _, run in runs],
        "parameters": [(run.result or {}).get("parameters") for _, run in runs],
    }
    rows += [
        [name, *(None if v is None else f"{round(v, 2):,}" for v in values), *_minus(values, 1, "")]
        for name, values in facts.items()
    ]
    others = [name for name, _ in runs[1:]]
    columns = [Column(""), *(Column(name) for name, _ in runs)]
    columns += [Column(f"{name} minus {runs[0][0]}") for name in others]
    return Table("metrics", "Metrics, and differences from the first", columns, rows)


def _metric_row(name: str, of_runs: Sequence[dict[str, float]]) -> list[Any]:
    metric = name.partition("/")[2]
    values = [each.get(name) for each in of_runs]
    words = [None if value is None else shown(metric, value) for value in values]
    scale, unit = (100, " points") if METRICS[metric].percent else (1, "")
    return [name, *words, *_minus(values, scale, unit)]


def _minus(values: Sequence[float | None], scale: float, unit: str) -> list[str | None]:
    first = values[0]
    return [
        None if value is None or first is None or not math.isfinite(value - first)
        else _signed(scale * (value - first)) + unit
        for value in values[1:]
    ]  # fmt: skip


def _signed(value: float) -> str:
    return f"{value:+,}" if isinstance(value, int) else f"{value:+,.4g}"


def _curves(runs: Named) -> list[Block]:
    keys = ["train/loss"] + [
        f"val/{metric}" for metric in ("loss", *METRICS) if any(
            f"val/{metric}" in run.metrics("val") for _, run in runs
        )
    ]  # fmt: skip
    return [figure for key in dict.fromkeys(keys) for figure in _curve(runs, key)]


def _curve(runs: Named, key: str) -> list[Figure]:
    split, _, metric = key.partition("/")
    percent = METRICS[metric].percent
    traces, ends = [], []
    by_epoch: dict[int, dict[str, float]] = {}
    for place, (name, run) in enumerate(runs):
        points = [(r["epoch"] + 1, r[key]) for r in run.of_kind("epoch") if key in r]
        if points:
            x, y = zip(*points, strict=True)
            # a dash of their own tells runs apart without colours
            traces.append(line(label(name, 40), x, y, number=place, dash=place))
            ends.append(f"{name} {shown(metric, y[-1])}")
            for epoch, value in points:
                by_epoch.setdefault(epoch, {})[name] = value
    if not traces:
        return []
    word = {"train": "Training", "val": "Validation"}[split]
    title = f"{word}: {TITLES[metric]}"
    columns = [Column("epoch", count)]
    columns += [Column(name, share if percent else number) for name, _ in runs]
    rows = [[e, *(by_epoch[e].get(name) for name, _ in runs)] for e in sorted(by_epoch)]
    return [
        Figure(
            title=title,
            says=f"In the last epoch: {', '.join(ends)}.",
            traces=traces,
            layout={
                "xaxis": axis("epoch"), "yaxis": axis(TITLES[metric], percent=percent),
                "showlegend": True, "hovermode": "x unified",
            },
            table=Table(f"curve-{split}-{metric}", f"{title} by epoch", columns, rows),
        )
    ]  # fmt: skip


def _time(runs: Named) -> list[Block]:
    told = [(name, run.of_kind("epoch")) for name, run in runs if run.of_kind("epoch")]
    if not told:
        return []
    means = [
        {
            stage: fmean(stages_of(record)[stage] for record in epochs)
            for stage in stages_of(epochs[0])
        }
        for _, epochs in told
    ]
    stages = [stage for stage in means[0] if any(each[stage] for each in means)]
    names = [name for name, _ in told]
    traces = [
        bars(stage, range(len(names)), [each[stage] for each in means], number=place)
        for place, stage in enumerate(stages)
    ]
    rows = [
        [name, sum(each.values()), *(each[stage] for stage in stages)]
        for name, each in zip(names, means, strict=True)
    ]
    columns = [Column("run"), Column("all", seconds), *(Column(s, seconds) for s in stages)]
    ends = ", ".join(f"{row[0]} {seconds(row[1])}" for row in rows)
    return [
        Figure(
            title="Seconds of an epoch by stage",
            says=f"In the mean over all epochs: {ends}.",
            traces=traces,
            layout={
                "xaxis": named_axis([label(name, 20) for name in names], ""),
                "yaxis": axis("seconds of an epoch"), "barmode": "stack", "showlegend": True,
            },
            table=Table("stages", "Mean seconds of an epoch by stage", columns, rows),
        )
    ]  # fmt: skip


KIND = Kind("repeated run", "repeat-0/run.json", build)
