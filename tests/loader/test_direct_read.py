import errno
import itertools
import logging
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dnformer.errors import DataError
from dnformer.loader import row_kernels as kernels
from dnformer.loader.async_read import Ring
from dnformer.loader.direct_read import RowFile
from dnformer.loader.read_plan import plan

HEADER = 128


def written(folder: Path, x: np.ndarray) -> Path:
    path = folder / "x.npy"
    path.write_bytes(b"h" * HEADER + x.tobytes())
    return path


def opened(path: Path, x: np.ndarray, how: str = "ring") -> RowFile:
    """Reads by "ring" (where the system has it), by "threads", or through the page cache."""
    row_bytes = x.shape[1] * x.itemsize
    file = RowFile(path, HEADER, len(x), row_bytes, readers=3, direct=how != "buffered")
    file.uses_threads |= how == "threads"
    return file


HOW = pytest.mark.parametrize("how", ["ring", "threads", "buffered"])


def read(file: RowFile, x: np.ndarray, ids: list[int], dtype: Any) -> np.ndarray:
    kind = kernels.kind_of(x.dtype, np.dtype(dtype))
    rows = kernels.Rows(kind, x.shape[1] * x.itemsize, x.shape[1])
    to, scale = np.zeros((len(ids), x.shape[1]), dtype), np.full(x.shape[1], 0.5, np.float32)
    wanted = np.array(ids, dtype=np.int64)
    file.read(rows, wanted, np.arange(len(ids)), scale, kernels.out(to, kind))
    return to


def plain(starts: list[int], **settings: int) -> list[tuple[int, int, int]]:
    """(offset, size, rows) of each request."""
    given = {"row_bytes": 10, "align": 4, "gap": 8, "limit": 40} | settings
    offset, size, first = plan(np.array(starts, dtype=np.int64), *given.values())
    return list(zip(offset.tolist(), size.tolist(), np.diff(first).tolist(), strict=True))


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        pytest.param([], [], id="none"),
        pytest.param([0], [(0, 12, 1)], id="rounded-up"),
        pytest.param([6], [(4, 12, 1)], id="rounded-down"),
        pytest.param([0, 10], [(0, 20, 2)], id="neighbours"),
        pytest.param([0, 0, 10], [(0, 20, 3)], id="twice"),
        pytest.param([0, 20], [(0, 32, 2)], id="gap-bridged"),
        pytest.param([0, 21], [(0, 32, 2)], id="gap-of-8"),
        pytest.param([0, 24], [(0, 12, 1), (24, 12, 1)], id="gap-too-wide"),
        pytest.param([0, 10, 20, 30], [(0, 40, 4)], id="as-long-as-allowed"),
        pytest.param([0, 10, 20, 31], [(0, 32, 3), (28, 16, 1)], id="too-long"),
    ],
)
def test_plan_joins_neighbours(starts: list[int], expected: list[tuple[int, int, int]]) -> None:
    assert plain(starts) == expected


@given(
    st.lists(st.integers(0, 500), max_size=60),
    st.integers(1, 70),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 30),
)
def test_plan_reads_every_row_and_few_bytes_more(
    starts: list[int], row_bytes: int, align: int, gap: int
) -> None:
    starts.sort()
    requests = plain(starts, row_bytes=row_bytes, align=align, gap=gap, limit=96)
    assert sum(rows for _, _, rows in requests) == len(starts)
    rest = iter(starts)
    for offset, size, rows in requests:
        inside = [next(rest) for _ in range(rows)]
        assert (offset % align, size % align) == (0, 0)
        assert size <= max(96, row_bytes + 2 * align)
        # begins and ends with a row, and skips no more than the gap between two
        assert 0 <= inside[0] - offset < align
        assert 0 <= offset + size - (inside[-1] + row_bytes) < align
        for one, other in itertools.pairwise(inside):
            assert other - (one + row_bytes) <= gap + 2 * align


def test_plan_a_row_longer_than_the_limit_is_a_request() -> None:
    assert plain([0, 100], row_bytes=100, gap=0) == [(0, 100, 1), (100, 100, 1)]


