import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from dnformer.ops import QK, Dropout, Lambda, Topology
from dnformer.ops.dropout import keep_mask
from dnformer.ops.reference import diff_attention, edge_weights

from . import helpers
from .helpers import GRAPH, ORACLES, close, dense, grads, random_inputs

attend = partial(helpers.attend, diff_attention)

CASES = (
    "path", "bipartite", "empty_rows", "hub", "single_edge", "bias", "sigmoid", "large_logits",
)  # fmt: skip


def oracle(case: str) -> dict[str, Tensor | str]:
    with np.load(ORACLES) as file:
        found = {key.split("/")[1]: file[key] for key in file.files if key.split("/")[0] == case}
    mode = str(found.pop("mode"))
    tensors = {name: torch.from_numpy(array) for name, array in found.items()}
    for name in ("q", "k", "grad_q", "grad_k"):
        halves = [tensors.pop(f"{name}1"), tensors.pop(f"{name}2")]
        tensors[name] = torch.cat(halves, dim=-1)
    for ours, theirs in (("weight", "W2"), ("lam_bias", "b2")):
        tensors[f"in_{ours}"] = tensors.pop(theirs)
        tensors[f"grad_{ours}"] = tensors.pop(f"grad_{theirs}")
    return tensors | {"mode": mode}


def oracle_inputs(right: dict) -> dict[str, Tensor]:
    inputs = {name: right[name] for name in ("q", "k", "v", "u", "w")}
    inputs |= {name: right[f"in_{name}"] for name in ("weight", "lam_bias")}
    return inputs | ({"bias": right["bias"]} if "bias" in right else {})


@pytest.mark.shared
@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("case", CASES)
def test_diff_attention_oracle(case: str) -> None:
    right = oracle(case)
    inputs = oracle_inputs(right)
    graph = Topology(right["colptr"], right["row"])
    out, found = grads(attend(graph=graph, squash=right["mode"]), inputs, right["grad_out"])
    close(out, right["out"])
    assert found.keys() == {name[5:] for name in right if name.startswith("grad_")} - {"out"}
    for name, gradient in found.items():
        close(gradient, right[f"grad_{name}"])


@pytest.mark.shared
@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("case", CASES)
def test_edge_weights_oracle(case: str) -> None:
    right = oracle(case)
    x = oracle_inputs(right)
    lam = Lambda(x["u"], x["w"], x["weight"], x["lam_bias"], right["mode"])
    found = edge_weights(
        Topology(right["colptr"], right["row"]), QK(x["q"], x["k"]), lam, bias=x.get("bias")
    )
    for name in ("a1", "a2", "lam", "weight"):
        close(getattr(found, name), right[name])


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("heads", "width", "hidden"), [(1, 1, 1), (2, 3, 4), (3, 5, 2)])
def test_diff_attention_dense(heads: int, width: int, hidden: int, bias: bool) -> None:
    inputs = random_inputs(heads=heads, width=width, hidden=hidden, bias=bias)
    out, found = grads(attend(), inputs)
    expected, expected_grads = grads(dense, inputs)
    close(out, expected)
    for name, gradient in found.items():
        close(gradient, expected_grads[name])


