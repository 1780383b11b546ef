import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dnformer.ops import Dropout, Topology, Transposed, cpu, diff_attention, transpose
from dnformer.ops import reference as definition
from dnformer.ops.flat import Grads, Inputs

from . import helpers
from .helpers import GRAPH, close, grads, random_inputs
from .test_reference import CASES, oracle, oracle_inputs

# Each shape and dtype is compiled for some seconds: 2 heads of 3 with 4 hidden units wherever one
# does not matter
attend = partial(helpers.attend, diff_attention)
reference = partial(helpers.attend, definition.diff_attention)

DROPOUT = Dropout(0.4, torch.tensor(-11))
Result = tuple[Tensor, dict[str, Tensor]]


def make_graph(degrees: list[int], *, num_src: int = 7, seed: int = 0) -> Topology:
    """Half of the edges come from source 2."""
    generator = torch.Generator().manual_seed(seed)
    colptr = torch.tensor([0, *degrees]).cumsum(0)
    row = torch.randint(0, num_src, (sum(degrees),), generator=generator)
    row[torch.rand(len(row), generator=generator) < 0.5] = 2
    return Topology(colptr, row)


# the kernels take 64 edges at a time: longer rows, one of 64, none at the end and in between
HUBS = make_graph([3, 130, 0, 65, 64, 1, 0])


def ramp(out: Tensor) -> Tensor:
    """-1, -7/8, .. 1 over and over: exact in each dtype."""
    return (torch.arange(out.numel()) % 17 / 8 - 1).view_as(out).to(out)


def cut(
    named: dict[str, Tensor],
    *,
    graph: Topology = GRAPH,
    squash: str = "softplus",
    dropout: Dropout | None = None,
    task_edges: int,
    index: Transposed | None = None,
) -> Result:
    """Output and gradients for `ramp`, by tasks of so few edges."""
    x = Inputs(
        *graph[:2],
        **(dict.fromkeys(Grads._fields) | named),
        seed=None if dropout is None else dropout.seed,
        p=0.0 if dropout is None else dropout.p,
        squash=squash if "u" in named else "",
    )
    index = index or transpose(graph, len(named["v"]))
    outputs = cpu.forward(x, task_edges=task_edges)
    found = cpu.backward(x, index, outputs, ramp(outputs.out), task_edges=task_edges)
    return outputs.out, {name: t for name, t in found._asdict().items() if t is not None}


def whole(function: Callable[..., Tensor], named: dict[str, Tensor]) -> Result:
    """Likewise, of a function of the named tensors."""
    grad_out = ramp(function(**named).detach())
    return grads(function, named, grad_out)


def check(found: Result, named: dict[str, Tensor], **settings: Any) -> None:
    """Output and every gradient against the reference in float64."""
    right = whole(reference(**settings), {name: x.double() for name, x in named.items()})
    close(found[0], right[0])
    assert found[1].keys() == named.keys()
    for name, gradient in found[1].items():
        assert gradient.dtype == named[name].dtype
        close(gradient, right[1][name])


def assert_same(first: Result, second: Result) -> None:
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(x, second[1][name]) for name, x in first[1].items())


HEADS, WIDTH, HIDDEN = 4, 16, 16


def widen(x: Tensor, name: str) -> Tensor:
    """An oracle's tensor among zeros, as one of 4 heads of 16 with 16 hidden units.

    Scores are then divided by 4 instead of the root of the oracle's D: see to q.
    """
    if name in ("u", "w"):
        return functional.pad(x, (0, HIDDEN - x.shape[-1]))
    if name == "weight":
        return functional.pad(x, (0, HIDDEN - x.shape[1], 0, HEADS - x.shape[0]))
    if name in ("q", "k"):
        x = torch.cat(
            [functional.pad(half, (0, WIDTH - half.shape[-1])) for half in x.chunk(2, -1)], -1
        )
    elif name == "v":
        x = functional.pad(x, (0, WIDTH - x.shape[-1]))
    missing = HEADS - x.shape[1] if x.ndim > 1 else HEADS - len(x)
    return functional.pad(x, (0, missing) if x.ndim < 3 else (0, 0, 0, missing))


