"""Publishing only over what was expected: the compare and the put as one, where a store can."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from fsspec.implementations.local import LocalFileSystem

from dnformer.storage.connect import EXTRAS, attempt, filesystem
from dnformer.storage.faults import store_code
from dnformer.storage.files import read_if_exists, write_bytes
from dnformer.storage.paths import protocol_of

Version = str | None
Put = Callable[[Any, str, bytes, Version], bool]

# how S3 says that the object is not, or no longer, what a conditional put expected
_LOST = {"PreconditionFailed", "NoSuchKey"}


def compare_and_put(uri: str, data: bytes, *, expected: bytes | None) -> bool:
    """Publishes `data` if `uri` still holds `expected` (None: is not there yet).

    Local files are compared under a lock, objects on S3 and GCS by the store's own conditional put.
    Elsewhere the compare and the put are two calls, and the last of two racers wins.

    Args:
        uri: of the file.
        data: nobody else's: by it this writer knows its own put again whose answer got lost.
        expected: what is there.

    Returns:
        Whether it was published, and nobody has published over it meanwhile.
    """
    with filesystem(uri) as (fs, path):
        if isinstance(fs, LocalFileSystem):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{path}.lock"):
                return _compare_and_put(uri, data, expected)
    kind = EXTRAS.get(protocol_of(uri))
    if kind == "s3":
        return put_over_version(uri, data, expected, version=_s3_tag, put=_put_on_s3)
    if kind == "gcs":
        return put_over_version(uri, data, expected, version=_gcs_generation, put=_put_on_gcs)
    return _compare_and_put(uri, data, expected)


def _compare_and_put(uri: str, data: bytes, expected: bytes | None) -> bool:
    if read_if_exists(uri) != expected:
        return False
    write_bytes(uri, data)
    return True


def put_over_version(
    uri: str,
    data: bytes,
    expected: bytes | None,
    *,
    version: Callable[[Any, str], Version],
    put: Put,
) -> bool:
    """`compare_and_put` where the store takes a put under the condition of a version.

    Args:
        uri: of the file.
        data: to publish.
        expected: what is there.
        version: of (filesystem, path): its version, None where there is none.
        put: of (filesystem, path, data, version): whether it was put over that version, None for
            no file at all.
    """
    before: Version = None
    if expected is not None:
        # the version first: what changes after it fails the put
        before = attempt(uri, version)
        if before is None or read_if_exists(uri) != expected:
            return False
    # repeated under the same condition: over a put of ours whose answer got lost, it fails
    if attempt(uri, lambda fs, path: put(fs, path, data, before)):
        return True
    return read_if_exists(uri) == data


def _s3_tag(fs: Any, path: str) -> Version:
    try:
        tag: Version = fs.info(path).get("ETag")
    except FileNotFoundError:
        return None
    return tag


def _put_on_s3(fs: Any, path: str, data: bytes, tag: Version) -> bool:
    condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
    try:
        fs.pipe_file(path, data, **condition)
    except OSError as error:
        if store_code(error) not in _LOST:
            raise
        return False
    return True


def _gcs_generation(fs: Any, path: str) -> Version:
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return None
    # a folder has none
    return str(info["generation"]) if info.get("generation") else None


def _put_on_gcs(fs: Any, path: str, data: bytes, generation: Version) -> bool:
    bucket, key, _ = fs.split_path(path)
    boundary = uuid.uuid4().hex
    parts = (
        f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{json.dumps({'name': key})}\r\n"
        f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    try:
        # gcsfs itself has a conditional put for new objects only
        # https://cloud.google.com/storage/docs/json_api/v1/objects/insert
        fs.call(
            "POST",
            f"{fs.base.replace('/storage/v1/', '/upload/storage/v1/')}b/{bucket}/o",
            uploadType="multipart",
            ifGenerationMatch=generation or "0",
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            data=parts.encode() + data + f"\r\n--{boundary}--".encode(),
        )
    except FileExistsError:  # how gcsfs says "precondition failed"
        return False
    except FileNotFoundError:
        if generation is None:  # no such bucket
            raise
        return False
    return True
