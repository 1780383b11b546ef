"""Where dense feature rows come from; one source serves all loaders of a process.

Hot rows lie in memory; the others are read through the store's mapping or, where the features do
not fit in memory, from its file.
"""

import logging
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import Tensor

from dnformer.config import CacheConfig
from dnformer.data.store import Store
from dnformer.errors import ConfigError
from dnformer.loader import row_kernels as kernels
from dnformer.loader.buffers import BufferPool
from dnformer.loader.direct_read import RowFile
from dnformer.loader.hot_cache import SlotIndex, Visits, expected_visits, hottest
from dnformer.loader.row_kernels import Out, Rows, Table
from dnformer.memory import memory_limit

Array = npt.NDArray[Any]

# features that take more of the memory than this do not fit: the process itself, its batches and
# the graph's structure need the rest
_SHARE = 0.7
_CHUNK_BYTES = 32 << 20
_LINE = 64
_KEPT_BATCHES = 8
_DEFAULTS = CacheConfig()


class Access(NamedTuple):
    """What a batch took: rows, those of them that were hot, and bytes from the store."""

    rows: int
    hits: int
    bytes_read: int


class HotRows(NamedTuple):
    """Rows in memory, as they are stored, and where each lies."""

    slots: SlotIndex
    table: Table


class DeviceRows(NamedTuple):
    """The hottest rows on a device `[K, F]`, as they are stored, and where each lies."""

    slots: SlotIndex
    x: Tensor


