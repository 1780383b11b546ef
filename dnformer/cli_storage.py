"""The command line's word on how stores are reached: `--storage-option`."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
import yaml

from dnformer.config import StorageConfig
from dnformer.errors import ConfigError
from dnformer.parsing import parse, put

StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="PROTOCOL.NAME=VALUE",
        help="How a store is reached, as in s3.endpoint_url=http://host:9000; may be repeated. "
        "Credentials come from the environment.",
    ),
]


def configure_storage(
    options: Sequence[str] | None, *, retry_s: float = StorageConfig().retry_s
) -> StorageConfig:
    """Sets how this process reaches stores, and gives it.

    Args:
        options: as `--storage-option` gives them.
        retry_s: as `storage.retry_s`.

    Raises:
        ConfigError: an option is a credential, or not of this form.
    """
    from dnformer import storage

    values: dict[str, Any] = {}
    for option in options or []:
        path, equals, text = option.partition("=")
        if not equals or not all(path.partition(".")):
            raise ConfigError(
                f"--storage-option {path}: expected PROTOCOL.NAME=VALUE, as in "
                "s3.endpoint_url=http://host:9000"
            )
        try:
            values = put(values, path, yaml.safe_load(text))
        except yaml.YAMLError:
            raise ConfigError(f"--storage-option {path}: its value is no valid YAML") from None
    config = parse(StorageConfig, {"options": values, "retry_s": retry_s}, name="--storage-option")
    storage.configure(config)
    return config
