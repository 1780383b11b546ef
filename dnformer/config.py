"""The run's configuration: one frozen section a component, YAML in, one-line errors out.

YAML holds only what differs from the defaults; `--set a.b=value` overrides by dotted path.
A field is *identity* (it decides what the run computes) unless it is tagged *runtime*.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.config import JsonDict

from dnformer.errors import ConfigError

RUNTIME: JsonDict = {"runtime": True}
Fraction = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
FanOut = Annotated[int, Field(ge=-1, strict=True)]


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )


class SplitConfig(Section):
    """Which nodes train, validate and test: exactly one of these."""

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


class ModelConfig(Section):
    """The model (DESIGN section 3)."""

    name: Literal["dnformer"] = Field("dnformer", description="the model")
    hidden: int = Field(64, ge=1, description="width C of all layers; a multiple of `heads`")
    layers: int = Field(2, ge=1, description="number of blocks L")
    heads: int = Field(2, ge=1, description="attention heads H")
    dropout: Rate = Field(0.5, description="after input projection, attention and FFN")
    attention_dropout: Rate = Field(0.1, description="on the weights, after the subtraction")
    attention: Literal["diff", "single", "single_wide"] = Field(
        "diff", description="two softmaxes; or one, at width D or 2D"
    )
    lam: Literal["edge", "head", "fixed", "reparam"] = Field(
        "edge", alias="lambda", description="where the second softmax's coefficient comes from"
    )
    lambda_width: int | None = Field(None, ge=1, description="hidden width R; null: D = C / H")
    lambda_init: float = Field(0.2, gt=0, description="lambda at the start")
    lambda_bound: Literal["softplus", "sigmoid"] = Field(
        "softplus", description="no upper bound on lambda, or 1"
    )
    norm: Literal["post", "pre"] = Field("post", description="LayerNorm after or before sublayers")
    ffn_expansion: float = Field(2, gt=0, description="FFN width over C")
    activation: Literal["relu", "gelu"] = Field("relu", description="of input projection and FFN")
    head_norm: bool = Field(False, description="RMSNorm of each head's output")
    self_loops: bool = Field(True, description="each node is a neighbour of itself")
    edge_bias: bool = Field(
        True, description="edge attributes, where there are any, shift the attention logits"
    )

    @model_validator(mode="after")
    def _whole_heads(self) -> "ModelConfig":
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if self.lambda_bound == "sigmoid" and self.lambda_init >= 1:
            raise ValueError(f"lambda_init {self.lambda_init} is out of a sigmoid's reach, (0, 1)")
        return self


class OptimConfig(Section):
    """The optimizer and its learning rate."""

    name: Literal["adam", "adamw"] = Field("adam", description="coupled or decoupled weight decay")
    lr: float = Field(0.005, gt=0, description="learning rate at its highest")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="cosine: to zero at the last step of the last epoch"
    )
    clip_norm: float | None = Field(None, gt=0, description="largest gradient norm; null: any")


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(200, ge=1, description="epochs at most")
    workers: int = Field(
        0, ge=0, description="Ray workers; 0: this process, without Ray", json_schema_extra=RUNTIME
    )
    use_gpu: bool = Field(False, description="one GPU a worker", json_schema_extra=RUNTIME)
    micro_batches: int | None = Field(
        None,
        ge=1,
        description="micro-batches G of a step; null: max(workers, 1) at the first start",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of a worker; null: cores / workers at the first start",
        json_schema_extra=RUNTIME,
    )
    patience: int | None = Field(
        100, ge=1, description="evaluations without a better one; null: train to the end"
    )
    monitor: str | None = Field(
        None,
        description="what the best checkpoint is best at: val/loss, or by the kind of label "
        "val/accuracy (class), val/auc or val/f1 (multilabel), val/mae or val/rmse (regression); "
        "null: the first of its kind",
    )
    precision: Literal["float32", "float64"] = Field("float32", description="dtype of the model")
    log_every: int | None = Field(
        None,
        ge=1,
        description="steps between two step records; null: epochs only",
        json_schema_extra=RUNTIME,
    )


class EvalConfig(Section):
    """Validation and test."""

    mode: Literal["exact", "sampled"] = Field(
        "exact", description="every neighbour, layer by layer; or the loader's fan-out"
    )
    every_epochs: int = Field(1, ge=1, description="epochs between two validations")


class CheckpointConfig(Section):
    """When the run's state is saved."""

    every_epochs: int = Field(
        1, ge=1, description="epochs between two checkpoints", json_schema_extra=RUNTIME
    )
    every_steps: int | None = Field(
        None,
        ge=1,
        description="steps between two checkpoints within an epoch; null: none",
        json_schema_extra=RUNTIME,
    )
    keep: int = Field(
        2, ge=1, description="checkpoints kept, beside the best one", json_schema_extra=RUNTIME
    )


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
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    cache: CacheConfig = CacheConfig()

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
        micro_batches = self.train.micro_batches or max(self.train.workers, 1)
        if self.train.workers > micro_batches:
            raise ValueError(
                f"train.workers {self.train.workers} are more than the {micro_batches} "
                "train.micro_batches of a step; some would have nothing to do"
            )
        if self.loader.kind == "full" and micro_batches > 1:
            raise ValueError("loader.kind full trains in one worker: its step is one micro-batch")
        if self.loader.temporal and self.eval.mode == "exact":
            raise ValueError(
                "loader.temporal: eval.mode exact takes every neighbour, also later ones; set "
                "eval.mode: sampled"
            )
        return self

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

    def identity(self) -> dict[str, Any]:
        """Identity fields by dotted path, in `resolved` form."""
        runtime = {path for path, is_runtime in field_paths(type(self)) if is_runtime}
        return {path: value for path, value in flatten(self.dump()) if path not in runtime}


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of nested sections; a split recipe counts as one value."""
    for key, value in values.items():
        if isinstance(value, dict) and key != "split":
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def field_paths(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """(dotted path, is it a runtime field) of every field below `section`."""
    for name, field in section.model_fields.items():
        path = prefix + (field.alias or name)
        nested = _section_of(field.annotation)
        if nested is not None and nested is not SplitConfig:
            yield from field_paths(nested, f"{path}.")
        else:
            extra = field.json_schema_extra
            yield path, isinstance(extra, dict) and extra.get("runtime") is True


def _section_of(annotation: Any) -> type[BaseModel] | None:
    options = get_args(annotation) if get_origin(annotation) is not None else (annotation,)
    found = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
    return found[0] if found else None


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error: the first would be lost silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []
        for key_node, _ in node.value:
            # `<<` stands for no value; the base class merges it
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise ConfigError(f"key {str(key)!r} stands twice (line {line})")
            seen.append(key)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, *, name: str) -> dict[str, Any]:
    """The mapping in a YAML text; `name` stands for it in errors."""
    try:
        values = yaml.load(text, _UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise ConfigError(f"{name}{line}: no valid YAML: {problem}") from None
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected 'key: value' lines, found {type(values).__name__}")
    return values


def override(values: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`values` with each `a.b=value` of `settings` set; the value is read as YAML."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {setting}: expected path=value, as in optim.lr=0.01")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {setting}: {text!r} is no valid YAML value") from None
        values = put(values, path, value)
    return values


def put(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `values` with `value` at a dotted path.

    Raises:
        ConfigError: a section on the way is a value.
    """
    key, _, rest = path.partition(".")
    if not rest:
        return {**values, key: value}
    section = values.get(key) or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: {key!r} is the value {section!r}, not a section")
    return {**values, key: put(section, rest, value)}


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse(section: type[Parsed], values: dict[str, Any], *, name: str = "config") -> Parsed:
    """`values` as a validated section.

    Raises:
        ConfigError: one line with each wrong key or value, and the nearest key to an unknown one.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        lines = {_describe(section, item) for item in error.errors()}
        raise ConfigError(f"{name}: " + "; ".join(sorted(lines))) from None


def _describe(section: type[BaseModel], error: Any) -> str:
    location = [str(part) for part in error["loc"]]
    path = ".".join(part for part in location if not re.search(r"[\[(]", part))
    if error["type"] == "extra_forbidden":
        return f"unknown key {path!r}; {_nearest(section, location)}"
    if error["type"] == "missing":
        return f"{path} is required"
    message = error["msg"].removeprefix("Value error, ")
    if not path:
        return str(message)
    if error["type"] == "value_error":
        return f"{path}: {message}"
    return f"{path}: {message[0].lower()}{message[1:]}; found {error['input']!r}"


def _nearest(section: type[BaseModel], location: list[str]) -> str:
    for part in location[:-1]:
        fields = {f.alias or n: f for n, f in section.model_fields.items()}
        nested = _section_of(fields[part].annotation) if part in fields else None
        section = nested or section
    names = [f.alias or n for n, f in section.model_fields.items()]
    near = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"allowed here: {', '.join(names)}"


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
