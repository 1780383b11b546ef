"""Files anywhere: one door to fsspec, patient with stores, publishing whole or not at all.

A URI is a local path, or anything fsspec knows (`s3://bucket/x`, `gs://bucket/x`, `memory://x`).
Credentials come from the environment alone, as each store's own client reads them. What fails
because a store is out of reach or busy is tried again, for as long as `configure` says.
"""

from typing import Any

from dnformer.storage.conditional import compare_and_put
from dnformer.storage.connect import configure
from dnformer.storage.faults import redacted
from dnformer.storage.files import (
    content_id,
    exists,
    fetched,
    glob,
    is_folder,
    list_names,
    modified,
    open_read,
    read_bytes,
    read_if_exists,
    remove,
    remove_empty,
    remove_unfinished,
    size,
    staged,
    sync,
    total_bytes,
    write_bytes,
)
from dnformer.storage.paths import absolute, is_local, join
from dnformer.storage.retry import Unreachable

__all__ = [
    "Unreachable",
    "absolute",
    "arrow_filesystem",
    "compare_and_put",
    "configure",
    "content_id",
    "exists",
    "fetched",
    "glob",
    "is_folder",
    "is_local",
    "join",
    "list_names",
    "modified",
    "open_read",
    "read_bytes",
    "read_if_exists",
    "redacted",
    "remove",
    "remove_empty",
    "remove_unfinished",
    "size",
    "staged",
    "sync",
    "total_bytes",
    "write_bytes",
]


def arrow_filesystem(uri: str) -> tuple[Any, str]:
    """`uri` as pyarrow's (filesystem, path): the same store, for libraries that take Arrow's.

    It keeps its options and its patience where it is pickled, as Ray does.
    """
    from dnformer.storage.arrow import wrapped

    return wrapped(uri)
