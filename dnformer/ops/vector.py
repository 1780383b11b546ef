"""Vector operations on rows of flat arrays, for the CPU kernels: LLVM's vectors, written out.

Left to itself LLVM unrolls loops of a constant length to scalars before it looks for vectors, and
stores and loads a row's sum again at each edge, because arrays might overlap. Here a row's sums
stay in registers for a block of edges.

Arrays are flat and contiguous; positions and steps count numbers. The edges of a block are
`index[first:first + n]`, `x` holds rows of `stride` numbers, and `width` numbers of a row are read
from `ix` on. `stride` and `width` are constants of the compiled code. Sums run over the edges in
order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

# 16 float32: one register of AVX-512, two of AVX2
_VECTOR_BITS = 512
# short rows are over before the hardware has seen where the next one is (bench/LOG.md)
_AHEAD = 8
_FAST = ("contract", "nsz", "reassoc")
_INT = types.int64
_LONG, _WORD = ir.IntType(64), ir.IntType(32)


@intrinsic(prefer_literal=True)
def gather_dots(context, out, o, step, a, ia, x, ix, stride, index, first, n, width):  # noqa: PLR0913
    """`out[o + e·step] = <a[ia:], row e[ix:]>` for each edge e of the block."""
    length, count = _constants(stride, width)
    signature = types.void(out, _INT, _INT, a, _INT, x, _INT, stride, index, _INT, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, fixed, rows, edges = _arrays(context, builder, signature, args, (0, 3, 5, 8))
        factors = [fixed.load(args[4], piece) for piece in fixed.pieces(count)]
        with cgutils.for_range(builder, args[10], intp=_LONG) as loop:
            base = _row_start(builder, edges, args[9], loop.index, length, args[6])
            products = [
                builder.fmul(factor, rows.load(base, piece), flags=_FAST)
                for factor, piece in zip(factors, rows.pieces(count), strict=True)
            ]
            place = builder.add(args[1], builder.mul(loop.index, args[2]))
            _store_totals(builder, to, place, [_folded(builder, products)])
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_sum(context, acc, ia, coef, c, step, x, ix, stride, index, first, n, width):  # noqa: PLR0913
    """`acc[ia:] += sum over the edges e of the block of coef[c + e·step] · row e[ix:]`."""
    length, count = _constants(stride, width)
    signature = types.void(acc, _INT, coef, _INT, _INT, x, _INT, stride, index, _INT, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, coefs, rows, edges = _arrays(context, builder, signature, args, (0, 2, 5, 8))
        with _sums(builder, acc, args[1], count) as sums:
            with cgutils.for_range(builder, args[10], intp=_LONG) as loop:
                base = _row_start(builder, edges, args[9], loop.index, length, args[6])
                coef = coefs.get(builder.add(args[3], builder.mul(loop.index, args[4])))
                for piece, place in sums:
                    _add_product(builder, place, coef, rows.load(base, piece))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_sum_pair(  # noqa: PLR0913
    context, acc, ia, ib, coef, coef_2, c, step, x, ix, stride, index, first, n, width
):
    """Two of `gather_sum` at one reading: to `ia` with `coef`, to `ib` with `coef_2`."""
    length, count = _constants(stride, width)
    signature = types.void(
        acc, _INT, _INT, coef, coef_2, _INT, _INT, x, _INT, stride, index, _INT, _INT, width
    )

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, *coefs, rows, edges = _arrays(context, builder, signature, args, (0, 3, 4, 7, 10))
        with (
            _sums(builder, acc, args[1], count) as first,
            _sums(builder, acc, args[2], count) as second,
            cgutils.for_range(builder, args[12], intp=_LONG) as loop,
        ):
            base = _row_start(builder, edges, args[11], loop.index, length, args[8])
            place = builder.add(args[5], builder.mul(loop.index, args[6]))
            factors = [coef.get(place) for coef in coefs]
            for (piece, *to), (_piece, *to_2) in zip(first, second, strict=True):
                row = rows.load(base, piece)
                for factor, target in zip(factors, (*to, *to_2), strict=True):
                    _add_product(builder, target, factor, row)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_hidden(  # noqa: PLR0913
    context, out, o, mask, im, weight, u, iu, x, index, first, n, heads, width, keep_mask
):
    """`out[o + e·heads + h] = <weight[h], relu(u[iu:] + row e)>`; rows of `x` are `width` long.

    `width` is a multiple of 8. With `keep_mask` = 1, which sums were above 0 is written as bits,
    `width / 8` bytes an edge from `mask[im]` on.
    """
    num_heads, count, keep = _constants(heads, width, keep_mask)
    signature = types.void(
        out, _INT, mask, _INT, weight, u, _INT, x, index, _INT, _INT, heads, width, keep_mask
    )

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, bits, factors, fixed, rows, edges = _arrays(
            context, builder, signature, args, (0, 2, 4, 5, 7, 8)
        )
        pieces = list(rows.pieces(count))
        own = [fixed.load(args[6], piece) for piece in pieces]
        scale = [
            [factors.load(ir.Constant(_LONG, h * count), piece) for piece in pieces]
            for h in range(num_heads)
        ]
        with cgutils.for_range(builder, args[10], intp=_LONG) as loop:
            ahead = builder.add(loop.index, _long(_AHEAD))
            with builder.if_then(builder.icmp_signed("<", ahead, args[10])):
                later = _row_start(builder, edges, args[9], ahead, count, _long(0))
                _prefetch(builder, rows, later, count)
            base = _row_start(builder, edges, args[9], loop.index, count, _long(0))
            hidden = []
            for piece, part in zip(pieces, own, strict=True):
                total = builder.fadd(part, rows.load(base, piece))
                # not ordered: NaN stays NaN
                above = builder.fcmp_unordered(">", total, _zero(total.type))
                hidden.append(builder.select(above, total, _zero(total.type)))
                if keep:
                    byte = builder.add(args[3], builder.mul(loop.index, _long(count // 8)))
                    bits.put_bits(builder.add(byte, _long(piece.start // 8)), above)
            dots = [
                _folded(
                    builder,
                    [builder.fmul(x, y, flags=_FAST) for x, y in zip(hidden, head, strict=True)],
                )
                for head in scale
            ]
            place = builder.add(args[1], builder.mul(loop.index, _long(num_heads)))
            _store_totals(builder, to, place, dots)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def masked_sum(context, acc, ia, mask, im, coef, c, step, n, width):  # noqa: PLR0913
    """`acc[ia:] += sum over e < n of coef[c + e·step] · bits e`; `gather_hidden` wrote the bits."""
    (count,) = _constants(width)
    signature = types.void(acc, _INT, mask, _INT, coef, _INT, _INT, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, bits, coefs = _arrays(context, builder, signature, args, (0, 2, 4))
        with _sums(builder, acc, args[1], count) as sums:
            with cgutils.for_range(builder, args[7], intp=_LONG) as loop:
                coef = coefs.get(builder.add(args[5], builder.mul(loop.index, args[6])))
                byte = builder.add(args[3], builder.mul(loop.index, _long(count // 8)))
                for piece, place in sums:
                    start = builder.add(byte, _long(piece.start // 8))
                    spread = _spread(builder, coef, piece.count)
                    set_ = bits.get_bits(start, piece.count)
                    part = builder.select(set_, spread, _zero(spread.type))
                    builder.store(builder.fadd(builder.load(place), part, flags=_FAST), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def gather_copy(context, out, o, step, x, stride, index, first, n, width):  # noqa: PLR0913
    """`out[o + e·step:] = row e` of the block, the first `width` numbers of it."""
    length, count = _constants(stride, width)
    signature = types.void(out, _INT, _INT, x, stride, index, _INT, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, rows, edges = _arrays(context, builder, signature, args, (0, 3, 5))
        with cgutils.for_range(builder, args[7], intp=_LONG) as loop:
            base = _row_start(builder, edges, args[6], loop.index, length, _long(0))
            place = builder.add(args[1], builder.mul(loop.index, args[2]))
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
    (count,) = _constants(width)
    signature = types.void(out, _INT, _INT, x, _INT, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, rows = _arrays(context, builder, signature, args, (0, 3))
        with cgutils.for_range(builder, args[5], intp=_LONG) as loop:
            base = builder.add(args[4], builder.mul(loop.index, _long(count)))
            place = builder.add(args[1], builder.mul(loop.index, args[2]))
            for piece in rows.pieces(count):
                to.store(place, piece, rows.load(base, piece))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def add_products(context, acc, ia, a, ib, b, ic, width):  # noqa: PLR0913
    """`acc[ia:] += a[ib:] · b[ic:]`, number by number."""
    (count,) = _constants(width)
    signature = types.void(acc, _INT, a, _INT, b, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, left, right = _arrays(context, builder, signature, args, (0, 2, 4))
        for piece in acc.pieces(count):
            product = builder.fmul(left.load(args[3], piece), right.load(args[5], piece))
            acc.store(args[1], piece, builder.fadd(acc.load(args[1], piece), product, flags=_FAST))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def scaled(context, out, o, x, ix, c, width):
    """`out[o:] = c · x[ix:]`."""
    (count,) = _constants(width)
    signature = types.void(out, _INT, x, _INT, x.dtype, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, from_ = _arrays(context, builder, signature, args, (0, 2))
        for piece in to.pieces(count):
            factor = _spread(builder, args[4], piece.count)
            to.store(args[1], piece, builder.fmul(factor, from_.load(args[3], piece)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def subtract(context, out, o, x, ix, width):
    """`out[o:] -= x[ix:]`."""
    (count,) = _constants(width)
    signature = types.void(out, _INT, x, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        to, from_ = _arrays(context, builder, signature, args, (0, 2))
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


class _Piece(NamedTuple):
    """A part of a row that is one vector."""

    start: int
    count: int


class _Array:
    """An array's data, and loads and stores of vectors of it."""

    def __init__(self, builder: Any, data: Any) -> None:
        self.builder, self.data = builder, data
        self.scalar = data.type.pointee
        self.num_bits = {ir.FloatType(): 32, ir.DoubleType(): 64}.get(self.scalar, 8)

    def pieces(self, width: int) -> Iterator[_Piece]:
        """Vectors that cover `width` numbers, the widest first."""
        start, count = 0, _VECTOR_BITS // self.num_bits
        while start < width:
            while count > width - start:
                count //= 2
            yield _Piece(start, count)
            start += count

    def get(self, position: Any) -> Any:
        return self.builder.load(self.builder.gep(self.data, [position]))

    def put(self, position: Any, value: Any) -> None:
        self.builder.store(value, self.builder.gep(self.data, [position]))

    def load(self, base: Any, piece: _Piece) -> Any:
        vector = self.builder.load(self._vector(base, piece))
        vector.align = self.num_bits // 8
        return vector

    def store(self, base: Any, piece: _Piece, vector: Any) -> None:
        self.builder.store(vector, self._vector(base, piece)).align = self.num_bits // 8

    def _vector(self, base: Any, piece: _Piece) -> Any:
        start = self.builder.add(base, _long(piece.start))
        pointer = self.builder.gep(self.data, [start])
        return self.builder.bitcast(pointer, ir.VectorType(self.scalar, piece.count).as_pointer())

    def get_bits(self, byte: Any, count: int) -> Any:
        pointer = self._bits(byte, count)
        word = self.builder.load(pointer)
        word.align = 1
        return self.builder.bitcast(word, ir.VectorType(ir.IntType(1), count))

    def put_bits(self, byte: Any, bits: Any) -> None:
        word = self.builder.bitcast(bits, ir.IntType(bits.type.count))
        self.builder.store(word, self._bits(byte, bits.type.count)).align = 1

    def _bits(self, byte: Any, count: int) -> Any:
        pointer = self.builder.gep(self.data, [byte])
        return self.builder.bitcast(pointer, ir.IntType(count).as_pointer())


