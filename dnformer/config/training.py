"""Sections on what is trained and how: model, loss, optimizer, loop, checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dnformer.config.zoo import OPTIONS, DNFormerOptions, ModelOptions
from dnformer.parsing import RUNTIME, Section, nearest, problems

Rate = Annotated[float, Field(ge=0, lt=1)]


# what any model may read; the other fields are DNFormer's alone
_SHARED = frozenset({
    "name", "hidden", "layers", "heads", "dropout", "activation", "input_dropout", "input_norm",
    "options",
})  # fmt: skip


class ModelConfig(Section):
    """The model: DNFormer (DESIGN section 3) or one of the zoo.

    `hidden` to `input_norm` belong to all models, `options` to those of the zoo, and the rest to
    DNFormer.
    """

    name: str = Field("dnformer", description=f"the model: {', '.join(OPTIONS)}")
    hidden: int = Field(64, ge=1, description="width C of all layers; a multiple of `heads`")
    layers: int = Field(
        2, ge=1, description="layers L, which see so many hops; steps of propagation of appnp, sgc "
        "and stagnn"
    )  # fmt: skip
    heads: int = Field(2, ge=1, description="attention heads H")
    dropout: Rate = Field(0.5, description="after input projection, attention and FFN; after each "
                          "layer of a model of the zoo")  # fmt: skip
    activation: Literal["relu", "gelu"] = Field("relu", description="of input projection and FFN")
    input_dropout: Rate = Field(0.0, description="share of the features set to zero in training")
    input_norm: Literal["none", "row"] = Field(
        "none", description="row: each node's features over their sum, where that is above 1"
    )
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
    ffn_expansion: float = Field(2.0, gt=0, description="FFN width over C")
    head_norm: bool = Field(False, description="RMSNorm of each head's output")
    self_loops: bool = Field(True, description="each node is a neighbour of itself")
    edge_bias: bool = Field(
        True, description="edge attributes, where there are any, shift the attention logits"
    )
    options: SerializeAsAny[ModelOptions] = Field(
        default_factory=DNFormerOptions, validate_default=True,
        description="what only the model `name` has",
    )  # fmt: skip

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in OPTIONS:
            raise ValueError(f"unknown model {name!r}; {nearest(name, OPTIONS)}")
        return name

    @field_validator("options", mode="before")
    @classmethod
    def _own_options(cls, given: Any, info: ValidationInfo) -> Any:
        """The section of the model `name`, with all its defaults."""
        section = OPTIONS.get(info.data.get("name", ""), ModelOptions)
        values = given.model_dump() if isinstance(given, ModelOptions) else given
        if values and not section.model_fields:
            raise ValueError(f"model {info.data.get('name')} has none; leave it out")
        try:
            return section.model_validate(values)
        except ValidationError as error:
            raise ValueError(problems(section, error)) from None

    @model_validator(mode="after")
    def _read_by_the_model(self) -> "ModelConfig":
        unread = self.options.unread
        if self.name != "dnformer":
            unread = unread | (type(self).model_fields.keys() - _SHARED)
        for field in type(self).model_fields:
            info = type(self).model_fields[field]
            if field in unread and getattr(self, field) != info.default:
                raise ValueError(
                    f"{info.alias or field} means nothing to model {self.name}; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _whole_heads(self) -> "ModelConfig":
        if self.options.splits_hidden and self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is no multiple of heads {self.heads}")
        if self.lambda_bound == "sigmoid" and self.lambda_init >= 1:
            raise ValueError(f"lambda_init {self.lambda_init} is out of a sigmoid's reach, (0, 1)")
        return self


class LossConfig(Section):
    """What a training node's loss is, and how much it counts; validation counts all alike."""

    label_smoothing: Rate = Field(
        0, description="share of the target spread over all classes; for labels of kind class"
    )
    class_weights: Literal["balanced"] | list[Annotated[float, Field(gt=0)]] | None = Field(
        None,
        description="weight of each class; balanced: weight of all training nodes over K times "
        "that of the class; null: 1 each",
    )
    mask: str | None = Field(
        None,
        description=".npy of N weights, 0 or more, or N booleans, by node index: how much each "
        "node's loss counts; null: 1 each",
    )


