"""The source `ogb`: node-prediction graphs of the Open Graph Benchmark, from its raw folders.

Read by us, without the ogb package and without pickle; `processed/` is neither read nor written.
Edges and features are streamed, so ogbn-papers100M needs no memory of its size.
"""

import difflib
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from dnformer import storage
from dnformer.data.clean import Policies
from dnformer.data.features import finite
from dnformer.data.fingerprint import BLOCK
from dnformer.data.sources.ogb_files import EDGE_ROWS, Pieces, RawFolder, open_raw, read_integers
from dnformer.data.stream import EdgeChunk, GraphStream
from dnformer.data.table import (
    SPLITS,
    EdgeColumns,
    Features,
    Int64Array,
    NodeColumns,
    Target,
    TargetColumn,
)
from dnformer.errors import ConfigError, DataError

_FETCH = "fetch it again"
_SPLIT_FILES = {
    SPLITS["train"]: "train.csv.gz",
    SPLITS["val"]: "valid.csv.gz",
    SPLITS["test"]: "test.csv.gz",
}


class _Facts(NamedTuple):
    """What OGB's master.csv says of a dataset.

    Attributes:
        kind: of the target.
        num_outputs: its classes or labels.
        split: the official one's name.
        folder: what its download unpacks to.
        direction: undirected where the files hold each edge once and OGB adds the inverse.
        has_year: whether nodes have a year.
        has_edge_attr: whether edges have attributes and nodes have no features.
    """

    kind: Literal["class", "multilabel"]
    num_outputs: int
    split: str
    folder: str
    direction: Literal["directed", "undirected"] = "directed"
    has_year: bool = False
    has_edge_attr: bool = False


_FACTS = {
    "ogbn-arxiv": _Facts("class", 40, "time", "arxiv", has_year=True),
    "ogbn-products": _Facts("class", 47, "sales_ranking", "products", "undirected"),
    "ogbn-proteins": _Facts(
        "multilabel", 112, "species", "proteins", "undirected", has_edge_attr=True
    ),
    "ogbn-papers100M": _Facts("class", 172, "time", "papers100M-bin", has_year=True),
}
OGB_NAMES = tuple(_FACTS)


class OgbSource(BaseModel):
    """A graph of OGB in its raw layout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description=f"one of {', '.join(OGB_NAMES)}")
    root: str = Field(
        description="URI of the folder that holds raw/ and split/, or of the one above, with "
        "the name that OGB's package or its download gives it (ogbn_arxiv, arxiv)"
    )


def open_ogb(source: OgbSource) -> tuple[GraphStream, Policies]:
    """The graph that `source` names, and what OGB itself does about its direction.

    The official split is the stored one, a node's year its time. ogbn-proteins has no features:
    a node gets the mean of its edges' attributes, as in OGB's own examples.

    Raises:
        ConfigError: there is no graph of that name.
        DataError: a file is missing or damaged; found while the stream is read, too.
    """
    if source.name not in _FACTS:
        near = sorted(OGB_NAMES, key=lambda known: -_likeness(source.name, known))
        found = f"no graph {source.name!r} that can be read"
        raise ConfigError(f"{found}; there are {', '.join(near)}")
    facts = _FACTS[source.name]
    folder = _folder(source, facts)
    raw = open_raw(f"{folder}/raw")
    if not raw.num_nodes:
        raise DataError(f"{folder}/raw: no nodes; {_FETCH}")
    split = _read_split(f"{folder}/split/{facts.split}", raw.num_nodes)
    stream = GraphStream(
        num_nodes=raw.num_nodes,
        num_edges=raw.num_edges,
        edges=partial(_edges, raw, facts),
        nodes=partial(_nodes, raw, facts, split),
        where=raw.edge_at,
    )
    return stream, Policies(direction=facts.direction)


def ogb_files(source: OgbSource) -> list[str]:
    """All files that the graph may depend on."""
    facts = _FACTS[source.name]
    folders = [f"{_folder(source, facts)}/{name}" for name in ("raw", f"split/{facts.split}")]
    return [f"{folder}/{name}" for folder in folders for name in storage.list_names(folder)]


def _likeness(asked: str, known: str) -> float:
    return difflib.SequenceMatcher(None, asked.lower(), known.lower()).ratio()


def _folder(source: OgbSource, facts: _Facts) -> str:
    """The folder that holds raw/: `root`, or the one in it that OGB's package makes."""
    root = storage.absolute(source.root)
    name = source.name.replace("-", "_")
    folders = [root, *(f"{root}/{folder}" for folder in (name, f"{name}_pyg", facts.folder))]
    for folder in folders:
        for file in ("edge.csv.gz", "data.npz"):
            if storage.exists(f"{folder}/raw/{file}"):
                return folder
    tried = ", ".join(f"{folder}/raw" for folder in folders)
    raise DataError(f"no file edge.csv.gz or data.npz in {tried}; give the folder of raw as root")


