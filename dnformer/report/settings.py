"""The section on a run's config and versions: what differs from the defaults first."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import yaml

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.parsing import leaves
from dnformer.report.page import Block, Column, Facts, Folded, Section, Table, Words

_LIBRARIES = ("dnformer", "torch", "torch_geometric", "numpy")


def settings(config: RunConfig, trained_with: dict[str, str]) -> Section:
    """What a run was asked for, and the versions it trained with.

    Args:
        config: of the run.
        trained_with: versions by library, as the run noted them.
    """
    values, defaults = _values(config), config.defaults()
    rows = [
        [path, written(_given(value)), written(_given(clean(defaults[path])))]
        for path, value in values.items()
        if path not in defaults or value != clean(defaults[path])
    ]
    whole = yaml.safe_dump(clean(config.dump()), sort_keys=False, allow_unicode=True)
    columns = [Column("field"), Column("value"), Column("default")]
    here = [(f"{name} of this page", version(name)) for name in _LIBRARIES]
    noted = [(f"{name} of the training", text) for name, text in trained_with.items()]
    blocks: list[Block] = [
        Table("settings", "What differs from the defaults", columns, rows),
        Folded("The whole config", whole),
        Facts("versions", [], [*noted, *here, ("Python of this page", platform.python_version())]),
    ]
    return Section("config", "Config and versions", blocks)


def differences(configs: Sequence[tuple[str, RunConfig]]) -> Section:
    """The fields in which runs differ.

    Args:
        configs: names of the runs, each with its config.
    """
    values = [_values(config) for _, config in configs]
    paths = dict.fromkeys(path for each in values for path in each)
    differing = [
        path for path in paths
        if path != "name" and any(each.get(path) != values[0].get(path) for each in values)
    ]  # fmt: skip
    if not differing:
        return Section("config", "Config", [Words("All have the same config.")])
    columns = [Column("field"), *(Column(name) for name, _ in configs)]
    rows = [[path, *(written(each.get(path)) for each in values)] for path in differing]
    return Section("config", "Config", [Table("settings", "Where they differ", columns, rows)])


def _values(config: RunConfig) -> dict[str, Any]:
    """By dotted path, as it may be shown."""
    return {leaf.path: clean(leaf.value) for leaf in leaves(config)}


def clean(value: Any) -> Any:
    """`value` without passwords in addresses; a config takes no other credentials."""
    if isinstance(value, dict):
        return {key: clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [clean(each) for each in value]
    return storage.redacted(value) if isinstance(value, str) else value


def _given(value: Any) -> Any:
    """`value` without what is null or empty in it: a search's space has much of that."""
    if isinstance(value, dict):
        return {key: _given(each) for key, each in value.items() if each not in (None, {})}
    return value


def written(value: Any) -> str:
    """A setting as YAML has it, in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")
