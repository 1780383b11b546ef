"""The run's configuration: one frozen section a component.

A field is *identity* (it decides what the run computes) unless it is tagged *runtime*.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from dnformer.config.places import (
    CacheConfig,
    DataConfig,
    LoaderConfig,
    SplitConfig,
    StorageConfig,
    TrackingConfig,
)
from dnformer.config.search import Entry, TuneConfig
from dnformer.config.training import (
    CheckpointConfig,
    EvalConfig,
    LossConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from dnformer.errors import ConfigError
from dnformer.parsing import RUNTIME, Leaf, Section, leaves, override, parse, read_yaml

__all__ = [
    "CacheConfig",
    "CheckpointConfig",
    "DataConfig",
    "Entry",
    "EvalConfig",
    "LoaderConfig",
    "LossConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "SplitConfig",
    "StorageConfig",
    "TrackingConfig",
    "TrainConfig",
    "TuneConfig",
    "load_config",
]


class RunConfig(Section):
    """A whole run: `storage_path` and `name` are its identity on storage."""

    name: str = Field(description="the run's folder inside storage_path")
    storage_path: str = Field(
        "runs", description="local folder or any fsspec URI", json_schema_extra=RUNTIME
    )
    seed: int = Field(0, ge=0, description="initialisation, order of the data, dropout")
    data: DataConfig
    loader: LoaderConfig = LoaderConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cache: CacheConfig = CacheConfig()
    storage: StorageConfig = StorageConfig()
    tracking: TrackingConfig = TrackingConfig()
    tune: TuneConfig = Field(
        TuneConfig(), description="a search around this run", json_schema_extra=RUNTIME
    )

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", name):
            raise ValueError(f"{name!r} is no folder name: letters, digits, '.', '_', '-' and '/'")
        return name

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        hops, layers = self.loader.num_neighbors, self.model.layers
        if len(hops) > layers:
            raise ValueError(f"loader.num_neighbors has {len(hops)} hops for model.layers {layers}")
        micro_batches = self.train.micro_batches or max(self.train.max_workers, 1)
        if self.train.max_workers > micro_batches:
            raise ValueError(
                f"train.workers {self.train.max_workers} are more than the {micro_batches} "
                "train.micro_batches of a step; some would have nothing to do"
            )
        if self.loader.kind == "full" and micro_batches > 1:
            raise ValueError("loader.kind full trains in one worker: its step is one micro-batch")
        self._fits_the_model()
        if self.loader.temporal and self.eval.mode == "exact":
            raise ValueError(
                "loader.temporal: eval.mode exact takes every neighbour, also later ones; set "
                "eval.mode: sampled"
            )
        return self

    def _fits_the_model(self) -> None:
        """Raises where a section asks for what the model cannot do."""
        name, train = self.model.name, self.train
        if self.model.options.whole_graph and self.loader.kind != "full":
            raise ValueError(
                f"model {name} is defined on the whole graph only; set loader.kind: full"
            )
        if self.model.options.whole_graph and self.eval.mode == "sampled":
            raise ValueError(
                f"model {name} is defined on the whole graph only; set eval.mode: exact"
            )
        if name != "dnformer" and (train.compile or train.activation_checkpointing):
            field = "compile" if train.compile else "activation_checkpointing"
            raise ValueError(f"train.{field} is there for dnformer, not for {name}; leave it out")

    @property
    def data_seed(self) -> int:
        """The seed of a computed split."""
        return self.seed if self.data.seed is None else self.data.seed

    def resolved(self, *, micro_batches: int, threads: int) -> "RunConfig":
        """This config with every 'null: decided at the first start' decided."""
        train = self.train.model_copy(update={"micro_batches": micro_batches, "threads": threads})
        data = self.data.model_copy(update={"seed": self.data_seed})
        # validated again: `workers` may exceed the stored micro_batches
        updated = self.model_copy(update={"train": train, "data": data})
        return parse(RunConfig, updated.dump())

    def dump(self) -> dict[str, Any]:
        """Plain values by YAML key."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=False)

    def defaults(self) -> dict[str, Any]:
        """By dotted path what each field is where only `name`, the dataset and the model are set.

        So `model.options` are those of this model, and `model.name` is the default model's.
        """
        model = ModelConfig(name=self.model.name)
        plain = RunConfig(name=self.name, data=DataConfig(uri=self.data.uri), model=model)
        values = {leaf.path: leaf.value for leaf in leaves(plain)}
        return values | {"model.name": ModelConfig().name}

    def given(self) -> list[Leaf]:
        """The fields that are not as `defaults` has them."""
        defaults = self.defaults()
        return [leaf for leaf in leaves(self) if leaf.value != defaults[leaf.path]]

    def identity(self) -> dict[str, Any]:
        """Identity fields by dotted path, in `resolved` form."""
        return {leaf.path: leaf.value for leaf in leaves(self) if not leaf.runtime}

    def differing(self, other: "RunConfig") -> list[tuple[str, Any, Any]]:
        """(dotted path, value here, value of `other`) of identity fields that are not equal."""
        here, there = self.identity(), other.identity()
        # options of another model are told by its name
        return [
            (path, here[path], there[path])
            for path in here
            if path in there and here[path] != there[path]
        ]


def load_config(path: str | Path, settings: Sequence[str] = ()) -> RunConfig:
    """The run configuration in a YAML file, with `a.b=value` settings on top.

    Raises:
        ConfigError: the file is missing or a key or value is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    return parse(RunConfig, override(read_yaml(text, name=str(path)), settings), name=str(path))
