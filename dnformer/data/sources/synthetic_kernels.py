"""The synthetic graphs' loops: a shuffle of the nodes, edges by pair, classes and noise by node.

Everything is integers drawn by counter, so the bytes depend on the seed alone: not on threads,
vector width, or a machine's mathematical library.
"""

from decimal import Decimal, localcontext
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from dnformer.data.counter_rng import GAMMA, below, key_of, mix

_ROUNDS = 4
_BINS_BITS = 12  # 4096 quantiles, 32 KiB: they stay in the first-level cache
_BINS_SHIFT = np.uint64(64 - _BINS_BITS)
_TAKE_BINS = np.uint64(_BINS_BITS)
_MAX_FRACTION_BITS = 16

_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(0xFFFF)

# R-MAT's quadrants a, b, c, d = 0.57, 0.19, 0.19, 0.05 in 2^-16 (Chakrabarti, Zhan, Faloutsos,
# SDM 2004, with the values of Graph500's generator)
_A = np.uint64(round(0.57 * 65536))
_AB = np.uint64(round(0.76 * 65536))
_ABC = np.uint64(round(0.95 * 65536))

# four uniform numbers below 2^16: their sum has this mean, and this standard deviation
NOISE_MEAN = 4 * 65535 / 2
NOISE_STD = (4 * (65536**2 - 1) / 12) ** 0.5


class Shuffle(NamedTuple):
    """A bijection of 0..N-1 that looks random, each value in a few nanoseconds without a table.

    On numbers of as many bits as N takes, a step adds, multiplies by an odd number, and folds the
    upper half onto the lower; a result past N goes through again (cycle walking, Black and
    Rogaway, CT-RSA 2002).
    """

    size: np.uint64
    steps: npt.NDArray[np.uint64]  # [rounds, (added, factor, the factor's inverse)]
    mask: np.uint64
    fold: np.uint64


class Pairs(NamedTuple):
    """How the two ends of an edge are drawn.

    Node `shuffle(member * classes + class)` is a class's `member`; members 0, 1, ... of all
    classes are alike, and a lower one has at least as many edges.
    """

    shuffle: Shuffle
    num_classes: np.uint64
    num_members: np.uint64  # of the largest class, the others have one less or as many
    inside: np.uint64  # chance that both ends are of one class, in 2^-32
    quantiles: npt.NDArray[np.uint64]  # of members, in 2^-fraction_bits
    fraction_bits: np.uint64
    levels: np.int64  # of R-MAT's recursion; 0: by quantiles


