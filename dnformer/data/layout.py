"""What arrays a node-local store has, by what its dataset's manifest says."""

from typing import Any

import numpy as np

from dnformer.data.manifest import Manifest
from dnformer.data.table import TARGET_DTYPES

Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]

# of a .npy file with up to two dimensions
_HEADER = 128


def layout(manifest: Manifest) -> Layout:
    """Type and shape of each array of the store, by name."""
    nodes, edges = (manifest.num_nodes,), (manifest.num_edges,)
    index = np.int32 if manifest.num_nodes < 2**31 else np.int64
    found: list[tuple[str, Any, tuple[int, ...], bool]] = [
        ("colptr", np.int64, (manifest.num_nodes + 1,), True),
        ("row", index, edges, True),
        ("weight", np.float32, edges, manifest.edge_weight),
        ("edge_attr", np.float32, (*edges, len(manifest.edge_attr_names)),
         bool(manifest.edge_attr_names)),
        ("edge_time", np.int64, edges, manifest.edge_time),
        ("x", manifest.feature_dtype, (*nodes, manifest.num_features),
         manifest.features == "dense"),
        ("split", np.int8, nodes, manifest.stored_split),
        ("node_time", np.int64, nodes, manifest.node_time),
    ]  # fmt: skip
    if manifest.features == "sparse":
        values = (manifest.num_values,)
        found += [("x_indptr", np.int64, (manifest.num_nodes + 1,), True),
                  ("x_indices", np.int32, values, True),
                  ("x_values", np.float32, values, True)]  # fmt: skip
    for number, target in enumerate(manifest.targets):
        shape = nodes if target.kind == "class" else (*nodes, target.num_outputs)
        found.append((f"y_{number}", TARGET_DTYPES[target.kind], shape, True))
    return {name: (np.dtype(dtype), shape) for name, dtype, shape, there in found if there}


def num_bytes(arrays: Layout) -> int:
    """What arrays take on disk; plain ints, which don't overflow."""
    total = 0
    for dtype, shape in arrays.values():
        count = dtype.itemsize
        for size in shape:
            count *= size
        total += count + _HEADER
    return total
