"""From the parts of a dataset to the flat arrays of a node-local store, in bounded memory.

Each part's place in the arrays is known beforehand, so parts are read in any order by several
threads, in batches; what they read is hashed, and the fingerprint checked at the end.
"""

import errno
import io
import os
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from dnformer import storage
from dnformer.cgroup import cores
from dnformer.data import fingerprint as fp
from dnformer.data.layout import layout
from dnformer.data.manifest import Manifest, PartFile
from dnformer.data.read import EdgeRows, NodeRows, read_edges, read_ids, read_nodes
from dnformer.errors import DataError

_FILL = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}


@final
class ArrayFile:
    """A `.npy` file that several threads write in pieces.

    It is written by calls, not mapped: on a full disk a call fails, but a map kills the process.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        header = io.BytesIO()
        facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(header, {**facts, "shape": shape})
        self._path, self._dtype, self._begin = path, dtype, header.tell()
        self._row_bytes = dtype.itemsize * (shape[1] if len(shape) > 1 else 1)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._write(header.getvalue(), 0)
        os.ftruncate(self._file, self._begin + self._row_bytes * shape[0])

    def put(self, first: int, values: npt.NDArray[Any]) -> None:
        """Writes `values` as the rows from `first` on."""
        data = np.ascontiguousarray(values, dtype=self._dtype).reshape(-1).view(np.uint8)
        self._write(data.data, self._begin + first * self._row_bytes)

    def fill(self, first: int, stop: int, value: int) -> None:
        """Sets the rows `first` to `stop` of an array with one value a row."""
        for begin in range(first, stop, _FILL):
            self.put(begin, np.full(min(stop - begin, _FILL), value, dtype=self._dtype))

    def _write(self, data: bytes | memoryview, at: int) -> None:
        view = memoryview(data)
        try:
            while len(view):
                written = os.pwrite(self._file, view, at)
                view, at = view[written:], at + written
        except OSError as error:
            raise _named(error, self._path) from None

    def sync(self) -> None:
        """Waits until all is on the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise _named(error, self._path) from None

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def _named(error: OSError, path: Path) -> OSError:
    text = error.strerror or str(error)
    if error.errno in _FULL:
        text += "; make room, or set cache.dir to a folder on a larger disk"
    return OSError(error.errno, text, str(path))


class Piece(NamedTuple):
    """What one part turned out to be.

    Attributes:
        file: its name.
        digests: of its blocks.
        first, last: its lowest and highest node; of edges their destinations. 0, -1 without any.
        stop: number of rows up to its end.
    """

    file: str
    digests: fp.Digests
    first: int
    last: int
    stop: int


class _Stopped(Exception):
    """Another thread has failed."""