@HOW
@pytest.mark.parametrize("width", [1, 7, 1000, 70_000], ids=["1", "7", "1000", "70000"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_read_gives_the_rows(tmp_path: Path, dtype: Any, width: int, how: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, (40, width)).astype(dtype)
    file = opened(written(tmp_path, x), x, how)
    for ids in ([], [39], [5, 0, 39, 5, 17], list(range(40))):
        stored = read(file, x, ids, dtype)
        assert np.array_equal(stored, x[ids])
        factor = np.float32(0.5 if dtype is np.int8 else 1)
        assert np.array_equal(read(file, x, ids, np.float32), x[ids].astype(np.float32) * factor)


@HOW
def test_read_many_requests_from_many_threads(tmp_path: Path, how: str) -> None:
    # rows so far apart that each is a request, many more than are in flight at once
    x = np.random.default_rng(0).normal(size=(600, 5000)).astype(np.float32)
    file = opened(written(tmp_path, x), x, how)

    def work(seed: int) -> bool:
        ids = np.random.default_rng(seed).permutation(len(x))[:150].tolist()
        return np.array_equal(read(file, x, ids, np.float32), x[ids])

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))


@pytest.mark.skipif(sys.platform != "linux", reason="has no asynchronous reads")
def test_read_on_linux_takes_no_threads(tmp_path: Path) -> None:
    x = np.ones((10, 3), np.float32)
    file = opened(written(tmp_path, x), x)
    if not file.direct:
        pytest.skip("the file system has no direct reads")
    read(file, x, [1, 5], np.float32)
    assert not file.uses_threads
    assert [t for t in threading.enumerate() if t.name.startswith("dnformer-reader")] == []


def test_ring_that_the_system_refuses_leaves_threads(tmp_path: Path) -> None:
    x = np.ones((10, 3), np.float32)
    file = opened(written(tmp_path, x), x)
    file._readers = 2**30  # more than any system gives; the memory is never asked for
    with pytest.raises(OSError, match="no asynchronous reads"):
        Ring(2**30, 0)
    assert np.array_equal(read(file, x, [3], np.float32), x[[3]])
    assert file.uses_threads


def test_init_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.npy: cannot be opened \(No such file"):
        opened(tmp_path / "x.npy", np.zeros((1, 1), np.float32))


def test_init_truncated_file_is_named(tmp_path: Path) -> None:
    x = np.zeros((10, 3), np.float32)
    path = written(tmp_path, x)
    os.truncate(path, HEADER + 119)
    with pytest.raises(DataError, match=r"x\.npy: 247 bytes, 10 rows end at byte 248; remove"):
        opened(path, x)


@HOW
@pytest.mark.parametrize("size", [0, HEADER, 3000, 5000, 8191])
def test_read_file_truncated_later_is_named(tmp_path: Path, size: int, how: str) -> None:
    x = np.ones((1000, 3), np.float32)
    path = written(tmp_path, x)
    file = opened(path, x, how)
    os.truncate(path, size)
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}: {size} bytes, a row ends"):
        read(file, x, [2, 999], np.float32)
    if size > HEADER:
        assert (read(file, x, [2], np.float32) == 1).all()


@HOW
def test_read_error_names_file_and_reason(tmp_path: Path, how: str) -> None:
    x = np.ones((1000, 3), np.float32)
    file = opened(written(tmp_path, x), x, how)
    other = os.open(tmp_path, os.O_RDONLY)
    os.dup2(other, file._fd)  # a folder can't be read: every request fails
    os.close(other)
    with pytest.raises(DataError, match=rf"x\.npy: .*{os.strerror(errno.EISDIR)}.*check the disk"):
        read(file, x, [2, 999], np.float32)


def test_init_says_once_where_direct_reads_are_not_possible(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no tmpfs here")
    x = np.ones((10, 3), np.float32)
    path = shm / f"dnformer-test-{os.getpid()}.npy"
    path.write_bytes(b"h" * HEADER + x.tobytes())
    try:
        with caplog.at_level(logging.WARNING):
            file = opened(path, x)
        assert np.array_equal(read(file, x, [3, 4], np.float32), x[[3, 4]])
        # newer kernels take O_DIRECT on tmpfs
        assert len(caplog.records) == (0 if file.direct else 1)
        assert file.direct or "rows are read through it" in caplog.text
    finally:
        path.unlink()
