"""The node-local store: a dataset as flat arrays on this host's disk, memory-mapped by everyone.

Built once from the cache, under a file lock; published by rename. Its folder is named by the
fingerprint, so it can't be stale, and all workers of a host share it in page cache.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer import storage
from dnformer.data.layout import layout, num_bytes
from dnformer.data.local_stores import (
    COMPLETE,
    Lease,
    Say,
    building,
    describe,
    lease,
    make_room,
    mib,
    remove_leftovers,
)
from dnformer.data.manifest import Manifest
from dnformer.errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Store:
    """Arrays of one graph, read-only.

    Attributes:
        colptr: int64 `[N+1]`, edges of destination i are colptr[i] to colptr[i+1].
        row: source of each edge, int32 (int64 from 2^31 nodes on) `[E]`.
        targets: values of each target, as `table.TargetColumn` has them.
        x: dense features float32, float16 or int8 `[N, F]`, or None.
        x_scale: float32 `[F]`, the value of an int8 feature of 1; or None.
        x_indptr, x_indices, x_values: CSR of sparse features, int64, int32, float32, or None.
        split: int8 `[N]`, codes of `table.SPLITS`, or None.
        weight: of each edge, float32 `[E]`, or None.
        edge_attr: attributes of each edge, float32 `[E, A]`, or None.
        edge_time: of each edge, int64 `[E]`, or None.
        node_time: of each node, int64 `[N]`, or None.
        lease: keeps others from removing the files; None where there are none.
    """

    colptr: Array
    row: Array
    targets: tuple[Array, ...] = ()
    x: Array | None = None
    x_scale: Array | None = None
    x_indptr: Array | None = None
    x_indices: Array | None = None
    x_values: Array | None = None
    split: Array | None = None
    weight: Array | None = None
    edge_attr: Array | None = None
    edge_time: Array | None = None
    node_time: Array | None = None
    lease: Lease | None = field(default=None, repr=False, compare=False)


def _say_nothing(text: str) -> None:
    pass


def open_store(
    uri: str,
    manifest: Manifest,
    folder: Path,
    *,
    max_bytes: int | None = None,
    say: Say = _say_nothing,
) -> Store:
    """The store of the dataset at `uri` inside `folder`; built first where it is missing.

    Args:
        uri: the dataset.
        manifest: its manifest.
        folder: the host's folder of stores.
        max_bytes: of all stores in it, for which a new one makes room; None: any.
        say: told when the store has to be built or waited for, and which others make room.

    Raises:
        DataError: a part is missing or damaged, its content contradicts the manifest, or there is
            no room.
    """
    target = folder / manifest.fingerprint
    found = _open(target, manifest)
    if found is None:
        with building(folder, manifest.fingerprint, say):
            found = _open(target, manifest)
            if found is None:
                _build(uri, manifest, target, max_bytes, say)
                found = _open(target, manifest)
    assert found is not None
    return found


def _open(target: Path, manifest: Manifest) -> Store | None:
    """The store, where it was built to its end and nobody cleaned up in it since."""
    held = lease(target)
    if held is None:
        return None
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in layout(manifest).items():
        try:
            array = np.asarray(np.load(target / f"{name}.npy", mmap_mode="r"))
        except (FileNotFoundError, ValueError, EOFError):
            return None
        if array.dtype != dtype or array.shape != shape:
            return None
        arrays[name] = array
    targets = tuple(arrays.pop(f"y_{number}") for number in range(len(manifest.targets)))
    scale = manifest.feature_scale
    x_scale = None if scale is None else np.array(scale, dtype=np.float32)
    return Store(targets=targets, x_scale=x_scale, lease=held, **arrays)


def _build(uri: str, manifest: Manifest, target: Path, max_bytes: int | None, say: Say) -> None:
    # here, so that a store that is there opens without a reader of Parquet
    from dnformer.data.store_build import build_arrays

    temporary = target.with_name(f".{target.name}.tmp")
    for leftover in (temporary, target):
        shutil.rmtree(leftover, ignore_errors=True)
    remove_leftovers(target.parent)
    needed = num_bytes(layout(manifest))
    make_room(target.parent, needed, max_bytes, say)
    _check_space(uri, needed, target.parent)
    say(f"building the node-local store of {uri} in {target} (once on this host)")
    temporary.mkdir(mode=0o700)
    try:
        build_arrays(uri, manifest, temporary)
        describe(temporary / COMPLETE, uri, manifest.source)
        storage.sync(temporary / COMPLETE)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_space(uri: str, needed: int, folder: Path) -> None:
    """Refuses what the disk can't hold, before anything is read."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"the node-local store of {uri} takes {mib(needed)}, {folder} has "
            f"{free >> 20:,} MiB free; set cache.dir to a folder on a larger disk"
        )
