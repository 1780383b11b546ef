"""The page of a search: what was tried, what became of it, which settings matter."""

import math
from typing import Any

from dnformer import storage
from dnformer.report.charts import (
    axis,
    heat,
    label,
    line,
    marked,
    named_axis,
    rows_of_bars,
    upright,
)
from dnformer.report.coordinates import parallel
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
from dnformer.report.settings import settings, written
from dnformer.training.objectives import METRICS, main_metric, shown
from dnformer.tuning.ranking import front_of, ranked
from dnformer.tuning.record import Record, read_search
from dnformer.tuning.results import importance, read_repeats
from dnformer.tuning.space import Space
from dnformer.tuning.trials import Trial

_HEADS, _LAYERS = "model.heads", "model.layers"


class _Found:
    """A search with what follows from it."""

    def __init__(self, search: Record) -> None:
        self.search, self.tune = search, search.config.tune
        self.monitor = search.config.train.monitor or "val/loss"
        self.metric = self.monitor.removeprefix("val/")
        self.higher = not METRICS[self.metric].lower_is_better
        self.order = ranked(search.trials, self.tune.objectives, higher=self.higher)
        self.best = self.order[0] if self.order else None
        self.percent = METRICS[self.metric].percent
        self.shown = share if self.percent else number

    def value(self, trial: Trial) -> float | None:
        """The best monitored value that is known of a trial."""
        if trial.values:
            return trial.values[0]
        values = [result.value for result in trial.results if math.isfinite(result.value)]
        return (max if self.higher else min)(values) if values else None


def build(uri: str, options: Options) -> Page:
    """The page of the search in the folder `uri`, which may go on meanwhile.

    Raises:
        CheckpointError: there is none, or an event of it is damaged.
    """
    found = _Found(read_search(storage.absolute(uri)))
    search = found.search
    sections = [
        _summary(found),
        Section("settings-tried", "Settings and results", _tried(found)),
        Section("rungs", "Learning curves by rung", _curves(found)),
        Section("trials", "Trials", [_table(found)] if search.trials else []),
        Section("repeats", "Repeats with other seeds", _repeats(found)),
        settings(search.config, {}),
    ]
    facts = {"monitor": found.monitor, "best": None if found.best is None else found.best.number}
    return Page("search", search.config.name, [search.uri], sections, facts)


def _summary(found: _Found) -> Section:
    trials, best = found.search.trials, found.best
    states: dict[str, int] = {}
    for trial in trials:
        states[trial.state] = states.get(trial.state, 0) + 1
    main = [("trials", f"{len(trials)} of {found.tune.num_trials}")]
    rest = [(f"{state} trials", f"{n:,}") for state, n in sorted(states.items())]
    if best is not None and best.values:
        main.insert(0, (f"best {found.monitor}", shown(found.metric, best.values[0])))
        main.insert(1, ("trial", str(best.number)))
        test = best.facts.get("test")
        if test:
            metric = main_metric(test)
            rest.insert(0, (f"its test {metric}", shown(metric, test[metric])))
        rest += [(path, written(value)) for path, value in best.params.items()]
    spent = sum(trial.facts.get("seconds") or 0.0 for trial in trials)
    rest += [("training of all trials", seconds(spent)), ("search", found.tune.search),
             ("scheduler", found.tune.scheduler)]  # fmt: skip
    blocks: list[Block] = [Facts("summary", main, rest)]
    running = states.get("running", 0)
    if running or len(trials) < found.tune.num_trials:
        ended = len(trials) - running
        blocks.append(
            Words(
                f"The search has not ended: {ended} trials of {found.tune.num_trials} have. What "
                "is shown is what there is up to now.",
                notice=True,
            )
        )
    if best is None:
        blocks.append(Words("No trial has ended with a value yet.", notice=True))
    return Section("summary", "Summary", blocks)


def _tried(found: _Found) -> list[Block]:
    blocks: list[Block] = []
    told = [(t, value) for t in found.search.trials if (value := found.value(t)) is not None]
    if told:
        blocks.append(
            parallel(
                found.tune.space, told, metric=found.monitor, shown=found.shown,
                higher=found.higher,
            )
        )  # fmt: skip
    blocks += _importance(found)
    if _HEADS in found.tune.space and _LAYERS in found.tune.space and told:
        blocks.append(_grid(found, told))
    if len(found.tune.objectives) > 1 and found.order:
        blocks.append(_front(found))
    return blocks


