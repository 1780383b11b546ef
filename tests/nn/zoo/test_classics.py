"""GCN, GAT, GraphSAGE, APPNP and SGC against dense formulas and PyG's convolutions."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric.utils import add_remaining_self_loops

from dnformer.config.zoo import (
    APPNPOptions,
    GATOptions,
    GCNOptions,
    SAGEOptions,
    SGCOptions,
)
from dnformer.nn.zoo import APPNP, GAT, GCN, SAGE, SGC, Shared

from ..helpers import EDGES, features

SHARED = Shared(5, 3, hidden=8, layers=3, heads=2, dropout=0.0)
LOOPED = add_remaining_self_loops(EDGES, num_nodes=8)[0]
TOLERANCE = 1e-10


def normalised() -> Tensor:
    """(D + I)^-1/2 (A + I) (D + I)^-1/2, a row for each destination."""
    a = torch.zeros(8, 8, dtype=torch.float64)
    a[LOOPED[1], LOOPED[0]] = 1
    root = a.sum(1).rsqrt()
    return root.unsqueeze(1) * a * root


def layers(model: Any, convs: list[nn.Module], x: Tensor, edges: Tensor) -> Tensor:
    """The stack of `model`, with PyG's convolutions for its own."""
    h = x
    for layer, conv in enumerate(convs):
        out = conv(h, edges)
        if model.stack.residuals:
            residual = model.stack.residuals[layer]
            out = out + h @ residual.weight + residual.bias
        h = model.stack.norms[layer](out).relu()
    return functional.linear(h, model.stack.head.weight, model.stack.head.bias)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_gcn_is_pygs_convolutions(residual: bool, norm: Any) -> None:
    model = GCN(SHARED, GCNOptions(residual=residual, norm=norm)).double()
    convs = []
    for own in model.stack.convs:
        conv = pyg.GCNConv(own.linear.weight.shape[0], 8).double()
        conv.lin.weight.data, conv.bias.data = own.linear.weight.data.T, own.bias.data
        convs.append(conv)
    x = features()
    assert torch.allclose(model(x, EDGES), layers(model, convs, x, EDGES), atol=TOLERANCE)


def test_gat_is_pygs_convolutions() -> None:
    model = GAT(SHARED, GATOptions(residual=True, norm="layer")).double()
    convs = []
    for own in model.stack.convs:
        conv = pyg.GATConv(own.linear.weight.shape[0], 4, heads=2, add_self_loops=False).double()
        conv.lin.weight.data, conv.bias.data = own.linear.weight.data.T, own.bias.data
        conv.att_dst.data, conv.att_src.data = own.attention.data.unsqueeze(1)
        convs.append(conv)
    x = features()
    assert torch.allclose(model(x, EDGES), layers(model, convs, x, LOOPED), atol=TOLERANCE)


def test_sage_is_pygs_convolutions() -> None:
    model = SAGE(SHARED, SAGEOptions(norm="layer")).double()
    convs = []
    for own in model.stack.convs:
        conv = pyg.SAGEConv(own.itself.weight.shape[0], 8).double()
        conv.lin_l.weight.data, conv.lin_l.bias.data = own.neighbours.weight.data.T, own.itself.bias
        conv.lin_r.weight.data = own.itself.weight.data.T
        convs.append(conv)
    x = features()
    assert torch.allclose(model(x, EDGES), layers(model, convs, x, LOOPED), atol=TOLERANCE)


def test_appnp_is_personalised_pagerank_of_an_mlp() -> None:
    model = APPNP(SHARED._replace(layers=60), APPNPOptions(alpha=0.3)).double()
    first, last = model.mlp[0], model.mlp[2]
    predicted = (features() @ first.weight + first.bias).relu() @ last.weight.T + last.bias
    # the limit of the iteration, whose error shrinks by 0.7 a step
    limit = 0.3 * torch.linalg.inv(torch.eye(8).double() - 0.7 * normalised()) @ predicted
    assert torch.allclose(model(features(), EDGES), limit, atol=1e-7)
    one = APPNP(SHARED._replace(layers=1), APPNPOptions(alpha=0.3)).double()
    one.load_state_dict(model.state_dict())
    step = 0.7 * normalised() @ predicted + 0.3 * predicted
    assert torch.allclose(one(features(), EDGES), step, atol=TOLERANCE)


def test_sgc_is_a_linear_map_of_propagated_features() -> None:
    model = SGC(SHARED, SGCOptions()).double()
    nn.init.normal_(model.bias)
    propagated = torch.linalg.matrix_power(normalised(), 3) @ features()
    expected = propagated @ model.linear.weight + model.bias
    assert torch.allclose(model(features(), EDGES), expected, atol=TOLERANCE)
