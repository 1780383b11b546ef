"""The source `table`: an edge table and, if there is one, a node table, as Parquet or CSV files.

Ids are integers or strings. CSV does not say which: its ids are text, and integers only where
every id of both tables is one in its plain form, so that "007" and "7" stay two nodes.
"""

import logging
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import Field, field_validator, model_validator

from dnformer.data.features import Layout
from dnformer.data.ingest.table_files import TableFiles, open_table
from dnformer.errors import ConfigError
from dnformer.parsing import Section

_log = logging.getLogger("dnformer")

Kind: TypeAlias = Literal["class", "multilabel", "regression"]
FeatureDtype: TypeAlias = Literal["float32", "float16", "int8"]


class LabelColumns(Section):
    """A target, and the node columns that hold it."""

    name: str = Field(min_length=1, description="of the target: what data.label picks")
    kind: Kind | None = Field(
        None,
        description="by default class for a column of numbers or names; for lists or several "
        "columns, multilabel where they hold integers or booleans, else regression",
    )
    columns: list[str] | None = Field(
        None,
        min_length=1,
        description="one of single values or of lists, or several; by default `name`",
    )

    @property
    def read(self) -> list[str]:
        """The columns to read."""
        return self.columns or [self.name]


def parse_label(text: str) -> dict[str, Any]:
    """`NAME[:KIND][=COLUMN+COLUMN]`, as the command line has it, as values of `LabelColumns`."""
    head, _, columns = text.partition("=")
    name, _, kind = head.partition(":")
    return {
        "name": name,
        "kind": kind or None,
        "columns": columns.split("+") if columns else None,
    }


