from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

from dnformer.data.features import (
    TEXT,
    Layout,
    arrow_block,
    arrow_labels,
    arrow_split,
    count_classes,
    csr_from_parts,
    finite,
    finite_csr,
    lay_out,
    plain_integers,
    refuse_empty_split,
)
from dnformer.errors import DataError


def where(row: int) -> str:
    return f"nodes.csv row {row + 1}"


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "u1", "?", ">f4"])
def test_finite_any_real_type_gives_new_float32(dtype: str) -> None:
    x = np.array([[0, 1], [1, 0], [1, 1]], dtype=dtype)
    out = finite(x, where=where)
    assert out.dtype == np.float32
    assert out.dtype.isnative
    assert out.flags.c_contiguous
    assert out.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert not np.shares_memory(out, x)


def test_finite_negative_zero_becomes_zero_and_input_stays() -> None:
    x = np.array([[-0.0, -1.0]], dtype=np.float32)
    assert not np.signbit(finite(x, where=where)[0, 0])
    assert np.signbit(x[0, 0])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, r"^nodes.csv row 2: feature 1 is nan; it must be a finite number"),
        (np.inf, r"^nodes.csv row 2: feature 1 is inf; it must be a finite number"),
        (-np.inf, r"^nodes.csv row 2: feature 1 is -inf; it must be a finite number"),
        (1e39, r"^nodes.csv row 2: feature 1 is 1e\+39; it must be at most 3.4e38"),
        (-1e39, r"^nodes.csv row 2: feature 1 is -1e\+39; it must be at most 3.4e38"),
    ],
)
def test_finite_value_that_float32_cannot_hold_is_refused(value: float, message: str) -> None:
    x = np.array([[0.0, 1.0], [2.0, value], [np.nan, 5.0]])
    with pytest.raises(DataError, match=message):
        finite(x, where=where)
    x[2, 0] = 0.0
    with pytest.raises(DataError, match=message):
        finite_csr(sp.csr_matrix(x), where=where)


def test_finite_names_the_column_as_asked() -> None:
    with pytest.raises(DataError, match="column age is nan"):
        finite(np.array([[np.nan]]), where=where, column=lambda col: ["column age"][col])


@pytest.mark.parametrize(
    "x",
    [np.array([["a"]]), np.array([[1j]]), np.zeros(3), np.array([[None]])],
    ids=["text", "complex", "flat", "object"],
)
def test_finite_no_real_matrix_is_refused(x: Any) -> None:
    with pytest.raises(DataError, match=r"give real numbers of shape \[num_nodes, F\]"):
        finite(x, where=where)


def test_finite_csr_is_canonical_and_leaves_input_alone() -> None:
    # row 0 unsorted with a stored zero, row 1 with -0.0 and a value that float32 rounds to 0
    x = sp.csr_matrix(([3.0, 0.0, 1.0, -0.0, 1e-60], [4, 2, 0, 1, 3], [0, 3, 5]), shape=(2, 5))
    out = finite_csr(x, where=where)
    assert out.dtype == np.float32
    assert out.indices.tolist() == [0, 4]
    assert out.data.tolist() == [1.0, 3.0]
    assert out.indptr.tolist() == [0, 2, 2]
    assert x.indices.tolist() == [4, 2, 0, 1, 3]
    assert x.nnz == 5


def test_finite_csr_entry_stored_twice_is_refused() -> None:
    x = sp.csr_matrix(([1.0, 1.0, 2.0], [0, 2, 2], [0, 0, 3]), shape=(2, 3))
    with pytest.raises(DataError, match=r"^nodes.csv row 2: feature 2 is stored twice;"):
        finite_csr(x, where=where)


def test_finite_csr_same_column_in_neighbouring_rows_is_fine() -> None:
    x = sp.csr_matrix(([1.0, 2.0], [2, 2], [0, 1, 2]), shape=(2, 3))
    assert (finite_csr(x, where=where) != x).nnz == 0


def test_finite_csr_complex_is_refused() -> None:
    with pytest.raises(DataError, match="complex128"):
        finite_csr(sp.csr_matrix(np.array([[1j]])), where=where)


def matrix(num_features: int, num_nonzero: int) -> Any:
    x = np.zeros((4, num_features), dtype=np.float32)
    x.ravel()[:num_nonzero] = 1
    return x


