"""A PyG `Data` object as a source."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from dnformer.data.features import Layout, count_classes, finite, finite_csr, lay_out
from dnformer.data.table import SPLITS, Features, Int64Array, NodeColumns, RawGraph, class_target
from dnformer.errors import DataError

_log = logging.getLogger("dnformer")

_READ = {"x", "y", "edge_index", "num_nodes", *(f"{name}_mask" for name in SPLITS)}


def from_data(
    data: Data, *, num_classes: int | None = None, feature_layout: Layout = "auto"
) -> RawGraph:
    """The graph in `data`: edge_index, x (dense or torch sparse), y, train/val/test masks.

    Tensors may be on any device and are not changed. The number of nodes is `data.num_nodes`
    where it was set, else the length of x, y or a mask, else the largest endpoint + 1. Masks
    that are there become the split column. Other attributes are not read, with a warning.

    Args:
        data: one homogeneous graph.
        num_classes: K; by default the largest label + 1.
        feature_layout: whether x is kept dense or sparse; "auto" looks at its content.

    Raises:
        DataError: a part is missing, has another shape or type, or a value is not allowed.
    """
    if not isinstance(data, Data):
        mend = "; call its to_homogeneous() first" if isinstance(data, HeteroData) else ""
        found = f"a {type(data).__name__} is not supported"
        raise DataError(f"{found}, only torch_geometric.data.Data with one type of node{mend}")
    edge_index = _edge_index(data)
    num_nodes = _num_nodes(data, edge_index)
    ignored = sorted(set(data.keys()) - _READ)
    if ignored:
        _log.warning("Data: %s not read", ", ".join(ignored))
    y = _labels(data, num_nodes)
    classes: dict[str, Any] = {"num_classes": num_classes, "where": "Data: node {}".format}
    src, dst = edge_index
    nodes = NodeColumns(
        num_nodes=num_nodes,
        x=_features(data, num_nodes, feature_layout),
        targets=() if y is None else class_target(y, count_classes(y, **classes)),
        split=_split(data, num_nodes),
    )
    return RawGraph(
        nodes=nodes, src=src, dst=dst, where=lambda edge: f"edge {edge}: {src[edge]} -> {dst[edge]}"
    )


def _tensor(data: Data, name: str) -> Tensor | None:
    value = data.get(name)
    if value is not None and not isinstance(value, Tensor):
        raise DataError(f"data.{name} is a {type(value).__name__}; it must be a tensor")
    return value


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _found(name: str, tensor: Tensor) -> str:
    return f"data.{name} is {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _int64(tensor: Tensor) -> Int64Array:
    array: Int64Array = tensor.detach().cpu().to(torch.int64).numpy()
    return array


def _edge_index(data: Data) -> Int64Array:
    edge_index = _tensor(data, "edge_index")
    if edge_index is None:
        raise DataError("data has no edge_index; it must be an integer tensor [2, num_edges]")
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or not _is_integer(edge_index):
        raise DataError(f"{_found('edge_index', edge_index)}; it must be integer [2, num_edges]")
    return _int64(edge_index.as_subclass(Tensor))


def _num_nodes(data: Data, edge_index: Int64Array) -> int:
    """N, the same by every part that says it."""
    said = {}
    if "num_nodes" in data and data["num_nodes"] is not None:
        said["num_nodes"] = int(data["num_nodes"])
    for name in ("x", "y", *(f"{split}_mask" for split in SPLITS)):
        tensor = _tensor(data, name)
        if tensor is not None:
            if tensor.dim() == 0:
                raise DataError(f"{_found(name, tensor)}; its first dimension must be the nodes")
            said[name] = tensor.size(0)
    if not said:
        said["edge_index"] = int(edge_index.max()) + 1 if edge_index.size else 0
    if len(set(said.values())) > 1:
        sizes = ", ".join(f"{name} {size}" for name, size in said.items())
        raise DataError(f"data's parts disagree on the number of nodes: {sizes}")
    num_nodes = next(iter(said.values()))
    if num_nodes < 1:
        raise DataError("data has no nodes")
    return num_nodes


def _features(data: Data, num_nodes: int, layout: Layout) -> Features:
    x = _tensor(data, "x")
    if x is None:
        return None
    if x.dim() != 2:
        raise DataError(f"{_found('x', x)}; it must be [num_nodes, num_features]")
    x = x.detach().cpu()
    if x.dtype == torch.bfloat16:
        x = x.float()
    where = "Data: node {}".format
    if x.layout == torch.strided:
        return lay_out(finite(x.numpy(), where=where), layout)
    x = x.to_sparse_csr() if x.layout == torch.sparse_coo else x
    if x.layout != torch.sparse_csr:
        raise DataError(f"data.x has layout {x.layout}; it must be dense, sparse COO or sparse CSR")
    parts: tuple[npt.NDArray[Any], ...] = tuple(
        part.numpy() for part in (x.values(), x.col_indices(), x.crow_indices())
    )
    return lay_out(finite_csr(sp.csr_matrix(parts, shape=tuple(x.shape)), where=where), layout)


def _labels(data: Data, num_nodes: int) -> Int64Array | None:
    y = _tensor(data, "y")
    if y is None:
        return None
    if y.dim() == 2 and y.size(1) == 1:
        y = y[:, 0]
    if y.dim() != 1 or not _is_integer(y):
        wanted = "one class a node, integer [num_nodes], -1 for none"
        raise DataError(f"{_found('y', y)}; it must be {wanted} (y.long(), y.argmax(1))")
    return _int64(y)


def _split(data: Data, num_nodes: int) -> npt.NDArray[np.int8] | None:
    codes: npt.NDArray[np.int8] = np.zeros(num_nodes, dtype=np.int8)
    any_mask = False
    for split, code in SPLITS.items():
        name = f"{split}_mask"
        mask = _tensor(data, name)
        if mask is None:
            continue
        any_mask = True
        if mask.dim() == 2:
            mend = f"pick one, for example data.{name} = data.{name}[:, 0]"
            raise DataError(f"{_found(name, mask)}, several splits; {mend}")
        if mask.dtype != torch.bool:
            raise DataError(f"{_found(name, mask)}; it must be bool [num_nodes]")
        chosen = mask.detach().cpu().numpy()
        if not chosen.any():
            raise DataError(f"data.{name} selects no node; leave it out or fill it")
        twice = np.flatnonzero(chosen & (codes != 0))
        if twice.size:
            other = {code: name for name, code in SPLITS.items()}[int(codes[twice[0]])]
            found = f"node {twice[0]} is in both {other}_mask and {name}"
            raise DataError(f"{found}, as are {twice.size - 1} more; a node is in one split")
        codes[chosen] = code
    return codes if any_mask else None
