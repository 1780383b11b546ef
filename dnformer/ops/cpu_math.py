# mypy: allow-untyped-defs
"""Numbers of the CPU kernels: exp and softplus that LLVM can vectorise, dropout's mask.

libm's functions are called number by number; in float32 these polynomials cost a tenth. float64
takes libm's.
"""

import math

import numpy as np
from numba.core import types
from numba.extending import overload, register_jitable

from dnformer.ops.vector import from_bits
from dnformer.ops.vector_ir import FAST

_LOG2_E = np.float32(math.log2(math.e))
# ln 2 in two parts, the first with few bits, so that its multiples are exact
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
# below it exp is no normal float32
_LOWEST = np.float32(-87.0)
_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1), np.float32(2)
# Taylor's, from the highest: |x| <= ln(2) / 2, so the rest is below 2e-9
_EXP = tuple(np.float32(1 / math.factorial(n)) for n in range(8, 1, -1))
# 2·artanh(s) = 2 s (1 + s^2/3 + s^4/5 ..), s <= 1/3, the rest below 2e-9
_ARTANH = tuple(np.float32(2 / n) for n in range(17, 0, -2))


def exp_negative(x: float) -> float:
    """exp(x) for x <= 0."""
    return math.exp(x)


def log1p_unit(x: float) -> float:
    """log(1 + x) for 0 <= x <= 1."""
    return math.log1p(x)


@overload(exp_negative, jit_options={"forceinline": True, "fastmath": set(FAST)})
def _exp_negative(x):
    if x != types.float32:
        return lambda x: math.exp(x)

    def exp32(x):
        y = x if x > _LOWEST else _LOWEST
        n = np.floor(y * _LOG2_E + _HALF)
        r = (y - n * _LN2_HIGH) - n * _LN2_LOW
        s = _EXP[0]
        s = s * r + _EXP[1]
        s = s * r + _EXP[2]
        s = s * r + _EXP[3]
        s = s * r + _EXP[4]
        s = s * r + _EXP[5]
        s = s * r + _EXP[6]
        power = from_bits(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))
        value = (s * r * r + r + _ONE) * power
        low = np.float32(0) if x <= _LOWEST else value
        return low if x == x else x  # NaN stays NaN

    return exp32


@overload(log1p_unit, jit_options={"forceinline": True, "fastmath": set(FAST)})
def _log1p_unit(x):
    if x != types.float32:
        return lambda x: math.log1p(x)

    def log32(x):
        s = x / (_TWO + x)
        t = s * s
        r = _ARTANH[0]
        r = r * t + _ARTANH[1]
        r = r * t + _ARTANH[2]
        r = r * t + _ARTANH[3]
        r = r * t + _ARTANH[4]
        r = r * t + _ARTANH[5]
        r = r * t + _ARTANH[6]
        r = r * t + _ARTANH[7]
        r = r * t + _ARTANH[8]
        return r * s

    return log32


@register_jitable
def mix(z):
    """SplitMix64's finaliser on uint64; `types.Dropout` is the contract."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@register_jitable
def is_kept(key, position, threshold):
    """Whether dropout keeps the weight at `position`, an edge and head; `key` is mix(seed)."""
    counter = np.uint64(position) + np.uint64(1)
    return mix(key + counter * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40) >= threshold
