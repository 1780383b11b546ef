"""The manifest of a dataset (cache format 1): what it holds, how it was made, which files."""

import json
from typing import Any, Literal

from pydantic import Field, model_validator

from dnformer import storage
from dnformer.config import Section, SplitConfig, parse
from dnformer.errors import ConfigError, DataError

FORMAT = 1
NAME = "manifest.json"


class PartFile(Section):
    """One file of the dataset."""

    path: str = Field(description="name inside the dataset's folder")
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(Section):
    """What `manifest.json` says."""

    format: Literal[1] = 1
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    num_nodes: int = Field(ge=1)
    num_edges: int = Field(ge=0)
    num_features: int = Field(ge=0)
    num_classes: int = Field(ge=0)
    classes: list[str] | None = Field(None, description="class names, where labels were strings")
    features: Literal["dense", "sparse", "none"]
    num_values: int = Field(ge=0, description="stored feature values, where features are sparse")
    labels: bool
    stored_split: bool = Field(description="whether a split came with the data")
    ids: Literal["index", "int", "string"] = Field(description="what the original ids were")
    dtypes: dict[str, str] = Field(description="column name to type")
    policies: dict[str, str]
    counts: dict[str, int]
    split: SplitConfig | None = Field(None, description="default recipe, not in the fingerprint")
    source: str = Field(description="what was ingested")
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
        return self

    @property
    def default_split(self) -> SplitConfig:
        """The recorded recipe, else the split that came with the data."""
        return self.split or SplitConfig(column=True)

    def schema_values(self) -> dict[str, Any]:
        """The part of the schema that the fingerprint hashes."""
        keys = ("num_nodes", "num_edges", "num_features", "num_classes", "classes", "features",
                "labels", "stored_split", "ids")  # fmt: skip
        return {"format": self.format} | {key: getattr(self, key) for key in keys}


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
            f"{uri}: dataset format {found} is newer than {FORMAT}, the newest this version "
            "reads: update dnformer"
        )
    if found != FORMAT:
        raise DataError(f"{uri}/{NAME}: no dataset manifest (format {found!r}); ingest again")
    try:
        manifest = parse(Manifest, values, name=f"{uri}/{NAME}")
    except ConfigError as error:
        raise DataError(f"{error}; ingest the dataset again") from None
    for part in (*manifest.edges, *manifest.nodes, *manifest.id_files):
        storage.join(uri, part.path)
    return manifest
