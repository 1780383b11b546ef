# mypy: allow-untyped-defs
"""Vector operations on rows of flat arrays, for the CPU kernels: LLVM's vectors, written out.

Left to itself LLVM unrolls loops of a constant length to scalars before it looks for vectors, and
stores and loads a row's sum again at each edge, because arrays might overlap. Here a row's sums
stay in registers for a block of edges.

Arrays are flat and contiguous; positions and steps count numbers. The edges of a block are
`index[first:first + n]`, `x` holds rows of `stride` numbers, and `width` numbers of a row are read
from `ix` on. `stride` and `width` are constants of the compiled code. Sums run over the edges in
order.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from dnformer.ops.vector_ir import (
    FAST,
    INT,
    LONG,
    add_product,
    arrays,
    constants,
    folded,
    in_registers,
    long,
    prefetch,
    row_start,
    splat,
    store_totals,
    zero,
)

# short rows are over before the hardware has seen where the next one is (bench/LOG.md)
_AHEAD = 8


@intrinsic(prefer_literal=True)
def gather_dots(context, out, o, step, a, ia, x, ix, stride, index, first, n, width):
    """`out[o + e·step] = <a[ia:], row e[ix:]>` for each edge e of the block."""
    length, count = constants(stride, width)
    signature = types.void(out, INT, INT, a, INT, x, INT, stride, index, INT, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, fixed, rows, edges = arrays(context, builder, signature, args, (0, 3, 5, 8))
        factors = [fixed.load(args[4], piece) for piece in fixed.pieces(count)]
        with cgutils.for_range(builder, args[10], intp=LONG) as loop:
            base = row_start(builder, edges, args[9], loop.index, length, args[6])
            products = [
                builder.fmul(factor, rows.load(base, piece), flags=FAST)
                for factor, piece in zip(factors, rows.pieces(count), strict=True)
            ]
            place = builder.add(args[1], builder.mul(loop.index, args[2]))
            store_totals(builder, to, place, [folded(builder, products)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_sum(context, acc, ia, coef, c, step, x, ix, stride, index, first, n, width):
    """`acc[ia:] += sum over the edges e of the block of coef[c + e·step] · row e[ix:]`."""
    length, count = constants(stride, width)
    signature = types.void(acc, INT, coef, INT, INT, x, INT, stride, index, INT, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, coefs, rows, edges = arrays(context, builder, signature, args, (0, 2, 5, 8))
        with (
            in_registers(builder, acc, args[1], count) as sums,
            cgutils.for_range(builder, args[10], intp=LONG) as loop,
        ):
            base = row_start(builder, edges, args[9], loop.index, length, args[6])
            coef = coefs.get(builder.add(args[3], builder.mul(loop.index, args[4])))
            for piece, place in sums:
                add_product(builder, place, coef, rows.load(base, piece))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_sum_pair(
    context, acc, ia, ib, coef, coef_2, c, step, x, ix, stride, index, first, n, width
):
    """Two of `gather_sum` at one reading: to `ia` with `coef`, to `ib` with `coef_2`."""
    length, count = constants(stride, width)
    signature = types.void(
        acc, INT, INT, coef, coef_2, INT, INT, x, INT, stride, index, INT, INT, width
    )

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, *coefs, rows, edges = arrays(context, builder, signature, args, (0, 3, 4, 7, 10))
        with (
            in_registers(builder, acc, args[1], count) as first,
            in_registers(builder, acc, args[2], count) as second,
            cgutils.for_range(builder, args[12], intp=LONG) as loop,
        ):
            base = row_start(builder, edges, args[11], loop.index, length, args[8])
            place = builder.add(args[5], builder.mul(loop.index, args[6]))
            factors = [coef.get(place) for coef in coefs]
            for (piece, *to), (_piece, *to_2) in zip(first, second, strict=True):
                row = rows.load(base, piece)
                for factor, target in zip(factors, (*to, *to_2), strict=True):
                    add_product(builder, target, factor, row)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_hidden(
    context, out, o, mask, im, weight, u, iu, x, index, first, n, heads, width, keep_mask
):
    """`out[o + e·heads + h] = <weight[h], relu(u[iu:] + row e)>`; rows of `x` are `width` long.

    `width` is a multiple of 8. With `keep_mask` = 1, which sums were above 0 is written as bits,
    `width / 8` bytes an edge from `mask[im]` on.
    """
    num_heads, count, keep = constants(heads, width, keep_mask)
    signature = types.void(
        out, INT, mask, INT, weight, u, INT, x, index, INT, INT, heads, width, keep_mask
    )

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, bits, factors, fixed, rows, edges = arrays(
            context, builder, signature, args, (0, 2, 4, 5, 7, 8)
        )
        pieces = list(rows.pieces(count))
        own = [fixed.load(args[6], piece) for piece in pieces]
        scale = [
            [factors.load(long(h * count), piece) for piece in pieces] for h in range(num_heads)
        ]
        with cgutils.for_range(builder, args[10], intp=LONG) as loop:
            ahead = builder.add(loop.index, long(_AHEAD))
            with builder.if_then(builder.icmp_signed("<", ahead, args[10])):
                later = row_start(builder, edges, args[9], ahead, count, long(0))
                prefetch(builder, rows, later, count)
            base = row_start(builder, edges, args[9], loop.index, count, long(0))
            hidden = []
            for piece, part in zip(pieces, own, strict=True):
                total = builder.fadd(part, rows.load(base, piece))
                # not ordered: NaN stays NaN
                above = builder.fcmp_unordered(">", total, zero(total.type))
                hidden.append(builder.select(above, total, zero(total.type)))
                if keep:
                    byte = builder.add(args[3], builder.mul(loop.index, long(count // 8)))
                    bits.put_bits(builder.add(byte, long(piece.start // 8)), above)
            dots = [
                folded(
                    builder,
                    [builder.fmul(x, y, flags=FAST) for x, y in zip(hidden, head, strict=True)],
                )
                for head in scale
            ]
            place = builder.add(args[1], builder.mul(loop.index, long(num_heads)))
            store_totals(builder, to, place, dots)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def masked_sum(context, acc, ia, mask, im, coef, c, step, n, width):
    """`acc[ia:] += sum over e < n of coef[c + e·step] · bits e`; `gather_hidden` wrote the bits."""
    (count,) = constants(width)
    signature = types.void(acc, INT, mask, INT, coef, INT, INT, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, bits, coefs = arrays(context, builder, signature, args, (0, 2, 4))
        with (
            in_registers(builder, acc, args[1], count) as sums,
            cgutils.for_range(builder, args[7], intp=LONG) as loop,
        ):
            coef = coefs.get(builder.add(args[5], builder.mul(loop.index, args[6])))
            byte = builder.add(args[3], builder.mul(loop.index, long(count // 8)))
            for piece, place in sums:
                start = builder.add(byte, long(piece.start // 8))
                spread = splat(builder, coef, piece.num)
                set_ = bits.get_bits(start, piece.num)
                part = builder.select(set_, spread, zero(spread.type))
                builder.store(builder.fadd(builder.load(place), part, flags=FAST), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_copy(context, out, x, index, first, n, width):
    """`out[e·width:] = row e` of the block; rows of `x` are `width` long."""
    (count,) = constants(width)
    signature = types.void(out, x, index, INT, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, rows, edges = arrays(context, builder, signature, args, (0, 1, 2))
        with cgutils.for_range(builder, args[4], intp=LONG) as loop:
            base = row_start(builder, edges, args[3], loop.index, count, long(0))
            place = builder.mul(loop.index, long(count))
            for piece in rows.pieces(count):
                to.store(place, piece, rows.load(base, piece))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def rows_max(context, acc, ia, x, first, n, width):
    """`acc[ia:] = max(acc[ia:], row)` over n rows of `width` numbers from `x[first]` on."""
    return _fold_rows(
        acc, x, width, lambda b, old, new: b.select(b.fcmp_ordered(">", new, old), new, old)
    )


@intrinsic(prefer_literal=True)
def rows_sum(context, acc, ia, x, first, n, width):
    """`acc[ia:] += row`, likewise."""
    return _fold_rows(acc, x, width, lambda b, old, new: b.fadd(old, new))


@intrinsic(prefer_literal=True)
def rows_subtract(context, x, first, n, c, ic, width):
    """`row -= c[ic:]` for n rows of `width` numbers from `x[first]` on."""
    return _change_rows(x, c, width, lambda b, row, fixed: b.fsub(row, fixed))


@intrinsic(prefer_literal=True)
def rows_multiply(context, x, first, n, c, ic, width):
    """`row *= c[ic:]`, likewise."""
    return _change_rows(x, c, width, lambda b, row, fixed: b.fmul(row, fixed))


@intrinsic(prefer_literal=True)
def rows_fill(context, x, first, n, c, ic, width):
    """`row = c[ic:]`, likewise."""
    return _change_rows(x, c, width, lambda b, row, fixed: fixed)


@intrinsic(prefer_literal=True)
def rows_spread(context, out, o, step, x, first, n, width):
    """`out[o + e·step:] = row e` for n rows of `width` numbers from `x[first]` on."""
    (count,) = constants(width)
    signature = types.void(out, INT, INT, x, INT, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, rows = arrays(context, builder, signature, args, (0, 3))
        with cgutils.for_range(builder, args[5], intp=LONG) as loop:
            base = builder.add(args[4], builder.mul(loop.index, long(count)))
            place = builder.add(args[1], builder.mul(loop.index, args[2]))
            for piece in rows.pieces(count):
                to.store(place, piece, rows.load(base, piece))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def add_products(context, acc, ia, a, ib, b, ic, width):
    """`acc[ia:] += a[ib:] · b[ic:]`, number by number."""
    (count,) = constants(width)
    signature = types.void(acc, INT, a, INT, b, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, left, right = arrays(context, builder, signature, args, (0, 2, 4))
        for piece in acc.pieces(count):
            product = builder.fmul(left.load(args[3], piece), right.load(args[5], piece))
            acc.store(args[1], piece, builder.fadd(acc.load(args[1], piece), product, flags=FAST))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def scaled(context, out, o, x, ix, c, width):
    """`out[o:] = c · x[ix:]`."""
    (count,) = constants(width)
    signature = types.void(out, INT, x, INT, x.dtype, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, from_ = arrays(context, builder, signature, args, (0, 2))
        for piece in to.pieces(count):
            factor = splat(builder, args[4], piece.num)
            to.store(args[1], piece, builder.fmul(factor, from_.load(args[3], piece)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def subtract(context, out, o, x, ix, width):
    """`out[o:] -= x[ix:]`."""
    (count,) = constants(width)
    signature = types.void(out, INT, x, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, from_ = arrays(context, builder, signature, args, (0, 2))
        for piece in to.pieces(count):
            difference = builder.fsub(to.load(args[1], piece), from_.load(args[3], piece))
            to.store(args[1], piece, difference)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def from_bits(context, bits):
    """The float32 that these 32 bits are."""
    if bits != types.int32:
        raise TypingError("from_bits takes an int32")

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


def _fold_rows(acc: Any, x: Any, width: Any, fold: Any) -> Any:
    (count,) = constants(width)
    signature = types.void(acc, INT, x, INT, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, rows = arrays(context, builder, signature, args, (0, 2))
        with (
            in_registers(builder, acc, args[1], count) as sums,
            cgutils.for_range(builder, args[4], intp=LONG) as loop,
        ):
            base = builder.add(args[3], builder.mul(loop.index, long(count)))
            for piece, place in sums:
                new = fold(builder, builder.load(place), rows.load(base, piece))
                builder.store(new, place)
        return context.get_dummy_value()

    return signature, generate


def _change_rows(x: Any, c: Any, width: Any, change: Any) -> Any:
    (count,) = constants(width)
    signature = types.void(x, INT, INT, c, INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        rows, constants = arrays(context, builder, signature, args, (0, 3))
        fixed = [constants.load(args[4], piece) for piece in rows.pieces(count)]
        with cgutils.for_range(builder, args[2], intp=LONG) as loop:
            base = builder.add(args[1], builder.mul(loop.index, long(count)))
            for piece, part in zip(rows.pieces(count), fixed, strict=True):
                rows.store(base, piece, change(builder, rows.load(base, piece), part))
        return context.get_dummy_value()

    return signature, generate
