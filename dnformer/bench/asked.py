"""What a person may ask of a bench: its cases by name, and a draft to race against."""

import difflib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dnformer.errors import ConfigError

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def check_cases(names: Sequence[str], cases: Collection[str]) -> None:
    """Refuses a name that is none of `cases`.

    Raises:
        ConfigError: with the nearest case.
    """
    for name in names:
        if name not in cases:
            near = difflib.get_close_matches(name, cases, n=1, cutoff=0.3)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(cases)}"
            raise ConfigError(f"no case {name!r}; {advice}")


def draft(path: str, functions: Sequence[str]) -> Any:
    """The Python file at `path` as a module, which has `functions`.

    Raises:
        ConfigError: there is no such file, or it lacks one.
    """
    if not Path(path).is_file():
        raise ConfigError(f"--yardstick {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"dnformer_yardstick_{functions[0]}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--yardstick {path}: is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in functions:
        if name not in vars(module):
            raise ConfigError(f"--yardstick {path}: has no function {name}")
    return module


def in_turn(
    cases: Mapping[str, Callable[[str, Asked], Found]],
    names: Sequence[str],
    settings: Asked,
    say: Callable[[str], None],
) -> Iterator[Found]:
    """What the cases `names` find, each run when it is asked for."""
    for place, name in enumerate(names, start=1):
        say(f"case {name} ({place} of {len(names)})")
        yield cases[name](name, settings)