@final
class Build:
    """One store while its arrays are written.

    Args:
        uri: the dataset.
        manifest: its manifest.
        files: the arrays, by name.
    """

    def __init__(self, uri: str, manifest: Manifest, files: dict[str, ArrayFile]) -> None:
        self._uri, self._manifest, self._files, self._stop = uri, manifest, files, Event()

    def run(self, threads: int) -> None:
        """Reads all parts in `threads` threads and writes the arrays.

        Raises:
            DataError: a part is missing or damaged, or the content is not what the manifest says.
            OSError: the disk is full.
        """
        manifest = self._manifest
        pieces = _in_parallel(self._jobs(), threads, self._stop)
        edges = pieces[: len(manifest.edges)]
        _check_blocks(edges)
        _check_blocks(pieces[len(edges) : len(edges) + len(manifest.nodes)])
        _check_blocks(pieces[len(edges) + len(manifest.nodes) :])
        self._close_gaps([piece for piece in edges if piece.last >= 0])
        hashes = (piece.digests for piece in pieces)
        found = fp.fingerprint(manifest.schema_values(), manifest.num_nodes, hashes)
        if found != manifest.fingerprint:
            raise DataError(
                f"{self._uri}: the files are not what the fingerprint says; ingest the dataset "
                "again"
            )
        for file in self._files.values():
            file.sync()

    def _jobs(self) -> list[Callable[[], Piece]]:
        manifest = self._manifest
        jobs: list[Callable[[], Piece]] = []
        for part, first in _offsets(manifest.edges):
            jobs.append(partial(self._edges, part, first))
        values = accumulate((part.values for part in manifest.nodes), initial=0)
        for (part, first), value in zip(_offsets(manifest.nodes), values, strict=False):
            jobs.append(partial(self._nodes, part, first, value))
        for part, first in _offsets(manifest.id_files):
            jobs.append(partial(self._ids, part, first))
        return jobs

    def _edges(self, part: PartFile, done: int) -> Piece:
        hasher = fp.BlockHasher()
        first, last = 0, -1
        for rows in read_edges(self._uri, self._manifest, part):
            self._check_stopped()
            fp.hash_edges(hasher, *rows)
            self._put_edges(rows, done)
            first = int(rows.dst[0]) if last < 0 else first
            last = int(rows.dst[-1])
            done += len(rows.dst)
        return Piece(storage.join(self._uri, part.path), hasher.digests(), first, last, done)

    def _put_edges(self, rows: EdgeRows, done: int) -> None:
        carried = {"weight": rows.edges.weight, "edge_attr": rows.edges.attr}
        for name, values in {"row": rows.src, "edge_time": rows.edges.time, **carried}.items():
            if values is not None:
                self._files[name].put(done, values)
        # colptr[i + 1] is the number of edges up to node i; the first node may have had some before
        begin = int(rows.dst[0])
        for block, part in fp.edge_blocks(rows.dst):
            low, high = max(block * fp.BLOCK, begin), min((block + 1) * fp.BLOCK, rows.dst[-1] + 1)
            counts = np.bincount(rows.dst[part] - low, minlength=int(high) - low)
            self._files["colptr"].put(low + 1, done + part.start + np.cumsum(counts))

    def _close_gaps(self, edges: list[Piece]) -> None:
        """Gives the nodes without edges between two parts, and after the last, their offsets."""
        ends = [piece.first for piece in edges[1:]] + [self._manifest.num_nodes]
        for piece, end in zip(edges, ends, strict=False):
            self._files["colptr"].fill(piece.last + 2, end + 1, piece.stop)

    def _nodes(self, part: PartFile, done: int, values: int) -> Piece:
        hasher, first = fp.BlockHasher(), done
        for rows in read_nodes(self._uri, self._manifest, part, first):
            self._check_stopped()
            self._hash_nodes(hasher, rows, done)
            for name, array in rows.arrays.items():
                at = values if name in ("x_indices", "x_values") else done
                self._files[name].put(at, array)
            if rows.indptr is not None:
                # after a first offset of 0, which the file holds from the beginning
                self._files["x_indptr"].put(done + 1, values + rows.indptr[1:])
                values += int(rows.indptr[-1])
            done += rows.num_rows
        return self._node_piece(part, hasher, first, done)

    def _hash_nodes(self, hasher: fp.BlockHasher, rows: NodeRows, first: int) -> None:
        arrays = rows.arrays
        if rows.indptr is not None:
            indices, values = arrays["x_indices"], arrays["x_values"]
            fp.hash_sparse_rows(hasher, first, rows.indptr, indices, values)
        for name, array in arrays.items():
            column = {"node_time": "time"}.get(name, name)
            if name not in ("x_indices", "x_values"):
                fp.hash_rows(hasher, f"nodes.{column}", first, array)

    def _ids(self, part: PartFile, done: int) -> Piece:
        hasher, first = fp.BlockHasher(), done
        for ids in read_ids(self._uri, self._manifest, part, first):
            self._check_stopped()
            if isinstance(ids, np.ndarray):
                fp.hash_ids(hasher, done, ids)
            else:
                fp.hash_strings(hasher, done, *_buffers(ids))
            done += len(ids)
        return self._node_piece(part, hasher, first, done)

    def _node_piece(self, part: PartFile, hasher: fp.BlockHasher, first: int, stop: int) -> Piece:
        last = stop - 1 if stop > first else -1
        return Piece(storage.join(self._uri, part.path), hasher.digests(), first, last, stop)

    def _check_stopped(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def _offsets(parts: list[PartFile]) -> list[tuple[PartFile, int]]:
    """Each part, and the rows before it."""
    firsts = accumulate((part.rows for part in parts), initial=0)
    return list(zip(parts, firsts, strict=False))


def _buffers(ids: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """(offsets, text) of a pyarrow string array."""
    _, offsets, text = ids.buffers()
    found = np.frombuffer(offsets, dtype=np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return found, np.frombuffer(text or b"", dtype=np.uint8)


def _check_blocks(pieces: list[Piece]) -> None:
    """Refuses parts out of order, or that do not begin at a border of the fingerprint's blocks."""
    last = -1
    for piece in pieces:
        if piece.last < 0:
            continue
        if last >= 0 and piece.first // fp.BLOCK <= last // fp.BLOCK:
            raise DataError(
                f"{piece.file}: begins with node {piece.first}, inside of what the file before it "
                "holds; ingest the dataset again"
            )
        last = piece.last


def _in_parallel(jobs: list[Callable[[], Piece]], threads: int, stop: Event) -> list[Piece]:
    """The jobs' results in order; the first that fails stops the others."""
    with ThreadPoolExecutor(threads, thread_name_prefix="store") as pool:
        futures: list[Future[Piece]] = [pool.submit(job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            for future in futures:
                future.cancel()
    failed = [f.exception() for f in futures if not f.cancelled() and f.exception()]
    for error in failed:
        if error is not None and not isinstance(error, _Stopped):
            raise error
    return [future.result() for future in futures]


def build_arrays(uri: str, manifest: Manifest, folder: Path) -> None:
    """Writes the arrays of the dataset at `uri` into `folder`.

    Raises:
        DataError: a part is missing or damaged, or the content is not what the manifest says.
        OSError: the disk is full.
    """
    threads = min(cores(), 16)
    if not storage.is_local(uri):
        threads += 2  # some fetch while others decode
    with ExitStack() as stack:
        files = {}
        for name, (dtype, shape) in layout(manifest).items():
            files[name] = ArrayFile(folder / f"{name}.npy", dtype, shape)
            stack.callback(files[name].close)
        Build(uri, manifest, files).run(threads)
