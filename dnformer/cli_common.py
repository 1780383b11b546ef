"""What the commands share: options, a word to who waits, files that the user named."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from dnformer.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Set a config field; may be repeated."),
]

_SPLITS: dict[str, Any] = {
    "random": {"random": [0.6, 0.2, 0.2]},
    "per_class": {"per_class": [0.6, 0.2, 0.2]},
    "time": {"time": [0.6, 0.2, 0.2]},
    "planetoid": {"planetoid": 20},
    "column": {"column": True},
}


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def job_arguments(command: str, given: Sequence[str]) -> Iterator[str]:
    """An entry script's words, a config and more, for `command`: `path=value` is a setting."""
    yield command
    yield from given[:1]
    for text in given[1:]:
        if not text.startswith("-"):
            yield "--set"
        yield text
    yield "--json"


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """Says what is going on where a person waits."""
    if sys.stderr.isatty():
        with Console(stderr=True).status(text):
            yield
    else:
        say(text)
        yield


def read_text(path: str) -> str:
    """The content of a local file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def split_value(text: str | None) -> Any:
    """What `--split` means, as `SplitConfig` takes it.

    Raises:
        ConfigError: it is neither a name nor a mapping.
    """
    if text is None or text in _SPLITS:
        return _SPLITS.get(text) if text else None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"--split {text}: expected {', '.join(_SPLITS)}, or '{{random: [..]}}'")
    return value