@pytest.mark.shared
@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("case", CASES)
def test_cpu_oracle(case: str) -> None:
    right = oracle(case)
    named = oracle_inputs(right)
    graph = Topology(right["colptr"], right["row"])
    root = math.sqrt(WIDTH / named["v"].shape[-1])

    def function(**leaves: Tensor) -> Tensor:
        leaves["q"] = leaves["q"] * root
        wide = {name: widen(x, name) for name, x in leaves.items()}
        out = attend(graph=graph, squash=right["mode"])(**wide)
        return out[:, : named["v"].shape[1], : named["v"].shape[2]]

    out, found = grads(function, named, right["grad_out"])
    close(out, right["out"])
    assert found.keys() == {name[5:] for name in right if name.startswith("grad_")} - {"out"}
    for name, gradient in found.items():
        close(gradient, right[f"grad_{name}"])


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "per-head": {"hidden": 0},
    "wide": {"heads": HEADS, "width": WIDTH, "hidden": HIDDEN},
    "single": {"single": 3},
    "single-wide": {"single": 6, "bias": True},
}


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dropout", [None, DROPOUT], ids=["whole", "dropout"])
@pytest.mark.parametrize(
    ("shape", "squash", "dtype"),
    [
        ("plain", "softplus", torch.float64),
        ("plain", "sigmoid", torch.float64),
        ("plain", "identity", torch.float64),
        ("bias", "softplus", torch.float64),
        ("per-head", "softplus", torch.float64),
        ("per-head", "identity", torch.float64),
        ("wide", "softplus", torch.float64),
        ("single", "", torch.float64),
        ("plain", "softplus", torch.float32),
        ("bias", "sigmoid", torch.float32),
        ("single-wide", "", torch.float32),
    ],
    ids=str,
)
def test_cpu_mode(shape: str, squash: str, dtype: torch.dtype, dropout: Dropout | None) -> None:
    mode = {"graph": HUBS, "squash": squash, "dropout": dropout}
    named = random_inputs(HUBS, **SHAPES[shape], dtype=dtype)
    check(whole(attend(**mode), named), named, **mode)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("shape", ["bias", "single-wide"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_cpu_narrow(shape: str, dtype: torch.dtype) -> None:
    mode = {"graph": HUBS, "dropout": DROPOUT}
    named = random_inputs(HUBS, **SHAPES[shape], dtype=dtype)
    found = whole(attend(**mode), named)
    assert found[0].dtype == dtype
    check(found, named, **mode)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_cpu_computes_in_float32(dtype: torch.dtype) -> None:
    # only the last rounding is a 16-bit one
    named = random_inputs(dtype=dtype)
    wide = attend()(**{name: x.double() for name, x in named.items()})
    assert torch.equal(attend()(**named), wide.to(dtype))


def test_cpu_float32_parameters() -> None:
    # as under autocast: 16-bit projections, lambda's own parameters and the bias in float32
    named = random_inputs(dtype=torch.bfloat16, bias=True)
    named |= {name: named[name].float() for name in ("weight", "lam_bias", "bias")}
    check(whole(attend(), named), named)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("task_edges", [1, 7, 63, 64, 65, 100])
def test_cpu_hubs(task_edges: int) -> None:
    # destination 1 has 130 edges, source 2 is that of 131: both are cut
    mode = {"graph": HUBS, "dropout": DROPOUT}
    named = random_inputs(HUBS, bias=True)
    check(cut(named, **mode, task_edges=task_edges), named, **mode)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("task_edges", [1, 64, 100])
def test_cpu_hubs_single(task_edges: int) -> None:
    named = random_inputs(HUBS, single=3)
    check(cut(named, graph=HUBS, task_edges=task_edges), named, graph=HUBS)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("task_edges", [1, 4096])
@pytest.mark.parametrize(
    ("colptr", "row"),
    [([0], []), ([0, 0, 0], []), ([0, 1], [3]), ([0, 0, 3], [1, 1, 1]), ([0, 0, 1, 5, 7, 8], None)],
    ids=["no-destinations", "no-edges", "one-edge", "the-same-thrice", "literal"],
)
def test_cpu_small(colptr: list[int], row: list[int] | None, task_edges: int) -> None:
    graph = Topology(
        torch.tensor(colptr), GRAPH.row if row is None else torch.tensor(row, dtype=torch.int64)
    )
    named = random_inputs(graph)
    check(cut(named, graph=graph, task_edges=task_edges), named, graph=graph)


def test_cpu_no_sources() -> None:
    graph = Topology(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64))
    named = random_inputs(graph, num_src=0)
    out, found = grads(attend(graph=graph), named)
    assert out.tolist() == [[[0.0] * 3] * 2]
    assert found["k"].shape == (0, 2, 6)


@settings(max_examples=60)
@given(
    degrees=st.lists(st.integers(0, 9) | st.sampled_from([63, 64, 65, 129]), max_size=8),
    task_edges=st.integers(1, 8) | st.just(100),
    squash=st.sampled_from(["softplus", "sigmoid", "identity"]),
    dropout=st.none()
    | st.builds(Dropout, st.floats(0, 0.9), st.integers(-(2**63), 2**63 - 1).map(torch.tensor)),
    bias=st.booleans(),
    num_src=st.integers(3, 8),
)
def test_cpu_any_graph(
    degrees: list[int],
    task_edges: int,
    squash: str,
    dropout: Dropout | None,
    bias: bool,
    num_src: int,
) -> None:
    graph = make_graph(degrees, num_src=num_src)
    named = random_inputs(graph, num_src=num_src, bias=bias)
    mode = {"graph": graph, "squash": squash, "dropout": dropout}
    check(cut(named, **mode, task_edges=task_edges), named, **mode)


@pytest.fixture(scope="module")
def large() -> tuple[Topology, dict[str, Tensor]]:
    """30,000 edges, float32: many tasks, and hubs that are cut, both ways."""
    generator = torch.Generator().manual_seed(0)
    degrees = torch.randint(0, 60, (600,), generator=generator).tolist()
    graph = make_graph([*degrees, 12_000, *degrees[:50]], num_src=700)
    return graph, random_inputs(graph, num_src=700, dtype=torch.float32, bias=True)


def test_cpu_threads(large: tuple[Topology, dict[str, Tensor]]) -> None:
    graph, named = large
    function = attend(graph=graph, dropout=DROPOUT)
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        results.append(whole(function, named))
    check(results[0], named, graph=graph, dropout=DROPOUT)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


def test_cpu_threads_small_tasks() -> None:
    # a thousand tasks: threads that overtake each other
    graph = make_graph([5] * 600 + [300])
    named = random_inputs(graph)
    results = []
    for threads in (1, 2, 4, 4):
        torch.set_num_threads(threads)
        results.append(cut(named, graph=graph, dropout=DROPOUT, task_edges=6))
    check(results[0], named, graph=graph, dropout=DROPOUT)
    for other in results[1:]:
        assert_same(results[0], other)


def test_cpu_concurrent_calls() -> None:
    # two callers, each with threads from the one pool
    torch.set_num_threads(2)
    graph = make_graph([30] * 40)
    inputs = [random_inputs(graph, bias=bias) for bias in (False, True)]
    run = partial(cut, graph=graph, task_edges=16)
    expected = [run(named) for named in inputs]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, inputs * 20))
    for x, right in zip(found, expected * 20, strict=True):
        assert_same(x, right)


