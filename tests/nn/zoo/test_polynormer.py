import pytest
import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops

from dnformer.config.zoo import PolynormerOptions
from dnformer.nn.zoo.polynormer import Polynormer
from tests.nn.helpers import EDGES, features
from tests.nn.zoo.checks import SHARED, check_model, close

OPTIONS = PolynormerOptions(local_epochs=3)
LOOPED = add_self_loops(remove_self_loops(EDGES)[0], num_nodes=8)[0]


def model_in(epoch: int, **settings: float) -> Polynormer:
    torch.manual_seed(0)
    model = Polynormer(SHARED._replace(**settings), OPTIONS).double()
    model.set_epoch(epoch)
    return model


@pytest.mark.parametrize("epoch", [0, 3], ids=["local", "global"])
def test_model(epoch: int) -> None:
    check_model(model_in(epoch, dropout=0.2))


def dense_local(model: Polynormer, x: Tensor) -> Tensor:
    """The sum of the local layers' outputs."""
    h = x @ model.projection.weight + model.projection.bias
    total = torch.zeros_like(h)
    for layer in model.layers:
        heads = []
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            v = h @ layer.attention.linear.weight[:, part]
            b, a = layer.attention.attention[:, head]  # of destination and source
            logits = (v @ b)[:, None] + (v @ a)
            logits = torch.where(logits > 0, logits, 0.2 * logits)
            linked = torch.zeros(8, 8, dtype=torch.bool)
            linked[LOOPED[1], LOOPED[0]] = True
            heads.append(torch.where(linked, logits, -torch.inf).softmax(1) @ v)
        local = (torch.cat(heads, 1) + h @ layer.linear.weight.T + layer.linear.bias).relu()
        product = (h @ layer.factor.weight.T + layer.factor.bias).relu() * local
        b = layer.beta.sigmoid()
        h = (1 - b) * layer.norm(product) + b * local
        total = total + h
    return total


def test_scores_equal_dense() -> None:
    x = features()
    model = model_in(2).eval()
    total = dense_local(model, x)
    close(model(x, EDGES), total @ model.local_head.weight.T + model.local_head.bias)
    model.set_epoch(3)
    part = model.global_part
    h = part.norm(total)
    for layer in part.layers:
        q = (h @ layer.query.weight.T + layer.query.bias).sigmoid()
        v = h @ layer.value.weight.T + layer.value.bias
        heads = []
        for head in range(2):
            of_head = slice(4 * head, 4 * head + 4)
            weight = q[:, of_head] @ q[:, of_head].T
            heads.append(weight / weight.sum(1, keepdim=True) @ v[:, of_head])
        factor = h @ layer.factor.weight.T + layer.factor.bias + layer.beta.sigmoid()
        h = layer.norm(torch.cat(heads, 1)) * factor
        h = (h @ part.linear.weight.T + part.linear.bias).relu()
    close(model(x, EDGES), h @ part.head.weight.T + part.head.bias)


def trained(model: Polynormer) -> set[str]:
    return {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}


def test_set_epoch_trains_the_part_in_use() -> None:
    model = model_in(2)
    assert "local_head" in trained(model)
    assert "global_part" not in trained(model)
    model.set_epoch(3)
    assert "local_head" not in trained(model)
    assert "global_part" in trained(model)


def test_epoch_comes_with_the_weights() -> None:
    model, other = model_in(5).eval(), model_in(0).eval()
    assert not torch.equal(other(features(), EDGES), model(features(), EDGES))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(features(), EDGES), model(features(), EDGES))
