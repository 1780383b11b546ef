"""DNFormer: mini-batch training of differential-attention graph transformers."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnformer.api import evaluate, train, tune
    from dnformer.data.graph import open_graph
    from dnformer.data.ingest.run import ingest
    from dnformer.export.load import load
    from dnformer.loader import NeighborLoader, NeighborSampler
    from dnformer.nn import DNFormer
    from dnformer.prediction.launch import predict

__all__ = [
    "DNFormer",
    "NeighborLoader",
    "NeighborSampler",
    "evaluate",
    "ingest",
    "load",
    "open_graph",
    "predict",
    "train",
    "tune",
]

_HOMES = {
    "DNFormer": "dnformer.nn",
    "NeighborLoader": "dnformer.loader",
    "NeighborSampler": "dnformer.loader",
    "evaluate": "dnformer.api",
    "ingest": "dnformer.data.ingest.run",
    "load": "dnformer.export",
    "open_graph": "dnformer.data.graph",
    "predict": "dnformer.prediction.launch",
    "train": "dnformer.api",
    "tune": "dnformer.api",
}


def __getattr__(name: str) -> object:
    """Imports a public name at its first use: the command line starts without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dnformer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
