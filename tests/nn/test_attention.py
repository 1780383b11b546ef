import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.nn import TransformerConv

from dnformer.errors import ConfigError, DataError
from dnformer.nn import DiffAttention
from dnformer.nn.topology import to_edges

from .helpers import EDGES, features

VARIANTS = {
    "edge": {},
    "sigmoid": {"lambda_bound": "sigmoid"},
    "head": {"lam": "head"},
    "fixed": {"lam": "fixed"},
    "reparam": {"lam": "reparam"},
    "single": {"attention": "single"},
    "single_wide": {"attention": "single_wide"},
    "head_norm": {"head_norm": True},
}
SORTED = EdgeIndex(EDGES, sparse_size=(8, 8), sort_order="col")


def layer_of(**settings: object) -> DiffAttention:
    torch.manual_seed(0)
    return DiffAttention(6, 2, **settings).double()


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_forward_trains_all_parameters(settings: dict) -> None:
    layer = layer_of(dropout=0.2, **settings)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    # lambda's output layer is 0 at first, so the layer before it has its gradient in step two
    for _ in range(2):
        optimizer.zero_grad()
        out = layer(features(width=6), EDGES)
        assert out.shape == (8, 6)
        (out * features(width=6)).sum().backward()
        optimizer.step()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    "settings", [{"attention": "single"}, {"lam": "fixed", "lambda_init": 0.0}], ids=str
)
def test_forward_equals_transformer_conv(settings: dict) -> None:
    layer = layer_of(**settings)
    conv = TransformerConv(6, 3, heads=2, root_weight=False, bias=False).double()
    with torch.no_grad():
        for ours, theirs in ((layer.query, conv.lin_query), (layer.key, conv.lin_key)):
            # the first branch is the first half of each head
            theirs.weight.copy_(ours.weight.view(2, -1, 6)[:, :3].reshape(6, 6))
        conv.lin_value.weight.copy_(layer.value.weight)
        layer.out.weight.copy_(torch.eye(6))
    x = features(width=6)
    torch.testing.assert_close(layer(x, EDGES), conv(x, EDGES))


def test_forward_small_lambda_tends_to_single() -> None:
    layer = layer_of(lambda_init=1e-9)
    fixed = layer_of(lam="fixed", lambda_init=0.0)
    fixed.load_state_dict({k: t for k, t in layer.state_dict().items() if "lam" not in k})
    x = features(width=6)
    torch.testing.assert_close(layer(x, EDGES), fixed(x, EDGES), rtol=0, atol=1e-8)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_forward_permuted_nodes(settings: dict) -> None:
    layer = layer_of(add_self_loops=True, **settings)
    x = features(width=6)
    order = torch.tensor([3, 0, 7, 5, 1, 6, 2, 4])
    place = order.argsort()
    permuted = layer(x[order], place[EDGES].flip(1))
    torch.testing.assert_close(permuted, layer(x, EDGES)[order])


def test_forward_edge_index_kinds() -> None:
    layer, x = layer_of(), features(width=6)
    expected = layer(x, EDGES)
    assert torch.equal(layer(x, SORTED), expected)
    shuffled = EDGES[:, torch.arange(14).flip(0)]
    torch.testing.assert_close(layer(x, shuffled), expected)


def test_forward_self_loops() -> None:
    layer, looped = layer_of(), layer_of(add_self_loops=True)
    x = features(width=6)
    # node 7 has no edge: nothing without loops, itself with one, less lambda = 0.2
    assert layer(x, EDGES)[7].abs().max() == 0
    expected = 0.8 * layer.out(layer.value(x[7:]))[0]
    torch.testing.assert_close(looped(x, EDGES)[7], expected)
    # node 2 has its own loop already
    torch.testing.assert_close(looped(x, EDGES)[2], layer(x, EDGES)[2])


