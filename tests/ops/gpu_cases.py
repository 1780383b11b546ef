"""The tests of `ops.gpu`, which `test_gpu` runs on a GPU or else in Triton's interpreter."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dnformer.ops import Dropout, Topology, edge_weights, gpu
from dnformer.ops.flat import Inputs, Outputs
from dnformer.ops.gpu_common import span
from dnformer.ops.reference import diff_attention
from dnformer.ops.types import QK, Lambda, Transposed

from .helpers import GRAPH, close, grads, random_inputs
from .test_reference import CASES, oracle, oracle_inputs

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
SEED = torch.tensor(-11)
DROPOUT = Dropout(0.4, SEED)

# 6 destinations, 7 sources: destination 1 has 21 neighbours, source 2 is one of 15
HUBS = Topology(
    colptr=torch.tensor([0, 3, 24, 24, 25, 29, 30]),
    row=torch.tensor(
        [2, 0, 5, 2, 1, 2, 6, 2, 3, 2, 2, 4, 2, 4, 2, 2, 6, 0, 2, 2, 5, 3, 2, 1, 2, 0, 2, 6, 5, 4]
    ),
)

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


def transpose(graph: Topology, num_src: int, dtype: torch.dtype = torch.int64) -> Transposed:
    edge = torch.argsort(graph.row, stable=True)
    rowptr = torch.searchsorted(graph.row[edge], torch.arange(num_src + 1, device=edge.device))
    return Transposed(*(t.to(dtype) for t in (rowptr, edge, graph.dst()[edge])))


def flat(
    named: dict[str, Tensor],
    graph: Topology,
    squash: str,
    dropout: Dropout | None,
    *,
    device: torch.device | str = DEVICE,
) -> Inputs:
    """The backend's arguments."""
    rest = dict.fromkeys(("u", "w", "weight", "lam_bias", "bias"))
    x = Inputs(
        colptr=graph.colptr,
        row=graph.row,
        seed=None if dropout is None else dropout.seed,
        p=0.0 if dropout is None else dropout.p,
        squash=squash if "u" in named else "",
        **(rest | named),
    )
    return Inputs(*(t.to(device) if isinstance(t, Tensor) else t for t in x))


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, make: Callable[..., Inputs], index: Transposed, segment: int, *given: Tensor
    ) -> Tensor:
        ctx.x, ctx.index, ctx.segment = make(*given), index, segment
        ctx.outputs = gpu.forward(ctx.x, segment=segment)
        ctx.device = given[0].device
        return ctx.outputs.out.to(ctx.device, ctx.x.v.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.to(DEVICE, ctx.outputs.out.dtype)
        found = gpu.backward(ctx.x, ctx.index, ctx.outputs, grad, segment=ctx.segment)
        pairs = zip(found, ctx.x[2:10], strict=True)
        # not given, not found
        found = [(g, x) for g, x in pairs if x is not None]
        assert all(g.shape == x.shape and g.dtype == x.dtype for g, x in found)
        return None, None, None, *(g.to(ctx.device) for g, _ in found)


def kernels(
    *,
    graph: Topology = GRAPH,
    squash: str = "softplus",
    dropout: Dropout | None = None,
    segment: int = gpu.SEGMENT,
    index: Transposed | None = None,
) -> Callable[..., Tensor]:
    """The operator as a function of named tensors, by the kernels."""

    def function(**named: Tensor) -> Tensor:
        def make(*given: Tensor) -> Inputs:
            return flat(dict(zip(named, given, strict=True)), graph, squash, dropout)

        by_source = index or transpose(graph, named["v"].shape[0])
        by_source = Transposed(*(t.to(DEVICE) for t in by_source))
        return _Attend.apply(make, by_source, segment, *named.values())

    return function


def reference(
    *, graph: Topology = GRAPH, squash: str = "softplus", dropout: Dropout | None = None
) -> Callable[..., Tensor]:
    """`kernels`, by the definition."""

    def function(**named: Tensor) -> Tensor:
        x = flat(named, graph, squash, dropout, device=named["v"].device)
        lam = None if x.u is None else Lambda(x.u, x.w, x.weight, x.lam_bias, squash)
        return diff_attention(graph, QK(x.q, x.k), x.v, lam, bias=x.bias, dropout=dropout)

    return function


def check(
    named: dict[str, Tensor],
    *,
    graph: Topology = GRAPH,
    squash: str = "softplus",
    dropout: Dropout | None = None,
    segment: int = gpu.SEGMENT,
    index: Transposed | None = None,
) -> None:
    """Output and every gradient against the reference in float64."""
    function = kernels(graph=graph, squash=squash, dropout=dropout, segment=segment, index=index)
    v = named["v"]
    grad_out = torch.linspace(-1, 1, graph.num_dst * v.shape[1:].numel()).to(v.dtype)
    grad_out = grad_out.view(-1, *v.shape[1:])
    out, found = grads(function, named, grad_out)
    wide = {name: x.double() for name, x in named.items()}
    right = reference(graph=graph, squash=squash, dropout=dropout)
    expected, expected_grads = grads(right, wide, grad_out.double())
    close(out, expected)
    for name, gradient in found.items():
        close(gradient, expected_grads[name])


@pytest.mark.shared
@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("case", CASES)
def test_gpu_oracle(case: str) -> None:
    right = oracle(case)
    graph = Topology(right["colptr"], right["row"])
    function = kernels(graph=graph, squash=right["mode"], segment=24)
    out, found = grads(function, oracle_inputs(right), right["grad_out"])
    close(out, right["out"])
    for name, gradient in found.items():
        close(gradient, right[f"grad_{name}"])


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dropout", [None, DROPOUT], ids=["", "dropout"])
@pytest.mark.parametrize(
    ("squash", "shape"),
    [
        ("softplus", {}),
        ("softplus", {"bias": True}),
        ("sigmoid", {"heads": 3, "width": 5}),
        ("identity", {"hidden": 0, "heads": 1, "width": 4}),
        ("", {"single": 3}),
        ("", {"single": 6, "bias": True}),
    ],
    ids=["softplus", "bias", "sigmoid", "per-head", "single", "single-wide"],
)
def test_gpu_mode(squash: str, shape: dict[str, Any], dropout: Dropout | None) -> None:
    check(random_inputs(**shape), squash=squash, dropout=dropout)


@pytest.mark.usefixtures("poison")
def test_gpu_blocks() -> None:
    # blocks of 2 heads and of 128 hidden units, the last ones not full
    check(random_inputs(heads=3, width=100, hidden=130))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_gpu_dtype(dtype: torch.dtype) -> None:
    check({name: x.to(dtype) for name, x in random_inputs(bias=True).items()}, dropout=DROPOUT)


def test_gpu_float32_parameters() -> None:
    named = {name: x.bfloat16() for name, x in random_inputs(bias=True).items()}
    named |= {name: named[name].float() for name in ("weight", "lam_bias", "bias")}
    check(named)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("segment", [1, 7, 8, 29])
def test_gpu_hubs(segment: int) -> None:
    # cut at 1: every slot; 7: both slots of a range; 8: the last edge of a hub ends its range
    named = random_inputs(HUBS, heads=1, bias=True)
    check(named, graph=HUBS, dropout=DROPOUT, segment=segment)


@pytest.mark.usefixtures("poison")
def test_gpu_hubs_single() -> None:
    named = {name: x.float() for name, x in random_inputs(HUBS, single=4, width=5).items()}
    check(named, graph=HUBS, segment=4)


@triton.jit
def _span_kernel(ptr, spans, num_rows, num_slots, SEGMENT: tl.constexpr):  # type: ignore
    pid = tl.program_id(0)
    row, first, last = span(pid, ptr, num_rows, num_slots, SEGMENT)
    tl.store(spans + 3 * pid, row)
    tl.store(spans + 3 * pid + 1, first)
    tl.store(spans + 3 * pid + 2, last)


@pytest.mark.parametrize("segment", [1, 4, 7, 8, 29])
def test_span_covers_edges(segment: int) -> None:
    # each edge is one program's, none has more than a segment, and only hubs are cut
    num_slots = 2 * -(-30 // segment)
    spans = torch.zeros(num_slots + 6, 3, dtype=torch.int64, device=DEVICE)
    _span_kernel[(num_slots + 6,)](HUBS.colptr.to(DEVICE), spans, 6, num_slots, SEGMENT=segment)
    dst, counts = HUBS.dst().tolist(), HUBS.colptr.diff().tolist()
    found = []
    for pid, (row, first, last) in enumerate(spans.tolist()):
        if row >= 0:
            assert last - first <= segment
            assert (counts[row] > segment) == (pid < num_slots)
            found += [(edge, row) for edge in range(first, last)]
    assert sorted(found) == list(enumerate(dst))


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(
    ("num_dst", "dtype", "segment"),
    [(4, torch.int32, 3), (4, torch.int64, gpu.SEGMENT), (1, torch.int32, gpu.SEGMENT)],
)
def test_gpu_larger_transposed(num_dst: int, dtype: torch.dtype, segment: int) -> None:
    # the first destinations' edges, among the first 6 sources, by the index of all
    num_edges = int(HUBS.colptr[num_dst])
    first = HUBS.row[:num_edges].clamp(max=5)
    larger = Topology(HUBS.colptr, torch.cat([first, HUBS.row[num_edges:]]))
    graph = Topology(HUBS.colptr[: num_dst + 1], first)
    index = transpose(larger, 7, dtype)
    check(random_inputs(graph, num_src=6), graph=graph, segment=segment, index=index)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize(
    ("colptr", "row"),
    [([0], []), ([0, 0, 0], []), ([0, 1], [3]), ([0, 0, 3], [1, 1, 1])],
    ids=["no-destinations", "no-edges", "one-edge", "the-same-thrice"],
)
def test_gpu_small(colptr: list[int], row: list[int]) -> None:
    graph = Topology(torch.tensor(colptr), torch.tensor(row, dtype=torch.int64))
    check(random_inputs(graph), graph=graph)


def test_gpu_large_logits() -> None:
    named = {name: x.float() for name, x in random_inputs().items()}
    named["q"] *= 100
    named["k"] *= 10
    out, found = grads(kernels(), named)
    close(out, reference()(**{name: x.double() for name, x in named.items()}))
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_gpu_masked_by_bias() -> None:
    # a bias of -inf hides a neighbour, also where it hides the first edges that are loaded
    graph = Topology(torch.tensor([0, 20]), torch.arange(20) % 7)
    named = random_inputs(graph, bias=True)
    named["bias"][:17] = -torch.inf
    named["bias"][18] = -torch.inf
    out, found = grads(kernels(graph=graph), named)
    expected, expected_grads = grads(reference(graph=graph), named)
    close(out, expected)
    for name, gradient in found.items():
        close(gradient, expected_grads[name])


def test_gpu_small_lambda() -> None:
    # softplus(-30) is 1e-13, far below what float32 keeps of 1 + exp(-30)
    named = random_inputs(hidden=0)
    named["lam_bias"] = torch.tensor([-30.0, -12.0], dtype=torch.float64)
    _, found = grads(kernels(), {name: x.float() for name, x in named.items()})
    _, expected = grads(reference(), named)
    torch.testing.assert_close(
        found["lam_bias"].double(), expected["lam_bias"], rtol=1e-4, atol=0.0
    )


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("segment", [4, gpu.SEGMENT])
def test_gpu_outputs(segment: int) -> None:
    named = random_inputs(HUBS)
    x = flat(named, HUBS, "softplus", None)
    outputs = Outputs(*(t.cpu() for t in gpu.forward(x, segment=segment)))
    lam = Lambda(named["u"], named["w"], named["weight"], named["lam_bias"], "softplus")
    right = edge_weights(HUBS, QK(named["q"], named["k"]), lam)
    message = (right.lam * right.a2).unsqueeze(-1) * named["v"][HUBS.row]
    second = torch.zeros(6, 2, 3, dtype=torch.float64).index_add(0, HUBS.dst(), message)
    close(outputs.second, second)
    assert outputs.stats.shape == (6, 4, 2)
    for i, (start, stop) in enumerate(zip(HUBS.colptr[:-1], HUBS.colptr[1:], strict=True)):
        if start == stop:
            continue
        for branch, a in enumerate((right.a1, right.a2)):
            # the largest logit's weight is exp(0) over the sum
            close(outputs.stats[i, 2 * branch + 1], 1 / a[start:stop].amax(0))
    assert gpu.forward(flat(random_inputs(single=4), GRAPH, "", None)).second.shape == (0, 2, 3)


def test_gpu_same_bits() -> None:
    named = {name: x.float() for name, x in random_inputs(HUBS, bias=True).items()}
    first, second = (
        grads(kernels(graph=HUBS, dropout=DROPOUT, segment=4), named) for _ in range(2)
    )
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in named)


class _Allocated(TorchDispatchMode):
    """Counts the bytes of the tensors that operations give and did not take."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        taken = {_storage(t).data_ptr() for t in tree_leaves(args) if isinstance(t, Tensor)}
        given = {_storage(t).data_ptr(): t for t in tree_leaves(out) if isinstance(t, Tensor)}
        self.bytes += sum(_storage(t).nbytes() for at, t in given.items() if at not in taken)
        return out


def _storage(t: Tensor) -> torch.UntypedStorage:
    return t.untyped_storage()


@pytest.mark.parametrize("hidden", [4, 32])
def test_gpu_memory(hidden: int) -> None:
    # all that is ever allocated, freed in between or not
    num_edges, width = 640, 32
    graph = Topology(torch.tensor([0, 100, num_edges]), torch.arange(num_edges) % 3)
    named = random_inputs(graph, num_src=3, heads=1, width=width, hidden=hidden)
    x = flat({name: t.float() for name, t in named.items()}, graph, "softplus", DROPOUT)
    by_source = Transposed(*(t.to(DEVICE) for t in transpose(graph, 3)))
    nodes = 4 * 5 * (4 * width + 2 * hidden + 4)
    with _Allocated() as forward:
        outputs = gpu.forward(x)
    with _Allocated() as backward:
        gpu.backward(x, by_source, outputs, torch.ones_like(outputs.out))
    slots = 4 * 4 * (3 * width + hidden + 4)
    assert 0 < forward.bytes <= nodes + slots
    assert 16 * num_edges < backward.bytes <= 20 * num_edges + nodes + 2 * slots


def large(*, dtype: torch.dtype) -> tuple[Topology, dict[str, Tensor]]:
    """200,000 edges on the GPU; destination 7 has 100,000 neighbours, source 5 as many."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 20, (5000,), generator=generator)
    counts[7] = 100_000
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    row = torch.randint(0, 6000, (int(colptr[-1]),), generator=generator)
    row[torch.rand(row.shape, generator=generator) < 0.5] = 5
    graph = Topology(colptr, row)
    named = random_inputs(graph, num_src=6000, heads=4, width=32, hidden=32, bias=True)
    named = {name: t.to(DEVICE, dtype) for name, t in named.items()}
    return Topology(colptr.to(DEVICE), row.to(DEVICE)), named


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_gpu_large_graph(dtype: torch.dtype) -> None:
    graph, named = large(dtype=dtype)
    dropout = Dropout(0.1, SEED.to(DEVICE))
    out, found = grads(kernels(graph=graph, dropout=dropout), named)
    again, found_again = grads(kernels(graph=graph, dropout=dropout), named)
    assert torch.equal(out, again)
    assert all(torch.equal(found[name], found_again[name]) for name in named)
    grad_out = torch.arange(1.0, out.numel() + 1).view_as(out).to(out) / out.numel()
    wide = {name: t.double() for name, t in named.items()}
    expected, expected_grads = grads(
        reference(graph=graph, dropout=dropout), wide, grad_out.to(DEVICE, torch.float64)
    )
    share = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    for actual, right in [(out, expected), *((found[n], expected_grads[n]) for n in named)]:
        assert (actual.to(right) - right).abs().max() <= share * right.abs().max()


@needs_gpu
@pytest.mark.gpu
def test_gpu_peak_memory() -> None:
    graph, named = large(dtype=torch.float32)
    x = flat(named, graph, "softplus", DROPOUT)
    by_source = transpose(graph, 6000, torch.int32)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = gpu.forward(x)
    gpu.backward(x, by_source, outputs, torch.ones_like(outputs.out))
    # results and gradients: q, k, v, out, second of 4 heads x 32, bias
    nodes = 4 * 4 * 32 * (2 * 5000 + 3 * 6000 + 2 * 5000)
    extra = torch.cuda.max_memory_allocated() - before - nodes
    assert extra <= (24 + 4) * 4 * graph.num_edges + 2**22
