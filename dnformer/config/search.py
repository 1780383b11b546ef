"""The section of a search: what is tried, in which order, and what is ended early."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from dnformer.parsing import RUNTIME, Section

_KINDS = ("choice", "int", "logint", "uniform", "loguniform")

Objective = Literal["metric", "seconds_per_epoch", "parameters"]


class Entry(Section):
    """What one field of the config may be: exactly one of `choice` .. `loguniform`."""

    one_value: ClassVar[bool] = True

    choice: list[Any] | None = Field(None, min_length=1, description="one of these values")
    int_: tuple[int, int] | None = Field(
        None, alias="int", description="a whole number, [low, high]"
    )
    logint: tuple[int, int] | None = Field(None, description="likewise, each factor as likely")
    uniform: tuple[float, float] | None = Field(None, description="a number in [low, high]")
    loguniform: tuple[float, float] | None = Field(
        None, description="likewise, each factor as likely"
    )
    when: dict[str, Any] = Field(
        {},
        description="only where each of these fields of the space has this value, or one of the "
        "values of a list",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> "Entry":
        given = [kind for kind in _KINDS if getattr(self, _field(kind)) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(_KINDS)}; found {given or 'none'}")
        bounds = self.bounds
        if bounds is not None and not bounds[0] <= bounds[1]:
            raise ValueError(f"{self.kind} {list(bounds)}: the low end is above the high one")
        if bounds is not None and self.kind.startswith("log") and bounds[0] <= 0:
            raise ValueError(f"{self.kind} {list(bounds)}: both ends must be above 0")
        return self

    @property
    def kind(self) -> str:
        """Which of the kinds it is, as in YAML."""
        return next(kind for kind in _KINDS if getattr(self, _field(kind)) is not None)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """(low, high), both within; None of a choice."""
        return None if self.kind == "choice" else getattr(self, _field(self.kind))


def _field(kind: str) -> str:
    return "int_" if kind == "int" else kind


class TuneConfig(Section):
    """A search over the fields in `space`; `dnformer train` does not look at it."""

    one_value: ClassVar[bool] = True

    num_trials: int = Field(
        20, ge=1, description="configs that are tried; a grid: at most", json_schema_extra=RUNTIME
    )
    search: Literal["random", "grid", "optuna"] = Field(
        "optuna", description="optuna: multivariate TPE, which learns from the trials before"
    )
    scheduler: Literal["asha", "asha_stopping", "hyperband", "median", "pbt", "none"] = Field(
        "asha",
        description="what ends trials early. asha: they pause at each rung, and the best go on; "
        "asha_stopping: they go on unless they are worse than most that came before; hyperband: "
        "that in brackets which begin to judge at different epochs; median: likewise below the "
        "median of the others; pbt: takes over the state of a better trial, with changed settings",
    )
    objectives: Annotated[list[Objective], Field(min_length=1)] = Field(
        ["metric"],
        description="what is best; metric: train.monitor. Several need search optuna and "
        "scheduler none",
    )
    grace_epochs: int | None = Field(
        None, ge=1, description="epochs that no trial is ended before; null: epochs / 5, at least 1"
    )
    reduction_factor: int = Field(
        3, ge=2, description="asha.., hyperband: the best 1 in so many go on from rung to rung"
    )
    brackets: int = Field(3, ge=1, description="brackets of hyperband")
    max_concurrent: int | None = Field(
        None,
        ge=1,
        description="trials at a time; null: as many as the cluster has room for",
        json_schema_extra=RUNTIME,
    )
    space: dict[str, Entry] = Field(
        {}, description="by dotted path of the config: model.heads: {choice: [1, 2, 4]}"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "TuneConfig":
        if len(set(self.objectives)) < len(self.objectives):
            raise ValueError(f"objectives {self.objectives}: one stands twice")
        if self.objectives[0] != "metric":
            raise ValueError("objectives: the first is `metric`")
        several = len(self.objectives) > 1
        if several and (self.search, self.scheduler) != ("optuna", "none"):
            raise ValueError(
                f"{len(self.objectives)} objectives need search: optuna and scheduler: none"
            )
        return self

    def grace(self, epochs: int) -> int:
        """Epochs that no trial of so many is ended before."""
        return min(self.grace_epochs or max(1, epochs // 5), epochs)

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Grace times the powers of the reduction factor, below `epochs`."""
        rungs, rung = [], self.grace(epochs)
        while rung < epochs:
            rungs.append(rung)
            rung *= self.reduction_factor
        return tuple(rungs)