def test_forward_wrong_index() -> None:
    with pytest.raises(DataError, match="source 8, but there are 8 source nodes"):
        layer_of()(features(width=6), torch.tensor([[0, 8], [0, 1]]))


def test_edge_weights_start() -> None:
    layer, x = layer_of(), features(width=6)
    topology = to_edges(EDGES, num_dst=8, num_src=8).topology
    found = layer.edge_weights(layer.project(x), topology)
    torch.testing.assert_close(found.lam, torch.full((14, 2), 0.2, dtype=torch.float64))
    for i in range(7):
        total = found.weight[topology.dst() == i].sum(0)
        torch.testing.assert_close(total, torch.full((2,), 0.8, dtype=torch.float64))


def test_forward_reparam_norm_and_scale() -> None:
    layer = layer_of(lam="reparam", depth=3)
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(6))
    # each head's root mean square is 1 - lambda_init(3), where there is any neighbour
    rms = layer(features(width=6), EDGES)[:7].view(7, 2, 3).square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.full_like(rms, 1 - 0.470713), rtol=0, atol=1e-3)


def test_forward_head_norm_scale() -> None:
    layer = layer_of(head_norm=True)
    with torch.no_grad():
        layer.out.weight.copy_(torch.eye(6))
    rms = layer(features(width=6), EDGES)[:7].view(7, 2, 3).square().mean(-1).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms), rtol=0, atol=1e-3)


def outputs(layer: DiffAttention, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    x = features(width=6)
    return layer(x, EDGES).detach(), layer(x, EDGES).detach()


def test_forward_dropout_seed() -> None:
    layer = layer_of(dropout=0.5)
    first, second = outputs(layer, 1)
    assert not torch.equal(first, second)
    assert torch.equal(torch.stack(outputs(layer, 1)), torch.stack([first, second]))
    assert not torch.equal(outputs(layer, 2)[0], first)
    layer.eval()
    assert torch.equal(*outputs(layer, 1))


def test_forward_without_dropout_draws_nothing() -> None:
    before = torch.random.get_rng_state()
    layer, x = DiffAttention(6, 2), features(width=6, dtype=torch.float32)
    torch.random.set_rng_state(before)
    layer(x, EDGES)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_attend_some() -> None:
    layer, x = layer_of(), features(width=6)
    topology = to_edges(EDGES, num_dst=8, num_src=8).topology
    first, last = topology.colptr[[2, 5]].tolist()
    part = topology._replace(colptr=topology.colptr[2:6] - first, row=topology.row[first:last])
    out = layer.attend(layer.with_destinations(layer.project(x, 0), x[2:5]), part)
    torch.testing.assert_close(out, layer(x, EDGES)[2:5])


def test_project_prefix() -> None:
    layer, x = layer_of(), features(width=6)
    whole, prefix = layer.project(x), layer.project(x, 3)
    assert prefix.q.shape == (3, 2, 6)
    assert prefix.u.shape == (3, 3)
    for ours, theirs in zip(prefix, layer.with_destinations(whole, x[:3]), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 4}, "channels = 6 must be a multiple of heads = 4"),
        ({"heads": 0}, "heads = 0"),
        ({"attention": "dual"}, "attention = 'dual' is not one of diff, single, single_wide"),
        ({"lam": "node"}, "lam = 'node' is not one of edge"),
        ({"dropout": 1.0}, "dropout = 1.0 is outside"),
        ({"depth": 0}, "depth = 0"),
    ],
)
def test_diff_attention_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DiffAttention(**{"channels": 6, "heads": 2} | settings)


def test_diff_attention_warns_of_ignored() -> None:
    with pytest.warns(UserWarning, match="attention = 'single' ignores lam = 'head'"):
        DiffAttention(6, 2, attention="single", lam="head")


def test_forward_autocast() -> None:
    layer, x = DiffAttention(6, 2), features(width=6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x, EDGES)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x, EDGES), rtol=0.03, atol=0.03)
    out.sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())
