"""The mask of attention dropout from a counter-based generator; `types.Dropout` is its contract.

E edges, H heads.
"""

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from dnformer.ops.types import Dropout

# int64 has no unsigned constants: these are the contract's modulo 2^64
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def keep_mask(
    dropout: Dropout, *, num_edges: int, num_heads: int
) -> Bool[Tensor, "{num_edges} {num_heads}"]:
    """Which weights are kept, on the device of the seed."""
    counter = torch.arange(1, num_edges * num_heads + 1, device=dropout.seed.device)
    state = counter.mul_(_GOLDEN).add_(_mix(dropout.seed.clone()))
    bits = _shift(_mix(state), 40)
    return (bits >= math.ceil(dropout.p * 2**24)).view(num_edges, num_heads)


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place."""
    z.bitwise_xor_(_shift(z, 30)).mul_(_MIX_1)
    z.bitwise_xor_(_shift(z, 27)).mul_(_MIX_2)
    return z.bitwise_xor_(_shift(z, 31))


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical right shift: int64's own repeats the sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