@pytest.mark.parametrize("given_sparse", [False, True], ids=["from-dense", "from-csr"])
@pytest.mark.parametrize(
    ("num_features", "num_nonzero", "layout", "sparse"),
    [
        (64, 64, "auto", True),
        (64, 65, "auto", False),
        (63, 1, "auto", False),
        (64, 64, "dense", False),
        (3, 12, "sparse", True),
    ],
    ids=["at-25-percent", "above-25-percent", "few-features", "as-dense", "as-sparse"],
)
def test_lay_out_goes_by_content(
    num_features: int, num_nonzero: int, layout: Layout, sparse: bool, given_sparse: bool
) -> None:
    x = matrix(num_features, num_nonzero)
    out = lay_out(sp.csr_matrix(x) if given_sparse else x, layout)
    assert sp.issparse(out) == sparse
    dense = out.toarray() if sp.issparse(out) else out
    assert dense.dtype == np.float32
    assert np.array_equal(dense, x)


def test_lay_out_no_column_is_none() -> None:
    assert lay_out(np.zeros((3, 0), dtype=np.float32), "auto") is None


def test_csr_from_parts_gives_the_matrix() -> None:
    data, indices, indptr = np.array([5.0, 6.0]), np.array([2, 0]), np.array([0, 1, 2])
    out = csr_from_parts(data, indices, indptr, (2, 3), name="x.npz")
    assert out.toarray().tolist() == [[0, 0, 5], [6, 0, 0]]


@pytest.mark.parametrize(
    ("data", "indices", "indptr", "shape"),
    [
        ([1.0, 2.0], [0, 3], [0, 1, 2], (2, 3)),
        ([1.0, 2.0], [0, -1], [0, 1, 2], (2, 3)),
        ([1.0, 2.0], [0, 1], [0, 2, 1], (2, 3)),
        ([1.0, 2.0], [0, 1], [0, 1, 5], (2, 3)),
        ([1.0, 2.0], [0, 1], [1, 1, 2], (2, 3)),
        ([1.0, 2.0], [0, 1], [0, 1, 2], (10**12, 3)),
        ([1.0], [0, 1], [0, 1, 2], (2, 3)),
        ([1.0, 2.0], [0.0, 1.0], [0, 1, 2], (2, 3)),
        (["a", "b"], [0, 1], [0, 1, 2], (2, 3)),
        ([[1.0, 2.0]], [0, 1], [0, 1, 2], (2, 3)),
    ],
    ids=[
        "column-too-large",
        "column-negative",
        "pointer-falls",
        "pointer-past-end",
        "pointer-starts-late",
        "huge-shape",
        "data-short",
        "float-indices",
        "text",
        "nested",
    ],
)
def test_csr_from_parts_inconsistent_is_refused(
    data: list[Any], indices: list[Any], indptr: list[int], shape: tuple[int, int]
) -> None:
    parts = [np.array(part) for part in (data, indices, indptr)]
    with pytest.raises(DataError, match=r"^x.npz: no CSR matrix"):
        csr_from_parts(parts[0], parts[1], parts[2], shape, name="x.npz")


@pytest.mark.parametrize(
    ("column", "width", "expected"),
    [
        (pa.array([1, 2], pa.int8()), None, [[1], [2]]),
        (pa.array([True, False]), 1, [[1], [0]]),
        (pa.array([[1.5, 2], [3, 4]]), None, [[1.5, 2], [3, 4]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), 2, [[1, 2], [3, 4]]),
    ],
    ids=["integers", "booleans", "lists", "lists-of-fixed-size"],
)
def test_arrow_block_gives_rows(column: Any, width: int | None, expected: list[Any]) -> None:
    block = arrow_block(pa.chunked_array([column]), "a", where=where, width=width)
    assert block.dtype == np.float32
    assert block.tolist() == expected


