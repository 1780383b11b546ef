"""Exact outputs of a trained model: every neighbour, layer by layer, each layer once.

`exact` computes them in ranges of destinations, `space` says where the rows of layers lie, `reach`
what has to be computed where only some nodes are asked for.
"""

from dnformer.inference.exact import (
    Layers,
    RangeLimits,
    destination_ranges,
    evaluating,
    exact_embeddings,
    exact_logits,
)
from dnformer.inference.reach import Reach, reach_of
from dnformer.inference.space import Mapped, Memory, Space

__all__ = [
    "Layers",
    "Mapped",
    "Memory",
    "RangeLimits",
    "Reach",
    "Space",
    "destination_ranges",
    "evaluating",
    "exact_embeddings",
    "exact_logits",
    "reach_of",
]