@final
class DenseSource:
    """Rows of dense features by node id, as they are stored or decoded to float32.

    Args:
        x: the store's features `[N, F]`.
        scale: of int8 features, float32 `[F]`.
        reads: "mmap", "direct", or "auto": direct where `x` does not fit in this process's memory.
        readers: direct reads in flight at most, for each thread that gathers.

    Raises:
        DataError: the features' file is too short, or cannot be opened.
    """

    def __init__(
        self, x: Array, scale: Array | None = None, *, reads: str = "auto", readers: int = 16
    ) -> None:
        self.num_nodes, self.width = x.shape
        self.dtype, self.scale = x.dtype, scale
        self.row_bytes = self.width * x.dtype.itemsize
        self._table = kernels.table(x)
        self._scale = np.ones(0, np.float32) if scale is None else scale
        self._hot: HotRows | None = None
        self._file: RowFile | None = None
        place = _place(x)
        if place is not None and reads_directly(reads, x.nbytes, memory_limit()):
            self._file = RowFile(*place, self.num_nodes, self.row_bytes, readers=readers)

    @property
    def reads(self) -> str:
        """How rows that are not hot are read: "mmap" or "direct"."""
        return "mmap" if self._file is None else "direct"

    @property
    def num_hot(self) -> int:
        """Hot rows in this process's memory."""
        return 0 if self._hot is None else len(self._hot.slots.nodes)

    def keep_hot(self, nodes: Array) -> None:
        """Keeps the rows of `nodes`, ascending, in memory from now on; reads them in order.

        Raises:
            ConfigError: the process may not use so much memory.
        """
        _check_room(len(nodes) * self.row_bytes)
        rows = _aligned(len(nodes), self.width, self.dtype)
        self._read_all(nodes, rows)
        self._hot = HotRows(SlotIndex(nodes, self.num_nodes), kernels.table(rows))

    def device_rows(self, nodes: Array, device: torch.device) -> DeviceRows:
        """The rows of `nodes`, ascending, on a device."""
        x = torch.empty((len(nodes), self.width), dtype=_torch_dtype(self.dtype), device=device)
        rows = np.empty((self._chunk(), self.width), self.dtype)
        for first in range(0, len(nodes), len(rows)):
            part = nodes[first : first + len(rows)]
            self.fill(part, rows[: len(part)])
            x[first : first + len(part)] = torch.from_numpy(rows[: len(part)])
        return DeviceRows(SlotIndex(nodes, self.num_nodes), x)

    def _chunk(self) -> int:
        return max(1, _CHUNK_BYTES // int(self.row_bytes))

    def _read_all(self, nodes: Array, rows: Array) -> None:
        for first in range(0, len(nodes), self._chunk()):
            part = slice(first, first + self._chunk())
            self.fill(nodes[part], rows[part])

    def fill(self, ids: Array, to: Array) -> Access:
        """Writes the rows of the nodes `ids` to `to` `[len(ids), F]`, float32 or the stored dtype.

        Raises:
            DataError: a row cannot be read; the message names the file.
        """
        kind = kernels.kind_of(self.dtype, to.dtype)
        rows, out = Rows(kind, self.row_bytes, self.width), kernels.out(to, kind)
        if self._hot is None:
            slots, hits = np.full(len(ids), -1), 0
        else:
            slots, hits = self._hot.slots.find(ids)
        if self._file is not None:
            return self._fill_from_file(self._file, rows, slots, ids, out)
        if self._hot is None:
            kernels.gather(rows, self._table, ids, self._scale, out)
        else:
            kernels.gather_both(rows, self._hot.table, self._table, slots, ids, self._scale, out)
        return Access(len(ids), hits, (len(ids) - hits) * self.row_bytes)

    def _fill_from_file(
        self, file: RowFile, rows: Rows, slots: Array, ids: Array, out: Out
    ) -> Access:
        missed = np.flatnonzero(slots < 0)
        if self._hot is not None:
            kernels.gather_hits(rows, self._hot.table, slots, self._scale, out)
        num_bytes = file.read(rows, ids[missed], missed, self._scale, out)
        return Access(len(ids), len(ids) - len(missed), num_bytes)


class Cached(NamedTuple):
    """A source whose hot rows are chosen, and those of them that lie on the device.

    `pool` holds the batches of all loaders that draw from it, one after the other.
    """

    source: DenseSource
    on_device: DeviceRows | None
    pool: BufferPool


def open_source(
    store: Store, cache: CacheConfig = _DEFAULTS, *, visits: Visits, device: torch.device
) -> Cached | None:
    """The source of a store's dense features, its hot rows chosen for the epoch `visits`.

    None for sparse features, whose rows are small: they stay in the mapping.

    Raises:
        ConfigError: the hot rows do not fit into the memory that this process may use.
    """
    _warn_ignored(store, cache, device)
    if store.x is None:
        return None
    source = DenseSource(store.x, store.x_scale, reads=cache.reads, readers=cache.readers)
    pool = BufferPool(_KEPT_BATCHES, pinned=device.type == "cuda")
    near = (cache.hot_gpu_bytes if device.type == "cuda" else 0) // source.row_bytes
    hot = cache.hot_bytes // source.row_bytes
    if near + hot == 0:
        return Cached(source, None, pool)
    scores = expected_visits(store, visits)
    on_device = None
    if near:
        nodes = hottest(scores, near)
        on_device = source.device_rows(nodes, device)
        scores[nodes] = 0
    if hot:
        source.keep_hot(hottest(scores, hot))
    return Cached(source, on_device, pool)


def _warn_ignored(store: Store, cache: CacheConfig, device: torch.device) -> None:
    say = logging.getLogger(__name__).warning
    if store.x is None and cache.hot_bytes + cache.hot_gpu_bytes:
        say("cache.hot_bytes and cache.hot_gpu_bytes are ignored: the features are not dense")
    elif cache.hot_gpu_bytes and device.type != "cuda":
        say("cache.hot_gpu_bytes is ignored: batches stay on the CPU")


def _check_room(num_bytes: int) -> None:
    """Refuses what would get the process killed later."""
    held, limit = int(psutil.Process().memory_full_info().uss), memory_limit()
    if held + num_bytes > limit:
        raise ConfigError(
            f"cache.hot_bytes: {num_bytes >> 20:,} MiB do not fit; this process may use "
            f"{limit >> 20:,} MiB and holds {held >> 20:,} MiB before its first batch"
        )


def _place(x: Array) -> tuple[Path, int] | None:
    """The file that `x` is mapped from and the byte where it begins; None for plain memory."""
    base = x if isinstance(x, np.memmap) else x.base
    if not isinstance(base, np.memmap) or not isinstance(base.filename, (str, Path)):
        return None
    return Path(base.filename), int(base.offset)


def reads_directly(reads: str, num_bytes: int, limit: int) -> bool:
    """What `reads` comes to for features of `num_bytes` in a process that may use `limit` bytes."""
    return reads == "direct" or (reads == "auto" and num_bytes > _SHARE * limit)


def _aligned(rows: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Memory that begins with a cache line; numpy's large blocks lie in huge pages."""
    size = rows * width * dtype.itemsize
    whole = np.empty(size + _LINE, np.uint8)
    begin = -whole.ctypes.data % _LINE
    return whole[begin : begin + size].view(dtype).reshape(rows, width)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
