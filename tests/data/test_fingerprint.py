import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dnformer.data import fingerprint as fp
from dnformer.data.table import EdgeColumns

NUM_NODES = 3 * fp.BLOCK + 5
SCHEMA = {"num_nodes": NUM_NODES}


def fingerprint(hasher: fp.BlockHasher, num_nodes: int, **schema: int) -> str:
    return fp.fingerprint(schema, num_nodes, [hasher.digests()])


def pieces(cuts: list[int], end: int) -> list[slice]:
    borders = sorted({0, end, *(cut for cut in cuts if cut < end)})
    return [slice(a, b) for a, b in pairwise(borders)]


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    """Columns of a graph that fills four blocks; the second one has no edge."""
    rng = np.random.default_rng(0)
    dst = np.sort(rng.integers(0, NUM_NODES, 4000))
    dst = dst[dst // fp.BLOCK != 1]
    return {
        "dst": dst,
        "src": rng.integers(0, NUM_NODES, len(dst)),
        "y": rng.integers(-1, 7, NUM_NODES),
        "counts": rng.integers(0, 3, NUM_NODES),
        "ids": np.sort(rng.integers(-(2**62), 2**62, NUM_NODES)),
    }


def whole(columns: dict[str, np.ndarray]) -> sp.csr_matrix:
    indptr = np.concatenate([[0], np.cumsum(columns["counts"])])
    values = np.arange(indptr[-1], dtype=np.float32)
    return sp.csr_matrix((values, np.arange(indptr[-1]) % 9, indptr), shape=(NUM_NODES, 9))


def digest(columns: dict[str, np.ndarray], node_cuts: list[int], edge_cuts: list[int]) -> str:
    hasher, x = fp.BlockHasher(), whole(columns)
    for part in pieces(edge_cuts, len(columns["dst"])):
        fp.hash_edges(hasher, columns["dst"][part], columns["src"][part], EdgeColumns())
    for part in pieces(node_cuts, NUM_NODES):
        fp.hash_rows(hasher, "nodes.y", part.start, columns["y"][part])
        rows = x[part]
        fp.hash_sparse_rows(hasher, part.start, rows.indptr, rows.indices, rows.data)
        fp.hash_ids(hasher, part.start, columns["ids"][part])
    return fp.fingerprint(SCHEMA, NUM_NODES, [hasher.digests()])


@settings(max_examples=20)
@given(
    node_cuts=st.lists(st.integers(1, NUM_NODES - 1), max_size=6),
    edge_cuts=st.lists(st.integers(1, 4000), max_size=6),
)
def test_digest_is_the_same_for_any_pieces(
    columns: dict[str, np.ndarray], node_cuts: list[int], edge_cuts: list[int]
) -> None:
    assert digest(columns, node_cuts, edge_cuts) == digest(columns, [], [])


@pytest.mark.parametrize("column", ["dst", "src", "y", "counts", "ids"])
@pytest.mark.parametrize("position", [0, -1], ids=["first", "last"])
def test_digest_changes_with_one_value(
    columns: dict[str, np.ndarray], column: str, position: int
) -> None:
    changed = {name: values.copy() for name, values in columns.items()}
    changed[column][position] += 1 if position == 0 else -1
    assert digest(changed, [], []) != digest(columns, [], [])


def test_digest_of_numbers_does_not_depend_on_byte_order() -> None:
    values = np.arange(5)
    digests = []
    for dtype in ("<i8", ">i8"):
        hasher = fp.BlockHasher()
        fp.hash_rows(hasher, "nodes.y", 0, values.astype(dtype))
        digests.append(fingerprint(hasher, 5))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_digest_of_what_is_equal_is_equal(dtype: type[np.floating]) -> None:
    bits = {np.float16: np.uint16, np.float32: np.uint32}[dtype]
    quiet = np.array([np.nan], dtype=dtype).view(bits)
    digests = set()
    for zero, payload in ((0.0, 0), (-0.0, 1)):
        values = np.array([zero, 1, np.nan], dtype=dtype)
        values.view(bits)[2] = quiet[0] + payload
        hasher = fp.BlockHasher()
        fp.hash_rows(hasher, "nodes.x", 0, values)
        digests.add(fingerprint(hasher, 3))
    assert len(digests) == 1


def test_one_zero_keeps_the_given_values() -> None:
    values = np.array([-0.0, np.nan, -1], dtype=np.float32)
    found = fp.one_zero(values)
    assert np.signbit(values).tolist()[0]
    assert np.signbit(found).tolist() == [False, False, True]
    assert found.dtype == np.float32


def test_hash_strings_of_a_slice_are_the_strings() -> None:
    digests = []
    ids = ["", "a", "é", "ab"]
    for pieces in ([slice(0, 4)], [slice(0, 1), slice(1, 4)]):
        hasher = fp.BlockHasher()
        for part in pieces:
            fp.hash_ids(hasher, part.start, ids[part])
        digests.append(hasher.digests())
    hasher = fp.BlockHasher()
    text = np.frombuffer("xxaéab".encode(), dtype=np.uint8)
    fp.hash_strings(hasher, 0, np.array([2, 2, 3, 5, 7]), text)
    assert digests == [hasher.digests()] * 2


def test_fingerprint_refuses_a_block_in_two_parts() -> None:
    hasher = fp.BlockHasher()
    fp.hash_rows(hasher, "nodes.x", 0, np.arange(3))
    with pytest.raises(AssertionError, match="two parts"):
        fp.fingerprint({}, 3, [hasher.digests(), hasher.digests()])


def test_digest_is_what_the_format_says() -> None:
    hasher = fp.BlockHasher()
    fp.hash_edges(hasher, np.array([0, 1]), np.array([1, 1]), EdgeColumns())
    fp.hash_ids(hasher, 0, ["a", "é"])
    expected = hashlib.sha256(json.dumps({"a": 1, "b": 2}).encode())
    for column, content in [
        ("edges.dst", np.array([0, 1], "<i8").tobytes()),
        ("edges.src", np.array([1, 1], "<i8").tobytes()),
        ("ids.bytes", "aé".encode()),
        ("ids.length", np.array([1, 2], "<i8").tobytes()),
    ]:
        expected.update(column.encode() + hashlib.sha256(content).digest())
    assert fingerprint(hasher, 2, b=2, a=1) == expected.hexdigest()


def test_digest_tells_ids_with_the_same_bytes_apart() -> None:
    digests = set()
    for ids in (["ab", "c"], ["a", "bc"], ["", "abc"]):
        hasher = fp.BlockHasher()
        fp.hash_ids(hasher, 0, ids)
        digests.add(fingerprint(hasher, 2))
    assert len(digests) == 3


def test_edge_blocks_skip_empty_ones_at_the_ends() -> None:
    dst = np.array([fp.BLOCK, fp.BLOCK, 3 * fp.BLOCK - 1, 3 * fp.BLOCK])
    assert [(block, part.start, part.stop) for block, part in fp.edge_blocks(dst)] == [
        (1, 0, 2),
        (2, 2, 3),
        (3, 3, 4),
    ]
    assert list(fp.edge_blocks(np.array([], dtype=np.int64))) == []


def test_node_blocks_cover_a_piece_that_crosses_borders() -> None:
    first, stop = fp.BLOCK - 2, 2 * fp.BLOCK + 1
    assert [(block, part.start, part.stop) for block, part in fp.node_blocks(first, stop)] == [
        (0, 0, 2),
        (1, 2, fp.BLOCK + 2),
        (2, fp.BLOCK + 2, fp.BLOCK + 3),
    ]