def _send(connection: Any, named: dict[str, Tensor]) -> None:
    torch.set_num_threads(2)
    out, found = cut(named, graph=HUBS, task_edges=8)
    connection.send([x.tolist() for x in (out, *found.values())])


# from Python 3.12 on a fork beside threads warns
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_cpu_forked() -> None:
    # a child has none of its parent's threads
    torch.set_num_threads(2)
    named = random_inputs(HUBS)
    out, found = cut(named, graph=HUBS, task_edges=8)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send, args=(theirs, named))
    child.start()
    try:
        assert ours.poll(60), "the child waits for threads that it does not have"
        assert ours.recv() == [x.tolist() for x in (out, *found.values())]
    finally:
        child.kill()
        child.join()


def test_cpu_strided_inputs() -> None:
    # slices of wider tensors, as the halves of one projection are
    named = random_inputs(bias=True)
    strided = {name: torch.stack([x, x], dim=-1)[..., 0] for name, x in named.items()}
    strided["v"] = named["v"].transpose(0, 1).contiguous().transpose(0, 1)
    assert not any(x.is_contiguous() for name, x in strided.items() if x.numel() > 1)
    grad_out = ramp(named["q"][..., :3]).transpose(0, 2).contiguous().transpose(0, 2)
    out = attend()(**{name: x.requires_grad_() for name, x in strided.items()})
    found = torch.autograd.grad(out, list(strided.values()), grad_out)
    assert_same((out, dict(zip(strided, found, strict=True))), whole(attend(), named))


