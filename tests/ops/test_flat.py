import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from dnformer.errors import BackendError
from dnformer.ops import Dropout, Topology, diff_attention, flat, transpose

from . import helpers
from .helpers import GRAPH, close, grads, random_inputs

attend = partial(helpers.attend, diff_attention)

FORWARD = torch.ops.dnformer.diff_attention.default
BACKWARD = torch.ops.dnformer.diff_attention_backward.default
NAMES = ("q", "k", "v", "u", "w", "weight", "lam_bias", "bias")
SEED = torch.tensor(-11)

# tensors, squash, seed and p
MODES: dict[str, tuple[dict[str, Any], str, Tensor | None, float]] = {
    "diff": ({}, "softplus", None, 0.0),
    "bias-dropout": ({"bias": True}, "sigmoid", SEED, 0.4),
    "per-head": ({"hidden": 0, "dtype": torch.float64}, "identity", None, 0.0),
    "single-wide": ({"single": 6}, "", SEED, 0.4),
}


def arguments(mode: str, *, transposed: bool = False, grad: bool = False) -> tuple[Any, ...]:
    """The registered operator's."""
    shape, squash, seed, p = MODES[mode]
    named = random_inputs(**({"dtype": torch.float32} | shape))
    tensors = [named[name].requires_grad_(grad) if name in named else None for name in NAMES]
    index = transpose(GRAPH, 7) if transposed else (None, None, None)
    return (*GRAPH[:2], *index, *tensors, seed, p, squash)


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("mode", MODES)
def test_operator_opcheck(mode: str, transposed: bool) -> None:
    torch.library.opcheck(FORWARD, arguments(mode, transposed=transposed, grad=True))
    given = arguments(mode, transposed=transposed)
    found = FORWARD(*given)
    torch.library.opcheck(BACKWARD, (torch.ones_like(found[0]), *found, *given))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("single", [0, 6], ids=["diff", "single-wide"])
def test_operator_shapes(single: int, dtype: torch.dtype) -> None:
    # a meta tensor runs the description of the operator that torch.compile goes by
    named = random_inputs(single=single, bias=True, dtype=dtype)
    index = (None, None, None)
    given = (*GRAPH[:2], *index, *map(named.get, NAMES), SEED, 0.1, "" if single else "softplus")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    meta = [x.to("meta") if isinstance(x, Tensor) else x for x in given]
    described = FORWARD(*meta)
    second = (0, 2, 3) if single else (5, 2, 3)
    assert [tuple(x.shape) for x in described] == [(5, 2, 3), second, (5, 2 if single else 4, 2)]
    assert {x.dtype for x in described} == {wide}
    changes = BACKWARD(torch.empty_like(described[0]), *described, *meta)
    assert [(x.shape, x.dtype) for x in changes] == [(x.shape, dtype) for x in named.values()]


def test_operator_meta() -> None:
    named = {name: x.to("meta") for name, x in random_inputs(dtype=torch.bfloat16).items()}
    graph = Topology(*(t.to("meta") for t in GRAPH[:2]))
    out, found = grads(attend(graph=graph), named, torch.empty(5, 2, 3, device="meta").bfloat16())
    assert (out.shape, out.dtype) == ((5, 2, 3), torch.bfloat16)
    assert [x.shape for x in found.values()] == [x.shape for x in named.values()]


def graph_of(num_dst: int) -> Topology:
    degrees = torch.arange(num_dst) % 4
    row = torch.arange(int(degrees.sum())) % 7
    return Topology(torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]), row)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_diff_attention_compiled(dynamic: bool) -> None:
    def function(graph: Topology, seed: Tensor, named: dict[str, Tensor]) -> Tensor:
        return attend(graph=graph, dropout=Dropout(0.3, seed))(**named).square()

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=counter)
    torch._dynamo.reset()
    # no size equals another: torch.compile would take them for one
    for num_dst, seed in [(9, 1), (9, 2), (12, 3)]:
        graph = graph_of(num_dst)
        named = random_inputs(graph, dtype=torch.float32, bias=True)
        leaves = {name: x.requires_grad_() for name, x in named.items()}
        results = []
        for entry in (function, compiled):
            out = entry(graph, torch.tensor(seed), leaves)
            found = torch.autograd.grad(out.sum(), list(leaves.values()))
            results.append((out, *found))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    # another seed is no reason to compile, another graph only where sizes are fixed
    assert counter.frame_count == (1 if dynamic else 2)
    torch._dynamo.reset()


def test_diff_attention_autocast() -> None:
    inputs = random_inputs(dtype=torch.float32)
    out, found = grads(attend(), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other, other_grads = grads(attend(), inputs)
    assert torch.equal(other, out)
    assert all(torch.equal(other_grads[name], found[name]) for name in found)


def test_diff_attention_twice_differentiated() -> None:
    named = {name: x.requires_grad_() for name, x in random_inputs().items()}
    out = attend()(**named)
    (first,) = torch.autograd.grad(out.square().sum(), named["q"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"backward through dnformer.diff_attention_backward"):
        first.sum().backward()


def test_diff_attention_backward_twice() -> None:
    named = {name: x.requires_grad_() for name, x in random_inputs().items()}
    out = attend()(**named).sum()
    first = torch.autograd.grad(out, list(named.values()), retain_graph=True)
    second = torch.autograd.grad(out, list(named.values()))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_diff_attention_changed_in_place() -> None:
    named = {name: x.requires_grad_() for name, x in random_inputs().items()}
    out = attend()(**named).sum()
    with torch.no_grad():
        named["v"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_diff_attention_no_grad() -> None:
    named = random_inputs()
    out = attend()(**named)
    assert not out.requires_grad
    with torch.inference_mode():
        assert torch.equal(attend()(**named), out)


def test_diff_attention_expanded_gradient() -> None:
    named = {name: x.requires_grad_() for name, x in random_inputs().items()}
    out = attend()(**named)
    found = torch.autograd.grad(out.sum(), list(named.values()))
    _, expected = grads(attend(), named, torch.ones(5, 2, 3, dtype=torch.float64))
    for gradient, right in zip(found, expected.values(), strict=True):
        close(gradient, right)


def test_backend_other_device() -> None:
    # there is no tensor on such a device here
    with pytest.raises(BackendError, match=r"runs on cpu and cuda, not on xpu: move the model"):
        flat._backend(torch.device("xpu"))


def test_backend_cuda_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name == "triton" or name.startswith(("triton.", "dnformer.ops.gpu")):
            monkeypatch.delitem(sys.modules, name)
    # what importing it then says is what it says where it is not installed
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(
        BackendError, match=r"on cuda:0 needs triton, .*not installed.*pip install triton"
    ):
        flat._backend(torch.device("cuda:0"))
