"""Counter-based random numbers: every draw is a pure function of a key.

SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): its finaliser `mix` hashes keys, and `mix(key + c·γ)`
is draw `c` of the stream that starts at `key`. No state, so any thread or rank draws the same.
"""

import numba
import numpy as np
import numpy.typing as npt

GAMMA = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MASK = (1 << 64) - 1

STREAMS = {"train": 0, "val": 1, "predict": 2, "order": 3, "split": 4, "synthetic": 5}


@numba.njit(inline="always")
def mix(x):  # type: ignore[no-untyped-def]
    """SplitMix64's finaliser, uint64 to uint64: a bijection that flips half the bits."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@numba.njit(inline="always")
def derive(key, value):  # type: ignore[no-untyped-def]
    """The key of `value` under `key`, both uint64."""
    return mix(mix(key + GAMMA) ^ (value * GAMMA + _M1))


@numba.njit(inline="always")
def below(draw, n):  # type: ignore[no-untyped-def]
    """A uint64 `draw` as an int64 below `n`, 0 < n < 2^32 (the high word of draw·n)."""
    n = np.uint64(n)
    return np.int64(((draw >> _S32) * n + (((draw & _LOW) * n) >> _S32)) >> _S32)


@numba.njit(nogil=True, cache=True)
def _permute(order, key):  # type: ignore[no-untyped-def]
    for i in range(order.shape[0] - 1, 0, -1):
        j = below(mix(key + np.uint64(i) * GAMMA), i + 1)
        order[i], order[j] = order[j], order[i]


def permutation(n: int, key: int) -> npt.NDArray[np.int64]:
    """A uniform permutation of 0..n-1, `[n]`, by Fisher and Yates' shuffle; n < 2^32."""
    order = np.arange(n, dtype=np.int64)
    _permute(order, np.uint64(key))
    return order


def key_of(seed: int, stream: str, *parts: int) -> int:
    """The 64-bit key of (seed, stream, parts); Python's twin of folding `derive`."""
    key = seed & _MASK
    for part in (STREAMS[stream], *parts):
        key = _derive(key, part & _MASK)
    return key


def _derive(key: int, value: int) -> int:
    return _mix(_mix((key + int(GAMMA)) & _MASK) ^ ((value * int(GAMMA) + int(_M1)) & _MASK))


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * int(_M1)) & _MASK
    x = ((x ^ (x >> 27)) * int(_M2)) & _MASK
    return x ^ (x >> 31)