def _read_split(folder: str, num_nodes: int) -> npt.NDArray[np.int8]:
    codes: npt.NDArray[np.int8] = np.zeros(num_nodes, dtype=np.int8)
    for code, name in _SPLIT_FILES.items():
        file = f"{folder}/{name}"
        nodes = read_integers(file)
        outside = (nodes < 0) | (nodes >= num_nodes)
        if outside.any():
            row = int(np.argmax(outside))
            found = f"{file} row {row + 1}: {nodes[row]} is no node"
            raise DataError(f"{found}; the {num_nodes} nodes are 0 to {num_nodes - 1}: {_FETCH}")
        taken = codes[nodes] != 0
        if taken.any():
            row = int(np.argmax(taken))
            other = _SPLIT_FILES[int(codes[nodes[row]])]
            raise DataError(f"{file} row {row + 1}: node {nodes[row]} is in {other} too; {_FETCH}")
        codes[nodes] = code
    return codes


def _edges(raw: RawFolder, facts: _Facts) -> Iterator[EdgeChunk]:
    attrs: Pieces | None = None
    if facts.has_edge_attr:
        attrs = _sized(raw.rows("edge_feat", EDGE_ROWS), raw.num_edges, raw.file("edge_feat"))
    found = 0
    for src, dst in raw.edges():
        first, found = found, found + src.size
        if found > raw.num_edges:
            break
        _check_ends(raw, first, src, dst)
        columns = EdgeColumns()
        if attrs is not None:
            columns = _edge_columns(raw, first, next(attrs, None), src.size)
        yield EdgeChunk(src, dst, columns)
    _check_rows(found, raw.num_edges, raw.file("edge"))
    if attrs is not None:
        next(attrs, None)  # counts its rows


def _check_ends(raw: RawFolder, first: int, src: Int64Array, dst: Int64Array) -> None:
    outside = (np.minimum(src, dst) < 0) | (np.maximum(src, dst) >= raw.num_nodes)
    if outside.any():
        at = int(np.argmax(outside))
        wrong = src[at] if not 0 <= src[at] < raw.num_nodes else dst[at]
        found = f"{raw.edge_at(first + at)}: {src[at]} -> {dst[at]}: {wrong} is no node"
        nodes = f"the {raw.num_nodes} nodes are 0 to {raw.num_nodes - 1}"
        raise DataError(f"{found}; {nodes}: {_FETCH}")


def _edge_columns(raw: RawFolder, first: int, attr: Any, num_edges: int) -> EdgeColumns:
    num_attrs = 0 if attr is None else len(attr)
    if num_attrs != num_edges:  # then one of the two is not of the size that it should have
        _check_rows(first + num_edges, raw.num_edges, raw.file("edge"))
        _check_rows(first + num_attrs, raw.num_edges, raw.file("edge_feat"))
    names = tuple(f"edge_feat_{number}" for number in range(attr.shape[1]))
    attr = finite(attr, where=lambda row: raw.edge_at(first + row), column="edge_feat {}".format)
    return EdgeColumns(attr=attr, attr_names=names)


