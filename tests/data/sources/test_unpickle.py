import builtins
import contextlib
import os
import pickle
import pickletools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from dnformer.data.sources.unpickle import unpickle
from dnformer.errors import DataError

NDARRAY, DTYPE = b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
CSR = b"cscipy.sparse.csr\ncsr_matrix\n"
MATRIX = sp.csr_matrix(np.array([[0, 2, 0], [1, 0, 3]], dtype=np.float32))


def dtype(code: str, order: str = "<") -> bytes:
    return DTYPE + f"(S'{code}'\nI0\nI1\ntR(I3\nS'{order}'\nNNNI-1\nI-1\nI0\ntb".encode()


def array(shape: str, content: str, code: str = "i4", order: str = "<") -> bytes:
    """An array as Python 2 wrote it; `shape` and `content` are pickle source."""
    state = b"(I1\n" + shape.encode() + dtype(code, order) + b"I00\n" + content.encode() + b"tb"
    return RECONSTRUCT + b"(" + NDARRAY + b"(I0\ntS'b'\ntR" + state


def csr(shape: str, data: bytes, indices: bytes, indptr: bytes) -> bytes:
    parts = b"".join(
        f"S'{key}'\n".encode() + part + b"s"
        for key, part in (
            ("_shape", shape.encode()),
            ("data", data),
            ("indices", indices),
            ("indptr", indptr),
        )
    )
    return CSR + b")\x81(d" + parts + b"b"


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("code", ["<f8", ">f4", "<i8", "|u1", "|b1", "<f2"])
def test_unpickle_array_is_read(code: str, protocol: int) -> None:
    x = np.array([[0, 1, 0], [1, 0, 1]]).astype(code)
    for order in ("C", "F"):
        out = unpickle(pickle.dumps(np.array(x, order=order), protocol), name="f")
        assert type(out) is np.ndarray
        assert out.dtype == x.dtype.newbyteorder("=")
        assert np.array_equal(out, x)


@pytest.mark.parametrize("protocol", [3, 4])
def test_unpickle_csr_is_read(protocol: int) -> None:
    out = unpickle(pickle.dumps(MATRIX, protocol), name="f")
    assert isinstance(out, sp.csr_matrix)
    assert out.dtype == np.float32
    assert np.array_equal(out.toarray(), MATRIX.toarray())


def test_unpickle_dict_of_lists_is_read() -> None:
    lists = defaultdict(list, {0: [1, 2], 1: [0], 2: []})
    assert unpickle(pickle.dumps(lists), name="f") == dict(lists)
    assert unpickle(pickle.dumps(dict(lists)), name="f") == dict(lists)


def test_unpickle_python_2_forms_are_read() -> None:
    flat = array("(I2\nt", "S'\\x01\\x00\\x00\\x00\\xff\\x00\\x00\\x00'\n")
    assert unpickle(flat + b".", name="f").tolist() == [1, 255]
    matrix = csr(
        "(I1\nI4\nt",
        array("(I1\nt", "S'\\x00\\x00\\x80\\x3f'\n", "f4"),
        array("(I1\nt", "S'\\x03\\x00\\x00\\x00'\n"),
        array("(I2\nt", "S'\\x00\\x00\\x00\\x00\\x01\\x00\\x00\\x00'\n"),
    )
    assert unpickle(matrix + b".", name="f").toarray().tolist() == [[0, 0, 0, 1]]
    graph = b"ccollections\ndefaultdict\n(c__builtin__\nlist\ntRI0\n(lI1\nas."
    assert unpickle(graph, name="f") == {0: [1]}


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "argument", "named"),
    [
        (os.system, "touch {}", "system"),
        (builtins.eval, "open({!r}, 'w')", "eval"),
        (builtins.exec, "open({!r}, 'w')", "exec"),
        (builtins.getattr, "{}", "getattr"),
        (np.load, "{}", "load"),
    ],
)
def test_unpickle_call_is_refused_and_not_made(
    function: Any, argument: str, named: str, protocol: int, tmp_path: Any
) -> None:
    made = tmp_path / "made"
    attack = pickle.dumps({0: [Calls(function, argument.format(str(made)))]}, protocol)
    with pytest.raises(DataError, match=rf"^ind.cora.graph: asks for [a-z._]*{named}; only arrays"):
        unpickle(attack, name="ind.cora.graph")
    assert not made.exists()


