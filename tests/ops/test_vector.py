"""Widths that are several vectors and a rest, which the operator's few compiled shapes are not."""

from functools import cache
from typing import Any

import numba
import numpy as np
import pytest

from dnformer.ops.vector import (
    add_products,
    from_bits,
    gather_dots,
    gather_hidden,
    gather_sum,
    masked_sum,
    rows_max,
    rows_multiply,
    rows_sum,
)

INDEX = np.array([4, 0, 2, 2, 5, 1, 3, 3, 0, 5, 1, 4], np.int64)
# a block in the middle, longer than what is read ahead
FIRST, NUM = 1, 10
BLOCK = INDEX[FIRST : FIRST + NUM]


def numbers(*shape: int, dtype: type) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    rtol = {np.float32: 1e-5, np.float64: 1e-13}[found.dtype.type]
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


@cache
def rows_kernel(width: int) -> Any:
    """Products of a block and of single rows; each row of x has 2 numbers more, at its end."""
    stride = width + 2

    @numba.njit
    def kernel(dots, total, top, row, x, index, first, n):
        gather_dots(dots, 1, 2, row, 0, x, 2, stride, index, first, n, width)
        gather_sum(total, 3, dots, 1, 2, x, 2, stride, index, first, n, width)
        rows_max(top, 0, x, stride, 3, width)
        rows_sum(top, width, x, stride, 3, width)
        rows_multiply(top, width, 1, row, 0, width)
        add_products(top, width, row, 0, row, 0, width)

    return kernel


@pytest.mark.parametrize(
    ("width", "dtype"), [(1, np.float64), (29, np.float32), (29, np.float64), (48, np.float32)]
)
def test_rows(width: int, dtype: type) -> None:
    x, row = numbers(6, width + 2, dtype=dtype), numbers(width, dtype=dtype)
    dots, total = numbers(2 * NUM + 1, dtype=dtype), numbers(width + 4, dtype=dtype)
    top = numbers(2 * width, dtype=dtype)
    before = dots.copy(), total.copy(), top.copy()
    rows_kernel(width)(dots, total, top, row, x.ravel(), INDEX, FIRST, NUM)
    expected = x[BLOCK, 2:] @ row
    same(dots[1::2], expected)
    assert dots[::2].tolist() == before[0][::2].tolist()
    same(total[3:-1], before[1][3:-1] + expected @ x[BLOCK, 2:])
    assert total[[0, 1, 2, -1]].tolist() == before[1][[0, 1, 2, -1]].tolist()
    # three rows of `width` numbers, wherever x has rows
    rows = x.ravel()[width + 2 :][: 3 * width].reshape(3, width)
    same(top[:width], np.maximum(before[2][:width], rows.max(0)))
    same(top[width:], (before[2][width:] + rows.sum(0)) * row + row * row)


@cache
def hidden_kernel(heads: int, hidden: int) -> Any:
    num_bytes = hidden // 8

    @numba.njit
    def kernel(out, bits, total, weight, u, w, index, first, n):
        gather_hidden(out, 0, bits, num_bytes, weight, u, 0, w, index, first, n, heads, hidden, 1)
        masked_sum(total, 0, bits, num_bytes, out, 0, heads, n, hidden)

    return kernel


@pytest.mark.parametrize(
    ("heads", "hidden", "dtype"),
    [(1, 8, np.float32), (3, 24, np.float32), (3, 24, np.float64), (9, 8, np.float64)],
)
def test_hidden(heads: int, hidden: int, dtype: type) -> None:
    # 9 heads are more than a vector of float64
    weight, u = numbers(heads, hidden, dtype=dtype), numbers(hidden, dtype=dtype)
    w = numbers(6, hidden, dtype=dtype)
    out, total = np.full((NUM, heads), np.nan, dtype), numbers(hidden, dtype=dtype)
    bits = np.full((NUM + 2) * hidden // 8, 77, np.uint8)
    before = total.copy()
    index = INDEX.astype(np.int32)
    hidden_kernel(heads, hidden)(
        out.ravel(), bits, total, weight.ravel(), u, w.ravel(), index, FIRST, NUM
    )
    right = np.maximum(u + w[BLOCK], 0)
    same(out, right @ weight.T)
    ends = [*range(hidden // 8), *range(-hidden // 8, 0)]
    assert bits[ends].tolist() == [77] * len(ends)
    above = np.unpackbits(bits[hidden // 8 : -hidden // 8], bitorder="little").reshape(NUM, hidden)
    assert above.tolist() == (right > 0).tolist()
    same(total, before + out[:, 0] @ above)


def test_hidden_nan() -> None:
    w = numbers(6, 8, dtype=np.float64)
    w[2, 5] = np.nan
    out, bits = np.zeros(NUM), np.zeros(NUM + 2, np.uint8)
    ones = np.ones(8)
    hidden_kernel(1, 8)(out, bits, np.zeros(8), ones, ones, w.ravel(), INDEX, FIRST, NUM)
    assert np.isnan(out).tolist() == (BLOCK == 2).tolist()


def test_from_bits() -> None:
    values = np.array([1, -0.0, 1.5e-38, np.inf, -3.25], np.float32)
    kernel = numba.njit(lambda x: from_bits(x))
    found = [kernel(bits) for bits in values.view(np.int32)]
    assert [np.float32(x).tobytes() for x in found] == [x.tobytes() for x in values]
