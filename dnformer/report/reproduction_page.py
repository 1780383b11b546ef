"""The page of a reproduction: each table by dataset, with every split's value and paired intervals.

It reads what `dnformer reproduce` leaves beside its rows: one JSON file for each table.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dnformer import storage
from dnformer.errors import DataError
from dnformer.report.charts import axis, colour, heat, label, named_axis
from dnformer.report.kinds import Kind, Options
from dnformer.report.page import (
    Block,
    Column,
    Figure,
    Page,
    Plotly,
    Section,
    Table,
    Words,
    count,
    number,
    share,
)
from dnformer.reproduce import ROWS

_TITLES = {
    "table2": "Table 2: all models",
    "table3": "Table 3: without parts of it",
    "figure2": "Figure 2: heads and layers",
    "tune": "Candidates: which settings each model gets",
}
_OF = {"test": "Test metric", "val": "Validation metric"}
_COLUMNS = [
    Column("model"),
    Column("mean", share),
    Column("standard deviation", share),
    Column("splits", count),
    Column("best other one"),
    Column("difference to it", share),
    Column("from", share),
    Column("to", share),
    Column("Wilcoxon's p", number),
    Column("published, in %", number),
    Column("source"),
]


def build(uri: str, options: Options) -> Page:
    """The page of the tables in the folder `uri`.

    Raises:
        DataError: there is none yet, or one is damaged.
    """
    names = [name for name in storage.list_names(uri) if re.fullmatch(_FILES, name)]
    if not names:
        raise DataError(f"{uri}: no table is there yet; dnformer reproduce table2 makes one")
    order = list(_TITLES)
    names.sort(key=lambda name: (order.index(name.split("-")[0]), name))
    sections = [_section(name, _read(storage.join(uri, name))) for name in names]
    return Page("reproduction", "Reproduction", [uri], sections)


_FILES = rf"({'|'.join(_TITLES)})-\w+\.json"

KIND = Kind("reproduction", ROWS, build)


def _read(uri: str) -> Mapping[str, Any]:
    try:
        found = json.loads(storage.read_bytes(uri))
        return {key: found[key] for key in ("of", "protocol")} | {
            "datasets": dict(found["datasets"])
        }
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{uri}: is no table; dnformer reproduce writes it anew") from None


def _section(name: str, table: Mapping[str, Any]) -> Section:
    stem = name.removesuffix(".json")
    kind, _, protocol = stem.partition("-")
    blocks: list[Block] = [Words(f"{_OF[table['of']]} on {table['protocol']}.")]
    for dataset, entries in table["datasets"].items():
        if entries and kind == "figure2":
            blocks.append(_map(stem, dataset, entries))
        if entries:
            blocks.append(_means(stem, dataset, entries))
        else:
            blocks.append(Words(f"{dataset}: nothing has been run yet.", notice=True))
    return Section(stem, f"{_TITLES[kind]} ({protocol})", blocks)


def _means(stem: str, dataset: str, entries: Mapping[str, Any]) -> Figure:
    """Every split's value and the mean of each label, the best on top."""
    order = sorted(entries, key=lambda name: entries[name]["mean"])
    best = order[-1]
    return Figure(
        title=dataset,
        says=(
            f"{len(order)} models or variants on {dataset}; the best mean is "
            f"{share(entries[best]['mean'])}, of {best}, the lowest "
            f"{share(entries[order[0]]['mean'])}, of {order[0]}."
        ),
        traces=list(_points(order, entries)),
        layout={
            "xaxis": axis(entries[best]["metric"], tickformat=".1%"),
            "yaxis": named_axis([label(name) for name in order], ""),
        },
        height=150 + 26 * len(order),
        table=Table(
            f"{stem}-{dataset}", f"{dataset}, by mean", _COLUMNS,
            [_row(name, entries[name]) for name in reversed(order)], best=0,
        ),
    )  # fmt: skip


def _points(order: list[str], entries: Mapping[str, Any]) -> Iterator[Plotly]:
    each = [
        (value, at) for at, name in enumerate(order) for value in entries[name]["values"].values()
    ]
    yield {
        "type": "scatter",
        "mode": "markers",
        "name": "a split",
        "x": [value for value, _ in each],
        "y": [at for _, at in each],
        "marker": {"color": colour(1), "size": 6, "opacity": 0.6},
    }
    yield {
        "type": "scatter",
        "mode": "markers",
        "name": "mean ± standard deviation",
        "x": [entries[name]["mean"] for name in order],
        "y": list(range(len(order))),
        "error_x": {
            "type": "data", "array": [entries[name]["std"] for name in order],
            "color": colour(0),
        },
        "marker": {"color": colour(0), "size": 9, "symbol": "diamond"},
    }  # fmt: skip


def _row(name: str, entry: Mapping[str, Any]) -> list[Any]:
    test, known = entry["against"] or {}, entry.get("published") or {}
    paired = [test.get(key) for key in ("label", "difference", "low", "high", "p")]
    return [
        name, entry["mean"], entry["std"], entry["splits"], *paired, known.get("mean"),
        known.get("source"),
    ]  # fmt: skip


def _map(stem: str, dataset: str, entries: Mapping[str, Any]) -> Figure:
    """Means by layers and heads."""
    found = {
        tuple(map(int, re.findall(r"\d+", name))): entry["mean"] for name, entry in entries.items()
    }
    layers, heads = (sorted({shape[at] for shape in found}) for at in (0, 1))
    rows = [[found.get((deep, wide)) for wide in heads] for deep in layers]
    # whole per cents would make most cells alike
    values = [[None if mean is None else 100 * mean for mean in row] for row in rows]
    best = max(found, key=lambda shape: found[shape])
    return Figure(
        title=f"{dataset}, heads and layers",
        says=(
            f"The best mean, {share(found[best])}, has {best[0]} layers and {best[1]} heads; the "
            f"lowest is {share(min(found.values()))}."
        ),
        traces=[
            heat(
                list(map(str, heads)), list(map(str, layers)), values,
                of="mean, in %", percent=False, written=True,
            )
        ],
        layout={
            "xaxis": named_axis(list(map(str, heads)), "heads"),
            "yaxis": named_axis(list(map(str, layers)), "layers"),
        },
        table=Table(
            f"{stem}-{dataset}-map", f"{dataset}: mean by layers (rows) and heads",
            [Column("layers"), *(Column(f"{wide} heads", share) for wide in heads)],
            [[str(deep), *row] for deep, row in zip(layers, rows, strict=True)],
        ),
    )  # fmt: skip
