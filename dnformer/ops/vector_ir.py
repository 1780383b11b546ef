# mypy: allow-untyped-defs
"""LLVM code that `vector` is made of: vectors of arrays, sums in registers and across vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError

FAST = ("contract", "nsz", "reassoc")
INT = types.int64
LONG = ir.IntType(64)
_WORD = ir.IntType(32)
# 16 float32: one register of AVX-512, two of AVX2
_VECTOR_BITS = 512


class Piece(NamedTuple):
    """A part of a row that is one vector."""

    start: int
    num: int


class Array:
    """An array's data, and loads and stores of vectors of it."""

    def __init__(self, builder: Any, data: Any) -> None:
        self.builder, self.data = builder, data
        self.scalar = data.type.pointee
        self.num_bits = {ir.FloatType(): 32, ir.DoubleType(): 64}.get(self.scalar, 8)

    def pieces(self, width: int) -> Iterator[Piece]:
        """Vectors that cover `width` numbers, the widest first."""
        start, count = 0, _VECTOR_BITS // self.num_bits
        while start < width:
            while count > width - start:
                count //= 2
            yield Piece(start, count)
            start += count

    def get(self, position: Any) -> Any:
        """One number."""
        return self.builder.load(self.builder.gep(self.data, [position]))

    def load(self, base: Any, piece: Piece) -> Any:
        """The piece of the row that begins at `base`."""
        vector = self.builder.load(self._vector(base, piece))
        vector.align = self.num_bits // 8
        return vector

    def store(self, base: Any, piece: Piece, vector: Any) -> None:
        """Sets that piece."""
        self.builder.store(vector, self._vector(base, piece)).align = self.num_bits // 8

    def _vector(self, base: Any, piece: Piece) -> Any:
        start = self.builder.add(base, long(piece.start))
        pointer = self.builder.gep(self.data, [start])
        return self.builder.bitcast(pointer, ir.VectorType(self.scalar, piece.num).as_pointer())

    def get_bits(self, byte: Any, count: int) -> Any:
        """`count` truth values, from a whole byte on."""
        pointer = self._bits(byte, count)
        word = self.builder.load(pointer)
        word.align = 1
        return self.builder.bitcast(word, ir.VectorType(ir.IntType(1), count))

    def put_bits(self, byte: Any, bits: Any) -> None:
        """Sets them."""
        word = self.builder.bitcast(bits, ir.IntType(bits.type.count))
        self.builder.store(word, self._bits(byte, bits.type.count)).align = 1

    def _bits(self, byte: Any, count: int) -> Any:
        pointer = self.builder.gep(self.data, [byte])
        return self.builder.bitcast(pointer, ir.IntType(count).as_pointer())


def constants(*arguments: Any) -> list[int]:
    """The values of an intrinsic's arguments that must be constants."""
    for argument in arguments:
        if not isinstance(argument, types.IntegerLiteral):
            raise TypingError("stride, width and the like must be constants")
    return [argument.literal_value for argument in arguments]


def arrays(
    context: Any, builder: Any, signature: Any, args: Any, positions: tuple[int, ...]
) -> list[Array]:
    """The arrays among an intrinsic's arguments."""
    found = []
    for position in positions:
        make = context.make_array(signature.args[position])
        found.append(Array(builder, make(context, builder, args[position]).data))
    return found


@contextmanager
def in_registers(
    builder: Any, acc: Array, start: Any, width: int
) -> Iterator[list[tuple[Piece, Any]]]:
    """`width` numbers of `acc` in registers, with their places; written back at the end."""
    places = []
    for piece in acc.pieces(width):
        place = cgutils.alloca_once(builder, ir.VectorType(acc.scalar, piece.num))
        builder.store(acc.load(start, piece), place)
        places.append((piece, place))
    yield places
    for piece, place in places:
        acc.store(start, piece, builder.load(place))


def row_start(builder: Any, edges: Array, first: Any, e: Any, stride: int, offset: Any) -> Any:
    """Where the row of edge e of a block begins, `offset` into it."""
    row = edges.get(builder.add(first, e))
    if row.type.width < LONG.width:
        row = builder.sext(row, LONG)
    return builder.add(builder.mul(row, long(stride)), offset)


def prefetch(builder: Any, rows: Array, base: Any, width: int) -> None:
    """Asks for the row that begins at `base`, to read it soon."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    for_reading = [ir.Constant(_WORD, value) for value in (0, 3, 1)]
    for start in range(0, width, _VECTOR_BITS // rows.num_bits):
        pointer = builder.gep(rows.data, [builder.add(base, long(start))])
        builder.call(function, [builder.bitcast(pointer, byte), *for_reading])


def add_product(builder: Any, place: Any, coef: Any, row: Any) -> None:
    """Adds `coef · row` to the sum at `place`."""
    product = builder.fmul(splat(builder, coef, row.type.count), row, flags=FAST)
    builder.store(builder.fadd(builder.load(place), product, flags=FAST), place)


def folded(builder: Any, products: list[Any]) -> Any:
    """One vector with the sum of these, the first of which is the widest."""
    total = products[0]
    for product in products[1:]:
        if product.type.count < total.type.count:
            lanes = list(range(product.type.count))
            lanes += [product.type.count] * (total.type.count - len(lanes))
            product = shuffle(builder, product, zero(product.type), lanes)
        total = builder.fadd(total, product, flags=FAST)
    return total


def store_totals(builder: Any, to: Array, place: Any, vectors: list[Any]) -> None:
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
            part = shuffle(builder, vector, vector, [piece.start + x for x in range(piece.num)])
            to.store(builder.add(place, long(start)), piece, part)


def _halved(builder: Any, left: Any, right: Any, lanes: int) -> Any:
    """Each sum of `lanes` numbers in half as many; those of `left`, then those of `right`."""
    count = left.type.count
    total = count if right is None else 2 * count
    first = [x for x in range(total) if x % lanes < lanes // 2]
    other = left if right is None else right
    low = shuffle(builder, left, other, first)
    high = shuffle(builder, left, other, [x + lanes // 2 for x in first])
    return builder.fadd(low, high, flags=FAST)


def shuffle(builder: Any, left: Any, right: Any, lanes: list[int]) -> Any:
    """The numbers at `lanes` of two vectors, one after the other."""
    order = ir.Constant(ir.VectorType(_WORD, len(lanes)), lanes)
    return builder.shuffle_vector(left, right, order)


def splat(builder: Any, scalar: Any, count: int) -> Any:
    """A vector of one number."""
    blank = ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined)
    one = builder.insert_element(blank, scalar, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(one, blank, ir.Constant(ir.VectorType(_WORD, count), [0] * count))


def zero(kind: Any) -> Any:
    """A vector of zeros."""
    return ir.Constant(kind, [0.0] * kind.count)


def long(value: int) -> Any:
    """A constant position."""
    return ir.Constant(LONG, value)