def _importance(found: _Found) -> list[Block]:
    shares = importance(
        Space(found.search.config).dimensions, found.search.trials, higher=found.higher
    )
    if not shares:
        return [Words("With so few trials, nothing can be said of which settings matter.")]
    rows = sorted(shares.items(), key=lambda item: -item[1])
    labels = [label(path) for path, _ in rows]
    ended = len(found.order)
    return [
        Figure(
            title="Which settings matter",
            says=f"By PED-ANOVA of {ended} trials, {rows[0][0]} tells {rows[0][1]:.0%} of what "
            "good trials have in common. With few trials this is a hint.",
            traces=[rows_of_bars(labels, [value for _, value in rows])],
            layout={
                "xaxis": axis("share", percent=True, rangemode="tozero"),
                "yaxis": named_axis(labels, "", downwards=True),
            },
            table=Table("importance", "Importance of each field",
                        [Column("field"), Column("share", share)], rows),
            height=120 + 30 * len(rows),
        )
    ]  # fmt: skip


def _grid(found: _Found, told: list[tuple[Trial, float]]) -> Figure:
    """The best value of each number of heads and layers."""
    cells: dict[tuple[Any, Any], list[float]] = {}
    for trial, value in told:
        place = (trial.params.get(_HEADS), trial.params.get(_LAYERS))
        if None not in place:
            cells.setdefault(place, []).append(value)
    heads, layers = (sorted({place[at] for place in cells}) for at in (0, 1))
    best = max if found.higher else min
    values = [[best(cells[h, n]) if (h, n) in cells else None for n in layers] for h in heads]
    rows = [[h, n, best(each), len(each)] for (h, n), each in sorted(cells.items())]
    top = best(rows, key=lambda row: row[2])
    columns = [Column("heads", count), Column("layers", count), Column(found.monitor, found.shown),
               Column("trials", count)]  # fmt: skip
    return Figure(
        title="Heads and layers",
        says=f"The best {found.monitor} of the trials with each number of heads and layers; "
        f"highest with {top[0]} heads and {top[1]} layers, {found.shown(top[2])}."
        if found.higher
        else f"The least {found.monitor} of each; least with {top[0]} heads and {top[1]} layers.",
        traces=[
            heat(
                [str(n) for n in layers], [str(h) for h in heads], values,
                of=found.metric, percent=found.percent, written=True,
            )
        ],
        layout={
            "xaxis": named_axis([str(n) for n in layers], "layers"),
            "yaxis": named_axis([str(h) for h in heads], "heads"),
        },
        table=Table("grid", f"Best {found.monitor} by heads and layers", columns, rows),
        height=180 + 50 * len(heads),
    )  # fmt: skip


def _front(found: _Found) -> Figure:
    names = found.tune.objectives
    front = {t.number for t in front_of(found.order, names, higher=found.higher)}
    traces = []
    for place, (word, on) in enumerate((("on the front", True), ("others", False))):
        some = [t for t in found.order if (t.number in front) == on]
        metric, other = ([(t.values or ())[at] for t in some] for at in (0, 1))
        points = line(word, other, metric, number=place) | {"mode": "markers"}
        traces.append(points | {"text": [f"trial {t.number}" for t in some]})
    rows = [[t.number, *(t.values or ()), "yes" if t.number in front else ""] for t in found.order]
    columns = [Column("trial", count), *(Column(name, number) for name in names), Column("front")]
    return Figure(
        title="Front",
        says=f"{len(front)} trials are on the front: no other is as good in every objective.",
        traces=traces,
        layout={
            "xaxis": axis(names[1].replace("_", " ")),
            "yaxis": axis(found.metric, percent=found.percent),
            "showlegend": True,
        },
        table=Table("front", "Trials by their objectives", columns, rows),
    )  # fmt: skip


