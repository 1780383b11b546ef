"""Checks at the operator's entry: what every implementation may then take for granted.

They read shapes, dtypes and devices only. That indices are in range is for whoever builds the
`Topology` to see to (`nn.topology`): to read them here would wait for the GPU.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dnformer.errors import ConfigError, DataError
from dnformer.ops.types import QK, Dropout, Lambda, Topology

SQUASHES = ("softplus", "sigmoid", "identity")
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class _Expected(NamedTuple):
    name: str
    tensor: Tensor
    shape: list[int]
    dtypes: tuple[torch.dtype, ...]


def check_inputs(
    graph: Topology,
    qk: QK,
    v: Tensor,
    lam: Lambda | None,
    *,
    bias: Tensor | None,
    dropout: Dropout | None,
) -> None:
    """Raises where the operator's inputs do not fit each other.

    Raises:
        DataError: a shape, a dtype or a device is wrong.
        ConfigError: the squash function or the share of dropout is not one there is.
    """
    if qk.q.ndim != 3 or v.ndim != 3 or (lam is not None and qk.q.shape[2] != 2 * v.shape[2]):
        raise DataError(
            f"q is [M, H, W] and v [N, H, D], with W = 2D (both branches) where there is a lambda; "
            f"found q {list(qk.q.shape)}, v {list(v.shape)}"
        )
    for name, tensor, shape, dtypes in _expected(graph, qk, v, lam, bias=bias, dropout=dropout):
        if list(tensor.shape) != shape:
            raise DataError(f"{name} must be {shape}, found {list(tensor.shape)}")
        if tensor.dtype not in dtypes:
            allowed = " or ".join(str(dtype) for dtype in dtypes)
            raise DataError(f"{name} must be {allowed}, found {tensor.dtype}")
        if tensor.device != v.device:
            raise DataError(f"{name} is on {tensor.device}, v on {v.device}: move one of them")
    if lam is not None and lam.squash not in SQUASHES:
        raise ConfigError(f"squash {lam.squash!r} is not one of {', '.join(SQUASHES)}")
    if dropout is not None and not 0 <= dropout.p < 1:
        raise ConfigError(f"dropout p = {dropout.p} is outside 0 <= p < 1")


def _expected(
    graph: Topology,
    qk: QK,
    v: Tensor,
    lam: Lambda | None,
    *,
    bias: Tensor | None,
    dropout: Dropout | None,
) -> list[_Expected]:
    num_dst, num_heads, width = qk.q.shape
    num_src, num_edges = v.shape[0], graph.row.numel()
    data = (v.dtype,)
    index = (torch.int64,)
    # under autocast the projections are bfloat16 and the parameters float32
    parameter = data if v.dtype == torch.float64 else (v.dtype, torch.float32)
    expected = [
        _Expected("v", v, [num_src, num_heads, v.shape[2]], _FLOATS),
        _Expected("q", qk.q, [num_dst, num_heads, width], data),
        _Expected("k", qk.k, [num_src, num_heads, width], data),
        _Expected("colptr", graph.colptr, [num_dst + 1], index),
        _Expected("row", graph.row, [num_edges], index),
    ]
    if bias is not None:
        expected.append(_Expected("bias", bias, [num_edges, num_heads], parameter))
    if dropout is not None:
        expected.append(_Expected("dropout.seed", dropout.seed, [], index))
    if lam is not None:
        hidden = lam.weight.shape[1] if lam.weight.ndim == 2 else 0
        expected += [
            _Expected("lam.weight", lam.weight, [num_heads, hidden], parameter),
            _Expected("lam.bias", lam.bias, [num_heads], parameter),
            _Expected("lam.u", lam.u, [num_dst, hidden], data),
            _Expected("lam.w", lam.w, [num_src, hidden], data),
        ]
    return expected
