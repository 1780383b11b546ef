"""How batches are drawn from a graph: sampler, feature gather, prefetching loader."""

from dnformer.loader.loader import FullLoader, Loader, NeighborLoader
from dnformer.loader.sampler import NeighborSampler

__all__ = ["FullLoader", "Loader", "NeighborLoader", "NeighborSampler"]