def _curves(found: _Found) -> list[Block]:
    traces, rows = [], []
    for trial in found.search.trials:
        points = [(r.epochs, r.value) for r in trial.results if math.isfinite(r.value)]
        if trial.values and trial.facts.get("epochs"):
            points.append((trial.facts["epochs"], trial.values[0]))
        points = list(dict(points).items())
        if not points:
            continue
        is_best = found.best is not None and trial.number == found.best.number
        x, y = zip(*points, strict=True)
        trace = line(f"trial {trial.number}", x, y, number=1 if is_best else 0, points=True)
        trace |= {"opacity": 1.0 if is_best else 0.45, "showlegend": is_best}
        trace["line"]["width"] = 3 if is_best else 1.5
        traces.append(trace | ({"name": f"best: trial {trial.number}"} if is_best else {}))
        rows += [[trial.number, epochs, value] for epochs, value in points]
    if not traces:
        return []
    rungs = found.tune.rungs(found.search.config.train.epochs)
    rungs = rungs if found.tune.scheduler not in ("none", "median", "pbt") else ()
    layout = {"xaxis": axis("epochs"), "yaxis": axis(found.monitor, percent=found.percent)}
    marks = [upright(rung, f"rung {rung}", number=5, dash="dot") for rung in rungs]
    columns = [Column("trial", count), Column("epochs", count), Column(found.monitor, found.shown)]
    return [
        Figure(
            title="Best value so far of each trial",
            says=f"{len(traces)} trials, judged after {', '.join(map(str, rungs))} epochs."
            if rungs
            else f"{len(traces)} trials.",
            traces=traces,
            layout=marked(layout | {"showlegend": True}, marks),
            table=Table("rungs", "Best value of each trial up to each rung", columns, rows),
            height=440,
        )
    ]


def _table(found: _Found) -> Table:
    placed = {trial.number for trial in found.order}
    trials = [*found.order, *(t for t in found.search.trials if t.number not in placed)]
    paths = list(found.tune.space)
    rows = []
    for trial in trials:
        facts, test = trial.facts, trial.facts.get("test") or {}
        last = trial.results[-1].epochs if trial.results else None
        rows.append(
            [
                trial.number,
                trial.state,
                found.value(trial),
                test.get(main_metric(test)) if test else None,
                facts.get("epochs", last),
                facts.get("seconds"),
                *(written(trial.params[p]) if p in trial.params else None for p in paths),
                facts.get("error"),
            ]
        )
    metric = next((main_metric(t.facts["test"]) for t in trials if t.facts.get("test")), "loss")
    columns = [
        Column("trial", count), Column("state"), Column(found.monitor, found.shown),
        Column(f"test/{metric}", share if METRICS[metric].percent else number),
        Column("epochs", count), Column("seconds", seconds), *(Column(path) for path in paths),
        Column("error"),
    ]  # fmt: skip
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    best = 0 if found.order else None
    return Table("trials", f"{len(rows)} trials, the best first", columns, rows, best=best)


def _repeats(found: _Found) -> list[Block]:
    """The best trials and the base config, each trained with several seeds and splits."""
    repeats = read_repeats(found.search.uri)
    if not repeats:
        return []
    metric, times = repeats[0].metric, len(repeats[0].values)
    scale, unit = (100, " points") if METRICS[metric].percent else (1, "")
    rows = []
    for each in repeats:
        of = each.against
        ends = [f"{scale * end:+.3g}" for end in (of.low, of.high) if end is not None] if of else []
        rows.append(
            [
                each.label, shown(metric, each.mean), shown(metric, each.std),
                f"{scale * of.mean_difference:+.3g}{unit}" if of else None,
                " to ".join(ends) or None, of.p if of else None,
                ", ".join(shown(metric, value) for value in each.values),
            ]
        )  # fmt: skip
    names = ("config", "mean", "std", "minus the baseline's", "95 % interval")
    columns = [*map(Column, names), Column("p", number), Column("of each")]
    caption = f"Test {metric} of {times} seeds and splits, the same ones in each row"
    blocks: list[Block] = [Table("repeats", caption, columns, rows)]
    note = next((each.against.note for each in repeats if each.against), "")
    return [*blocks, Words(note)] if note else blocks


KIND = Kind("search", "search.json", build)