@pytest.mark.parametrize(
    ("squash", "hidden", "dropout"),
    [
        ("softplus", 2, None),
        ("sigmoid", 2, None),
        ("identity", 0, None),
        ("softplus", 2, Dropout(0.4, torch.tensor(3))),
    ],
    ids=["softplus", "sigmoid", "per-head", "dropout"],
)
def test_diff_attention_gradcheck(squash: str, hidden: int, dropout: Dropout | None) -> None:
    inputs = random_inputs(width=2, hidden=hidden, bias=True)
    function = attend(squash=squash, dropout=dropout)
    leaves = [x.requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(
        lambda *tensors: function(**dict(zip(inputs, tensors, strict=True))), leaves
    )


def test_diff_attention_single_gradcheck() -> None:
    # a width of 5 is neither D nor 2D
    leaves = [x.requires_grad_() for x in random_inputs(single=5).values()]
    assert torch.autograd.gradcheck(
        lambda q, k, v: diff_attention(GRAPH, QK(q, k), v, None), leaves
    )


def test_diff_attention_single_scale() -> None:
    # q·k = 4 on one of two edges: logits 4 / sqrt(4) and 0
    q = torch.ones(1, 1, 4)
    k = torch.tensor([[[1.0, 1, 1, 1]], [[0, 0, 0, 0]]])
    v = torch.tensor([[[1.0]], [[0]]])
    graph = Topology(torch.tensor([0, 2]), torch.tensor([0, 1]))
    out = diff_attention(graph, QK(q, k), v, None)
    assert out.item() == pytest.approx(1 / (1 + math.exp(-2)))


def test_diff_attention_equal_halves() -> None:
    # Q1 = Q2 and K1 = K2 give (1 - lambda) times the single softmax
    x = random_inputs()
    half = {name: x[name][..., :3] for name in ("q", "k")}
    twice = {name: torch.cat([t, t], dim=-1) for name, t in half.items()}
    lam = per_head(torch.tensor([0.3, 0.7], dtype=torch.float64))
    single = diff_attention(GRAPH, QK(**half), x["v"], None)
    both = diff_attention(GRAPH, QK(**twice), x["v"], lam)
    close(both, single * torch.tensor([0.7, 0.3], dtype=torch.float64).view(1, 2, 1))


def per_head(value: Tensor) -> Lambda:
    heads = value.numel()
    return Lambda(
        value.new_empty(5, 0), value.new_empty(7, 0), value.new_empty(heads, 0), value, "identity"
    )


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 3.0])
def test_edge_weights_constant_lambda(c: float) -> None:
    # Theorem 3.3: weights sum to 1 - c, their mean is (1 - c) / |N(i)|
    x = random_inputs()
    lam = per_head(torch.full((2,), c, dtype=torch.float64))
    weight = edge_weights(GRAPH, QK(x["q"], x["k"]), lam).weight
    for start, stop in ((0, 1), (1, 5), (5, 7), (7, 8)):
        close(weight[start:stop].sum(0), torch.full((2,), 1 - c))
        close(weight[start:stop].mean(0), torch.full((2,), (1 - c) / (stop - start)))


def test_edge_weights_zero_lambda() -> None:
    x = random_inputs()
    lam = per_head(torch.zeros(2, dtype=torch.float64))
    found = edge_weights(GRAPH, QK(x["q"], x["k"]), lam)
    single = edge_weights(GRAPH, QK(x["q"][..., :3].contiguous(), x["k"][..., :3]), None)
    close(found.weight, single.weight)
    assert single.a2 is None
    assert single.lam is None


def test_edge_weights_one_neighbour() -> None:
    x = random_inputs()
    lam = Lambda(x["u"], x["w"], x["weight"], x["lam_bias"], "softplus")
    found = edge_weights(GRAPH, QK(x["q"], x["k"]), lam)
    alone = [0, 7]
    close(found.weight[alone], 1 - found.lam[alone])


def test_diff_attention_row_constant() -> None:
    inputs = random_inputs()
    bias = torch.linspace(-1, 1, 16, dtype=torch.float64).view(8, 2)
    constant = torch.tensor([5.0, -20, 100, 3, 7], dtype=torch.float64)[GRAPH.dst()]
    out, found = grads(attend(), inputs | {"bias": bias})
    shifted, shifted_grads = grads(attend(), inputs | {"bias": bias + constant.unsqueeze(1)})
    close(shifted, out)
    for name, gradient in found.items():
        close(shifted_grads[name], gradient)


def test_diff_attention_same_bias_in_both() -> None:
    # a bias that differs between neighbours does change both softmaxes
    x = random_inputs()
    lam = Lambda(x["u"], x["w"], x["weight"], x["lam_bias"], "softplus")
    bias = torch.zeros(8, 2, dtype=torch.float64)
    bias[1] = 1
    plain = edge_weights(GRAPH, QK(x["q"], x["k"]), lam)
    biased = edge_weights(GRAPH, QK(x["q"], x["k"]), lam, bias=bias)
    ratio_1 = biased.a1[1] / biased.a1[2] / (plain.a1[1] / plain.a1[2])
    ratio_2 = biased.a2[1] / biased.a2[2] / (plain.a2[1] / plain.a2[2])
    close(ratio_1, torch.full((2,), math.e, dtype=torch.float64))
    close(ratio_2, torch.full((2,), math.e, dtype=torch.float64))


