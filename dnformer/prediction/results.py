"""Predictions that are there: what their manifest says, and their table."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field, ValidationError

from dnformer import storage
from dnformer.data.manifest import PartFile
from dnformer.data.parts import read_part
from dnformer.data.table import Target
from dnformer.errors import DataError
from dnformer.parsing import Section

NAME = "manifest.json"
# rows that are read at a time
_ROWS = 1 << 16


class File(Section):
    """One file of the predictions."""

    path: str = Field(pattern=r"^parts/part-\d{5,}\.parquet$")
    rows: int = Field(ge=0)
    values: int = 0
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Identity(Section):
    """What decides the content; other predictions at the same place are refused."""

    run: str
    model: str = Field(description="SHA-256 of the weights")
    data: str = Field(description="the dataset's URI")
    dataset: str = Field(description="its fingerprint")
    selection: str
    mode: str
    columns: list[str] = Field(description="asked for beside predictions")


class Comparison(Section):
    """Metrics of the same nodes, with every neighbour and with sampled ones."""

    split: str
    nodes: int = Field(ge=0)
    num_neighbors: list[int]
    exact: dict[str, float]
    sampled: dict[str, float]


class Manifest(Section):
    """What `manifest.json` says of predictions, format 1."""

    format: Literal[1] = 1
    kind: Literal["predictions"] = "predictions"
    identity: Identity
    name: str = Field(description="of the run")
    target: Target
    trained_on: str = Field(description="fingerprint of the run's own dataset")
    num_nodes: int = Field(ge=0)
    columns: dict[str, str] = Field(description="type of each column, as Arrow names it")
    metrics: dict[str, dict[str, float]] = Field(
        description="of the nodes whose labels are known: of each split, or `known` in all"
    )
    counts: dict[str, int] = Field(description="how many nodes these are")
    comparison: Comparison | None = None
    created_by: str
    files: list[File]


class Predictions(NamedTuple):
    """Predictions in a folder.

    Attributes:
        uri: the folder.
        manifest: what it says.
    """

    uri: str
    manifest: Manifest

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Of the nodes whose labels are known, by split."""
        return self.manifest.metrics

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Arrow record batches of all rows in order, each file checked against the manifest.

        Args:
            columns: which; None: all.

        Raises:
            DataError: a file is missing or damaged, or there is no such column.
        """
        names = list(self.manifest.columns if columns is None else columns)
        for name in names:
            if name not in self.manifest.columns:
                there = ", ".join(self.manifest.columns)
                raise DataError(f"{self.uri}: no column {name!r}; there are {there}")
        for file in self.manifest.files:
            yield from read_part(self.uri, PartFile(**file.model_dump()), names, _ROWS)

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """The same as one `pyarrow.Table`, in memory; `.to_pandas()` makes a frame of it."""
        return pa.Table.from_batches(self.batches(columns))


def open_predictions(uri: str) -> Predictions:
    """The predictions in the folder `uri`.

    Raises:
        DataError: there are none, or their manifest is damaged.
    """
    uri = storage.absolute(uri)
    content = storage.read_if_exists(storage.join(uri, NAME))
    if content is None:
        raise DataError(f"{uri}: no predictions here ({NAME} is missing); dnformer predict makes "
                        "some, and goes on where it was stopped")  # fmt: skip
    return Predictions(uri, parse_manifest(content, uri))


def parse_manifest(content: bytes, uri: str) -> Manifest:
    """`content` of a manifest.json.

    Raises:
        DataError: it is none of predictions, or of a newer format.
    """
    try:
        values = json.loads(content)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("kind") != "predictions":
        raise DataError(f"{uri}/{NAME} is no manifest of predictions; choose another folder")
    if values.get("format") != 1:
        raise DataError(f"{uri}: format {values.get('format')!s:.50} of predictions, this version "
                        "reads 1: update dnformer")  # fmt: skip
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{uri}/{NAME} is damaged ({where}: {first['msg']}); predict again with --overwrite"
        ) from None
