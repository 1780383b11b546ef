"""Reading, writing and listing: each with patience, each write whole or not at all."""

import errno
import hashlib
import io
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from fsspec.implementations.local import LocalFileSystem

from dnformer.errors import DataError
from dnformer.storage.connect import attempt, filesystem, patience
from dnformer.storage.faults import redacted
from dnformer.storage.paths import absolute, is_local, protocol_of
from dnformer.storage.remote_file import RemoteReader
from dnformer.temporary import temporary_folder

_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT}


def _kind(fs: Any, path: str) -> str | None:
    """What is there, "file", "directory" or None; fsspec's `isfile` hides an unreachable store."""
    try:
        return str(fs.info(path)["type"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def _missing(uri: str) -> DataError:
    return DataError(f"{redacted(uri)}: no such file")


def exists(uri: str) -> bool:
    """Whether a file or folder is there."""
    return attempt(uri, _kind) is not None


def is_folder(uri: str) -> bool:
    """Whether a folder is there; a store that has none says so of the beginning of a name."""
    return attempt(uri, _kind) == "directory"


def total_bytes(folder: str) -> int:
    """Bytes of all files inside `folder`; 0 where it is missing."""
    return attempt(folder, _total_bytes)


def _total_bytes(fs: Any, path: str) -> int:
    try:
        return int(fs.du(path))
    except (FileNotFoundError, NotADirectoryError):
        return 0


def size(uri: str) -> int:
    """Bytes of a file."""
    return attempt(uri, lambda fs, path: int(fs.size(path)))


def modified(uri: str) -> float | None:
    """Seconds since 1970 at which a file was written, by the clock of whoever keeps it.

    None where that is not told.
    """
    if is_local(uri):
        # that of the server, where it is a network file system
        return Path(uri).stat().st_mtime
    try:
        return attempt(uri, lambda fs, path: float(fs.modified(path).timestamp()))
    except (AttributeError, NotImplementedError):
        return None


def content_id(uri: str) -> str:
    """Equal for equal content: the store's own tag and the size where it has one, else a hash.

    Raises:
        DataError: there is no such file.
    """
    try:
        return attempt(uri, _content_id)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise _missing(uri) from None


def _content_id(fs: Any, path: str) -> str:
    info = fs.info(path)
    tag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
    if tag:
        return f"{tag} {info['size']}"
    with fs.open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_read(uri: str) -> BinaryIO:
    """A binary file object to read and seek in; the caller closes it.

    Raises:
        DataError: there is no such file.
    """
    try:
        file = attempt(uri, lambda fs, path: fs.open(path, "rb"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise _missing(uri) from None
    if is_local(uri):
        return cast(BinaryIO, file)
    return cast(BinaryIO, io.BufferedReader(RemoteReader(file, uri, patience())))


def read_bytes(uri: str) -> bytes:
    """The content of a file.

    Raises:
        DataError: there is no such file.
    """
    try:
        # one request, in which an object that is replaced is not read half and half; s3fs
        # takes more than 50 MB in several
        return attempt(uri, lambda fs, path: bytes(fs.cat_file(path)))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise _missing(uri) from None


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
    with filesystem(uri) as (fs, path):
        local = isinstance(fs, LocalFileSystem)
    if local:
        with _naming(redacted(uri)), _staged_locally(Path(path)) as temporary:
            yield temporary
        return
    with temporary_folder(temp) as folder:
        temporary = folder / "object"
        with _naming(str(folder)):
            yield temporary
        attempt(uri, lambda fs, path: fs.put_file(str(temporary), path))


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


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Errors of the system in the block name a file: writing to an open one, it names none."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        number = error.errno or errno.EIO
        raise OSError(number, str(error.strerror or error), name) from None


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
    if attempt(uri, _kind) != "file":
        raise _missing(uri)
    if is_local(uri):
        yield Path(absolute(uri))
        return
    with temporary_folder() as folder:
        copy = folder / "object"

        def download(fs: Any, path: str) -> None:
            try:
                fs.get_file(path, str(copy))
            except OSError as error:
                if error.errno not in _DISK_IS_FULL:
                    raise
                # ours, not the store's
                raise OSError(error.errno, error.strerror, str(folder)) from None

        attempt(uri, download)
        yield copy


def write_bytes(uri: str, data: bytes) -> None:
    """Publishes `data` as the content of `uri`, whole or not at all."""
    with staged(uri) as path:
        path.write_bytes(data)


def list_names(folder: str) -> list[str]:
    """Sorted names of the files and folders directly inside `folder`; empty where it is missing."""
    return attempt(folder, _names)


def _names(fs: Any, path: str) -> list[str]:
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
    found = attempt(pattern, lambda fs, path: sorted(fs.glob(path)))
    if not found:
        raise DataError(f"{pattern}: no file matches")
    prefix = "" if is_local(pattern) else f"{protocol_of(pattern)}://"
    return [f"{prefix}{str(name).lstrip('/') if prefix else name}" for name in found]


def remove(uri: str) -> None:
    """Removes a file, or a folder with all it holds; a missing one is no error."""
    attempt(uri, _remove)


def _remove(fs: Any, path: str) -> None:
    # another process may remove the same
    with suppress(FileNotFoundError):
        kind = _kind(fs, path)
        if kind == "file":
            # without a listing, which may not be allowed
            fs.rm_file(path)
        elif kind is not None:
            fs.rm(path, recursive=True)


def remove_unfinished(folder: str) -> None:
    """Removes what killed processes left of writes inside a local `folder`; elsewhere is nothing.

    A process that is still writing one fails.
    """
    if is_local(folder):
        for path in Path(absolute(folder)).rglob(".*.tmp"):
            if re.fullmatch(r"\..+\.[0-9a-f]{8}\.tmp", path.name):
                path.unlink(missing_ok=True)


def remove_empty(folder: str) -> None:
    """Removes a local folder if it is empty; other stores have none."""
    if is_local(folder):
        with suppress(OSError):
            Path(absolute(folder)).rmdir()