class OptimConfig(Section):
    """The optimizer and its learning rate."""

    name: Literal["adam", "adamw"] = Field("adam", description="coupled or decoupled weight decay")
    lr: float = Field(0.005, gt=0, description="learning rate at its highest")
    weight_decay: float = Field(5e-4, ge=0, description="weight decay")
    norm_weight_decay: float | None = Field(
        None, ge=0, description="that of biases and norms; null: `weight_decay`"
    )
    schedule: Literal["constant", "cosine", "step", "plateau"] = Field(
        "constant",
        description="cosine: to min_lr at the last step of the last epoch; step: times "
        "decay_factor every decay_epochs; plateau: likewise after plateau_patience validations "
        "without a better one",
    )
    warmup_steps: int = Field(
        0, ge=0, description="steps in which lr grows linearly to its highest"
    )
    min_lr: float = Field(0, ge=0, description="lowest learning rate of a schedule")
    decay_epochs: int = Field(30, ge=1, description="epochs between two decays of schedule step")
    decay_factor: float = Field(0.1, gt=0, lt=1, description="of schedules step and plateau")
    plateau_patience: int = Field(10, ge=1, description="validations of schedule plateau")
    clip_norm: float | None = Field(None, gt=0, description="largest gradient norm; null: any")
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="validate and keep a moving average of the weights, which keeps this share of "
        "itself in each step; null: the weights themselves",
    )

    @model_validator(mode="after")
    def _ordered(self) -> "OptimConfig":
        if self.min_lr >= self.lr:
            raise ValueError(f"min_lr {self.min_lr:g} is not below lr {self.lr:g}")
        return self


class TrainConfig(Section):
    """The training loop."""

    epochs: int = Field(200, ge=1, description="epochs at most; schedules are as long")
    stop_after: int | None = Field(
        None, ge=1, description="epochs after which it ends before that; null: none"
    )
    continue_from: str | None = Field(
        None,
        description="a run on the same dataset whose newest state it begins with: weights, "
        "optimizer, epochs done; null: epoch 1",
    )
    workers: int | tuple[int, int] = Field(
        0,
        description="Ray workers; 0: this process, without Ray; [min, max]: as many of them as the "
        "cluster has room for, also while it changes",
        json_schema_extra=RUNTIME,
    )
    use_gpu: bool = Field(False, description="one GPU a worker", json_schema_extra=RUNTIME)
    gpu_share: float = Field(
        1,
        gt=0,
        le=1,
        description="share of that GPU: below 1, several workers under Ray share it",
        json_schema_extra=RUNTIME,
    )
    micro_batches: int | None = Field(
        None,
        ge=1,
        description="micro-batches G of a step; null: the most workers at the first start, or 1",
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of a worker; null: cores / workers at the first start",
        json_schema_extra=RUNTIME,
    )
    patience: int | None = Field(
        100, ge=1, description="validations without a better one; null: train to the end"
    )
    monitor: str | None = Field(
        None,
        description="what the best checkpoint is best at: val/loss, or by the kind of label "
        "val/accuracy, val/f1_macro or, of two, val/auc (class), val/auc, val/f1 or val/f1_macro "
        "(multilabel), val/mae, val/rmse or val/r2 (regression); null: the first of its kind",
    )
    precision: Literal["float32", "float64", "bf16", "fp16"] = Field(
        "float32", description="dtype of the model; bf16, fp16: float32 weights, mixed arithmetic"
    )
    compile: bool = Field(False, description="torch.compile the model", json_schema_extra=RUNTIME)
    activation_checkpointing: bool = Field(
        False,
        description="compute each block again in the backward pass, which saves memory",
        json_schema_extra=RUNTIME,
    )
    max_failures: int = Field(
        3,
        ge=0,
        description="times that lost Ray workers are started again, beside lost spot nodes",
        json_schema_extra=RUNTIME,
    )
    collective_timeout_s: float = Field(
        600,
        gt=0,
        description="seconds after which a worker gives up waiting for the others",
        json_schema_extra=RUNTIME,
    )
    watchdog_s: float | None = Field(
        None,
        gt=0,
        description="seconds in one stage after which its rank, step and stacks are shown; null: "
        "never",
        json_schema_extra=RUNTIME,
    )
    log_every: int | None = Field(
        None,
        ge=1,
        description="steps between two step records; null: epochs only",
        json_schema_extra=RUNTIME,
    )

    @field_validator("workers")
    @classmethod
    def _a_range(cls, workers: int | tuple[int, int]) -> int | tuple[int, int]:
        low, high = workers if isinstance(workers, tuple) else (workers, workers)
        if isinstance(workers, tuple) and not 1 <= low <= high:
            raise ValueError(f"[{low}, {high}] is no range of workers: 1 <= min <= max")
        if low < 0:
            raise ValueError(f"{low} is below 0")
        return workers

    @property
    def max_workers(self) -> int:
        """Workers at most; 0: this process."""
        return self.workers if isinstance(self.workers, int) else self.workers[1]

    @property
    def min_workers(self) -> int:
        """Workers at least."""
        return self.workers if isinstance(self.workers, int) else self.workers[0]


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
    every_s: float | None = Field(
        None,
        gt=0,
        description="seconds between two checkpoints within an epoch; null: none",
        json_schema_extra=RUNTIME,
    )
    keep: int = Field(2, ge=1, description="newest checkpoints kept", json_schema_extra=RUNTIME)
    keep_best: int = Field(
        1,
        ge=1,
        description="checkpoints kept beside them, the best by train.monitor",
        json_schema_extra=RUNTIME,
    )
    background: bool = Field(
        True, description="write while training goes on", json_schema_extra=RUNTIME
    )
