"""How batches are drawn from a graph: sampler, feature gather, hot rows, prefetching loader."""

from dnformer.loader.features import decode
from dnformer.loader.hot_cache import Visits
from dnformer.loader.loader import FullLoader, Loader, NeighborLoader
from dnformer.loader.sampler import NeighborSampler
from dnformer.loader.source import Cached, open_source

__all__ = [
    "Cached",
    "FullLoader",
    "Loader",
    "NeighborLoader",
    "NeighborSampler",
    "Visits",
    "decode",
    "open_source",
]
