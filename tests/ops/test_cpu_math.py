import math

import numba
import numpy as np
import pytest
import torch

from dnformer.ops import Dropout
from dnformer.ops.cpu_math import exp_negative, is_kept, log1p_unit, mix
from dnformer.ops.dropout import keep_mask


@numba.njit(error_model="numpy")
def exp_each(x, out):
    for i in range(len(x)):
        out[i] = exp_negative(x[i])


@numba.njit(error_model="numpy")
def log_each(x, out):
    for i in range(len(x)):
        out[i] = log1p_unit(x[i])


@numba.njit
def keep_each(seed, threshold, out):
    key = mix(seed)
    for i in range(len(out)):
        out[i] = is_kept(key, i, threshold)


def each(function, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    function(x, out)
    return out


def test_exp_negative_float32() -> None:
    # a table, and what lies close to both ends; from -87 down it may be 0
    near = np.logspace(-38, -2, 10_001)
    x = np.concatenate([np.linspace(-86.99, 0, 400_001), -near, near - 87]).astype(np.float32)
    x = x[x > -87]
    np.testing.assert_allclose(each(exp_each, x), np.exp(x.astype(np.float64)), rtol=3e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_negative_ends(dtype: type) -> None:
    x = np.array([0, -0.0, -np.inf, np.nan, -1000, -100, -87], dtype)
    found = each(exp_each, x)
    assert found[:3].tolist() == [1, 1, 0]
    assert np.isnan(found[3])
    np.testing.assert_allclose(found[4:], np.exp(x[4:].astype(np.float64)), rtol=1e-15, atol=2e-38)


def test_exp_negative_rises() -> None:
    x = np.linspace(-90, 0, 100_001).astype(np.float32)
    found = each(exp_each, x)
    # of neighbours this close one may be the other's last bit lower
    assert (found[1:] >= found[:-1] * np.float32(1 - 2e-7)).all()
    assert found.max() <= 1


def test_log1p_unit_float32() -> None:
    x = np.concatenate([np.linspace(0, 1, 400_001), np.logspace(-38, 0, 10_001)])
    x = x.astype(np.float32)
    np.testing.assert_allclose(each(log_each, x), np.log1p(x.astype(np.float64)), rtol=3e-7)


def test_log1p_unit_ends() -> None:
    found = each(log_each, np.array([0, 1, np.nan], np.float32))
    assert found[0] == 0
    assert found[1] == np.float32(math.log(2))
    assert np.isnan(found[2])


@pytest.mark.parametrize("function", [exp_each, log_each])
def test_cpu_math_float64(function) -> None:
    x = np.linspace(0, 1, 1001)
    right = np.log1p(x) if function is log_each else np.exp(-30 * x)
    x = x if function is log_each else -30 * x
    np.testing.assert_allclose(each(function, x), right, rtol=1e-15)


@pytest.mark.parametrize("seed", [0, 1, 42, -1, -5, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999])
def test_is_kept_bits(seed: int, p: float) -> None:
    right = keep_mask(Dropout(p, torch.tensor(seed)), num_edges=400, num_heads=3)
    found = np.empty(1200, np.bool_)
    keep_each(np.uint64(seed % 2**64), np.uint64(math.ceil(p * 2**24)), found)
    assert found.tolist() == right.flatten().tolist()
