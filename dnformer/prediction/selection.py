"""Which nodes a prediction is about."""

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dnformer import storage
from dnformer.data.manifest import Manifest
from dnformer.errors import DataError
from dnformer.prediction.ids import indices_of
from dnformer.prediction.options import PredictConfig

Array = npt.NDArray[Any]

_COLUMN = "id"


def listed_nodes(options: PredictConfig, uri: str, manifest: Manifest) -> Array | None:
    """The nodes that `ids` or `nodes` name, ascending; None where neither is given.

    Raises:
        DataError: an id is unknown, or the file has none.
    """
    if options.ids is not None:
        return indices_of(uri, manifest, options.ids)
    if options.nodes is None:
        return None
    given = read_listed(options.nodes)
    if not given:
        raise DataError(f"{options.nodes}: no id in it")
    return indices_of(uri, manifest, given)


def selection_of(options: PredictConfig) -> str:
    """The selection in a word that another one does not have."""
    if options.split is not None:
        return f"split {options.split}"
    if options.ids is not None:
        listed = "\n".join(sorted(map(str, options.ids)))
        return f"ids {hashlib.sha256(listed.encode()).hexdigest()[:16]}"
    if options.nodes is not None:
        content = storage.read_bytes(options.nodes)
        return f"nodes {hashlib.sha256(content).hexdigest()[:16]}"
    return "all nodes"


def read_listed(uri: str) -> list[str | int]:
    """The ids in a file: Parquet or CSV with a column `id`, else text with one a line.

    Raises:
        DataError: there is no such file, or it cannot be read.
    """
    with storage.fetched(uri) as path:
        try:
            if uri.endswith(".parquet"):
                return _from_parquet(path, uri)
            with path.open(encoding="utf-8-sig", newline="") as file:
                if uri.endswith(".csv"):
                    return _from_csv(csv.DictReader(file), uri)
                return [line.strip() for line in file if line.strip()]
        except UnicodeDecodeError:
            raise DataError(f"{uri}: no UTF-8 text; give .txt, .csv or .parquet") from None


def _from_parquet(path: Path, uri: str) -> list[str | int]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        raise DataError(f"{uri}: no readable Parquet file") from None
    if _COLUMN not in table.column_names:
        raise _no_column(uri, table.column_names)
    values: list[Any] = table[_COLUMN].to_pylist()
    if None in values:
        raise DataError(f"{uri} row {values.index(None) + 1}: {_COLUMN} has no value")
    return values


def _from_csv(rows: "csv.DictReader[str]", uri: str) -> list[str | int]:
    names = list(rows.fieldnames or [])
    if _COLUMN not in names:
        raise _no_column(uri, names)
    try:
        return [row[_COLUMN] for row in rows if row[_COLUMN]]
    except csv.Error as error:
        raise DataError(f"{uri} line {rows.line_num}: no valid CSV: {error}") from None


def _no_column(uri: str, names: list[str]) -> DataError:
    found = ", ".join(names) or "none"
    return DataError(f"{uri}: no column {_COLUMN!r} with the ids; it has {found}")
