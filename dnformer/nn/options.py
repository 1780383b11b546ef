"""Checks of the settings that the modules take as words."""

from collections.abc import Iterable

from dnformer.errors import ConfigError


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises where `value` is not one of `allowed`.

    Raises:
        ConfigError: names the setting, its value and what is allowed.
    """
    allowed = tuple(allowed)
    if value not in allowed:
        raise ConfigError(f"{name} = {value!r} is not one of {', '.join(allowed)}")


def check_share(name: str, value: float) -> None:
    """Raises where a share of dropout is outside 0 <= value < 1.

    Raises:
        ConfigError: names the setting and its value.
    """
    if not 0 <= value < 1:
        raise ConfigError(f"{name} = {value} is outside 0 <= {name} < 1")
