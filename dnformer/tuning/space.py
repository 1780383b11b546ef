"""The space of a search: which fields of a run's config are tried, at which values."""

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from dnformer.config import Entry, RunConfig
from dnformer.errors import ConfigError
from dnformer.parsing import leaves, parse, put, put_all
from dnformer.tuning.trials import Params

# draws of one proposal, of which one must be a valid config
_DRAWS = 100
# combinations of a grid: each is parsed once
_GRID = 10_000

# identity fields in which trials may not differ
_FIXED = {
    "name": "each trial has its own",
    "data.label": "trials that learn different labels cannot be compared",
    "train.monitor": "it is what trials are compared by",
    "model.name": "each model has options of its own; tune one at a time",
}
_EPOCHS = ("train.epochs", "train.stop_after")
# what pbt may change in the middle of a run beside optim: no shape of a weight, no data
_CHANGEABLE = ("model.dropout", "model.attention_dropout", "loss.label_smoothing")
# what an optimizer's state is made of
_STATE = ("optim.name", "optim.ema_decay")


@dataclass(frozen=True)
class Dimension:
    """One field of a space, with its values as the config holds them.

    Attributes:
        path: its dotted path in the config.
        kind: "choice", "int", "logint", "uniform" or "loguniform".
        choices: the values of a choice; empty for the others.
        low: the lowest value; 0 for a choice.
        high: the highest one, which it may take.
        when: by dotted path, the values of other fields of which each needs one.
    """

    path: str
    kind: str
    choices: tuple[Any, ...]
    low: float
    high: float
    when: dict[str, list[Any]]

    def holds(self, params: Params) -> bool:
        """Whether a trial with these params sets this field too."""
        return all(path in params and params[path] in some for path, some in self.when.items())

    def values(self) -> Iterable[Any]:
        """Every value.

        Raises:
            ConfigError: it has no end of them.
        """
        if self.kind == "choice":
            return self.choices
        if self.kind in ("int", "logint"):
            return range(int(self.low), int(self.high) + 1)
        raise ConfigError(
            f"tune.space: {self.path}: search grid cannot try every value of a {self.kind}; give "
            "a choice, or use search random or optuna"
        )

    def sample(self, random: np.random.Generator) -> Any:
        """A value, each as likely; of logint and loguniform each factor."""
        if self.kind == "choice":
            return self.choices[int(random.integers(len(self.choices)))]
        if self.kind == "int":
            return int(random.integers(int(self.low), int(self.high), endpoint=True))
        if self.kind == "logint":
            drawn = random.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))
            return int(min(max(round(math.exp(drawn)), self.low), self.high))
        if self.kind == "uniform":
            return float(random.uniform(self.low, self.high))
        drawn = random.uniform(math.log(self.low), math.log(self.high))
        # exp(log(high)) may lie above high
        return float(min(max(math.exp(drawn), self.low), self.high))


class Space:
    """The space in `base.tune.space`, over the rest of `base`.

    Raises:
        ConfigError: a field that cannot be tried, a value that its field does not take, a `when`
            that never holds, or no valid config in sight.
    """

    dimensions: tuple[Dimension, ...]

    def __init__(self, base: RunConfig) -> None:
        self._base = base
        self._plain = {key: value for key, value in base.dump().items() if key != "tune"}
        entries = base.tune.space
        if not entries:
            raise ConfigError(
                "tune.space is empty: name fields to try, as in {model.heads: {choice: [1, 2, 4]}}"
            )
        for path in entries:
            _check_path(path, base)
        free = {path: self._dimension(path, entry) for path, entry in entries.items()}
        when = {path: self._conditions(path, entry, free) for path, entry in entries.items()}
        self.dimensions = tuple(
            _conditions_first({path: replace(free[path], when=when[path]) for path in entries})
        )
        random = np.random.default_rng(0)
        next(self.valid(self.sample(random) for _ in itertools.count()))

    def config(self, params: Params) -> RunConfig:
        """The run of a trial: `base` with `params` set, and no search.

        Raises:
            ConfigError: they do not go together.
        """
        return parse(RunConfig, put_all(self._plain, params), name=f"trial with {params}")

    def draw(self, value: Callable[[Dimension], Any]) -> Params:
        """Params with `value(dimension)` for each field that holds, conditions before the rest."""
        params: Params = {}
        for dimension in self.dimensions:
            if dimension.holds(params):
                params[dimension.path] = value(dimension)
        return params

    def sample(self, random: np.random.Generator) -> Params:
        """Params drawn with `random` alone; they need not be a valid config."""
        return self.draw(lambda dimension: dimension.sample(random))

    def valid(self, draws: Iterable[Params]) -> Iterator[Params]:
        """Those of at most 100 draws that are a valid config.

        Raises:
            ConfigError: none is.
        """
        return self._valid(itertools.islice(draws, _DRAWS))

    def grid(self) -> list[Params]:
        """Every combination that is a valid config, the last field fastest.

        Raises:
            ConfigError: there is no end of them, more than 10,000, or none.
        """
        found = list(itertools.islice(_combinations(self.dimensions, {}), _GRID + 1))
        if len(found) > _GRID:
            raise ConfigError(
                f"tune.space: a grid of more than {_GRID:,} combinations; use search random or "
                "optuna"
            )
        return list(self._valid(found))

    def _valid(self, tried: Iterable[Params]) -> Iterator[Params]:
        count, found, refusal = 0, False, None
        for params in tried:
            count += 1
            try:
                self.config(params)
            except ConfigError as error:
                refusal = error
            else:
                found = True
                yield params
        if not found:
            raise ConfigError(
                f"tune.space: none of {count} drawn is a valid config; the last: {refusal}"
            )

    def _dimension(self, path: str, entry: Entry) -> Dimension:
        choices = [self._value(path, value) for value in entry.choice or ()]
        for index, value in enumerate(choices):
            if value in choices[:index]:
                raise ConfigError(f"tune.space: {path}: choice {value!r} stands twice")
        low, high = entry.bounds or (0, 0)
        if entry.bounds is not None:
            self._value(path, low)
            self._value(path, high)
            if entry.kind.endswith("uniform") and low < high:
                # no whole number, which both ends may be
                self._value(path, low + (high - low) / math.pi)
        return Dimension(path, entry.kind, tuple(choices), low, high, {})

    def _conditions(
        self, path: str, entry: Entry, free: dict[str, Dimension]
    ) -> dict[str, list[Any]]:
        conditions = {}
        for other, given in entry.when.items():
            where = f"tune.space: {path}: when {other}"
            if other not in free:
                raise ConfigError(f"{where}: no field of the space; {_nearest(other, free)}")
            if free[other].kind.endswith("uniform"):
                raise ConfigError(f"{where}: a range of numbers; `when` needs a choice or int")
            values = given if isinstance(given, list) else [given]
            conditions[other] = [self._value(other, value) for value in values]
            never = [value for value in conditions[other] if value not in free[other].values()]
            if never or not values:
                raise ConfigError(f"{where}: it is never {never[0] if never else 'one of []'}")
        return conditions

    def _value(self, path: str, value: Any) -> Any:
        """`value` as the config holds it; whether it fits the other fields is not asked.

        Raises:
            ConfigError: the field does not take it.
        """
        values = put(self._plain, path, value)
        parts = tuple(path.split("."))
        try:
            config = RunConfig.model_validate(values)
        except ValidationError as error:
            if any(item["loc"][: len(parts)] == parts for item in error.errors()):
                parse(RunConfig, values, name="tune.space")
            field = TypeAdapter(_annotation(path, self._base))
            try:
                return field.dump_python(field.validate_python(value), mode="json")
            except ValidationError:
                # an option of a model is told with all of them
                parse(RunConfig, values, name="tune.space")
        return next(leaf.value for leaf in leaves(config) if leaf.path == path)


