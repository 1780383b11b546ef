"""Sections of settings: plain mappings in, validated frozen sections out, one-line errors.

YAML holds only what differs from the defaults; `--set a.b=value` overrides by dotted path.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.config import JsonDict

from dnformer.errors import ConfigError

# tags a field that does not decide what a run computes
RUNTIME: JsonDict = {"runtime": True}


class Section(BaseModel):
    """Base of every section: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False
    )
    # a section whose settings stand or fall together counts as one value
    one_value: ClassVar[bool] = False


class Leaf(NamedTuple):
    """A field that is no section: its dotted path, its plain value, and whether it is runtime."""

    path: str
    value: Any
    runtime: bool


def leaves(section: Section, prefix: str = "") -> Iterator[Leaf]:
    """Every field below `section` that is no section itself."""
    plain = section.model_dump(mode="json", by_alias=True)
    for name, field in type(section).model_fields.items():
        key, value = field.alias or name, getattr(section, name)
        if isinstance(value, Section) and not value.one_value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            extra = field.json_schema_extra
            runtime = isinstance(extra, dict) and extra.get("runtime") is True
            yield Leaf(prefix + key, plain[key], runtime)


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


def put_all(values: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `values` with each value of `settings` at its dotted path; see `put`."""
    for path, value in settings.items():
        values = put(values, path, value)
    return values


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse(section: type[Parsed], values: dict[str, Any], *, name: str = "config") -> Parsed:
    """`values` as a validated section.

    Raises:
        ConfigError: one line with each wrong key or value, and the nearest key to an unknown one.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{name}: {problems(section, error)}") from None


def problems(section: type[BaseModel], error: ValidationError) -> str:
    """Each wrong key or value that `error` found in a `section`, in one line."""
    return "; ".join(sorted({_describe(section, item) for item in error.errors()}))


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of `known` that an unknown name is likely to stand for, else all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"allowed here: {', '.join(known)}"


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
    return nearest(location[-1], [f.alias or n for n, f in section.model_fields.items()])
