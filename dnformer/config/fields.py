"""What fields a run's config has, in words: for the reference and for `dnformer init`."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from dnformer.config import RunConfig
from dnformer.config.zoo import OPTIONS
from dnformer.parsing import Section


class Field(NamedTuple):
    """A field of the config.

    Attributes:
        path: dotted, as `--set` takes it; a part in angle brackets stands for any.
        values: what it takes.
        default: as YAML has it; None: it is required.
        runtime: whether it decides nothing of what a run computes.
        description: of the field.
        section: the class of its section.
    """

    path: str
    values: str
    default: str | None
    runtime: bool
    description: str
    section: type[BaseModel]


def fields(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[Field]:
    """Every field below `section`, those of all models' `model.options` among them."""
    for name, info in section.model_fields.items():
        path = prefix + (info.alias or name)
        if path == "model.options":
            for model, options in OPTIONS.items():
                yield from _with_model(fields(options, f"{path}."), model)
            continue
        inner = _section_of(info.annotation)
        # a mapping that may be missing is a field of its own
        if inner is None or inner is not info.annotation:
            yield Field(
                path,
                _type(info),
                _default(info),
                _is_runtime(info),
                info.description or "",
                section,
            )
        if inner is not None:
            key = ".<field>." if get_origin(info.annotation) is dict else "."
            yield from fields(inner, path + key)


def _with_model(found: Iterator[Field], model: str) -> Iterator[Field]:
    for each in found:
        yield each._replace(description=f"{model}: {each.description}")


def _is_runtime(info: FieldInfo) -> bool:
    extra = info.json_schema_extra
    return isinstance(extra, dict) and extra.get("runtime") is True


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds, alone, or None beside it, or as the values of a mapping."""
    options = get_args(annotation) or (annotation,)
    found = [each for each in options if isinstance(each, type) and issubclass(each, Section)]
    return found[0] if found else None


def _default(info: FieldInfo) -> str | None:
    value = info.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return None
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value).replace("'", "")


def _type(info: FieldInfo) -> str:
    limits = [
        f"{sign} {getattr(each, name):g}"
        for each in info.metadata
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if hasattr(each, name)
    ]
    return " ".join([_words(info.annotation), *limits])


_PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0])
    if origin is Literal:
        return " | ".join(str(value).lower() for value in arguments)
    if origin in (Union, UnionType):
        return " | ".join(_words(each) for each in arguments)
    if origin is list:
        return f"list of {_words(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(_words(each) for each in arguments)}]"
    if annotation is NoneType:
        return "null"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    return _PLAIN.get(annotation, str(annotation))
