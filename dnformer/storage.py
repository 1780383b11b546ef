"""Files anywhere: one door to fsspec, with publishing that is whole or not at all.

A URI is a local path, or anything fsspec knows (`s3://bucket/x`, `gs://bucket/x`, `memory://x`).
Credentials and endpoints come from the environment, as each store's own client reads them.
"""

import errno
import hashlib
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from filelock import FileLock
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dnformer.errors import BackendError, ConfigError, DataError
from dnformer.temporary import temporary_folder

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# what the stores' own clients raise that is no OSError; imported by them, not by us
_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("gcsfs.retry", "HttpError"),
    ("aiohttp", "ClientError"),
)
# s3fs gives the kind of an error without its number, from which Python derives the kind
_NUMBERS: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}
# how S3 says that the object is not, or no longer, what a conditional put expected
_LOST = {"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey"}


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


@contextmanager
def _filesystem(uri: str) -> Iterator[tuple[Any, str]]:
    """(filesystem, path) of `uri` as fsspec has them; what the client raises in the block names it.

    Raises:
        BackendError: the protocol's library is not installed.
        ConfigError: there is no such protocol.
        OSError: the store refuses, or cannot be reached.
    """
    try:
        yield _connect(uri)
    except _client_errors() as error:
        raise OSError(errno.EIO, " ".join(str(error).split()), uri) from None
    except OSError as error:
        if error.filename is not None:
            raise
        number = error.errno or _NUMBERS.get(type(error), errno.EIO)
        raise OSError(number, str(error.strerror or error), uri) from None


def _connect(uri: str) -> tuple[Any, str]:
    try:
        # listings that another process changed must not come from a cache
        fs, path = url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        protocol = _protocol(uri)
        extra = _EXTRAS.get(protocol)
        mend = f"pip install 'dnformer[{extra}]'" if extra else str(error)
        raise BackendError(f"{protocol}:// needs a library that is not installed: {mend}") from None
    except ValueError as error:
        raise ConfigError(f"{uri}: {error}") from None
    return fs, path


def _protocol(uri: str) -> str:
    return uri.split("://")[0]


def _client_errors() -> tuple[type[Exception], ...]:
    found = ((sys.modules.get(module), name) for module, name in _CLIENT_ERRORS)
    return tuple(getattr(module, name) for module, name in found if module is not None)


