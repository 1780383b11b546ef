import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dnformer.data.graph import Graph
from dnformer.loader.buffers import BufferPool
from dnformer.loader.features import FeatureGather

NUM_NODES, NUM_FEATURES = 8, 3
# node 5 has no feature at all
X = np.array(
    [[1, 0, 2], [0, 3, 0], [4, 5, 6], [0, 0, 7], [8, 0, 0], [0, 0, 0], [0, 9, 1], [2, 0, 3]],
    dtype=np.float32,
)


@pytest.fixture(scope="module")
def dense(make_graph: Callable[..., Graph]) -> Graph:
    return make_graph([], num_nodes=NUM_NODES, x=X)


@pytest.fixture(scope="module")
def sparse(make_graph: Callable[..., Graph]) -> Graph:
    return make_graph([], num_nodes=NUM_NODES, x=sp.csr_matrix(X))


def gather(graph: Graph, *, sparse: bool = False, keep: int = 8) -> FeatureGather:
    return FeatureGather(graph.store, NUM_FEATURES, sparse=sparse, pool=BufferPool(keep))


IDS = pytest.mark.parametrize(
    "ids", [[], [5], [2], [7, 0, 5, 0], list(range(8))], ids=["none", "empty", "one", "some", "all"]
)


@IDS
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_rows_are_those_of_the_nodes(
    stored: str, ids: list[int], request: pytest.FixtureRequest
) -> None:
    rows = gather(request.getfixturevalue(stored)).rows(np.array(ids, dtype=np.int64))
    assert rows.dtype == torch.float32
    assert rows.layout == torch.strided
    assert rows.shape == (len(ids), NUM_FEATURES)
    assert np.array_equal(rows.numpy(), X[ids])


@IDS
def test_rows_sparse_are_csr_with_the_same_values(sparse: Graph, ids: list[int]) -> None:
    rows = gather(sparse, sparse=True).rows(np.array(ids, dtype=np.int64))
    assert rows.layout == torch.sparse_csr
    assert rows.shape == (len(ids), NUM_FEATURES)
    assert np.array_equal(rows.to_dense().numpy(), X[ids])
    assert (rows.values() != 0).all()


def test_rows_of_dense_features_stay_dense(dense: Graph) -> None:
    assert gather(dense, sparse=True).rows(np.array([1])).layout == torch.strided


@pytest.mark.parametrize(
    ("stored", "as_sparse"), [("dense", False), ("sparse", False), ("sparse", True)]
)
def test_rows_of_live_batches_are_never_overwritten(
    stored: str, as_sparse: bool, request: pytest.FixtureRequest
) -> None:
    gatherer = gather(request.getfixturevalue(stored), sparse=as_sparse)
    rng = np.random.default_rng(0)
    wanted, kept = [], []
    for number in range(60):
        ids = rng.integers(0, NUM_NODES, rng.integers(1, 9))
        rows = gatherer.rows(ids)
        # every third batch goes away, and its memory may be used again
        if number % 3:
            kept.append(rows)
            wanted.append(X[ids])
    for rows, expected in zip(kept, wanted, strict=True):
        assert np.array_equal(rows.to_dense().numpy(), expected)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda rows: rows[1:], id="slice"),
        pytest.param(lambda rows: rows.view(-1), id="view"),
        pytest.param(lambda rows: rows.numpy(), id="numpy"),
        pytest.param(lambda rows: rows.detach().requires_grad_(), id="detached"),
    ],
)
def test_rows_of_which_a_view_lives_are_not_reused(
    dense: Graph, view: Callable[[torch.Tensor], torch.Tensor | np.ndarray]
) -> None:
    gatherer = gather(dense)
    kept = view(gatherer.rows(np.array([2, 3])))
    before = torch.as_tensor(kept).detach().clone()
    for _ in range(10):
        gatherer.rows(np.array([4, 7]))
    assert torch.equal(torch.as_tensor(kept).detach(), before)


def test_rows_of_which_values_of_a_csr_live_are_not_reused(sparse: Graph) -> None:
    gatherer = gather(sparse, sparse=True)
    rows = gatherer.rows(np.array([2, 3]))
    values, index = rows.values(), rows.col_indices()
    del rows
    for _ in range(10):
        gatherer.rows(np.array([0, 6]))
    assert values.tolist() == [4, 5, 6, 7]
    assert index.tolist() == [0, 1, 2, 2]


def test_rows_dropped_are_reused(dense: Graph) -> None:
    gatherer, addresses, others = gather(dense), set(), []
    for _ in range(20):
        rows = gatherer.rows(np.arange(NUM_NODES))
        addresses.add(rows.data_ptr())
        del rows
        # what was given back to the system goes to somebody else
        others += [np.ones(size, dtype=np.uint8) for size in range(90, 130)]
    assert len(addresses) == 1


def test_pool_keeps_no_more_buffers_than_asked() -> None:
    pool = BufferPool(keep=2)
    arrays = [pool.empty((16,), np.uint8) for _ in range(5)]
    first = {array.ctypes.data for array in arrays}
    assert len(first) == 5
    arrays.clear()
    arrays = [pool.empty((16,), np.uint8) for _ in range(5)]
    assert len({array.ctypes.data for array in arrays}) == 5
    assert len(pool._free) == 0
    arrays.clear()
    assert len(pool._free) == 2


def test_pool_gives_a_larger_array_than_before() -> None:
    pool = BufferPool(keep=1)
    pool.empty((2,), np.float32)[:] = 1
    large = pool.empty((100, 7), np.float32)
    assert large.shape == (100, 7)
    assert large.dtype == np.float32
    assert large.flags.c_contiguous
    assert pool.empty((0, 7), np.float32).shape == (0, 7)


def test_pool_from_many_threads_hands_out_each_buffer_once() -> None:
    pool, ready = BufferPool(keep=4), threading.Barrier(4)

    def work(number: int) -> bool:
        ready.wait(timeout=10)
        for _ in range(300):
            array = pool.empty((50,), np.int64)
            array[:] = number
            if (array != number).any():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_buffers_are_aligned_whatever_their_size() -> None:
    # the last bits of a matrix product depend on it
    pool = BufferPool(keep=0)
    arrays = [pool.empty((rows, 7), np.float32) for rows in range(1, 400, 7)]
    assert {array.ctypes.data % 64 for array in arrays} == {0}