def test_cpu_inputs_unchanged() -> None:
    named = random_inputs(bias=True)
    before = {name: x.clone() for name, x in named.items()}
    cut(named, dropout=DROPOUT, task_edges=2)
    assert all(torch.equal(x, before[name]) for name, x in named.items())


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("num_dst", [0, 2, 5])
def test_cpu_larger_transposed(num_dst: int, dtype: torch.dtype) -> None:
    # the first destinations' edges, among the first 6 sources, by the index of all
    num_edges = int(HUBS.colptr[num_dst])
    first = HUBS.row[:num_edges].clamp(max=5)
    larger = Topology(HUBS.colptr, torch.cat([first, HUBS.row[num_edges:]]))
    index = Transposed(*(t.to(dtype) for t in transpose(larger, 7)))
    graph = Topology(HUBS.colptr[: num_dst + 1], first)
    named = random_inputs(graph, num_src=6, dtype=torch.float32)
    own = whole(attend(graph=graph), named)
    check(own, named, graph=graph)
    assert_same(whole(attend(graph=graph._replace(transposed=index)), named), own)
    if dtype == torch.int32:
        cut_own = cut(named, graph=graph, task_edges=50)
        check(cut(named, graph=graph, task_edges=50, index=index), named, graph=graph)
        torch.testing.assert_close(cut_own[0], own[0])


def test_cpu_no_grad_of_some() -> None:
    named = random_inputs()
    named["v"].requires_grad_()
    attend()(**named).sum().backward()
    expected = grads(attend(), named, torch.ones(5, 2, 3, dtype=torch.float64))[1]
    assert torch.equal(named["v"].grad, expected["v"])
    assert named["q"].grad is None


@pytest.mark.parametrize("task_edges", [16, 4096])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("q", math.nan),
        ("q", math.inf),
        ("k", math.nan),
        ("v", math.nan),
        ("v", math.inf),
        ("u", math.nan),
        ("w", math.nan),
        ("bias", math.nan),
        ("bias", math.inf),
    ],
)
def test_cpu_not_finite(name: str, value: float, task_edges: int) -> None:
    # it shows in the rows that read it, and in no other; also in a hub's
    graph = make_graph([3, 130, 0, 65, 2, 1])
    named = random_inputs(graph, bias=True)
    at = {"q": 1, "u": 1, "bias": 70}.get(name, 3)
    named[name][at] = value
    out, found = cut(named, graph=graph, task_edges=task_edges)
    readers = torch.tensor([bool((row == 3).any()) for row in neighbours(graph)])
    if name in ("q", "u", "bias"):
        readers = torch.arange(graph.num_dst) == 1
    assert torch.equal(out.isfinite().all(-1).all(-1), ~readers)
    assert not out[readers].isfinite().any()
    # and in the gradients of what they read, so that no step is taken with them
    assert torch.equal(found["q"].isfinite().all(-1).all(-1), ~readers)
    assert found["u"][~readers].isfinite().all()
    assert not any(found[key].isfinite().all() for key in ("k", "weight", "lam_bias", "bias"))


def neighbours(graph: Topology) -> list[Tensor]:
    return list(graph.row.split(graph.colptr.diff().tolist()))


@pytest.mark.parametrize("task_edges", [16, 4096])
def test_cpu_masked_by_bias(task_edges: int) -> None:
    # a bias of -inf hides a neighbour, also where it hides the first edges that are loaded
    graph = make_graph([20, 100, 5])
    named = random_inputs(graph, bias=True)
    named["bias"][:17] = -torch.inf
    named["bias"][20:110] = -torch.inf
    check(cut(named, graph=graph, task_edges=task_edges), named, graph=graph)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_cpu_large_logits(dtype: torch.dtype) -> None:
    named = random_inputs(HUBS, bias=True, dtype=dtype)
    # every other edge is hidden by the one before it, the largest not among the first 64
    named["bias"] = torch.linspace(-100, 100, HUBS.num_edges * 2, dtype=dtype).view(-1, 2)
    named["bias"][::2] -= 100
    check(whole(attend(graph=HUBS), named), named, graph=HUBS)


