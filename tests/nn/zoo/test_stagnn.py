"""STAGNN against attention with a mask, as the paper defines it."""

import pytest
import torch
from torch import Tensor

from dnformer.config.zoo import STAGNNOptions
from dnformer.nn.zoo import STAGNN, Shared
from dnformer.nn.zoo.neighbours import neighbours
from dnformer.nn.zoo.stagnn import global_attention, subtree_attention

from ..helpers import EDGES, features

DEPTH = 6


def transition(kind: str) -> Tensor:
    """A D^-1 or D^-1 A without the loop; a node without neighbours counts as one with one."""
    a = torch.zeros(8, 8, dtype=torch.float64)
    a[EDGES[1], EDGES[0]] = 1
    a.fill_diagonal_(0)
    degree = a.sum(1).clamp(min=1)
    return a / degree if kind == "column" else a / degree.unsqueeze(1)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Kernel attention of each node to all, times a mask `[N, N]`."""
    weight = torch.einsum("ihd,jhd->hij", q, k) * mask
    return torch.einsum("hij,jhc->ihc", weight, v) / (weight.sum(-1).T.unsqueeze(-1) + 1e-5)


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k = (torch.rand(8, 2, 4, dtype=torch.float64) + 0.1 for _ in range(2))
    return q, k, torch.randn(8, 2, 3, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["column", "row"])
def test_subtree_attention_is_masked_attention(kind: str) -> None:
    q, k, v = drawn()
    hops = subtree_attention(q, k, v, neighbours(EDGES, 8), DEPTH, transition=kind)
    for hop, found in enumerate(hops, start=1):
        mask = torch.linalg.matrix_power(transition(kind), hop)
        assert (found - masked(q, k, v, mask)).abs().max() < 1e-10


def test_global_attention_is_attention_without_a_mask() -> None:
    q, k, v = drawn()
    assert torch.allclose(global_attention(q, k, v), masked(q, k, v, torch.ones(8, 8)), atol=1e-10)


@pytest.mark.parametrize("combine", ["concat", "sum"])
@pytest.mark.parametrize("gates", [True, False])
def test_stagnn_weights_hops_and_heads(combine: str, gates: bool) -> None:
    options = STAGNNOptions(combine=combine, hop_gates=gates, global_term=True)
    shared = Shared(5, 3, hidden=8, layers=DEPTH, heads=2, dropout=0.0)
    torch.manual_seed(0)
    model = STAGNN(shared, options).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    h = (features() @ model.projection.weight + model.projection.bias).relu()
    q, k, v = (linear(h).view(8, 2, -1) for linear in (model.query, model.key, model.value))
    q, k = (torch.where(t > 0, t + 1, t.exp()) for t in (q, k))
    expected = model.hop_weight[0] * v + model.teleport * masked(q, k, v, torch.ones(8, 8))
    for hop in range(1, DEPTH + 1):
        gate = torch.ones(2, 1, dtype=torch.float64)
        if gates:
            exp = model.hop_gate[hop - 1].exp()
            gate = (exp / exp.sum()).unsqueeze(1)
        mask = torch.linalg.matrix_power(transition("column"), hop)
        expected = expected + model.hop_weight[hop] * gate * masked(q, k, v, mask)
    if combine == "sum":
        expected = expected.sum(1)
    else:
        expected = expected.reshape(8, 6) @ model.out.weight.T + model.out.bias
    assert torch.allclose(model(features(), EDGES), expected, atol=1e-8)
