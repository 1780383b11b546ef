"""What the tests of models with randomness or phases of their own share."""

import torch
from torch import Tensor

from dnformer.nn.zoo.shared import Shared, ZooModel
from tests.nn.helpers import EDGES, features

SHARED = Shared(in_channels=5, out_channels=3, hidden=8, layers=2, heads=2, dropout=0.0)


def dense_gcn(edge_index: Tensor, num_nodes: int) -> Tensor:
    """D^-1/2 (A + I) D^-1/2 with the degrees of destinations, float64; loops count once."""
    a = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    a[edge_index[1], edge_index[0]] = 1
    a.fill_diagonal_(1)
    root = a.sum(1).rsqrt()
    return root[:, None] * a * root


def close(found: Tensor, expected: Tensor) -> None:
    """Equal to 1e-5, as the formula is computed in float64."""
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def check_model(model: ZooModel) -> None:
    """Beside what `test_zoo` asks of every model: how it uses randomness, and what trains it."""
    model = model.double()
    check_evaluation(model)
    check_training(model)
    check_gradients(model)


def check_evaluation(model: ZooModel) -> None:
    """The same scores whatever the generator's state."""
    model.eval()
    first = model(features(), EDGES)
    torch.manual_seed(7)
    assert torch.equal(model(features(), EDGES), first)


def check_training(model: ZooModel) -> None:
    """Scores in training follow from the seed of torch's generator."""
    model.train()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(model(features(), EDGES))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def check_gradients(model: ZooModel) -> None:
    """Each trained parameter has a finite gradient, and not all of it is 0."""
    model.train()
    model.zero_grad()
    torch.manual_seed(0)
    weight = features(width=3).flip(0)
    loss = (model(features(), EDGES) * weight).sum()
    if model.extra_loss is not None:
        loss = loss + model.extra_loss
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