def _fold_rows(acc: Any, x: Any, width: Any, fold: Any) -> Any:
    (count,) = _constants(width)
    signature = types.void(acc, _INT, x, _INT, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        acc, rows = _arrays(context, builder, signature, args, (0, 2))
        with _sums(builder, acc, args[1], count) as sums:
            with cgutils.for_range(builder, args[4], intp=_LONG) as loop:
                base = builder.add(args[3], builder.mul(loop.index, _long(count)))
                for piece, place in sums:
                    new = fold(builder, builder.load(place), rows.load(base, piece))
                    builder.store(new, place)
        return context.get_dummy_value()

    return signature, generate


def _change_rows(x: Any, c: Any, width: Any, change: Any) -> Any:
    (count,) = _constants(width)
    signature = types.void(x, _INT, _INT, c, _INT, width)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        rows, constants = _arrays(context, builder, signature, args, (0, 3))
        fixed = [constants.load(args[4], piece) for piece in rows.pieces(count)]
        with cgutils.for_range(builder, args[2], intp=_LONG) as loop:
            base = builder.add(args[1], builder.mul(loop.index, _long(count)))
            for piece, part in zip(rows.pieces(count), fixed, strict=True):
                rows.store(base, piece, change(builder, rows.load(base, piece), part))
        return context.get_dummy_value()

    return signature, generate


def _constants(*arguments: Any) -> list[int]:
    for argument in arguments:
        if not isinstance(argument, types.IntegerLiteral):
            raise TypingError("stride, width and the like must be constants")
    return [argument.literal_value for argument in arguments]


def _arrays(
    context: Any, builder: Any, signature: Any, args: Any, positions: tuple[int, ...]
) -> list[_Array]:
    found = []
    for position in positions:
        make = context.make_array(signature.args[position])
        found.append(_Array(builder, make(context, builder, args[position]).data))
    return found


@contextmanager
def _sums(builder: Any, acc: _Array, start: Any, width: int) -> Iterator[list[tuple[_Piece, Any]]]:
    """`width` numbers of `acc` in registers, with their places; written back at the end."""
    places = []
    for piece in acc.pieces(width):
        place = cgutils.alloca_once(builder, ir.VectorType(acc.scalar, piece.count))
        builder.store(acc.load(start, piece), place)
        places.append((piece, place))
    yield places
    for piece, place in places:
        acc.store(start, piece, builder.load(place))


def _row_start(builder: Any, edges: _Array, first: Any, e: Any, stride: int, offset: Any) -> Any:
    row = edges.get(builder.add(first, e))
    if row.type.width < _LONG.width:
        row = builder.sext(row, _LONG)
    return builder.add(builder.mul(row, _long(stride)), offset)


def _prefetch(builder: Any, rows: _Array, base: Any, width: int) -> None:
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for_reading = [ir.Constant(_WORD, value) for value in (0, 3, 1)]
    for start in range(0, width, _VECTOR_BITS // rows.num_bits):
        pointer = builder.gep(rows.data, [builder.add(base, _long(start))])
        builder.call(function, [builder.bitcast(pointer, byte), *for_reading])


def _add_product(builder: Any, place: Any, coef: Any, row: Any) -> None:
    product = builder.fmul(_spread(builder, coef, row.type.count), row, flags=_FAST)
    builder.store(builder.fadd(builder.load(place), product, flags=_FAST), place)


def _folded(builder: Any, products: list[Any]) -> Any:
    """One vector with the sum of these, the first of which is the widest."""
    total = products[0]
    for product in products[1:]:
        if product.type.count < total.type.count:
            lanes = list(range(product.type.count))
            lanes += [product.type.count] * (total.type.count - len(lanes))
            product = _shuffle(builder, product, _zero(product.type), lanes)
        total = builder.fadd(total, product, flags=_FAST)
    return total


def _store_totals(builder: Any, to: _Array, place: Any, vectors: list[Any]) -> None:
    """The sum of each vector's numbers, one after the other: a tree for all of them at once."""
    most = vectors[0].type.count
    for start in range(0, len(vectors), most):
        group = vectors[start : start + most]
        used = len(group)
        while len(group) & (len(group) - 1):
            group.append(group[-1])
        lanes = group[0].type.count  # of each sum
        while len(group) > 1:
            group = [
                _halved(builder, left, right, lanes)
                for left, right in zip(group[::2], group[1::2], strict=True)
            ]
            lanes //= 2
        vector = group[0]
        while lanes > 1:
            vector = _halved(builder, vector, None, lanes)
            lanes //= 2
        for piece in to.pieces(used):
            part = _shuffle(builder, vector, vector, [piece.start + x for x in range(piece.count)])
            to.store(builder.add(place, _long(start)), piece, part)


def _halved(builder: Any, left: Any, right: Any, lanes: int) -> Any:
    """Each sum of `lanes` numbers in half as many; those of `left`, then those of `right`."""
    count = left.type.count
    total = count if right is None else 2 * count
    first = [x for x in range(total) if x % lanes < lanes // 2]
    other = left if right is None else right
    low = _shuffle(builder, left, other, first)
    high = _shuffle(builder, left, other, [x + lanes // 2 for x in first])
    return builder.fadd(low, high, flags=_FAST)


def _shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    order = ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes)
    return builder.shuffle_vector(left, right, order)


def _spread(builder: Any, scalar: Any, count: int) -> Any:
    blank = ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined)
    one = builder.insert_element(blank, scalar, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, blank, ir.Constant(ir.VectorType(_WORD, count), [0] * count))


def _zero(kind: Any) -> Any:
    return ir.Constant(kind, [0.0] * kind.count)


def _long(value: int) -> Any:
    return ir.Constant(_LONG, value)
