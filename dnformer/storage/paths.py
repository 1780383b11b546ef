"""URIs as text: which store a file is on, and names inside a folder."""

from pathlib import Path, PurePosixPath

from dnformer.errors import ConfigError, DataError


def absolute(uri: str | Path) -> str:
    """`uri` with a relative local path made absolute: workers do not share our working folder.

    Raises:
        ConfigError: nothing follows the protocol.
    """
    text = str(uri)
    if is_local(text):
        return str(Path(text.removeprefix("file://")).expanduser().resolve())
    if not text.split("://", 1)[1].strip("/"):
        raise ConfigError(f"{text} names no bucket or folder; expected protocol://bucket/folder")
    return text.rstrip("/")


def is_local(uri: str) -> bool:
    """Whether `uri` is a path on this machine."""
    return "://" not in uri or uri.startswith("file://")


def join(folder: str, name: str) -> str:
    """The URI of `name` inside `folder`; a name that leads outside is refused.

    Raises:
        DataError: `name` is empty, absolute, has a `..` or a backslash.
    """
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "://" in name:
        raise DataError(f"file name {name!r} leads outside {folder}; only names inside are read")
    return f"{folder.rstrip('/')}/{path}"


def protocol_of(uri: str) -> str:
    """`s3` of `s3://bucket/x`."""
    return uri.split("://")[0]


def root_of(uri: str) -> str:
    """What is reached or not as one: the bucket or server of `uri`, or a local path itself."""
    if is_local(uri):
        return uri
    protocol, rest = uri.split("://", 1)
    return f"{protocol}://{rest.split('/')[0]}"
