# mypy: allow-untyped-defs
"""What the CPU kernels share: their inputs, and steps on a tile of edges.

A kernel is compiled for one `Shape`. It runs one task of a plan (`ops.plan`), serially and without
the GIL, and writes only what is that task's. All arrays are flat. Its edges are worked on in tiles:
few enough for the cache, enough to fill vectors whatever the degrees.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer (padded to a multiple of 8), W width of q and k, B branches (2 with a lambda).
"""

import hashlib
from importlib.resources import files
from typing import Any, NamedTuple

import numba

from dnformer.ops.cpu_math import exp_negative, is_kept, log1p_unit, mix
from dnformer.ops.vector import gather_dots, rows_multiply
from dnformer.ops.vector_ir import FAST

# NaN and infinity keep their meaning: a loss that is not finite has to show
JIT = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": set(FAST),
}
TILE = 64
SQUASHES = ("softplus", "sigmoid", "identity")
_SIGMOID, _IDENTITY = 1, 2


class Shape(NamedTuple):
    """What a kernel is compiled for.

    Attributes:
        heads: H.
        width: W.
        value_width: D.
        hidden: R, a multiple of 8.
        branches: B.
    """

    heads: int
    width: int
    value_width: int
    hidden: int
    branches: int


class Nodes(NamedTuple):
    """The inputs: `flat.Inputs` as flat arrays, with empty ones where there is None."""

    colptr: Any
    row: Any
    q: Any
    k: Any
    v: Any
    u: Any
    w: Any
    weight: Any
    lam_bias: Any
    bias: Any


class Mode(NamedTuple):
    """What else the kernels are to do, decided once for a tile of edges.

    Attributes:
        squash: one of `SQUASHES` by its place.
        bias: whether there is one.
        dropout: whether there is one; then
        seed: as 64 unsigned bits,
        threshold: the least number that is kept, and
        scale: 1 / (1 - p), in the dtype of the inputs.
    """

    squash: Any
    bias: Any
    dropout: Any
    seed: Any
    threshold: Any
    scale: Any


def compiled(kernel: Any, shape: Shape) -> Any:
    """The kernel, under a name of its own.

    numba names machine code by the function and a counter of the process. Two shapes compiled by
    different processes can so get one name, and loaded from the cache one runs for the other.
    And its cache does not see a change in another file: the name has a digest of ours.
    """
    words = (*shape, TILE, _digest())
    kernel.__qualname__ += "_" + "_".join(str(word) for word in words)
    return numba.njit(**JIT)(kernel)


def _digest() -> str:
    sources = ("cpu_kernels.py", "cpu_math.py", "vector.py", "vector_ir.py")
    text = b"".join(files(__package__).joinpath(name).read_bytes() for name in sources)
    return hashlib.sha256(text).hexdigest()[:12]


@numba.njit(inline="always")
def tile_end(colptr, i, p, last_row, last_edge, slot, tile):
    """Where the tile that begins with edge p of row i ends: last + 1 row, and edge.

    The third value says whether it is a part of one row, longer than a tile or a hub's piece;
    else the tile holds whole rows.
    """
    if slot >= 0 or colptr[i + 1] - colptr[i] > tile:
        return i + 1, min(p + tile, min(colptr[i + 1], last_edge)), True
    j = i + 1
    while j < last_row and colptr[j + 1] - p <= tile:
        j += 1
    return j, colptr[j], False


@numba.njit(inline="always")
def row_logits(s1, s2, o, x, i, p, n, heads, width, stride, part, branches):
    """Products of destination i's queries with the keys of its edges p to p + n.

    Head by head: a part of the query stays in registers, and reading a part of each key in turn
    is faster than one key after the other (ops/README.md).
    """
    for h in range(heads):
        ix = h * width
        gather_dots(s1, o + h, heads, x.q, i * stride + ix, x.k, ix, stride, x.row, p, n, part)
        if branches == 2:
            ix += part
            gather_dots(s2, o + h, heads, x.q, i * stride + ix, x.k, ix, stride, x.row, p, n, part)


@numba.njit(inline="always")
def scale_logits(s, many, scale, bias, first, with_bias):
    """`s · scale + bias[first:]`, in place."""
    if with_bias:
        for y in range(many):
            s[y] = s[y] * scale + bias[first + y]
    else:
        for y in range(many):
            s[y] *= scale


@numba.njit(inline="always")
def exponentials(s, many):
    """exp(s), in place."""
    for y in range(many):
        s[y] = exp_negative(s[y])


@numba.njit(inline="always")
def softmax_rows(s1, s2, over, stats, base, o, n, heads, branches):
    """Divides the exponentials of a row's n edges by their sums, `stats[base:]`."""
    for h in range(branches * heads):
        over[h] = 1 / stats[base + h]
    rows_multiply(s1, o, n, over, 0, heads)
    if branches == 2:
        rows_multiply(s2, o, n, over, heads, heads)


@numba.njit(inline="always")
def multiply(s, factor, many):
    """`s · factor`, in place."""
    for y in range(many):
        s[y] *= factor[y]


@numba.njit(inline="always")
def lambda_and_slope(pre, lam_bias, lam, slope, n, squash, hidden):
    """Lambda of `pre + lam_bias` and the derivative, into their arrays."""
    zero, one = pre.dtype.type(0), pre.dtype.type(1)
    for x in range(n):
        pre[x] = pre[x] + lam_bias[x] if hidden > 0 else lam_bias[x]
    if squash == _IDENTITY:
        for x in range(n):
            lam[x] = pre[x]
            slope[x] = one
    else:
        for x in range(n):
            positive = pre[x] > zero
            small = exp_negative(-abs(pre[x]))
            upper = one / (one + small)
            sigmoid = upper if positive else small * upper
            if squash == _SIGMOID:
                lam[x] = sigmoid
                slope[x] = sigmoid * (one - sigmoid)
            else:
                lam[x] = (pre[x] if positive else zero) + log1p_unit(small)
                slope[x] = sigmoid


@numba.njit(inline="always")
def dropout_factors(kept, mode, first, many):
    """Dropout's factors of the weights from `first` on: 0 or 1 / (1 - p)."""
    key = mix(mode.seed)
    for y in range(many):
        kept[y] = mode.scale if is_kept(key, first + y, mode.threshold) else 0
