import pytest
import torch
from torch import Tensor, nn

from dnformer.config.zoo import SGFormerOptions
from dnformer.nn.zoo.sgformer import SGFormer
from tests.nn.helpers import EDGES, features
from tests.nn.zoo.checks import SHARED, check_model, close, dense_gcn


@pytest.mark.parametrize("own", [False, True], ids=["plain", "norms"])
def test_model(own: bool) -> None:
    torch.manual_seed(0)
    options = SGFormerOptions(attention_layers=2, norms=own, value_map=own)
    check_model(SGFormer(SHARED._replace(dropout=0.2), options))


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return x @ layer.weight.T + layer.bias


def dense_attention(h: Tensor, layer: nn.Module) -> Tensor:
    """The N x N weights, row by row, head by head."""
    n = len(h)
    q, k = linear(h, layer.query), linear(h, layer.key)
    q, k = q / (q * q).sum().sqrt(), k / (k * k).sum().sqrt()
    values = h.repeat(1, 2) if layer.value is None else linear(h, layer.value)
    out = torch.zeros_like(h)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        weight = n * torch.eye(n, dtype=torch.float64) + q[:, part] @ k[:, part].T
        out += weight / weight.sum(1, keepdim=True) @ values[:, part] / 2
    return out


@pytest.mark.parametrize("own", [False, True], ids=["plain", "norms"])
def test_scores_equal_dense(own: bool) -> None:
    torch.manual_seed(0)
    options = SGFormerOptions(
        attention_layers=2, graph_weight=0.7, alpha=0.4, norms=own, value_map=own
    )
    model = SGFormer(SHARED._replace(layers=3), options).double().eval()
    x, a = features(), dense_gcn(EDGES, 8)
    branch = model.attention
    h = (branch.norm(x @ branch.projection.weight + branch.projection.bias)).relu()
    for layer, norm in zip(branch.layers, branch.norms, strict=True):
        h = norm(0.4 * dense_attention(h, layer) + 0.6 * h)
    graph = x
    for number, conv in enumerate(model.graph.convs):
        graph = a @ graph @ conv.linear.weight + conv.bias
        if number < 2:
            graph = model.graph.norms[number](graph).relu()
    close(model(x, EDGES), linear(0.7 * graph + 0.3 * h, model.head))


def test_attention_sees_no_edges() -> None:
    torch.manual_seed(0)
    model = SGFormer(SHARED, SGFormerOptions(graph_weight=0)).double().eval()
    close(model(features(), EDGES), model(features(), EDGES[:, :2]))
    model = SGFormer(SHARED, SGFormerOptions(graph_weight=1)).double().eval()
    assert not model(features(), EDGES).allclose(model(features(), EDGES[:, :2]))
