"""The manifest of a dataset (cache format 1): what it holds, how it was made, which files."""

import json
import re
from typing import Any, Literal

from pydantic import Field, model_validator

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.table import Target
from dnformer.errors import ConfigError, DataError
from dnformer.parsing import Section, parse

FORMAT = 1
NAME = "manifest.json"
# what `CacheWriter.name` gives; no name of a file can lead anywhere else
_PART_NAME = r"(edges|nodes|ids)/part-[A-Za-z0-9_-]{1,100}\.parquet"
# far above any graph, and far below where arithmetic on counts and sizes leaves 64 bits
_MOST = 2**56
_LARGEST_FLOAT32 = 3.4028234663852886e38
# of a message; what is wrong may be as long as the file
_MESSAGE = 500


class PartFile(Section):
    """One file of the dataset."""

    path: str = Field(description="name inside the dataset's folder")
    rows: int = Field(ge=0, lt=_MOST)
    values: int = Field(0, ge=0, lt=_MOST, description="feature values, where they are sparse")
    bytes: int = Field(ge=0, lt=_MOST)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(Section):
    """What `manifest.json` says."""

    format: Literal[1] = 1
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    num_nodes: int = Field(ge=1, lt=_MOST)
    num_edges: int = Field(ge=0, lt=_MOST)
    num_features: int = Field(ge=0, lt=2**31)
    features: Literal["dense", "sparse", "none"]
    feature_dtype: Literal["float32", "float16", "int8"] = "float32"
    feature_scale: list[float] | None = Field(
        None, description="of each int8 feature: its value is scale times what is stored"
    )
    num_values: int = Field(
        ge=0, lt=_MOST, description="stored feature values, where features are sparse"
    )
    targets: list[Target] = Field([], description="what there is to learn; the first by default")
    node_time: bool = False
    edge_weight: bool = False
    edge_attr_names: list[str] = Field([], description="names of the A attributes of an edge")
    edge_time: bool = False
    stored_split: bool = Field(description="whether a split came with the data")
    ids: Literal["index", "int", "string"] = Field(description="what the original ids were")
    dtypes: dict[str, str] = Field(description="type of each column, as Arrow names it")
    policies: dict[str, str]
    counts: dict[str, int]
    examples: dict[str, list[str]] = Field(
        {}, description="by policy, some of the rows it changed: file, row, edge"
    )
    split: SplitConfig | None = Field(None, description="default recipe, not in the fingerprint")
    source: str = Field(description="what was ingested")
    source_signature: str | None = Field(
        None, description="of the input files and options: an equal one needs no second ingest"
    )
    created_by: str
    edges: list[PartFile]
    nodes: list[PartFile]
    id_files: list[PartFile]

    @model_validator(mode="after")
    def _rows_add_up(self) -> "Manifest":
        num_ids = 0 if self.ids == "index" else self.num_nodes
        rows = {"edges": self.num_edges, "nodes": self.num_nodes, "id_files": num_ids}
        for kind, expected in rows.items():
            found = sum(part.rows for part in getattr(self, kind))
            if found != expected:
                raise ValueError(f"its {kind} files have {found} rows, not {expected}")
        found = sum(part.values for part in self.nodes)
        if found != self.num_values:
            raise ValueError(f"its nodes files have {found} values, not {self.num_values}")
        self._targets_fit()
        self._features_fit()
        return self

    def _targets_fit(self) -> None:
        names = [target.name for target in self.targets]
        if len(set(names)) < len(names):
            raise ValueError(f"targets {', '.join(names)}: a name stands twice")
        for target in self.targets:
            if target.num_outputs >= _MOST:
                raise ValueError(f"target {target.name!r} has {target.num_outputs} outputs")
            if target.classes is not None and len(target.classes) != target.num_outputs:
                raise ValueError(
                    f"target {target.name!r} has {len(target.classes)} names for "
                    f"{target.num_outputs} classes"
                )

    def _features_fit(self) -> None:
        scale = self.feature_scale
        if (scale is not None) != (self.feature_dtype == "int8"):
            raise ValueError("feature_scale belongs to features of int8, and to no others")
        if self.feature_dtype != "float32" and self.features != "dense":
            raise ValueError(f"{self.features} features are float32, not {self.feature_dtype}")
        if scale is None:
            return
        if len(scale) != self.num_features:
            raise ValueError(f"feature_scale has {len(scale)} values")
        if not all(0 <= value <= _LARGEST_FLOAT32 for value in scale):
            raise ValueError("feature_scale holds what is no finite, positive float32")

    @property
    def num_classes(self) -> int:
        """Outputs of the first target; 0 without any."""
        return self.targets[0].num_outputs if self.targets else 0

    @property
    def default_split(self) -> SplitConfig:
        """The recorded recipe, else the split that came with the data."""
        return self.split or SplitConfig(column=True)

    def schema_values(self) -> dict[str, Any]:
        """The part of the schema that the fingerprint hashes."""
        keys = {"format", "num_nodes", "num_edges", "num_features", "features", "feature_dtype",
                "feature_scale", "targets", "node_time", "edge_weight", "edge_attr_names",
                "edge_time", "stored_split", "ids"}  # fmt: skip
        return self.model_dump(mode="json", include=keys)


def read_manifest(uri: str) -> Manifest:
    """The manifest of the dataset at `uri`.

    Raises:
        DataError: there is none, it is damaged, or newer than this version reads.
    """
    content = storage.read_if_exists(storage.join(uri, NAME))
    if content is None:
        raise DataError(f"{uri}: no dataset here ({NAME} is missing); make one: dnformer ingest")
    return parse_manifest(content, uri)


def parse_manifest(content: bytes, uri: str) -> Manifest:
    """`content` of a manifest.json as a manifest whose file names lead inside `uri`."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise DataError(f"{uri}/{NAME}: not valid JSON; ingest the dataset again") from None
    found = values.get("format") if isinstance(values, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise DataError(
            f"{uri}: dataset format {found!s:.50} is newer than {FORMAT}, the newest this version "
            "reads: update dnformer"
        )
    if found != FORMAT:
        shown = f"{found!r:.50}" if isinstance(found, int | float | str) else type(found).__name__
        raise DataError(f"{uri}/{NAME}: no dataset manifest (format {shown}); ingest again")
    try:
        manifest = parse(Manifest, values, name=f"{uri}/{NAME}")
    except ConfigError as error:
        raise DataError(f"{str(error)[:_MESSAGE]}; ingest the dataset again") from None
    except RecursionError:  # while it was put into words
        raise DataError(f"{uri}/{NAME}: a value is nested too deep; ingest again") from None
    _check_names(manifest, uri)
    return manifest


def _check_names(manifest: Manifest, uri: str) -> None:
    seen: set[str] = set()
    for part in (*manifest.edges, *manifest.nodes, *manifest.id_files):
        storage.join(uri, part.path)
        if not re.fullmatch(_PART_NAME, part.path):
            raise DataError(
                f"{uri}/{NAME}: {part.path[:_MESSAGE]!r} is no file name of a dataset; ingest again"
            )
        if part.path in seen:
            raise DataError(f"{uri}/{NAME}: file {part.path} stands twice; ingest again")
        seen.add(part.path)
