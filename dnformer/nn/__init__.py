"""The model: differential attention as a layer, a transformer block and DNFormer itself.

A batch is plain tensors here: nothing below knows how it was drawn or where the graph lives.
"""

from dnformer.nn.attention import DiffAttention
from dnformer.nn.block import Block
from dnformer.nn.model import DNFormer

__all__ = ["Block", "DNFormer", "DiffAttention"]
