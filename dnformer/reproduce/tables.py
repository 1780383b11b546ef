"""Tables of the rows: means, paired differences with intervals, published figures beside ours."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dnformer.reproduce.grid import Cell, Protocol
from dnformer.reproduce.published import PUBLISHED
from dnformer.reproduce.rows import Row, Rows
from dnformer.training.objectives import main_metric
from dnformer.tuning.results import paired

_NAMES = {"test": "Test", "val": "Validation"}
_SPLITS = {
    "random": "random splits 60/20/20, one permutation a seed",
    "per_class": "60 % of an equal share of each class, 20 % validation, the rest test",
    "column": "the split that came with the data",
}


def summary(
    cells: Sequence[Cell],
    rows: Rows,
    fingerprints: Mapping[str, str],
    *,
    protocol: Protocol,
    of: Literal["test", "val"] = "test",
) -> dict[str, Any]:
    """What a table says, as plain values.

    Args:
        cells: of the table.
        rows: what has been run.
        fingerprints: of the datasets, by name.
        protocol: of the splits.
        of: the nodes whose metric it is; candidates are compared on "val" alone.

    Returns:
        `of`, `protocol`; `datasets`: {name: {label: entry}}. An entry has `mean` and sample `std`
        (in the metric's own unit), `values` by seed, `splits`, and, where both have two seeds or
        more in common, `against`: the other label with the best mean over those seeds, with the
        paired `difference`, its 95 % bootstrap interval `low`, `high`, and Wilcoxon's `p`.
        `published` is there where a figure for random splits is known.
    """
    found: dict[str, dict[str, dict[int, Row]]] = {}
    for cell in cells:
        row = rows.of(cell, fingerprints[cell.dataset])
        of_dataset = found.setdefault(cell.dataset, {}).setdefault(cell.label, {})
        if row is not None:
            of_dataset[cell.seed] = row
    return {
        "of": of,
        "protocol": _SPLITS[protocol],
        "datasets": {
            name: dict(_entries(name, labels, protocol, of)) for name, labels in found.items()
        },
    }


def _entries(
    dataset: str, labels: Mapping[str, Mapping[int, Row]], protocol: Protocol, of: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    values = {label: _values(rows, of) for label, rows in labels.items() if rows}
    for label, own in values.items():
        entry: dict[str, Any] = {
            "metric": main_metric(next(iter(labels[label].values())).test),
            "mean": statistics.fmean(own.values()),
            "std": statistics.stdev(own.values()) if len(own) > 1 else 0.0,
            "splits": len(own),
            "values": {str(seed): value for seed, value in sorted(own.items())},
            "seconds": statistics.fmean(row.seconds for row in labels[label].values()),
            "against": _against(own, {k: v for k, v in values.items() if k != label}),
        }
        published = PUBLISHED.get((dataset, label))
        if published and protocol == "random" and of == "test":
            entry["published"] = published._asdict()
        yield label, entry


def _values(rows: Mapping[int, Row], of: str) -> dict[int, float]:
    metrics = {seed: row.test if of == "test" else row.val for seed, row in rows.items()}
    return {seed: found[main_metric(found)] for seed, found in metrics.items()}


def _against(
    own: Mapping[int, float], others: Mapping[str, Mapping[int, float]]
) -> dict[str, Any] | None:
    """The paired difference to the best other label, over the seeds that both have."""
    rivals = []
    for label, values in others.items():
        common = sorted(own.keys() & values.keys())
        if len(common) > 1:
            mean = statistics.fmean(values[seed] for seed in common)
            rivals.append((mean, label, common))
    if not rivals:
        return None
    _, label, common = max(rivals)
    test = paired([others[label][seed] for seed in common], [own[seed] for seed in common])
    return {
        "label": label, "splits": test.num_pairs, "difference": test.mean_difference,
        "low": test.low, "high": test.high, "p": test.p,
    }  # fmt: skip


def markdown(table: Mapping[str, Any]) -> str:
    """A `summary` as Markdown, in percent: mean ± std (splits); below it what is paired."""
    datasets: Mapping[str, Any] = table["datasets"]
    labels = dict.fromkeys(label for entries in datasets.values() for label in entries)
    lines = [
        f"{_NAMES[table['of']]} accuracy, {table['protocol']}; mean ± std (splits).",
        "",
        "| | " + " | ".join(datasets) + " |",
        "|---" * (len(datasets) + 1) + "|",
    ]
    for label in labels:
        shown = (_cell(entries.get(label)) for entries in datasets.values())
        lines.append(f"| {label} | " + " | ".join(shown) + " |")
    pairs = _pairs(datasets) if table["of"] == "test" else ()
    return "\n".join([*lines, "", *pairs, "", *_published(datasets)]).rstrip() + "\n"


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "–"
    # one split has no spread
    std = f" ± {100 * entry['std']:.2f}" if entry["splits"] > 1 else ""
    return f"{100 * entry['mean']:.2f}{std} ({entry['splits']})"


def _pairs(datasets: Mapping[str, Any]) -> Iterator[str]:
    """The first label of each dataset, ours, against the best other one."""
    pairs = [
        (name, label, entry["against"])
        for name, entries in datasets.items()
        for label, entry in list(entries.items())[:1]
        if entry["against"]
    ]
    if not pairs:
        return
    yield "Points over the best other one on the same splits, 95 % interval, Wilcoxon's p:"
    yield ""
    for name, label, test in pairs:
        yield (
            f"- {name}: {label} {100 * test['difference']:+.2f} over {test['label']} "
            f"[{100 * test['low']:+.2f}, {100 * test['high']:+.2f}], p {test['p']:.3f}, "
            f"{test['splits']} splits"
        )


def _published(datasets: Mapping[str, Any]) -> Iterator[str]:
    told = [
        (name, label, entry["mean"], entry["published"])
        for name, entries in datasets.items()
        for label, entry in entries.items()
        if "published" in entry
    ]
    if not told:
        return
    yield "Published beside ours:"
    yield ""
    yield "| dataset | model | ours | published | difference | source |"
    yield "|---|---|---|---|---|---|"
    for name, label, mean, known in told:
        std = "" if known["std"] is None else f" ± {known['std']:.2f}"
        yield (
            f"| {name} | {label} | {100 * mean:.2f} | {known['mean']:.2f}{std} | "
            f"{100 * mean - known['mean']:+.2f} | {known['source']} |"
        )