HUGE = "(L999999999999999L\nt"


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (b"cnumpy\nmatrix\n.", "asks for numpy.matrix"),
        (b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.", "asks for numpy.ndarray.__cl"),
        (b"cos\nsystem\n(S'true'\ntR.", "asks for os.system"),
        (b"(S'true'\nios\nsystem\n.", "asks for os.system"),
        (RECONSTRUCT + b"(c__builtin__\nlist\n(I0\ntS'b'\ntR.", "holds an array of class"),
        (RECONSTRUCT + b"(" + CSR + b"(I0\ntS'b'\ntR.", "holds an array of class"),
        (RECONSTRUCT + b"(" + NDARRAY + HUGE.encode() + b"S'b'\ntR.", "damaged"),
        (NDARRAY + b"(" + HUGE.encode() + b"tR.", "damaged"),
        (NDARRAY + b".", "holds a type"),
        (array(HUGE, "S'\\x01\\x00\\x00\\x00'\n") + b".", "damaged"),
        (array("(I-1\nt", "S'\\x01\\x00\\x00\\x00'\n") + b".", "content is not plain numbers"),
        (array("(I3\nt", "S'\\x01\\x00\\x00\\x00'\n") + b".", "damaged"),
        (array("(I1\nt", "S'\\x01\\x00\\x00'\n") + b".", "damaged"),
        (array("(I1\nt", "(lI1\na") + b".", "content is not plain numbers"),
        (array("(I1\nt", "(lI1\na", "O8") + b".", "holds an array of 'O8'"),
        (array("(I1\nt", "S'12345678'\n", "O8") + b".", "holds an array of 'O8'"),
        (array("(I1\nt", "S'12345678'\n", "V8") + b".", "holds an array of 'V8'"),
        (array("(I1\nt", "S'12345678'\n", "M8") + b".", "holds an array of 'M8'"),
        (array("(I1\nt", "S'12345678'\n", "c8") + b".", "holds an array of 'c8'"),
        (csr("(I1\nI4\nt", b"(l", b"(l", b"(l") + b".", "whose data is no array"),
        (CSR + b")\x81.", "damaged"),
        (CSR + b")\x81(dS'data'\nI1\nsb.", "whose data is no array"),
        (RECONSTRUCT + b"(dS'a'\nI1\nsb.", "holds a function"),
        (NDARRAY + b"(dS'a'\nI1\nsb.", "damaged"),
        (CSR + b"(N(dS'part'\nI1\nstb.", "damaged"),
        (b"I1\n.", "holds a int"),
        (b"(l.", "holds a list"),
        (b"P1\n.", "persistent"),
        (b"\x80\x05\x97.", "damaged|buffer"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.", "damaged|truncated"),
        (b"", "damaged"),
        (b"hello world", "only arrays"),
        (b"\x89PNG\r\n", "only arrays|damaged"),
    ],
)
def test_unpickle_foreign_or_damaged_is_refused(attack: bytes, message: str) -> None:
    with pytest.raises(DataError, match=rf"^ind.cora.x: .*({message})"):
        unpickle(attack, name="ind.cora.x")


def test_unpickle_inconsistent_csr_is_refused() -> None:
    broken = MATRIX.copy()
    broken.indices[0] = 7
    with pytest.raises(DataError, match=r"^f: no CSR matrix of shape \[2, 3\]"):
        unpickle(pickle.dumps(broken, 4), name="f")
    nested = csr("(I1\nI1\nI1\nt", *[array("(I0\nt", "S''\n")] * 3)
    with pytest.raises(DataError, match=r"^f: holds a CSR matrix of shape \(1, 1, 1\)"):
        unpickle(nested + b".", name="f")


def test_unpickle_attack_leaves_nothing_behind() -> None:
    """Attributes that a pickle sets on what it was given do not reach the next pickle."""
    poison = RECONSTRUCT + b"(N(dS'__defaults__'\n(NNNtstb0" + RECONSTRUCT + b"(tR."
    for _ in range(2):
        with pytest.raises(DataError, match="TypeError"):
            unpickle(poison, name="f")
    assert unpickle(pickle.dumps(np.arange(3), 4), name="f").tolist() == [0, 1, 2]


WHOLE = pickle.dumps(MATRIX, 4)


def test_unpickle_truncated_anywhere_is_refused() -> None:
    for end in range(len(WHOLE)):
        with pytest.raises(DataError, match=r"^f: "):
            unpickle(WHOLE[:end], name="f")


OPCODES = {ord(opcode.code) for opcode in pickletools.opcodes}
# these read text, in which an unknown backslash sequence is a DeprecationWarning of Python's
OPCODES -= {ord("S")}


@settings(max_examples=500, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.sampled_from(sorted(OPCODES)))
def test_unpickle_any_byte_changed_gives_data_or_data_error(at: int, byte: int) -> None:
    changed = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    with contextlib.suppress(DataError):
        out = unpickle(changed, name="f")
        assert isinstance(out, sp.csr_matrix | np.ndarray | dict)
