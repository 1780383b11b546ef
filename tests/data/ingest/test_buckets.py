import itertools
from pathlib import Path

import numpy as np
import pytest

from dnformer.data.ingest.buckets import Buckets, Cut, cut, first_cut

BLOCK = 65_536


@pytest.mark.parametrize(
    ("num_nodes", "rows", "max_rows"),
    [(1, 0, 10), (BLOCK, 10, 1), (BLOCK + 1, 10, 1), (10**6, 10**8, 10**6), (10**10, 10**12, 10)],
)
def test_first_cut_is_of_whole_blocks_and_covers_all(
    num_nodes: int, rows: int, max_rows: int
) -> None:
    plan = first_cut(num_nodes, rows=rows, max_rows=max_rows)
    ranges = [plan.range(bucket) for bucket in range(plan.num_buckets)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == num_nodes
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
    assert all(first % BLOCK == 0 for first, _ in ranges)
    assert plan.num_buckets <= 240
    if rows <= max_rows:
        assert plan.num_buckets == 1


@pytest.mark.parametrize("nodes", [2, 3, 255, 256, 257, BLOCK, BLOCK + 1, 7 * BLOCK, 10**9])
def test_cut_again_gives_smaller_ranges_down_to_a_node(nodes: int) -> None:
    first, stop = 3 * BLOCK, 3 * BLOCK + nodes
    while (plan := cut(first, stop, rows=10**9, max_rows=1)) is not None:
        assert 2 <= plan.num_buckets <= 256
        ranges = [plan.range(bucket) for bucket in range(plan.num_buckets)]
        assert (ranges[0][0], ranges[-1][1]) == (first, stop)
        if stop - first > BLOCK:
            assert all(begin % BLOCK == 0 for begin, _ in ranges)
        first, stop = ranges[0]
    assert stop - first == 1


def test_records_come_back_in_their_buckets(tmp_path: Path) -> None:
    plan = Cut(10, 100, 3, 2)  # of 16 nodes each
    dtype = np.dtype([("node", np.int64), ("x", np.float32, (3,))])
    buckets = Buckets(tmp_path / "files", plan, dtype)
    rng = np.random.default_rng(0)
    records = np.empty(1000, dtype)
    records["node"] = rng.integers(10, 60, 1000)
    records["x"] = rng.random((1000, 3))
    for part in np.array_split(records, 3):
        buckets.add(part["node"], part)
    buckets.close()
    assert plan.num_buckets == 6
    assert buckets.rows.sum() == 1000
    for bucket in range(plan.num_buckets):
        first, stop = plan.range(bucket)
        wanted = records[(records["node"] >= first) & (records["node"] < stop)]
        if bucket % 2:
            found = buckets.take(bucket)
        else:
            found = np.concatenate([np.empty(0, dtype), *buckets.pieces(bucket)])
        assert np.array_equal(found, wanted)
        assert not buckets.path(bucket).exists()


def test_full_disk_names_the_folder(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path / "files", Cut(0, 10, 0, 10), np.int64)
    buckets.path(0).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        buckets.add(np.zeros(3, np.int64), np.zeros(3, np.int64))
    assert caught.value.filename == str(tmp_path / "files")
    buckets.close()
