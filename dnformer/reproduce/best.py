"""The config of a model on a dataset: the candidate with the best mean validation."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from dnformer import storage
from dnformer.parsing import put_all
from dnformer.reproduce.grid import Cell
from dnformer.reproduce.rows import Rows
from dnformer.training.objectives import main_metric


def write_best(
    cells: Sequence[Cell], rows: Rows, fingerprints: Mapping[str, str], folder: Path
) -> list[str]:
    """Writes the config of each model and dataset whose candidates have all been run.

    Args:
        cells: of the comparison.
        rows: what has been run.
        fingerprints: of the datasets.
        folder: of the configs; `DATASET/MODEL.yaml` is replaced.

    Returns:
        A line on each file.
    """
    told = []
    for dataset, model in dict.fromkeys((c.dataset, c.label.split()[0]) for c in cells):
        own = [c for c in cells if c.dataset == dataset and c.label.split()[0] == model]
        found = _means(own, rows, fingerprints[dataset])
        if found is None:
            continue
        best = max(found, key=lambda label: found[label])
        cell = next(c for c in own if c.label == best)
        path = folder / dataset / f"{model}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(str(path), _text(cell, found, best).encode())
        told.append(f"{path}: {best}, validation {100 * found[best]:.2f} %")
    return told


def _means(cells: Sequence[Cell], rows: Rows, fingerprint: str) -> dict[str, float] | None:
    """Mean validation of each candidate; None where a run is missing."""
    values: dict[str, list[float]] = {}
    for cell in cells:
        row = rows.of(cell, fingerprint)
        if row is None:
            return None
        values.setdefault(cell.label, []).append(row.val[main_metric(row.val)])
    return {label: statistics.fmean(each) for label, each in values.items()}


def _text(cell: Cell, means: Mapping[str, float], best: str) -> str:
    each = ", ".join(f"{100 * value:.2f}" for value in means.values())
    header = (
        f"# The best of {len(means)} candidates by mean validation accuracy on split seeds that no "
        f"table uses\n# ({each}; candidates.yaml, dnformer reproduce tune): {best}.\n"
    )
    name, uri = f"{cell.dataset}-{cell.label.split()[0]}", cell.config.data.uri
    values = put_all({}, {"name": name, "data.uri": uri} | cell.settings)
    return header + yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=100)
