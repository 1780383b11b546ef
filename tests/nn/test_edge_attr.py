"""Edge attributes: a learned bias of each head's attention, through layer, model and batch."""

import math

import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from dnformer.errors import DataError
from dnformer.nn import DiffAttention, DNFormer
from dnformer.nn.topology import check_edge_attr, to_edges

from .helpers import EDGES, features, sampled_block

ATTR = features(14, 3)


def layer_of(**settings: object) -> DiffAttention:
    torch.manual_seed(0)
    layer = DiffAttention(6, 2, edge_channels=3, **settings).double()
    torch.nn.init.normal_(layer.edge.weight)
    return layer


def model_of(num_layers: int = 2, **settings: object) -> DNFormer:
    torch.manual_seed(0)
    model = DNFormer(5, 6, 3, num_layers, 2, edge_channels=3, **settings).double()
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.edge.weight)
    return model


def dense(layer: DiffAttention, x: Tensor) -> Tensor:
    """The layer's formula on a matrix of all pairs of nodes; lambda is fixed."""
    there = torch.zeros(8, 8, dtype=torch.bool)
    bias = x.new_zeros(8, 8, 2)
    there[EDGES[1], EDGES[0]] = True
    bias = bias.index_put((EDGES[1], EDGES[0]), ATTR @ layer.edge.weight[:, :3].T)
    if layer.self_loops:
        added = torch.tensor([i for i in range(8) if not there[i, i]])
        there[added, added] = True
        bias = bias.index_put((added, added), layer.edge.weight[:, 3].expand(len(added), 2))
    q, k, v = (linear(x).view(8, 2, -1) for linear in (layer.query, layer.key, layer.value))
    maps = []
    for half in (slice(0, 3), slice(3, 6)):
        logits = torch.einsum("ihd,jhd->ijh", q[..., half], k[..., half]) / math.sqrt(3) + bias
        logits = logits.masked_fill(~there.unsqueeze(-1), -1e9)
        maps.append(logits.softmax(1) * there.unsqueeze(-1))
    out = torch.einsum("ijh,jhd->ihd", maps[0] - layer.lam.value[0] * maps[1], v)
    return layer.out(out.flatten(1))


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "no-loops"])
def test_layer_equals_the_dense_formula_and_its_gradients(loops: bool) -> None:
    layer = layer_of(lam="fixed", add_self_loops=loops)
    x = features(width=6)
    found, expected = layer(x, EDGES, ATTR), dense(layer, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weight = features(8, 6)
    parameters = list(layer.parameters())
    ours = torch.autograd.grad(found, parameters, weight)
    theirs = torch.autograd.grad(expected, parameters, weight)
    for name, a, b in zip(dict(layer.named_parameters()), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11, msg=name)
    at = [name for name, _ in layer.named_parameters()].index("edge.weight")
    assert ours[at].abs().amin(0).min() > 0  # that of the loops too


def test_layer_gradients_of_weights_and_attributes_by_differences() -> None:
    layer = layer_of(lam="fixed", add_self_loops=True)
    x = features(width=6)

    def out(weight: Tensor, attr: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"edge.weight": weight}, (x, EDGES, attr))

    inputs = (layer.edge.weight.detach().requires_grad_(), ATTR.clone().requires_grad_())
    assert torch.autograd.gradcheck(out, inputs)


def test_layer_starts_as_one_without_attributes() -> None:
    torch.manual_seed(0)
    plain = DiffAttention(6, 2).double()
    layer = DiffAttention(6, 2, edge_channels=3).double()
    layer.load_state_dict(plain.state_dict(), strict=False)
    x = features(width=6)
    assert torch.equal(layer(x, EDGES, ATTR), plain(x, EDGES))
    (layer(x, EDGES, ATTR) * x).sum().backward()
    assert layer.edge.weight.grad.abs().min() > 0


def test_layer_order_of_edges_does_not_matter() -> None:
    layer, x = layer_of(add_self_loops=True), features(width=6)
    expected = layer(x, EDGES, ATTR)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(layer(x, EDGES[:, order], ATTR[order]), expected)
    in_place = EdgeIndex(EDGES, sparse_size=(8, 8), sort_order="col")
    assert torch.equal(layer(x, in_place, ATTR), expected)
    assert not torch.allclose(layer(x, EDGES, ATTR[order]), expected)


def test_edge_weights_have_the_bias() -> None:
    layer, x = layer_of(lam="fixed", lambda_init=0.0), features(width=6)
    topology, attr = to_edges(EDGES, ATTR, num_dst=8, num_src=8)
    projected = layer.project(x)
    found = layer.edge_weights(projected, topology, attr)
    flat = layer.edge_weights(projected, topology, torch.zeros_like(ATTR))
    ratio = (found.a1 / flat.a1).log() - ATTR @ layer.edge.weight.T
    # of node 0's three edges: the same but for the sums of the softmax
    torch.testing.assert_close(ratio[:3], ratio[:1].expand(3, 2))


@pytest.mark.parametrize("self_loops", [True, False], ids=["loops", "no-loops"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_model_sampled_equals_whole(num_layers: int, self_loops: bool) -> None:
    model, x = model_of(num_layers, self_loops=self_loops).eval(), features()
    whole = model(x, EDGES, edge_attr=ATTR)
    numbered = {(int(j), int(i)): e for e, (j, i) in enumerate(EDGES.T)}
    for seeds in ([0], [4, 7, 2], [3, 5, 1, 0, 6]):
        n_id, edge_index, nodes, edges = sampled_block(EDGES, seeds, num_layers)
        e_id = [numbered[tuple(pair)] for pair in n_id[edge_index].T.tolist()]
        out = model(x[n_id], edge_index, nodes, edges, ATTR[e_id])
        torch.testing.assert_close(out, whole[seeds])
        assert not torch.allclose(model(x[n_id], edge_index, nodes, edges, 0 * ATTR[e_id]), out)


def test_model_trains_the_bias_of_each_layer() -> None:
    model = model_of(dropout=0.0, attention_dropout=0.0)
    (model(features(), EDGES, edge_attr=ATTR) * features(width=3)).sum().backward()
    for block in model.blocks:
        assert block.attention.edge.weight.shape == (2, 4)
        assert block.attention.edge.weight.grad.abs().min() > 0


def test_reset_parameters_sets_the_bias_to_zero() -> None:
    model = model_of()
    model.reset_parameters()
    assert all(block.attention.edge.weight.abs().max() == 0 for block in model.blocks)


@pytest.mark.parametrize(
    ("channels", "attr", "message"),
    [
        (3, None, r"edge_attr is missing: .* takes edge_attr \[14, 3\]"),
        (0, ATTR, r"edge_attr \[14, 3\] given to a layer without edge attributes"),
        (2, ATTR, r"edge_attr must be \[14, 2\], found \[14, 3\]"),
    ],
    ids=["missing", "not-expected", "width"],
)
def test_edge_attr_that_does_not_fit(channels: int, attr: Tensor | None, message: str) -> None:
    model = DNFormer(5, 6, 3, 2, 2, edge_channels=channels).double()
    with pytest.raises(DataError, match=message):
        model(features(), EDGES, edge_attr=attr)
    layer = DiffAttention(6, 2, edge_channels=channels, add_self_loops=True).double()
    with pytest.raises(DataError, match=message):
        layer(features(width=6), EDGES, attr)


def test_check_edge_attr_length() -> None:
    with pytest.raises(DataError, match=r"edge_attr must be \[14, 3\], found \[13, 3\]"):
        check_edge_attr(ATTR[:13], 3, 14)
