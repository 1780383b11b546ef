"""A PyG `Data` object as a source."""

import logging
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from dnformer.data.features import Layout, Where, count_classes, finite, finite_csr, lay_out
from dnformer.data.table import (
    SPLITS,
    EdgeColumns,
    Features,
    Int64Array,
    NodeColumns,
    RawGraph,
    Target,
    TargetColumn,
    class_target,
)
from dnformer.errors import DataError

_log = logging.getLogger("dnformer")

_MASKS = tuple(f"{name}_mask" for name in SPLITS)
_OF_EDGES = ("edge_weight", "edge_attr", "edge_time")
_READ = {"x", "y", "edge_index", "num_nodes", "time", *_MASKS, *_OF_EDGES}


def from_data(
    data: Data, *, num_classes: int | None = None, feature_layout: Layout = "auto"
) -> RawGraph:
    """The graph in `data`: edge_index, x (dense or torch sparse), y, masks, times, edge columns.

    Tensors may be on any device and are not changed. The number of nodes is `data.num_nodes`
    where it was set, else the length of x, y or a mask, else the largest endpoint + 1. A dense x
    of float16 stays so, any other type becomes float32.
    Masks that are there become the split column. An integer y `[N]` is one class a node, -1 for
    none; an integer or bool y `[N, K]` is K labels of 0 and 1, -1 for unknown; a float y is K
    numbers, NaN for none. Of edges there are edge_weight `[E]`, edge_attr `[E]` or `[E, A]` and
    edge_time `[E]`. `time` is of the nodes, or, where its length is that of the edges alone, of
    those. Other attributes are not read, with a warning.

    Args:
        data: one homogeneous graph.
        num_classes: K of classes; by default the largest label + 1.
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
    time_is_of_edges = _time_is_of_edges(data, num_nodes, edge_index.shape[1])
    ignored = sorted(set(data.keys()) - _READ)
    if ignored:
        _log.warning("Data: %s not read", ", ".join(ignored))
    src, dst = edge_index
    nodes = NodeColumns(
        num_nodes=num_nodes,
        x=_features(data, num_nodes, feature_layout),
        targets=_targets(data, num_classes),
        split=_split(data, num_nodes),
        time=None if time_is_of_edges else _times(data, "time", num_nodes),
    )
    return RawGraph(
        nodes=nodes,
        src=src,
        dst=dst,
        where=lambda edge: f"edge {edge}: {src[edge]} -> {dst[edge]}",
        edges=_edge_columns(data, edge_index, "time" if time_is_of_edges else "edge_time"),
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


def _time_is_of_edges(data: Data, num_nodes: int, num_edges: int) -> bool:
    """Whether `data.time` has a time for each edge; PyG uses the one name for both."""
    time = _tensor(data, "time")
    if time is None or "edge_time" in data or time.dim() == 0:
        return False
    return time.size(0) == num_edges != num_nodes


def _num_nodes(data: Data, edge_index: Int64Array) -> int:
    """N, the same by every part that says it."""
    said = {}
    if "num_nodes" in data and data["num_nodes"] is not None:
        said["num_nodes"] = int(data["num_nodes"])
    for name in ("x", "y", *_MASKS):
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
        found = lay_out(finite(x.numpy(), where=where), layout)
        if x.dtype == torch.float16 and isinstance(found, np.ndarray):
            return found.astype(np.float16)
        return found
    x = x.to_sparse_csr() if x.layout == torch.sparse_coo else x
    if x.layout != torch.sparse_csr:
        raise DataError(f"data.x has layout {x.layout}; it must be dense, sparse COO or sparse CSR")
    parts: tuple[npt.NDArray[Any], ...] = tuple(
        part.numpy() for part in (x.values(), x.col_indices(), x.crow_indices())
    )
    return lay_out(finite_csr(sp.csr_matrix(parts, shape=tuple(x.shape)), where=where), layout)


def _targets(data: Data, num_classes: int | None) -> tuple[TargetColumn, ...]:
    """What y is, by its type and shape."""
    y = _tensor(data, "y")
    if y is None:
        return ()
    if y.dim() == 2 and y.size(1) == 1 and y.dtype != torch.bool:
        y = y[:, 0]
    if y.is_complex() or y.dim() not in (1, 2) or (y.dim() == 2 and y.size(1) == 0):
        wanted = "classes [num_nodes], labels of 0 and 1 [num_nodes, K] or float numbers"
        raise DataError(f"{_found('y', y)}; it must be {wanted}")
    where = "Data: node {}".format
    if y.is_floating_point():
        return (_numbers(y, where, num_classes),)
    if y.dim() == 2 or y.dtype == torch.bool:
        return (_multilabel(y, where),)
    classes = _int64(y)
    return class_target(classes, count_classes(classes, num_classes=num_classes, where=where))


def _numbers(y: Tensor, where: Where, num_classes: int | None) -> TargetColumn:
    if num_classes is not None:
        mend = "leave num_classes out for regression, or give classes (y.long())"
        raise DataError(f"{_found('y', y)}, but num_classes is {num_classes}; {mend}")
    wide = y.detach().cpu().to(torch.float64).reshape(len(y), -1).numpy()
    none = np.isnan(wide)
    known = finite(np.where(none, 0, wide), where=where, column="y[{}]".format)
    known[none] = np.nan
    target = Target(name="label", kind="regression", num_outputs=known.shape[1])
    return TargetColumn(target, known)


def _multilabel(y: Tensor, where: Where) -> TargetColumn:
    labels = _int64(y).reshape(len(y), -1)
    odd = np.argwhere((labels < -1) | (labels > 1))
    if odd.size:
        node, label = odd[0]
        found = f"{where(node)}: y[{label}] is {labels[node, label]}"
        mend = "several labels a node are 0, 1, or -1 for unknown; one class a node is y.argmax(1)"
        raise DataError(f"{found}; {mend}")
    target = Target(name="label", kind="multilabel", num_outputs=labels.shape[1])
    return TargetColumn(target, labels.astype(np.int8))


def _edge_columns(data: Data, edge_index: Int64Array, time: str) -> EdgeColumns:
    num_edges = edge_index.shape[1]

    def where(edge: int) -> str:
        return f"edge {edge}: {edge_index[0, edge]} -> {edge_index[1, edge]}"

    weight = _edge_numbers(data, "edge_weight", num_edges, where)
    if weight is not None and weight.shape[1] != 1:
        raise DataError(f"{_found('edge_weight', data['edge_weight'])}; it must be [num_edges]")
    attr = _edge_numbers(data, "edge_attr", num_edges, where)
    width = 0 if attr is None else attr.shape[1]
    return EdgeColumns(
        weight=None if weight is None else weight[:, 0],
        attr=attr,
        attr_names=tuple(f"edge_attr_{number}" for number in range(width)),
        time=_times(data, time, num_edges),
    )


def _edge_numbers(
    data: Data, name: str, num_edges: int, where: Where
) -> npt.NDArray[np.float32] | None:
    """`[E, A]` finite numbers, or None where they are not there or have no column."""
    values = _tensor(data, name)
    if values is None:
        return None
    if values.dim() not in (1, 2) or values.size(0) != num_edges or values.layout != torch.strided:
        shape = _found(name, values)
        raise DataError(f"{shape}; it must be dense, [{num_edges}] or [{num_edges}, A], by edge")
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    columns = f"{name}[{{}}]".format if values.dim() == 2 else lambda at: name
    matrix = values.numpy() if values.dim() == 2 else values.numpy()[:, None]
    found = finite(matrix, where=where, column=columns)
    return found if found.shape[1] else None


def _times(data: Data, name: str, count: int) -> Int64Array | None:
    time = _tensor(data, name)
    if time is None:
        return None
    if time.dim() == 2 and time.size(1) == 1:
        time = time[:, 0]
    if time.dim() != 1 or time.size(0) != count or not _is_integer(time):
        mend = "whole numbers, for example seconds or years (.long())"
        raise DataError(f"{_found(name, time)}; it must be integer [{count}]: {mend}")
    return _int64(time)


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
