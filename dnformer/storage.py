"""Files anywhere: one door to fsspec, with publishing that is whole or not at all.

A URI is a local path, or anything fsspec knows (`s3://bucket/x`, `gs://bucket/x`, `memory://x`).
Credentials and endpoints come from the environment, as each store's own client reads them.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from filelock import FileLock
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dnformer.errors import BackendError, ConfigError, DataError

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def absolute(uri: str | Path) -> str:
    """`uri` with a relative local path made absolute: workers do not share our working folder."""
    text = str(uri)
    if "://" in text:
        return text.removeprefix("file://").rstrip("/") if is_local(text) else text.rstrip("/")
    return str(Path(text).expanduser().resolve())


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


def _filesystem(uri: str) -> tuple[Any, str]:
    try:
        # listings that another process changed must not come from a cache
        fs, path = url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        protocol = uri.split("://")[0]
        extra = _EXTRAS.get(protocol)
        mend = f"pip install 'dnformer[{extra}]'" if extra else str(error)
        raise BackendError(f"{protocol}:// needs a library that is not installed: {mend}") from None
    except ValueError as error:
        raise ConfigError(f"{uri}: {error}") from None
    return fs, path


def exists(uri: str) -> bool:
    """Whether a file or folder is there."""
    fs, path = _filesystem(uri)
    return bool(fs.exists(path))


def size(uri: str) -> int:
    """Bytes of a file."""
    fs, path = _filesystem(uri)
    return int(fs.size(path))


def open_read(uri: str) -> BinaryIO:
    """A binary file object to read and seek in; the caller closes it.

    Raises:
        DataError: there is no such file.
    """
    fs, path = _filesystem(uri)
    try:
        return cast(BinaryIO, fs.open(path, "rb"))
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(f"{uri}: no such file") from None


def read_bytes(uri: str) -> bytes:
    """The content of a file.

    Raises:
        DataError: there is no such file.
    """
    with open_read(uri) as file:
        return file.read()


def read_if_exists(uri: str) -> bytes | None:
    """The content of a file, or None where there is none."""
    try:
        return read_bytes(uri)
    except DataError:
        return None


@contextmanager
def staged(uri: str) -> Iterator[Path]:
    """A local path to write; it becomes `uri` when the block ends well, and vanishes otherwise.

    Local files are synced and renamed, others put as one object: a reader sees all or nothing.
    """
    fs, path = _filesystem(uri)
    if isinstance(fs, LocalFileSystem):
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            yield temporary
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)
        finally:
            temporary.unlink(missing_ok=True)
        return
    with tempfile.TemporaryDirectory(prefix="dnformer-") as folder:
        temporary = Path(folder) / "object"
        yield temporary
        fs.put_file(str(temporary), path)


def sync(path: Path) -> None:
    """Waits until a local file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def fetched(uri: str) -> Iterator[Path]:
    """A local path with the content of `uri`: the file itself, or a copy while the block runs.

    Raises:
        DataError: there is no such file.
    """
    fs, path = _filesystem(uri)
    if not fs.isfile(path):
        raise DataError(f"{uri}: no such file")
    if isinstance(fs, LocalFileSystem):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="dnformer-") as folder:
        copy = Path(folder) / "object"
        fs.get_file(path, str(copy))
        yield copy


def write_bytes(uri: str, data: bytes) -> None:
    """Publishes `data` as the content of `uri`, whole or not at all."""
    with staged(uri) as path:
        path.write_bytes(data)


def compare_and_put(uri: str, data: bytes, *, expected: bytes | None) -> bool:
    """Publishes `data` if `uri` still holds `expected` (None: is not there yet).

    Local files are compared under a lock, S3 objects by the store's own conditional put.
    Elsewhere the compare and the put are two calls, and the last of two racers wins.

    Returns:
        Whether it was published.
    """
    fs, path = _filesystem(uri)
    if isinstance(fs, LocalFileSystem):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):
            return _compare_and_put(uri, data, expected)
    if "s3" not in fs.protocol:
        return _compare_and_put(uri, data, expected)
    if expected is None:
        condition = {"IfNoneMatch": "*"}
    else:
        etag = fs.info(path)["ETag"]
        condition = {"IfMatch": etag}
        if read_if_exists(uri) != expected:
            return False
    try:
        fs.pipe_file(path, data, **condition)
    except (OSError, FileExistsError):
        # s3fs turns 'PreconditionFailed' into an OSError; any other failure shows on reading back
        return read_if_exists(uri) == data
    return True


def _compare_and_put(uri: str, data: bytes, expected: bytes | None) -> bool:
    if read_if_exists(uri) != expected:
        return False
    write_bytes(uri, data)
    return True


def list_names(folder: str) -> list[str]:
    """Sorted names of the files and folders directly inside `folder`; empty where it is missing."""
    fs, path = _filesystem(folder)
    try:
        entries = fs.ls(path, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = {PurePosixPath(entry).name for entry in entries}
    return sorted(names - {PurePosixPath(path).name} if "://" in folder else names)


def glob(pattern: str) -> list[str]:
    """Sorted URIs that match `pattern` (`*`, `?`, `[..]`); the pattern itself where it has none.

    Raises:
        DataError: nothing matches.
    """
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    fs, path = _filesystem(pattern)
    found = sorted(fs.glob(path))
    if not found:
        raise DataError(f"{pattern}: no file matches")
    prefix = "" if is_local(pattern) else pattern.split("://")[0] + "://"
    return [f"{prefix}{str(name).lstrip('/') if prefix else name}" for name in found]


def remove(uri: str) -> None:
    """Removes a file, or a folder with all it holds; a missing one is no error."""
    fs, path = _filesystem(uri)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def arrow_filesystem(uri: str) -> tuple[Any, str]:
    """`uri` as pyarrow's (filesystem, path): the same store, for libraries that take Arrow's."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    fs, path = _filesystem(uri)
    return PyFileSystem(FSSpecHandler(fs)), path
