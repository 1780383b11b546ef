"""Sections on how a run trained: learning curves, where the time went, what was slow."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from dnformer.driver import Record
from dnformer.report.charts import area, axis, line, marked, upright
from dnformer.report.page import (
    Block,
    Column,
    Figure,
    Plotly,
    Section,
    Table,
    Words,
    count,
    number,
    seconds,
    share,
)
from dnformer.report.runs import Run
from dnformer.training.meter import STAGES
from dnformer.training.objectives import METRICS, shown

# threads of the loader, at work beside the other stages
BESIDE = ("sample", "gather")
_SLOWEST = 8
# more marks than this have no words: they would lie over one another
_FEW_STARTS = 5
TITLES = {
    "loss": "Loss", "accuracy": "Accuracy", "f1_macro": "Macro-F1", "f1": "Micro-F1",
    "auc": "ROC-AUC", "mae": "Mean absolute error", "rmse": "Root mean squared error", "r2": "R²",
}  # fmt: skip


def learning(run: Run) -> Section:
    """Loss and metrics by epoch, the best epoch and later starts marked; rate and gradient."""
    epochs = run.of_kind("epoch")
    if not epochs:
        blocks: list[Block] = [Words("No epoch has ended yet.", notice=True)]
        return Section("learning", "Learning curves", [*blocks, *_starts(run)])
    names = {name.partition("/")[2] for split in ("train", "val") for name in run.metrics(split)}
    ordered = [name for name in ("loss", *METRICS) if name in names]
    blocks = [_curve(run, epochs, name) for name in dict.fromkeys(ordered)]
    blocks += [
        _single(epochs, "lr", "Learning rate"),
        _single(epochs, "grad_norm", "Gradient norm"),
    ]
    return Section("learning", "Learning curves", [*blocks, *_starts(run)])


def _curve(run: Run, epochs: Sequence[Record], name: str) -> Figure:
    percent = METRICS[name].percent
    traces, columns = [], [Column("epoch", count)]
    x = [record["epoch"] + 1 for record in epochs]
    values: list[list[Any]] = [x]
    for place, (split, word) in enumerate((("train", "training"), ("val", "validation"))):
        y = [record.get(f"{split}/{name}") for record in epochs]
        if any(value is not None for value in y):
            # epochs between two validations are no gaps
            points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
            traces.append(line(word, *zip(*points, strict=True), number=place, dash=1 - place))
            columns.append(Column(word, share if percent else number))
            values.append(y)
    best = run.best_epoch
    layout = {"xaxis": axis("epoch"), "yaxis": axis(TITLES[name], percent=percent)}
    return Figure(
        title=TITLES[name],
        says=_curve_says(run, epochs, name),
        traces=traces,
        layout=marked(layout | {"showlegend": True, "hovermode": "x unified"}, _marks(run, best)),
        table=Table(
            f"curve-{name}", f"{TITLES[name]} by epoch", columns,
            list(zip(*values, strict=True)), best=None if best not in x else x.index(best),
        ),
    )  # fmt: skip


def _curve_says(run: Run, epochs: Sequence[Record], name: str) -> str:
    key, last = f"val/{name}", epochs[-1]
    if last.get(key) is None:
        key = f"train/{name}"
    if last.get(key) is None:
        return f"{TITLES[name]} of {len(epochs):,} epochs."
    split = "Validation" if key.startswith("val/") else "Training"
    says = f"{split} {name} is {shown(name, last[key])} in epoch {last['epoch'] + 1}"
    best = run.best_epoch
    at = next((record for record in epochs if record["epoch"] + 1 == best), {})
    if at.get(key) is not None:
        says += f", and {shown(name, at[key])} in the best epoch, {best} (by {run.monitor})"
    return f"{says}."


def _marks(run: Run, best: int | None) -> list[Plotly]:
    marks = [] if best is None else [upright(best, "best", number=2, dash="dot")]
    later = [record for record in run.of_kind("start") if record["step"]]
    steps = _steps_per_epoch(run)
    for record in later if steps else []:
        text = f"start {record['attempt']}" if len(later) <= _FEW_STARTS else ""
        marks.append(upright(record["step"] / steps, text, number=5))
    return marks


def _steps_per_epoch(run: Run) -> int:
    return next((r["steps_per_epoch"] for r in run.records if "steps_per_epoch" in r), 0)


def _single(epochs: Sequence[Record], key: str, title: str) -> Figure:
    x, y = [record["epoch"] + 1 for record in epochs], [record[key] for record in epochs]
    return Figure(
        title=title,
        says=f"{title} at the end of each epoch: {y[0]:.4g} at first, {y[-1]:.4g} in the last.",
        traces=[line(title, x, y, number=0)],
        layout={"xaxis": axis("epoch"), "yaxis": axis(title, rangemode="tozero")},
        table=Table(
            f"curve-{key}", f"{title} by epoch", [Column("epoch", count), Column(title, number)],
            list(zip(x, y, strict=True)),
        ),
        height=240,
    )  # fmt: skip


def _starts(run: Run) -> list[Block]:
    starts = run.of_kind("start")
    if len(starts) < 2:
        return []
    names = ("attempt", "goes on from attempt", "at step", "in epoch", "workers")
    columns = [Column(name, count) for name in names]
    rows = [
        [r["attempt"], r.get("after"), r["step"], r["epoch"] + 1, r["world_size"]] for r in starts
    ]
    return [Table("starts", f"The run was started {len(starts)} times", columns, rows)]


def time_spent(run: Run) -> Section:
    """Seconds of each epoch by stage, and the slowest epochs and steps."""
    epochs = run.of_kind("epoch")
    if not epochs:
        return Section("time", "Where the time went", [])
    blocks: list[Block] = [_stack(epochs), _totals(epochs), _slow_epochs(epochs)]
    return Section("time", "Where the time went", [*blocks, *_slow_steps(run.of_kind("step"))])


def stages_of(record: Record) -> dict[str, float]:
    """Mean seconds over the workers, stage after stage; "other" is what no stage has."""
    means = {stage: of["mean"] for stage, of in record["stage_seconds"].items()}
    main = {stage: means.get(stage, 0.0) for stage in STAGES if stage not in BESIDE}
    return main | {"other": max(0.0, record["seconds"] - sum(main.values()))}


def _stack(epochs: Sequence[Record]) -> Figure:
    x = [record["epoch"] + 1 for record in epochs]
    by_epoch = [stages_of(record) for record in epochs]
    totals = {stage: sum(each[stage] for each in by_epoch) for stage in by_epoch[0]}
    met = [stage for stage, total in totals.items() if total > 0]
    traces = [
        area(stage, x, [each[stage] for each in by_epoch], number=place)
        for place, stage in enumerate(met)
    ]
    whole = sum(totals.values())
    most = max(met, key=lambda stage: totals[stage])
    rows = [
        [epoch, record["seconds"], *(each[stage] for stage in met)]
        for epoch, record, each in zip(x, epochs, by_epoch, strict=True)
    ]
    return Figure(
        title="Seconds of each epoch by stage",
        says=f"{whole:,.1f} s in {len(epochs):,} epochs, the mean of all workers; most of it, "
        f"{totals[most] / whole:.0%}, is {most}.",
        traces=traces,
        layout={
            "xaxis": axis("epoch"), "yaxis": axis("seconds", rangemode="tozero"),
            "showlegend": True, "hovermode": "x unified",
        },
        table=Table(
            "stages", "Seconds of each epoch by stage",
            [Column("epoch", count), Column("all", number), *(Column(s, number) for s in met)],
            rows,
        ),
    )  # fmt: skip


def _totals(epochs: Sequence[Record]) -> Table:
    whole = sum(record["seconds"] for record in epochs)
    totals: dict[str, float] = {}
    for record in epochs:
        for stage, value in stages_of(record).items():
            totals[stage] = totals.get(stage, 0.0) + value
    rows = [
        [stage, value, value / whole]
        for stage, value in sorted(totals.items(), key=lambda item: -item[1])
        if value > 0
    ]
    beside = {
        f"{stage} (loader threads, beside the rest)": sum(
            record["stage_seconds"].get(stage, {"mean": 0.0})["mean"] for record in epochs
        )
        for stage in BESIDE
    }
    rows += [[stage, value, value / whole] for stage, value in beside.items() if value > 0]
    columns = [Column("stage"), Column("seconds", seconds), Column("of all", share)]
    return Table("stage-totals", "All epochs together", columns, rows)


def _slow_epochs(epochs: Sequence[Record]) -> Table:
    usual = median(record["seconds"] for record in epochs)
    stages = {stage: median(stages_of(r)[stage] for r in epochs) for stage in stages_of(epochs[0])}
    rows = []
    for record in sorted(epochs, key=lambda record: -record["seconds"])[:_SLOWEST]:
        over = {stage: value - stages[stage] for stage, value in stages_of(record).items()}
        most = max(over, key=lambda stage: over[stage])
        rows.append(
            [record["epoch"] + 1, record["seconds"], record["seconds"] / max(usual, 1e-12), most,
             over[most]]
        )  # fmt: skip
    columns = [
        Column("epoch", count), Column("seconds", seconds), Column("times the median", number),
        Column("stage that took more"), Column("than its median by", seconds),
    ]  # fmt: skip
    return Table("slow-epochs", "The slowest epochs", columns, rows)


def _slow_steps(steps: Sequence[Record]) -> list[Block]:
    if not steps:
        return []
    rows = []
    for record in sorted(steps, key=lambda record: -record["seconds"])[:_SLOWEST]:
        stages = stages_of(record)
        most = max(stages, key=lambda stage: stages[stage])
        rows.append([record["step"], record["epoch"] + 1, record["seconds"], most, stages[most]])
    columns = [
        Column("up to step", count), Column("epoch", count), Column("seconds", seconds),
        Column("longest stage"), Column("its seconds", seconds),
    ]  # fmt: skip
    return [Table("slow-steps", "The slowest spans between two step records", columns, rows)]
