# mypy: allow-untyped-defs
"""Kernels that copy rows of features: serial, `nogil`, one batch a call.

Tables are flat; a row is `row_bytes` bytes of them. Rows are copied as they lie, or decoded to
float32 on the way. A row is asked for some rows ahead of its copy, so that the misses of many
overlap (bench/LOG.md).
"""

from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from dnformer.ops.prefetch import prefetch

Array = npt.NDArray[Any]

# what becomes of a row: the same bytes; float16 to float32; int8 times a scale to float32
COPY, HALF, SCALED = 0, 1, 2

_AHEAD = 16
_LINE = 64
# the hardware sees a long row coming by itself
_ASKED_BYTES = 256
_BYTE = ir.IntType(8).as_pointer()


class Rows(NamedTuple):
    """How a row is stored and what becomes of it: COPY, HALF or SCALED; bytes; numbers."""

    kind: int
    row_bytes: int
    width: int


def kind_of(stored: np.dtype[Any], wanted: np.dtype[Any]) -> int:
    """What becomes of a row of `stored` numbers where `wanted` ones are asked for."""
    if stored == wanted:
        return COPY
    return HALF if stored == np.float16 else SCALED


class Table(NamedTuple):
    """One memory seen as bytes, as 16-bit words (where their number is even) and as int8."""

    bytes: Array
    words: Array
    small: Array


def table(memory: Array) -> Table:
    """A contiguous array as a `Table`."""
    flat = memory.reshape(-1).view(np.uint8)
    words = np.empty(0, np.uint16) if len(flat) % 2 else flat.view(np.uint16)
    return Table(flat, words, flat.view(np.int8))


class Out(NamedTuple):
    """Where rows go, seen as bytes and, unless they are copied as they lie, as float32."""

    bytes: Array
    floats: Array


def out(memory: Array, kind: int) -> Out:
    """A contiguous array as an `Out`."""
    flat = memory.reshape(-1)
    return Out(flat.view(np.uint8), np.empty(0, np.float32) if kind == COPY else flat)


def _place(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [position]), _BYTE)


@intrinsic
def _copy(context, to, t, source, s, count):
    """Copies `count` bytes to `to[t:]` from `source[s:]`."""
    signature = types.void(to, types.int64, source, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = _place(context, builder, signature.args[0], args[0], args[1])
        origin = _place(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, target, origin, args[4], 1)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _half(context, word):
    """The float16 with these bits, as float32."""
    signature = types.float32(types.uint16)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        half = builder.bitcast(args[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return signature, generate


@numba.njit(inline="always")
def put_row(rows, source, start, scale, to, o):
    """Writes the row at byte `start` of `source` as row `o` of `to`."""
    if rows.kind == COPY:
        _copy(to.bytes, o * rows.row_bytes, source.bytes, start, rows.row_bytes)
        return
    floats = to.floats[o * rows.width : (o + 1) * rows.width]
    if rows.kind == HALF:
        words = source.words[start // 2 : start // 2 + rows.width]
        for j in range(rows.width):
            floats[j] = _half(words[j])
    else:
        small = source.small[start : start + rows.width]
        for j in range(rows.width):
            floats[j] = np.float32(small[j]) * scale[j]


@numba.njit(inline="always")
def _ask_row(rows, source, start):
    for offset in range(0, min(rows.row_bytes, _ASKED_BYTES), _LINE):
        prefetch(source.bytes, start + offset)


@numba.njit(nogil=True, cache=True)
def gather(rows, source, ids, scale, to):
    """Row ids[i] of `source` becomes row i of `to`."""
    n = ids.shape[0]
    for i in range(n):
        if i + _AHEAD < n:
            _ask_row(rows, source, ids[i + _AHEAD] * rows.row_bytes)
        put_row(rows, source, ids[i] * rows.row_bytes, scale, to, i)


@numba.njit(nogil=True, cache=True)
def gather_both(rows, hot, source, slots, ids, scale, to):
    """The same, from row slots[i] of `hot` where that is not negative."""
    n = ids.shape[0]
    for i in range(n):
        if i + _AHEAD < n:
            slot = slots[i + _AHEAD]
            if slot >= 0:
                _ask_row(rows, hot, slot * rows.row_bytes)
            else:
                _ask_row(rows, source, ids[i + _AHEAD] * rows.row_bytes)
        if slots[i] >= 0:
            put_row(rows, hot, slots[i] * rows.row_bytes, scale, to, i)
        else:
            put_row(rows, source, ids[i] * rows.row_bytes, scale, to, i)


@numba.njit(nogil=True, cache=True)
def gather_hits(rows, hot, slots, scale, to):
    """Row slots[i] of `hot` becomes row i of `to`, where slots[i] is not negative."""
    n = slots.shape[0]
    for i in range(n):
        if i + _AHEAD < n and slots[i + _AHEAD] >= 0:
            _ask_row(rows, hot, slots[i + _AHEAD] * rows.row_bytes)
        if slots[i] >= 0:
            put_row(rows, hot, slots[i] * rows.row_bytes, scale, to, i)
