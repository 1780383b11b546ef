"""Sections on where data and results are: the dataset, batches, storage, trackers."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_serializer, model_validator

from dnformer.parsing import RUNTIME, Section

Fraction = Annotated[float, Field(ge=0, le=1)]
FanOut = Annotated[int, Field(ge=-1, strict=True)]


_SHARES = [0.6, 0.2, 0.2]
_RECIPES: dict[str, Any] = {
    "column": True, "random": _SHARES, "per_class": _SHARES, "time": _SHARES, "planetoid": 20,
}  # fmt: skip


class SplitConfig(Section):
    """Which nodes train, validate and test: exactly one of these.

    The name of a recipe alone stands for its usual numbers: shares 0.6, 0.2, 0.2, or 20 a class.
    """

    one_value: ClassVar[bool] = True

    column: Literal[True] | None = Field(None, description="the split that came with the data")
    random: tuple[Fraction, Fraction, Fraction] | None = Field(
        None, description="shares of one random permutation: int(a N), int(b N), the rest"
    )
    per_class: tuple[Fraction, Fraction, Fraction] | None = Field(
        None, description="round(a N / K) nodes of each class train, int(b N) validate, rest test"
    )
    time: tuple[Fraction, Fraction, Fraction] | None = Field(
        None,
        description="by the nodes' time: the earliest int(a N) train, the next int(b N) validate, "
        "the rest test",
    )
    planetoid: int | None = Field(
        None,
        ge=1,
        # beside `column: true`, a lax `planetoid: true` would be 1 a class
        strict=True,
        description="this many a class train, 500 others validate, 1,000 others test",
    )
    file: str | None = Field(
        None, description=".npz or .json of node indices: train, val (or valid), test"
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if given not in _RECIPES:
            raise ValueError(
                f"{given!r} is no split; there are {', '.join(_RECIPES)}, or '{{random: [..]}}'"
            )
        return {given: _RECIPES[given]}

    @model_validator(mode="after")
    def _one(self) -> "SplitConfig":
        given = sorted(self.recipe())
        if len(given) != 1:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"takes exactly one of {names}; found {', '.join(given) or 'none'}")
        for shares in (self.random, self.per_class, self.time):
            if shares is not None and abs(sum(shares) - 1) > 1e-6:
                raise ValueError(f"shares {list(shares)} add up to {sum(shares):g}, not to 1")
        return self

    @model_serializer
    def recipe(self) -> dict[str, Any]:
        """The one setting given, by its name."""
        return {name: value for name, value in iter(self) if value is not None}


class DataConfig(Section):
    """The dataset."""

    uri: str = Field(
        description="the dataset's folder: local or any fsspec URI", json_schema_extra=RUNTIME
    )
    split: SplitConfig | None = Field(
        None, description="null: the recipe recorded by ingest, else the split in the data"
    )
    seed: int | None = Field(None, ge=0, description="seed of a computed split; null: `seed`")
    label: str | None = Field(None, description="the label column to learn; null: the first")


class LoaderConfig(Section):
    """How batches are drawn."""

    kind: Literal["neighbor", "full"] = Field(
        "neighbor", description="sampled neighbourhoods, or the whole graph in each step"
    )
    num_neighbors: list[FanOut] = Field(
        [10],
        min_length=1,
        description="neighbours drawn per hop, -1 for all; an int or a list "
        "whose last value repeats",
    )
    batch_size: int = Field(1024, ge=1, description="seed nodes of one micro-batch")
    sampler: Literal["dnformer", "pyg-lib"] = Field(
        "dnformer", description="pyg-lib's draws depend on its global generator: not reproducible"
    )
    sampling: Literal["uniform", "weighted", "labor"] = Field(
        "uniform",
        description="weighted: in proportion to the edges' weights; labor: num_neighbors on "
        "average, shared by destinations, so that a batch has fewer nodes",
    )
    replace: bool = Field(False, description="a neighbour may be drawn more than once")
    temporal: bool = Field(
        False, description="only edges up to the seed's time; each seed has a tree of its own"
    )
    threads: int = Field(
        2, ge=1, description="threads that sample and gather", json_schema_extra=RUNTIME
    )
    prefetch: int = Field(4, ge=1, description="batches prepared ahead", json_schema_extra=RUNTIME)

    @field_validator("num_neighbors", mode="before")
    @classmethod
    def _each_hop(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) else value

    @model_validator(mode="after")
    def _drawable(self) -> "LoaderConfig":
        plain = self.sampling == "uniform" and not self.replace and not self.temporal
        if self.kind == "full" and not plain:
            raise ValueError("kind full draws nothing; leave out sampling, replace and temporal")
        if self.sampler == "pyg-lib" and not plain:
            raise ValueError(
                "sampler pyg-lib draws uniformly without replacement; use sampler dnformer"
            )
        if self.sampling == "labor" and (self.replace or self.temporal):
            raise ValueError(
                "sampling labor goes neither with replace nor with temporal; leave them out"
            )
        return self

    def fan_out(self, num_layers: int) -> list[int]:
        """`num_neighbors` for each of `num_layers` hops."""
        given = self.num_neighbors
        return given + given[-1:] * (num_layers - len(given))


class CacheConfig(Section):
    """The node-local store, and what of its features is kept in memory."""

    dir: str | None = Field(
        None,
        description="folder on this host; null: the user's cache folder",
        json_schema_extra=RUNTIME,
    )
    max_bytes: int | None = Field(
        None,
        ge=0,
        description="of all stores in it: a new one makes room; null: as the disk has",
        json_schema_extra=RUNTIME,
    )
    hot_bytes: int = Field(
        0,
        ge=0,
        description="host memory of each worker for the feature rows that are met most, in bytes",
        json_schema_extra=RUNTIME,
    )
    hot_gpu_bytes: int = Field(
        0,
        ge=0,
        description="GPU memory for those that are met even more, in bytes",
        json_schema_extra=RUNTIME,
    )
    reads: Literal["auto", "mmap", "direct"] = Field(
        "auto",
        description="how other rows are read: through the page cache or past it; auto: past it "
        "where the features do not fit in the memory that the process may use",
        json_schema_extra=RUNTIME,
    )
    readers: int = Field(
        16,
        ge=1,
        description="direct reads in flight at most, for each of loader.threads",
        json_schema_extra=RUNTIME,
    )


_SECRET = re.compile(
    r"(?i)^(key|secret|token|password|username|credentials?)$|secret|password|access_key"
    r"|session_token|account_key|sas_token|connection_string"
)
# what gcsfs takes as `token` to say where it is to look for one
_NO_SECRETS = ("anon", "browser", "cache", "cloud", "google_default", None)


class StorageConfig(Section):
    """How files elsewhere are reached; who may reach them comes from the environment alone."""

    options: dict[str, dict[str, Any]] = Field(
        {},
        description="fsspec's options by protocol, as in {s3: {endpoint_url: ..}}; no credentials",
        json_schema_extra=RUNTIME,
    )
    retry_s: float = Field(
        120,
        ge=0,
        description="seconds in which a failed access is tried again, with growing pauses",
        json_schema_extra=RUNTIME,
    )

    @field_validator("options")
    @classmethod
    def _no_credentials(cls, options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for protocol, given in options.items():
            _refuse_credentials(given, f"{protocol}.")
        return options

    def joined(self, given: "StorageConfig") -> "StorageConfig":
        """These settings, with the options of `given` on top."""
        names = {*self.options, *given.options}
        options = {name: self.options.get(name, {}) | given.options.get(name, {}) for name in names}
        return self.model_copy(update={"options": options})


def _refuse_credentials(options: Any, path: str) -> None:
    if isinstance(options, dict):
        for key, value in options.items():
            if _SECRET.search(str(key)) and value not in _NO_SECRETS:
                raise ValueError(
                    f"{path}{key} is a credential, which a config may not hold; give it in the "
                    "environment, as the store's own client reads it"
                )
            _refuse_credentials(value, f"{path}{key}.")
    elif isinstance(options, str) and re.search(r"://[^/@]+@", options):
        raise ValueError(f"{path[:-1]} has a user or password in its address; leave it out")


class TrackingConfig(Section):
    """Where metrics go beside the run's own files."""

    tensorboard: bool = Field(
        False, description="event files in RUN/tensorboard", json_schema_extra=RUNTIME
    )
    mlflow: str | None = Field(
        None, description="tracking URI of MLflow (pip install 'dnformer[mlflow]')",
        json_schema_extra=RUNTIME,
    )  # fmt: skip
    experiment: str = Field(
        "dnformer", description="MLflow's experiment", json_schema_extra=RUNTIME
    )

    @field_validator("mlflow")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        _refuse_credentials(uri, "mlflow.")
        return uri
