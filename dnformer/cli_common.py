"""What the commands share: options, a word to who waits, files that the user named."""

import functools
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Annotated, Any, TextIO, final

import typer
import yaml
from rich.console import Console

from dnformer.config import DataConfig, RunConfig, SplitConfig
from dnformer.errors import ConfigError
from dnformer.parsing import leaves, parse


def run_folders(incomplete: str) -> list[str]:
    """What a shell offers for a RUN: local runs, and the folders on the way to them."""
    folder = Path(incomplete if incomplete.endswith("/") else incomplete.rpartition("/")[0])
    given = incomplete[: incomplete.rfind("/") + 1]
    names = sorted(path.name for path in folder.glob("[!.]*/"))
    return [given + name for name in names if (given + name).startswith(incomplete)]


def setting_names(incomplete: str) -> list[str]:
    """What a shell offers for `--set`: the fields of a run's config."""
    plain = RunConfig(name="x", data=DataConfig(uri="x"))
    return [f"{leaf.path}=" for leaf in leaves(plain) if leaf.path.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing but warnings, errors and the result.")
]
RunFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Folder of a run: STORAGE_PATH/NAME.", autocompletion=run_folders
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set a config field; may be repeated.",
        autocompletion=setting_names,
    ),
]


class Ended(Exception):
    """A command that was stopped on purpose: what is said of how to go on, and the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@final
class _Outcomes(io.TextIOBase):
    """A stderr on which only warnings and errors come through, and nobody draws."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._begun = stream, ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if re.match(r"(warning|error|.*Warning): ", line):
                self._stream.write(f"{line}\n")
        return len(text)

    def fileno(self) -> int:
        return self._stream.fileno()


def with_quiet(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` with the option `--quiet`."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def run(*, quiet: bool, **options: Any) -> Any:
        with redirect_stderr(_Outcomes(sys.stderr)) if quiet else nullcontext():
            return command(**options)

    def own(quiet: Quiet = False) -> None:
        """What every command takes."""

    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for source in (signature, inspect.signature(own))
        for each in source.parameters.values()
    ]
    # typer reads the options there
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


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


def folder_job_arguments(command: str, given: Sequence[str]) -> Iterator[str]:
    """The same for a command that takes its config by an option, and first what it reads."""
    yield command
    for text in given:
        if text.endswith((".yaml", ".yml")) and "=" not in text:
            yield "--config"
        elif "=" in text and not text.startswith("-"):
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
    """What `--split` means: a name of `SplitConfig`'s, or its mapping.

    Raises:
        ConfigError: it is neither.
    """
    if not text:
        return None
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    parse(SplitConfig, value, name=f"--split {text}")
    return value