def quick(base: RunConfig) -> RunConfig:
    """`base` with the paper's space: heads that divide its width, up to 6 layers, learning rate.

    A model without heads has no heads to try.
    """
    hops = len(base.loader.num_neighbors)
    space = {
        "model.heads": {"choice": [h for h in (1, 2, 4, 8, 16) if base.model.hidden % h == 0]},
        # fewer layers than hops are no valid config
        "model.layers": {"int": [hops, max(6, hops)]},
        "optim.lr": {"loguniform": [1e-4, 1e-2]},
    }
    if "heads" in base.model.options.unread:
        del space["model.heads"]
    return parse(RunConfig, put(base.dump(), "tune.space", space))


def _check_path(path: str, base: RunConfig) -> None:
    runtime = {leaf.path: leaf.runtime for leaf in leaves(base)}
    # the leaf itself, or the one whose value it is a part of
    leaf = next((known for known in runtime if f"{path}.".startswith(f"{known}.")), None)
    if leaf is None:
        known = [name for name in runtime if not runtime[name] and name not in _FIXED]
        raise ConfigError(f"tune.space: unknown field {path!r}; {_nearest(path, known)}")
    if runtime[leaf]:
        raise ConfigError(
            f"tune.space: {path} cannot be tried: it says where or how trials run, not what they "
            "learn"
        )
    if leaf != path:
        raise ConfigError(f"tune.space: {path} is a part of {leaf}; give whole values of {leaf}")
    if path in _FIXED:
        raise ConfigError(f"tune.space: {path} cannot be tried: {_FIXED[path]}")
    scheduler = base.tune.scheduler
    if path in _EPOCHS and scheduler != "none":
        raise ConfigError(
            f"tune.space: {path}: scheduler {scheduler} compares trials after as many epochs; use "
            "scheduler none"
        )
    changeable = path in _CHANGEABLE or (path.startswith("optim.") and path not in _STATE)
    if scheduler == "pbt" and not changeable:
        raise ConfigError(
            f"tune.space: {path}: scheduler pbt changes a running trial's {', '.join(_CHANGEABLE)} "
            f"and optim, but {' and '.join(_STATE)}; use another scheduler for other fields"
        )


def _nearest(path: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _annotation(path: str, base: RunConfig) -> Any:
    """The type of a field, with its bounds."""
    value: Any = base
    for part in path.split("."):
        fields = type(value).model_fields.items()
        name, field = next(item for item in fields if (item[1].alias or item[0]) == part)
        value = getattr(value, name)
    return field.rebuild_annotation()


def _conditions_first(dimensions: dict[str, Dimension]) -> Iterator[Dimension]:
    """The dimensions as they are given, but each after those that its `when` names."""
    left, done = dict(dimensions), set[str]()
    while left:
        ready = next((path for path, one in left.items() if one.when.keys() <= done), None)
        if ready is None:
            raise ConfigError(f"tune.space: `when` leads in a circle, or to one: {', '.join(left)}")
        done.add(ready)
        yield left.pop(ready)


def _combinations(dimensions: tuple[Dimension, ...], params: Params) -> Iterator[Params]:
    if not dimensions:
        yield params
        return
    first, *rest = dimensions
    if not first.holds(params):
        yield from _combinations(tuple(rest), params)
        return
    for value in first.values():
        yield from _combinations(tuple(rest), {**params, first.path: value})
