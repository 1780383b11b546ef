import pytest
import torch
from torch import Tensor, nn

from dnformer.config.zoo import DUALFormerOptions
from dnformer.nn.zoo.dualformer import DUALFormer
from tests.nn.helpers import EDGES, features
from tests.nn.zoo.checks import SHARED, check_model, close, dense_gcn

CONVS = ["sgc", "gcn", "appnp"]


@pytest.mark.parametrize("conv", CONVS)
def test_model(conv: str) -> None:
    torch.manual_seed(0)
    check_model(DUALFormer(SHARED, DUALFormerOptions(conv=conv)))


def dense_attention(h: Tensor, layer: nn.Module) -> Tensor:
    q, k, v = (h @ f.weight.T + f.bias for f in (layer.query, layer.key, layer.value))
    out = torch.zeros_like(h)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        scores = k[:, part].T @ v[:, part] / len(h) ** 0.5  # [feature of k, feature of v]
        columns = scores.exp() / scores.exp().sum(0)
        out += q[:, part] @ columns / 2
    return out


@pytest.mark.parametrize("conv", CONVS)
def test_scores_equal_dense(conv: str) -> None:
    torch.manual_seed(0)
    options = DUALFormerOptions(conv=conv, attention_layers=2, alpha=0.3, teleport=0.2)
    model = DUALFormer(SHARED, options).double().eval()
    x, a = features(), dense_gcn(EDGES, 8)
    h = model.norm(x @ model.projection.weight + model.projection.bias).relu()
    for layer, norm in zip(model.attention, model.norms, strict=True):
        h = norm(0.3 * dense_attention(h, layer) + 0.7 * h).relu()
    start = h
    for hop in range(2):
        if conv == "gcn":
            weights = model.conv.convs[hop]
            h = a @ h @ weights.linear.weight + weights.bias
        else:
            h = a @ h if conv == "sgc" else 0.8 * (a @ h) + 0.2 * start
    close(model(x, EDGES), h @ model.head.weight.T + model.head.bias)