def test_cpu_larger_logits() -> None:
    named = random_inputs(dtype=torch.float32)
    named["q"] *= 100
    named["k"] *= 10
    out, found = grads(attend(), named)
    close(out, reference()(**{name: x.double() for name, x in named.items()}))
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_cpu_small_lambda() -> None:
    # softplus(-30) is 1e-13, far below what float32 keeps of 1 + exp(-30)
    named = random_inputs(dtype=torch.float32)
    named["weight"] *= 0
    named["lam_bias"] = torch.tensor([-30.0, -12.0])
    _, found = grads(attend(), named)
    _, right = grads(reference(), {name: x.double() for name, x in named.items()})
    torch.testing.assert_close(found["lam_bias"].double(), right["lam_bias"], rtol=1e-4, atol=0.0)


def test_cpu_equal_logits() -> None:
    # each neighbour weighs (1 - lambda) / |N(i)|, here with lambda = softplus(0) = log 2
    named = random_inputs(HUBS)
    for name in ("q", "weight", "lam_bias"):
        named[name] *= 0
    out = attend(graph=HUBS)(**named)
    for found, row in zip(out, neighbours(HUBS), strict=True):
        mean = named["v"][row].mean(0) if len(row) else torch.zeros(2, 3, dtype=torch.float64)
        close(found, (1 - math.log(2)) * mean)


def test_cpu_empty_rows() -> None:
    out, found = grads(attend(), random_inputs())
    assert out[0].tolist() == [[0.0] * 3] * 2
    assert found["q"][0].abs().max() == found["u"][0].abs().max() == 0


def test_cpu_dropout_seed() -> None:
    named = random_inputs(HUBS)
    first, again, other = (
        attend(graph=HUBS, dropout=Dropout(0.5, torch.tensor(seed)))(**named) for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class _Allocated(TorchDispatchMode):
    """Counts the bytes of the tensors that operations give and did not take, freed or not."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        taken = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if _is_tensor(t)}
        given = {t.untyped_storage() for t in tree_leaves(out) if _is_tensor(t)}
        self.total += sum(x.nbytes() for x in given if x.data_ptr() not in taken)
        return out


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def test_cpu_memory() -> None:
    # 24 bytes for each edge and head; not counted: what the inputs and outputs of nodes take
    graph = make_graph([5_000, *[10] * 100])
    named = random_inputs(graph, dtype=torch.float32)
    x = Inputs(*graph[:2], **named, bias=None, seed=DROPOUT.seed, p=0.4, squash="softplus")
    index = transpose(graph, 7)
    with _Allocated() as forward:
        outputs = cpu.forward(x)
    with _Allocated() as backward:
        cpu.backward(x, index, outputs, torch.ones_like(outputs.out))
    nodes = 4 * graph.num_dst * 40
    assert 0 < forward.total < nodes
    assert 0 < backward.total < 24 * 2 * graph.num_edges + nodes


CHILD = """
import time
import numpy
import torch
from dnformer.ops import QK, Topology, diff_attention
from dnformer.ops.plan import make_plan

make_plan(numpy.zeros(1, numpy.int64))
graph = Topology(torch.tensor([0, 1]), torch.tensor([0]))
began = time.monotonic()
diff_attention(graph, QK(torch.ones(1, 5, 12), torch.ones(1, 5, 12)), torch.ones(1, 5, 12), None)
print(time.monotonic() - began)
"""


def test_cpu_says_that_it_compiles(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        seconds, said = child(tmp_path)
        # only what takes more than 2 s needs a word, which a busy machine says later
        if not 1.7 < seconds < 5:
            assert said.count("compiling attention for 5 heads of 12") == (seconds > 2)
        written.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb?")})
    # the second process compiled nothing
    assert written[0]
    assert written[1] == written[0]


def child(cache: Path) -> tuple[float, str]:
    found = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(found.stdout), found.stderr


def test_cpu_large_results_begin_where_torch_would() -> None:
    # matrix products round differently off a 64-byte boundary
    for size in (2**20, 2**20 + 1):
        assert cpu._empty((size,), torch.float32).data_ptr() % 64 == 0
        assert cpu._empty((size,), torch.uint8).data_ptr() % 64 == 0
