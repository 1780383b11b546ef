"""Graphs that stand in for a dataset: random, with its columns, its mean degree and its features.

N nodes, E edges, F features.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer.data.graph import Graph
from dnformer.data.layout import layout
from dnformer.data.manifest import Manifest
from dnformer.data.store import Store
from dnformer.memory import memory_left

Array = npt.NDArray[Any]

_FEATURE_BYTES = 256 << 20
# of an edge while it is drawn
_EDGE_BYTES = 16


def stand_in(manifest: Manifest, *, max_nodes: int, max_edges: int) -> Graph:
    """A graph as `manifest` describes it, of fewer nodes where it is larger than that.

    Neighbours are uniform, and in-degrees geometric: a manifest tells no more than their mean.
    """
    rng = np.random.default_rng(0)
    degree = manifest.num_edges / manifest.num_nodes
    row_bytes = 4 * manifest.num_features
    if manifest.features == "sparse":
        row_bytes = 8 * manifest.num_values // manifest.num_nodes
    # an eighth of what is left: what looks at a small machine must not fill it
    room = memory_left() // 8
    max_edges = min(max_edges, room // _EDGE_BYTES)
    most = [
        max_nodes,
        int(max_edges / max(degree, 1e-9)),
        min(_FEATURE_BYTES, room) // max(row_bytes, 1),
    ]
    num_nodes = min(manifest.num_nodes, max(2, min(most)))
    colptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(rng.geometric(1 / (degree + 1), num_nodes) - 1, out=colptr[1:])
    values = round(manifest.num_values / manifest.num_nodes)
    update = {
        "num_nodes": num_nodes,
        "num_edges": int(colptr[-1]),
        "num_values": values * num_nodes,
    }
    small = manifest.model_copy(update=update)
    arrays: dict[str, Any] = {name: _array(name, small, rng) for name in layout(small)}
    arrays["colptr"] = colptr
    if small.features == "sparse":
        arrays["x_indptr"] = np.arange(num_nodes + 1) * values
    targets = tuple(arrays.pop(f"y_{number}") for number in range(len(small.targets)))
    scale = small.feature_scale
    x_scale = None if scale is None else np.array(scale, dtype=np.float32)
    return Graph("stand-in", small, Store(targets=targets, x_scale=x_scale, **arrays))


def _array(name: str, manifest: Manifest, rng: np.random.Generator) -> Array:
    dtype, shape = layout(manifest)[name]
    if name == "row":
        return rng.integers(0, manifest.num_nodes, shape, dtype)
    if name == "x_indices":
        each = shape[0] // manifest.num_nodes
        drawn = rng.integers(0, manifest.num_features, (manifest.num_nodes, each), dtype)
        return np.sort(drawn, axis=1).reshape(-1)
    if name == "x" and dtype == np.int8:
        return rng.integers(-100, 100, shape, dtype)
    if name in ("x", "x_values", "weight", "edge_attr"):
        return rng.random(shape, np.float32).astype(dtype)
    return np.zeros(shape, dtype)


def random_graph(num_nodes: int, num_edges: int) -> Graph:
    """A graph without columns, of some `num_edges` edges."""
    sizes: dict[str, Any] = {"num_nodes": num_nodes, "num_edges": num_edges}
    columns: dict[str, Any] = {"num_features": 0, "num_values": 0, "features": "none"}
    manifest = Manifest.model_construct(**sizes, **columns, stored_split=False)
    return stand_in(manifest, max_nodes=num_nodes, max_edges=num_edges)