class TableSource(Section):
    """Where the tables are and what their columns mean."""

    edges: list[str] = Field(
        min_length=1,
        description="URIs or globs (*, ?, [..]) of the edge table: .parquet, .csv, .csv.gz, "
        ".csv.zst; one, or a list",
    )
    nodes: list[str] | None = Field(
        None,
        min_length=1,
        description="likewise of the node table; without it the endpoints are the nodes",
    )
    src: str = Field("src", description="edge column of the source (neighbour)")
    dst: str = Field("dst", description="edge column of the destination")
    weight: str | None = Field(
        None, description="edge column of the weight. By default the column weight, if there is one"
    )
    time: str | None = Field(
        None,
        description="edge column of the time: integers, dates or timestamps (kept in "
        "microseconds). By default the column time, if there is one",
    )
    edge_attrs: list[str] = Field([], description="edge columns of numbers to keep as attributes")
    id: str = Field("id", description="node column of the id, an integer or a string")
    label: list[LabelColumns] | None = Field(
        None,
        description="what there is to learn, each NAME[:KIND][=COLUMN+COLUMN]; classes are whole "
        "numbers from 0, or names; no value or -1 is none. By default the column label, if there "
        "is one",
    )
    split: str | None = Field(
        None,
        description="node column of train, val (valid, validation), test or no value. By default "
        "the column split, if there is one",
    )
    node_time: str | None = Field(None, description="node column of the time, as of edges")
    features: list[str] | None = Field(
        None,
        description="node columns of numbers, or one column of lists of numbers. By default all "
        "others, in the order of the file",
    )
    features_file: str | None = Field(
        None,
        description=".npy of shape [num_nodes, F], or URI or glob of Parquet files: row i belongs "
        "to row i of the node table. Then `features` are its columns, by default all",
    )
    num_classes: int | None = Field(
        None, ge=1, description="number of classes; by default what the labels have"
    )
    feature_layout: Layout = Field(
        "auto",
        description="how features are kept; auto: sparse from 64 features on where at most 25 % "
        "are not zero",
    )
    feature_dtype: FeatureDtype = Field(
        "float32",
        description="how features are kept: int8 with one scale a feature, its largest absolute "
        "value over 127; other than float32 only dense",
    )

    @field_validator("edges", "nodes", "features", "edge_attrs", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("label", mode="before")
    @classmethod
    def _labels(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, list):
            return [parse_label(one) if isinstance(one, str) else one for one in value]
        return value

    @model_validator(mode="after")
    def _layout_fits(self) -> "TableSource":
        if self.feature_layout == "sparse" and self.feature_dtype != "float32":
            raise ValueError(f"sparse features are float32; leave out {self.feature_dtype}")
        names = [label.name for label in self.label or ()]
        if len(set(names)) < len(names):
            raise ValueError(f"label {', '.join(names)}: a name stands twice")
        return self


class EdgeRoles(NamedTuple):
    """Names of the edge columns."""

    src: str
    dst: str
    weight: str | None
    attrs: tuple[str, ...]
    time: str | None

    def columns(self) -> dict[str, str]:
        """{column: option that names it}."""
        named = (("src", self.src), ("dst", self.dst), ("weight", self.weight), ("time", self.time))
        columns = {name: option for option, name in named if name is not None}
        return columns | dict.fromkeys(self.attrs, "edge_attrs")

    def numbers(self) -> list[str]:
        """Those of numbers."""
        return [*([] if self.weight is None else [self.weight]), *self.attrs]


def edge_roles(source: TableSource, table: TableFiles) -> EdgeRoles:
    """What each column of the edge table is; a column that is not read gets a warning."""
    taken = {source.src, source.dst, *source.edge_attrs}

    def default(name: str | None, usual: str) -> str | None:
        there = usual in table.header and usual not in taken
        return name or (usual if there else None)

    roles = EdgeRoles(
        source.src,
        source.dst,
        default(source.weight, "weight"),
        tuple(source.edge_attrs),
        default(source.time, "time"),
    )
    ignored = [name for name in table.header if name not in roles.columns()]
    if ignored:
        _log.warning("%s: columns not read: %s", table.name, ", ".join(ignored))
    table.check(roles.columns())
    _refuse_reuse(list(roles._replace(attrs=())[:2]) + roles.numbers() + [roles.time])
    return roles


def _refuse_reuse(names: list[Any]) -> None:
    twice = next((n for at, n in enumerate(names) if n is not None and n in names[:at]), None)
    if twice is not None:
        raise ConfigError(f"column {twice!r} is named for two things; name it once")


class NodeRoles(NamedTuple):
    """Names of the node columns."""

    id: str
    labels: list[LabelColumns]
    split: str | None
    time: str | None
    features: list[str]

    def columns(self) -> dict[str, str]:
        """{column: option that names it}."""
        columns = dict.fromkeys(self.features, "features")
        columns |= {name: "label" for label in self.labels for name in label.read}
        named = (("split", self.split), ("node_time", self.time), ("id", self.id))
        return columns | {name: option for option, name in named if name is not None}


def node_roles(source: TableSource, table: TableFiles) -> NodeRoles:
    """What each column of the node table is."""
    header = table.header
    labels = source.label
    if labels is None:
        labels = [LabelColumns(name="label")] if "label" in header else []
    if source.num_classes is not None and not labels:
        raise ConfigError(
            f"num_classes needs labels, but {table.name} has no column label; give label"
        )
    split = source.split or ("split" if "split" in header else None)
    roles = NodeRoles(source.id, labels, split, source.node_time, [])
    features = source.features
    if source.features_file is not None:
        features = []
    elif features is None:
        features = [name for name in header if name not in roles.columns()]
    roles = roles._replace(features=features)
    named = [name for label in labels for name in label.read]
    _refuse_reuse([source.id, *named, split, source.node_time, *features])
    table.check(roles.columns(), same_header=source.features is None)
    return roles


def open_tables(source: TableSource) -> tuple[TableFiles, TableFiles | None]:
    """The files of both tables.

    Raises:
        ConfigError: an option names a column of the node table, and there is none.
        DataError: a file is missing or cannot be read.
    """
    edges = open_table(source.edges)
    if source.nodes is not None:
        return edges, open_table(source.nodes)
    for option in ("label", "split", "node_time", "features", "features_file", "num_classes"):
        if getattr(source, option) is not None:
            raise ConfigError(f"{option} is about the node table, but nodes is not given; give it")
    return edges, None