def _nodes(raw: RawFolder, facts: _Facts, split: npt.NDArray[np.int8]) -> Iterator[NodeColumns]:
    labels = _node_rows(raw, "node_label")
    years = _node_rows(raw, "node_year") if facts.has_year else None
    x = _mean_of_edges(raw, facts) if facts.has_edge_attr else _node_rows(raw, "node_feat")
    first = 0
    for values in labels:
        block = slice(first, first + len(values))
        yield NodeColumns(
            num_nodes=len(values),
            x=_features(raw, first, next(x)),
            targets=(_target(raw, facts, first, values),),
            split=split[block],
            time=None if years is None else _years(raw, first, next(years)),
        )
        first = block.stop
    # each counts its rows at its end
    for rows in (x, years):
        if rows is not None:
            next(rows, None)


def _node_rows(raw: RawFolder, name: str) -> Pieces:
    return _sized(raw.rows(name, BLOCK), raw.num_nodes, raw.file(name))


def _sized(pieces: Pieces, num_rows: int, file: str) -> Pieces:
    """`pieces`, which must have `num_rows` rows in all."""
    found = 0
    for piece in pieces:
        found += len(piece)
        if found > num_rows:
            break
        yield piece
    _check_rows(found, num_rows, file)


def _check_rows(found: int, expected: int, file: str) -> None:
    if found != expected:
        rows = f"more than {expected}" if found > expected else str(found)
        raise DataError(f"{file}: {rows} rows, expected {expected}; {_FETCH}")


def _features(raw: RawFolder, first: int, values: npt.NDArray[Any]) -> Features:
    x = finite(values, where=lambda row: f"{raw.file('node_feat')} row {first + row + 1}")
    # a float16 is the same number in float32, and back
    return x.astype(np.float16) if values.dtype == np.float16 else x


def _mean_of_edges(raw: RawFolder, facts: _Facts) -> Pieces:
    """The mean attributes of each node's edges at either end, float32; 0 where it has none."""
    sums: npt.NDArray[np.float64] | None = None
    degree = np.zeros(raw.num_nodes)
    for src, dst, columns in _edges(raw, facts):
        assert columns.attr is not None
        if sums is None:
            sums = np.zeros((columns.attr.shape[1], raw.num_nodes))
        for ends in (src, dst):
            degree += np.bincount(ends, minlength=raw.num_nodes)
            for number, total in enumerate(sums):
                total += np.bincount(ends, columns.attr[:, number], minlength=raw.num_nodes)
    if sums is None:
        raise DataError(f"{raw.file('edge')}: no edges, so nodes have no features; {_FETCH}")
    mean = (sums / np.maximum(degree, 1)).T.astype(np.float32)
    for first in range(0, raw.num_nodes, BLOCK):
        yield mean[first : first + BLOCK]


def _target(raw: RawFolder, facts: _Facts, first: int, values: npt.NDArray[Any]) -> TargetColumn:
    """NaN, and -1, is no class, or a label that is not known."""
    file = raw.file("node_label")
    is_class = facts.kind == "class"
    columns = 1 if is_class else facts.num_outputs
    if values.shape[1] != columns:
        raise DataError(f"{file}: {values.shape[1]} columns, expected {columns}; {_FETCH}")
    top = facts.num_outputs - 1 if is_class else 1
    whole = np.where(np.isnan(values), -1, values) if values.dtype.kind == "f" else values
    odd = np.argwhere((whole < -1) | (whole > top) | (whole != np.floor(whole)))
    if odd.size:
        row, column = odd[0]
        found = f"{file} row {first + row + 1}: label {whole[row, column]:g}"
        raise DataError(f"{found}; labels are 0 to {top}, nan where there is none: {_FETCH}")
    target = Target(name="label", kind=facts.kind, num_outputs=facts.num_outputs)
    return TargetColumn(target, whole[:, 0].astype(np.int64) if is_class else whole.astype(np.int8))


def _years(raw: RawFolder, first: int, values: npt.NDArray[Any]) -> Int64Array:
    file = raw.file("node_year")
    if values.shape[1] != 1:
        raise DataError(f"{file}: {values.shape[1]} columns, expected 1; {_FETCH}")
    column = values[:, 0]
    odd = ~np.isfinite(column) | (column != np.floor(column))
    if odd.any():
        row = int(np.argmax(odd))
        raise DataError(f"{file} row {first + row + 1}: {column[row]} is no year; {_FETCH}")
    years: Int64Array = column.astype(np.int64)
    return years