def test_diff_attention_no_neighbours() -> None:
    out, found = grads(attend(), random_inputs())
    assert out[0].tolist() == [[0.0] * 3] * 2
    assert found["q"][0].abs().max() == 0
    assert all(gradient.isfinite().all() for gradient in found.values())


@pytest.mark.usefixtures("poison")
def test_diff_attention_no_edges() -> None:
    graph = Topology(torch.zeros(6, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    out, found = grads(attend(graph=graph), random_inputs())
    assert out.shape == (5, 2, 3)
    assert all(t.abs().max() == 0 for t in (out, *found.values()))


def test_diff_attention_edge_order() -> None:
    inputs = random_inputs()
    shuffled = Topology(GRAPH.colptr, GRAPH.row[[0, 4, 2, 1, 3, 6, 5, 7]])
    out, found = grads(attend(), inputs)
    other, other_grads = grads(attend(graph=shuffled), inputs)
    close(other, out)
    for name, gradient in found.items():
        close(other_grads[name], gradient)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_diff_attention_large_logits(dtype: torch.dtype) -> None:
    inputs = random_inputs(dtype=dtype)
    inputs["q"] *= 100
    inputs["k"] *= 10
    out, found = grads(attend(), inputs)
    assert out.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in found.values())
    wide = {name: x.double() for name, x in inputs.items()}
    close(out, grads(dense, wide)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_diff_attention_narrow(dtype: torch.dtype) -> None:
    inputs = random_inputs(dtype=dtype)
    out, found = grads(attend(), inputs)
    assert out.dtype == dtype
    wide, wide_grads = grads(attend(), {name: x.double() for name, x in inputs.items()})
    close(out, wide)
    for name, gradient in found.items():
        assert gradient.dtype == dtype
        close(gradient, wide_grads[name])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_diff_attention_computes_in_float32(dtype: torch.dtype) -> None:
    # only the last rounding is a 16-bit one
    inputs = random_inputs(dtype=dtype)
    wide = attend()(**{name: x.double() for name, x in inputs.items()})
    assert torch.equal(attend()(**inputs), wide.to(dtype))


def test_diff_attention_float32_parameters() -> None:
    # as under autocast: 16-bit projections, lambda's own parameters in float32
    inputs = random_inputs(dtype=torch.bfloat16)
    mixed = inputs | {name: inputs[name].float() for name in ("weight", "lam_bias")}
    out, found = grads(attend(), mixed)
    expected, _ = grads(attend(), inputs)
    assert torch.equal(out, expected)
    assert found["weight"].dtype == torch.float32


def test_diff_attention_autocast() -> None:
    inputs = random_inputs(dtype=torch.float32)
    out, found = grads(attend(), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other, other_grads = grads(attend(), inputs)
    assert torch.equal(other, out)
    assert all(torch.equal(other_grads[name], found[name]) for name in found)


def test_diff_attention_dropout() -> None:
    # dropped after the subtraction, one mask, kept weights scaled by 1 / (1 - p)
    x = random_inputs()
    dropout = Dropout(0.5, torch.tensor(11))
    lam = Lambda(x["u"], x["w"], x["weight"], x["lam_bias"], "softplus")
    qk = QK(x["q"], x["k"])
    weight = edge_weights(GRAPH, qk, lam).weight
    keep = keep_mask(dropout, num_edges=8, num_heads=2)
    assert 0 < keep.sum() < 16
    message = (weight * keep * 2).unsqueeze(-1) * x["v"][GRAPH.row]
    expected = torch.zeros(5, 2, 3, dtype=torch.float64).index_add(0, GRAPH.dst(), message)
    close(diff_attention(GRAPH, qk, x["v"], lam, dropout=dropout), expected)


def test_diff_attention_same_bits() -> None:
    # random sources: each row of the gradients of k and v is a sum over many edges
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 60, (500,), generator=generator)
    colptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    row = torch.randint(0, 600, (int(colptr[-1]),), generator=generator)
    shapes = {"q": (500, 2, 64), "k": (600, 2, 64), "v": (600, 2, 32), "u": (500, 32),
              "w": (600, 32), "weight": (2, 32), "lam_bias": (2,)}  # fmt: skip
    inputs = {name: torch.randn(s, generator=generator) for name, s in shapes.items()}
    function = attend(graph=Topology(colptr, row), dropout=Dropout(0.1, torch.tensor(1)))
    first, second = grads(function, inputs), grads(function, inputs)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in inputs)
