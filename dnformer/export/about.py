"""`config.json`: what an exported model is, format 1."""

from typing import Any, Literal

from pydantic import Field, ValidationError

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.data.manifest import Manifest
from dnformer.data.table import Target
from dnformer.errors import CheckpointError
from dnformer.parsing import Section, parse, put, put_all

CONFIG, WEIGHTS, CARD, PROGRAM = "config.json", "model.safetensors", "README.md", "model.pt2"
# identity fields that may name a file of the machine that trained
_FILES = ("loss.mask", "train.continue_from")


class Weights(Section):
    """The file of the weights."""

    # names only what stands beside config.json
    file: Literal["model.safetensors"] = "model.safetensors"
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Dataset(Section):
    """What it was trained on."""

    name: str = Field(description="last part of the dataset's URI")
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    source: str
    num_nodes: int
    num_edges: int
    num_features: int
    edge_attr_names: list[str] = Field([], description="names of the A attributes of an edge")


class About(Section):
    """What `config.json` says; it has the sizes of its model, as `build.Sizes` asks."""

    format: Literal[1] = 1
    created_by: str
    versions: dict[str, str]
    name: str
    config: dict[str, Any] = Field(description="of the run, the fields that decide its results")
    target: Target
    units: dict[str, list[float]] = Field(
        {}, description="of numbers, the mean and scale that make them of the outputs"
    )
    dataset: Dataset
    parameters: int
    epochs: int
    best_epoch: int
    metrics: dict[str, dict[str, float]] = Field(description="by split: val, test")
    weights: Weights

    @property
    def run_config(self) -> RunConfig:
        """The run's config; where the data and the run were is not known."""
        return parse(RunConfig, self.config, name=CONFIG)

    @property
    def num_features(self) -> int:
        """F."""
        return self.dataset.num_features

    @property
    def num_classes(self) -> int:
        """K, outputs."""
        return self.target.num_outputs

    @property
    def num_edge_features(self) -> int:
        """A, attributes of an edge."""
        return len(self.dataset.edge_attr_names)


def dataset_of(uri: str, manifest: Manifest) -> Dataset:
    """What is said of a dataset."""
    return Dataset(
        name=uri.rstrip("/").rpartition("/")[2],
        fingerprint=manifest.fingerprint,
        source=manifest.source,
        num_nodes=manifest.num_nodes,
        num_edges=manifest.num_edges,
        num_features=manifest.num_features,
        edge_attr_names=manifest.edge_attr_names,
    )


def public_config(config: RunConfig) -> dict[str, Any]:
    """The identity fields of a run's config, local paths cut to the names of files."""
    uri = {"data.uri": _name_only(config.data.uri)}
    values = put_all({}, uri | config.identity())
    split = config.data.split
    if split is not None and split.file is not None:
        values = put(values, "data.split", {"file": _name_only(split.file)})
    for path in _FILES:
        section, _, key = path.partition(".")
        if values[section][key] is not None:
            values = put(values, path, _name_only(values[section][key]))
    return values


def _name_only(uri: str) -> str:
    return uri.rstrip("/").rpartition("/")[2] if storage.is_local(uri) else uri


def read_about(folder: str) -> About:
    """What the exported model in `folder` is.

    Raises:
        CheckpointError: there is none, it is damaged, or newer than this version reads.
    """
    content = storage.read_if_exists(storage.join(folder, CONFIG))
    if content is None:
        raise CheckpointError(
            f"{folder}: no exported model here ({CONFIG} is missing); make one: dnformer export RUN"
        )
    try:
        return About.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(map(str, first["loc"])) or "all of it"
        if path == "format":
            raise CheckpointError(
                f"{folder}: format {first['input']!r:.50} of an exported model, this version "
                "reads 1: update dnformer"
            ) from None
        raise CheckpointError(
            f"{folder}/{CONFIG}: no exported model of ours ({path}: {first['msg']}); export the "
            "run again"
        ) from None
