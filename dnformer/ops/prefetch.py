# mypy: allow-untyped-defs
"""A hint to the processor in numba kernels: what will be read soon."""

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from dnformer.ops.vector_ir import INT, arrays
from dnformer.ops.vector_ir import prefetch as ask


@intrinsic
def prefetch(context, x, i):
    """Asks for the cache line of number `i` of the contiguous array `x`; any `i` is harmless."""
    signature = types.void(x, INT)

    def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
        (numbers,) = arrays(context, builder, signature, args, (0,))
        ask(builder, numbers, args[1], 1)
        return context.get_dummy_value()

    return signature, generate
