"""Writes docs/cli.md and docs/config.md from the code: `make docs`."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dnformer.cli import app
from dnformer.config.fields import Field, fields

_FOLDER = Path(__file__).parent
_NOTE = "<!-- written by docs/generate.py: make docs -->"
_EXIT_CODES = """\
| exit code | what happened |
|---|---|
| 0 | done |
| 1 | a run that had started failed; `doctor`: training would not work here |
| 2 | a mistake in the command, a config or the data: one line on stderr, with what mends it |
| 130 | stopped by Ctrl-C; a run saved its state, and the same command goes on |
| 143 | stopped by SIGTERM, likewise |

Results go to stdout, everything else to stderr. `--json` prints one object on stdout, `--quiet`
keeps warnings and errors alone on stderr. `dnformer --install-completion` teaches the shell
commands, options, folders of runs and the fields that `--set` takes.
"""
_CONFIG = """\
A run's YAML holds what differs from these defaults; `--set PATH=VALUE` sets one of them on the
command line. `dnformer init URI` writes a file that fits a dataset.

A field of kind *identity* decides what a run computes: another value is another run, and is refused
under the same name. *runtime* fields may differ from start to start. In `tune` the identity is the
search's.
"""


def cli() -> str:
    """The reference of all commands, in Markdown."""
    parts = [_NOTE, "# Commands", _EXIT_CODES]
    root = typer.main.get_command(app)
    for words, command in _commands(root, "dnformer"):
        parts.append(f"## {words}\n\n{inspect.cleandoc(command.help or '')}")
        parts.append(f"```\n{_usage(words, command)}\n```")
        rows = [row for each in command.params for row in _parameter(each)]
        if rows:
            parts.append("\n".join(["| | | default |", "|---|---|---|", *rows]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """(words, command) of each command that does something."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{words} {name}")
    if not hasattr(command, "commands"):
        yield words, command


def _usage(words: str, command: Any) -> str:
    arguments = [
        f"[{_metavar(each)}]" if not each.required else _metavar(each)
        for each in command.params
        if each.param_type_name == "argument"
    ]
    needed = [
        f"{each.opts[0]} {_metavar(each)}"
        for each in command.params
        if each.param_type_name == "option" and each.required
    ]
    return " ".join([words, *arguments, *needed, "[OPTIONS]"])


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name).upper()


def _parameter(parameter: Any) -> Iterator[str]:
    if parameter.name in ("help", "quiet", "as_json"):
        return
    if parameter.param_type_name == "argument":
        name = f"`{_metavar(parameter)}`"
    else:
        takes = "" if parameter.is_flag else f" {_metavar(parameter)}"
        name = f"`{', '.join(sorted(parameter.opts, key=len, reverse=True))}{takes}`"
    plain = parameter.default not in (None, False, (), []) and not callable(parameter.default)
    default = f"`{parameter.default}`" if plain else "required" if parameter.required else ""
    yield f"| {_cell(name)} | {_cell(getattr(parameter, 'help', '') or '')} | {_cell(default)} |"


def config() -> str:
    """The reference of all fields of a run's config, in Markdown."""
    parts = [_NOTE, "# Fields of a run's config", _CONFIG]
    by_head: dict[str, list[Field]] = {}
    for field in fields():
        head = field.path.partition(".")[0] if "." in field.path else ""
        by_head.setdefault(head, []).append(field)
    for head, found in by_head.items():
        outer = next(field.section for field in found)
        parts.append(f"## {head or 'The run'}\n\n{inspect.cleandoc(outer.__doc__ or '')}")
        rows = ["| field | values | default | kind | |", "|---|---|---|---|---|"]
        parts.append("\n".join([*rows, *map(_field, found)]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _field(field: Field) -> str:
    default = "required" if field.default is None else f"`{field.default}`"
    kind = "runtime" if field.runtime else "identity"
    cells = (f"`{field.path}`", field.values, default, kind, field.description)
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Writes both files."""
    for name, text in (("cli.md", cli()), ("config.md", config())):
        (_FOLDER / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}", file=sys.stderr)


if __name__ == "__main__":
    main()