def make_shuffle(size: int, seed: int) -> Shuffle:
    """The shuffle of 0..size-1 that `seed` draws."""
    bits = max(1, (size - 1).bit_length())
    mask = (1 << bits) - 1
    steps = np.empty((_ROUNDS, 3), dtype=np.uint64)
    for number in range(_ROUNDS):
        added, factor = (key_of(seed, "synthetic", 0, number, part) for part in range(2))
        factor |= 1
        steps[number] = added, factor, pow(factor, -1, 1 << 64)
    return Shuffle(np.uint64(size), steps, np.uint64(mask), np.uint64((bits + 1) // 2))


def make_quantiles(num_members: int, power: float) -> tuple[npt.NDArray[np.uint64], int]:
    """The members N·u^power at u = 0, 1/4096, .. 1, as integers, and how many bits are fraction.

    Decimal numbers have one result on every machine, `float ** float` has not.
    """
    # so that a bin, at most power / 4096 of all, stays below 2^32
    fraction_bits = min(_MAX_FRACTION_BITS, 38 - num_members.bit_length())
    bins = 1 << _BINS_BITS
    with localcontext(prec=30):
        top = Decimal(num_members << fraction_bits)
        exponent = Decimal(repr(power))
        values = [int(top * (Decimal(at) / bins) ** exponent) for at in range(bins + 1)]
    return np.array(values, dtype=np.uint64), fraction_bits


@numba.njit(inline="always")
def _shuffled(shuffle, rank):  # type: ignore[no-untyped-def]
    """The node of a rank, both uint64."""
    while True:
        for number in range(_ROUNDS):
            rank = ((rank + shuffle.steps[number, 0]) * shuffle.steps[number, 1]) & shuffle.mask
            rank ^= rank >> shuffle.fold
        if rank < shuffle.size:
            return rank


@numba.njit(inline="always")
def _unshuffled(shuffle, node):  # type: ignore[no-untyped-def]
    """The rank of a node: `_shuffled` backwards."""
    while True:
        for number in range(_ROUNDS - 1, -1, -1):
            node ^= node >> shuffle.fold
            node = (node * shuffle.steps[number, 2] - shuffle.steps[number, 0]) & shuffle.mask
        if node < shuffle.size:
            return node


@numba.njit(inline="always")
def _by_quantile(pairs, draw):  # type: ignore[no-untyped-def]
    """A member: the upper bits of `draw` choose a quantile, the others how far to the next."""
    at = draw >> _BINS_SHIFT
    start = pairs.quantiles[at]
    width = pairs.quantiles[at + _ONE] - start
    return (start + np.uint64(below(draw << _TAKE_BINS, width))) >> pairs.fraction_bits


@numba.njit(inline="always")
def _by_recursion(pairs, key):  # type: ignore[no-untyped-def]
    """Two members by R-MAT: a quadrant a level, four levels a draw; anew where one is none."""
    count = np.uint64(0)
    while True:
        row, col, draw = np.uint64(0), np.uint64(0), np.uint64(0)
        for level in range(pairs.levels):
            if level & 3 == 0:
                draw = mix(key + count * GAMMA)
                count += _ONE
            word = draw & _WORD
            draw >>= np.uint64(16)
            below_half = np.uint64(word >= _AB)
            right = np.uint64(word >= _A) ^ below_half ^ np.uint64(word >= _ABC)
            row = (row << _ONE) | below_half
            col = (col << _ONE) | right
        if row < pairs.num_members and col < pairs.num_members:
            return row, col


@numba.njit(inline="always")
def _rank(pairs, member, group):  # type: ignore[no-untyped-def]
    """The rank of a class's member; the last but one stands in where the class is one short."""
    rank = member * pairs.num_classes + group
    return rank if rank < pairs.shuffle.size else rank - pairs.num_classes


@numba.njit(nogil=True, cache=True)
def draw_edges(pairs, key, src, dst):  # type: ignore[no-untyped-def]
    """Fills `src`, `dst` int64 `[2·P]` with P pairs of different nodes, each in both directions."""
    for number in range(src.shape[0] // 2):
        own = mix(key + np.uint64(number) * GAMMA)
        draw = mix(own)
        group = np.uint64(below(draw, pairs.num_classes))
        other_group = group
        if draw & _LOW >= pairs.inside:
            step = np.uint64(below(mix(own + GAMMA), pairs.num_classes - _ONE))
            other_group = (group + step + _ONE) % pairs.num_classes
        one = other = np.uint64(0)
        while one == other:
            own = mix(own + _TWO * GAMMA)
            if pairs.levels > 0:
                member, other_member = _by_recursion(pairs, own)
            else:
                member = _by_quantile(pairs, mix(own + _TWO * GAMMA))
                other_member = _by_quantile(pairs, mix(own + _THREE * GAMMA))
            one = _rank(pairs, member, group)
            other = _rank(pairs, other_member, other_group)
        first = np.int64(_shuffled(pairs.shuffle, one))
        second = np.int64(_shuffled(pairs.shuffle, other))
        src[2 * number], dst[2 * number] = first, second
        src[2 * number + 1], dst[2 * number + 1] = second, first


@numba.njit(nogil=True, cache=True)
def classes_of(shuffle, num_classes, first, y):  # type: ignore[no-untyped-def]
    """Fills `y` int64 `[N]` with the classes of the nodes from `first` on."""
    for node in range(y.shape[0]):
        rank = _unshuffled(shuffle, np.uint64(first + node))
        y[node] = np.int64(rank % num_classes)


@numba.njit(nogil=True, cache=True)
def shuffle_each(shuffle, values, out):  # type: ignore[no-untyped-def]
    """Fills `out` int64 `[N]` with the shuffle of each of `values`."""
    for at in range(out.shape[0]):
        out[at] = np.int64(_shuffled(shuffle, np.uint64(values[at])))


@numba.njit(nogil=True, cache=True)
def draw_noise(key, out):  # type: ignore[no-untyped-def]
    """Fills `out` float32 `[M]` with sums of four uniform numbers below 2^16: nearly normal."""
    for at in range(out.shape[0]):
        draw = mix(key + np.uint64(at) * GAMMA)
        total = (draw & _WORD) + ((draw >> np.uint64(16)) & _WORD)
        total += ((draw >> np.uint64(32)) & _WORD) + (draw >> np.uint64(48))
        out[at] = np.float32(np.int64(total))