@pytest.mark.parametrize(
    ("column", "width", "message"),
    [
        ([1.0, None], None, r"^nodes.csv row 2: a has no value"),
        ([[1, 2], [3, None]], None, r"^nodes.csv row 2: a has no value"),
        ([[1, 2], None], None, r"^nodes.csv row 2: a has no value"),
        ([[1, 2], [3]], None, r"^nodes.csv row 2: column 'a' has 1 values, expected 2"),
        ([[1, 2], [3, 4]], 3, r"^nodes.csv row 1: column 'a' has 2 values, expected 3"),
        ([1, 2], 2, r"^nodes.csv row 1 and on: column 'a' is int64, expected lists of 2"),
        (["1", "2"], None, r"^nodes.csv row 1 and on: column 'a' is string, not numbers"),
        ([["1"], ["2"]], None, r"^nodes.csv row 1 and on: column 'a' is list<.*>, not numbers"),
        ([1.0, float("nan")], None, r"^nodes.csv row 2: a is nan"),
        ([[1, 2], [3, 1e39]], None, r"^nodes.csv row 2: a\[1\] is 1e\+39"),
    ],
)
def test_arrow_block_bad_value_is_refused(
    column: list[Any], width: int | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        arrow_block(pa.chunked_array([pa.array(column)]), "a", where=where, width=width)


@pytest.mark.parametrize(
    ("labels", "is_csv", "expected"),
    [
        (pa.array([1, None, 0]), False, ([1, -1, 0], 2, None)),
        (pa.array([1.0, None, 0.0]), False, ([1, -1, 0], 2, None)),
        (pa.array(["10", "", "9"], TEXT), False, ([0, -1, 1], 2, ["10", "9"])),
        (pa.array(["1", "", "0.0"], TEXT), True, ([1, -1, 0], 2, None)),
        (pa.array([None], TEXT), False, ([-1], 0, [])),
    ],
    ids=["integers", "floats", "names", "csv-numbers", "none"],
)
def test_arrow_labels_gives_classes(labels: Any, is_csv: bool, expected: Any) -> None:
    y, *rest = arrow_labels(
        pa.chunked_array([labels]), "y", is_csv=is_csv, num_classes=None, where=where
    )
    assert y.dtype == np.int64
    assert (y.tolist(), *rest) == expected


def test_arrow_split_gives_codes_and_refuses_others() -> None:
    names = ["test", None, "valid", "train", ""]
    assert arrow_split(pa.chunked_array([names], TEXT), "s", where=where).tolist() == [
        3,
        0,
        2,
        1,
        0,
    ]
    with pytest.raises(DataError, match=r"^nodes.csv row 2: s 'Train' is no split; allowed are"):
        arrow_split(pa.chunked_array([["val", "Train"]], TEXT), "s", where=where)
    with pytest.raises(DataError, match=r"no row has test in column 's'"):
        refuse_empty_split({0, 1, 2}, "s", where)
    refuse_empty_split({1, 2, 3}, "s", where)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (["0", "-5", None, str(2**63 - 1)], [0, -5, None, 2**63 - 1]),
        ([None], [None]),
        (["1", "01"], None),
        (["1", "+1"], None),
        (["1", "-0"], None),
        (["1", "0x1"], None),
        (["1", "1.0"], None),
        (["1", str(2**63)], None),
    ],
    ids=str,
)
def test_plain_integers_takes_plain_forms_only(
    text: list[str | None], expected: list[int | None] | None
) -> None:
    found = plain_integers(pa.chunked_array([text], TEXT))
    assert (found if found is None else found.to_pylist()) == expected


@pytest.mark.parametrize(
    ("y", "num_classes", "expected"),
    [([0, 2, 1], None, 3), ([-1, 0, -1], None, 1), ([0, 1], 5, 5), ([-1, -1], None, 0)],
    ids=["all", "some", "given", "none"],
)
def test_count_classes_counts(y: list[int], num_classes: int | None, expected: int) -> None:
    found = count_classes(np.array(y, dtype=np.int64), num_classes=num_classes, where=where)
    assert found == expected


@pytest.mark.parametrize(
    ("y", "num_classes", "message"),
    [
        ([0, -2, 1], None, r"^nodes.csv row 2: label -2 is negative"),
        ([0, 1, 3], 3, r"^nodes.csv row 3: label 3 is out of range; .* the largest is 2$"),
        ([0, 9, -1], None, r"^nodes.csv row 2: label 9 makes 10 classes, but only 2 nodes have"),
        ([0, 2, -1], None, r"label 2 makes 3 classes.* or give num_classes$"),
    ],
    ids=["negative", "past-num-classes", "wild", "one-too-many"],
)
def test_count_classes_label_out_of_range_is_refused(
    y: list[int], num_classes: int | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        count_classes(np.array(y, dtype=np.int64), num_classes=num_classes, where=where)