def _kind(fs: Any, path: str) -> str | None:
    """What is there, "file", "directory" or None; fsspec's `isfile` hides an unreachable store."""
    try:
        return str(fs.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(uri: str) -> bool:
    """Whether a file or folder is there."""
    with _filesystem(uri) as (fs, path):
        return _kind(fs, path) is not None


def size(uri: str) -> int:
    """Bytes of a file."""
    with _filesystem(uri) as (fs, path):
        return int(fs.size(path))


def content_id(uri: str) -> str:
    """Equal for equal content: the store's own tag and the size where it has one, else a hash.

    Raises:
        DataError: there is no such file.
    """
    with _filesystem(uri) as (fs, path):
        try:
            info = fs.info(path)
            tag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
            if tag:
                return f"{tag} {info['size']}"
            with fs.open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (FileNotFoundError, IsADirectoryError):
            raise DataError(f"{uri}: no such file") from None


def open_read(uri: str) -> BinaryIO:
    """A binary file object to read and seek in; the caller closes it.

    Raises:
        DataError: there is no such file.
    """
    with _filesystem(uri) as (fs, path):
        try:
            return cast(BinaryIO, fs.open(path, "rb"))
        except (FileNotFoundError, IsADirectoryError):
            raise DataError(f"{uri}: no such file") from None


def read_bytes(uri: str) -> bytes:
    """The content of a file.

    Raises:
        DataError: there is no such file.
    """
    with _filesystem(uri) as (fs, path):
        try:
            # one request: an object that is replaced meanwhile is never read half and half
            return bytes(fs.cat_file(path))
        except (FileNotFoundError, IsADirectoryError):
            raise DataError(f"{uri}: no such file") from None


def read_if_exists(uri: str) -> bytes | None:
    """The content of a file, or None where there is none."""
    try:
        return read_bytes(uri)
    except DataError:
        return None


@contextmanager
def staged(uri: str, temp: Path | None = None) -> Iterator[Path]:
    """A local path to write; it becomes `uri` when the block ends well, and vanishes otherwise.

    Local files are synced and renamed, others put as one object: a reader sees all or nothing.

    Args:
        uri: of the file.
        temp: local folder for what is put; None: the system's.
    """
    with _filesystem(uri) as (fs, path):
        if isinstance(fs, LocalFileSystem):
            with _staged_locally(Path(path)) as temporary:
                yield temporary
            return
        with temporary_folder(temp) as folder:
            temporary = folder / "object"
            yield temporary
            fs.put_file(str(temporary), path)


@contextmanager
def _staged_locally(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(target)
        sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


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
    with _filesystem(uri) as (fs, path):
        if _kind(fs, path) != "file":
            raise DataError(f"{uri}: no such file")
        if isinstance(fs, LocalFileSystem):
            yield Path(path)
            return
        with temporary_folder() as folder:
            copy = folder / "object"
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
    with _filesystem(uri) as (fs, path):
        if isinstance(fs, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):
                return _compare_and_put(uri, data, expected)
        if _EXTRAS.get(_protocol(uri)) != "s3":
            return _compare_and_put(uri, data, expected)
        return _put_on_s3(fs, path, uri, data, expected)


def _compare_and_put(uri: str, data: bytes, expected: bytes | None) -> bool:
    if read_if_exists(uri) != expected:
        return False
    write_bytes(uri, data)
    return True


def _put_on_s3(fs: Any, path: str, uri: str, data: bytes, expected: bytes | None) -> bool:
    condition = {"IfNoneMatch": "*"}
    if expected is not None:
        # the tag first: what changes after it fails the put
        tag = _s3_tag(fs, path)
        if tag is None or read_if_exists(uri) != expected:
            return False
        condition = {"IfMatch": tag}
    try:
        fs.pipe_file(path, data, **condition)
    except OSError as error:
        if _s3_code(error) not in _LOST:
            raise
        # the client repeats a put whose answer got lost: then the object is ours
        return read_if_exists(uri) == data
    return True


def _s3_tag(fs: Any, path: str) -> str | None:
    try:
        tag: str | None = fs.info(path).get("ETag")
    except FileNotFoundError:
        return None
    return tag


def _s3_code(error: OSError) -> str | None:
    """S3's own code, which s3fs keeps in the error's cause."""
    response: dict[str, Any] = getattr(error.__cause__, "response", {})
    code: str | None = response.get("Error", {}).get("Code")
    return code


def list_names(folder: str) -> list[str]:
    """Sorted names of the files and folders directly inside `folder`; empty where it is missing."""
    with _filesystem(folder) as (fs, path):
        try:
            entries = fs.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
    # stores list a file, or the marker of a folder, as what is inside it
    inside = {PurePosixPath(entry) for entry in entries} - {PurePosixPath(path)}
    return sorted(entry.name for entry in inside)


def glob(pattern: str) -> list[str]:
    """Sorted URIs that match `pattern` (`*`, `?`, `[..]`); the pattern itself where it has none.

    Raises:
        DataError: nothing matches.
    """
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    with _filesystem(pattern) as (fs, path):
        found = sorted(fs.glob(path))
    if not found:
        raise DataError(f"{pattern}: no file matches")
    prefix = "" if is_local(pattern) else f"{_protocol(pattern)}://"
    return [f"{prefix}{str(name).lstrip('/') if prefix else name}" for name in found]


def remove(uri: str) -> None:
    """Removes a file, or a folder with all it holds; a missing one is no error."""
    with _filesystem(uri) as (fs, path):
        if _kind(fs, path) is not None:
            fs.rm(path, recursive=True)


def remove_empty(folder: str) -> None:
    """Removes a local folder if it is empty; other stores have none."""
    if is_local(folder):
        with suppress(OSError):
            Path(absolute(folder)).rmdir()


def arrow_filesystem(uri: str) -> tuple[Any, str]:
    """`uri` as pyarrow's (filesystem, path): the same store, for libraries that take Arrow's."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    fs, path = _connect(uri)
    return PyFileSystem(FSSpecHandler(fs)), path
