import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu
from torch_geometric import EdgeIndex

import dnformer.nn
from dnformer.errors import ConfigError, DataError
from dnformer.nn import DNFormer
from dnformer.nn.topology import Edges, to_edges
from dnformer.ops import Topology

from .helpers import EDGES, features, sampled_block

VARIANTS = {
    "default": {},
    "head": {"lam": "head"},
    "fixed": {"lam": "fixed"},
    "reparam": {"lam": "reparam"},
    "single": {"attention": "single"},
    "single_wide": {"attention": "single_wide"},
    "sigmoid": {"lambda_bound": "sigmoid"},
    "pre": {"norm": "pre"},
    "gelu": {"activation": "gelu"},
    "head_norm": {"head_norm": True},
    "no_loops": {"self_loops": False},
}


def model_of(num_layers: int = 2, **settings: object) -> DNFormer:
    torch.manual_seed(0)
    model = DNFormer(5, 6, 3, num_layers, 2, **settings).double()
    # lambda's output layer is 0 at first: away from there it depends on the edge
    for block in model.blocks:
        if block.attention.lam is not None and settings.get("lam", "edge") == "edge":
            torch.nn.init.normal_(block.attention.lam.out.weight)
    return model


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_forward_trains_all_parameters(settings: dict) -> None:
    model = model_of(**settings)
    weight = features(width=3)
    # nearly all units of a narrow layer may be dropped once, hence a few passes
    for _ in range(5):
        out = model(features(), EDGES)
        (out * weight).sum().backward()
    assert out.shape == (8, 3)
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_forward_sampled_equals_whole(num_layers: int, settings: dict) -> None:
    model = model_of(num_layers, **settings).eval()
    x = features()
    whole = model(x, EDGES)
    for seeds in ([0], [4, 7, 2], [3, 5, 1, 0, 6]):
        n_id, edge_index, nodes, edges = sampled_block(EDGES, seeds, num_layers)
        size = (len(n_id), len(n_id))
        batch = EdgeIndex(edge_index, sparse_size=size, sort_order="col")
        out = model(x[n_id], batch, nodes, edges)
        torch.testing.assert_close(out, whole[seeds])


def test_forward_sampled_gradients() -> None:
    model, x = model_of(2, dropout=0.0, attention_dropout=0.0), features()
    n_id, edge_index, nodes, edges = sampled_block(EDGES, [4, 2], 2)
    outs = model(x[n_id], edge_index, nodes, edges), model(x, EDGES)[[4, 2]]
    weight = features(2, 3)
    ours, expected = (torch.autograd.grad(out, list(model.parameters()), weight) for out in outs)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_forward_sampled_literal() -> None:
    # seeds 0, 1; hop 1 finds 2, 3; hop 2 finds 4. The seeds' neighbours: 0 <- 2, 1; 1 <- 3
    edge_index = torch.tensor([[2, 1, 3, 4, 0], [0, 0, 1, 2, 3]])
    model, x = model_of(2).eval(), features(5)
    out = model(x, edge_index, [2, 2, 1], [3, 2])
    assert out.shape == (2, 3)
    torch.testing.assert_close(out, model(x, edge_index)[:2])
    # node 4 is no destination: what it would attend to does not matter, what it holds does
    changed = x.clone()
    changed[4] += 1
    assert not torch.allclose(model(changed, edge_index, [2, 2, 1], [3, 2])[0], out[0])
    torch.testing.assert_close(model(changed, edge_index, [2, 2, 1], [3, 2])[1], out[1])


def test_forward_sampled_dead_end() -> None:
    # the only seed has no neighbour: nothing is found in any hop
    model, x = model_of(2).eval(), features()
    empty = torch.empty(2, 0, dtype=torch.int64)
    out = model(x[7:], empty, [1, 0, 0], [0, 0])
    torch.testing.assert_close(out, model(x, EDGES)[7:])


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_layers_by_range_equal_forward(norm: str, self_loops: bool) -> None:
    model, x = model_of(3, norm=norm, self_loops=self_loops).eval(), features()
    whole = to_edges(EDGES, num_dst=8, num_src=8).topology
    h = torch.cat([model.embed(x[:5]), model.embed(x[5:])])
    assert h.shape == (8, model.hidden_channels)
    for block in model.blocks:
        projected, parts = block.project(h, 0), []
        for rows in (slice(0, 3), slice(3, 4), slice(4, 8)):
            nodes = torch.arange(rows.start, rows.stop)
            colptr = whole.colptr[rows.start : rows.stop + 1]
            topology = Topology(colptr - colptr[0], whole.row[colptr[0] : colptr[-1]])
            topology, _ = model.with_self_loops(Edges(topology), nodes)
            parts.append(block.attend_some(h[nodes], projected, topology))
        h = torch.cat(parts)
    torch.testing.assert_close(model.classify(h), model(x, EDGES))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_forward_sparse_features() -> None:
    assert DNFormer.sparse_input
    x = features()
    x[x < 0.3] = 0
    model = model_of().eval()
    torch.testing.assert_close(model(x.to_sparse_csr(), EDGES), model(x, EDGES))


def test_embed_formula() -> None:
    model, x = model_of(activation="gelu", dropout=1 - 1e-12), features()
    torch.nn.init.normal_(model.projection.bias)
    assert model.embed(x).abs().max() == 0
    expected = gelu(x @ model.projection.weight + model.projection.bias)
    torch.testing.assert_close(model.eval().embed(x), expected)


def test_forward_permuted_nodes() -> None:
    model, x = model_of().eval(), features()
    order = torch.tensor([3, 0, 7, 5, 1, 6, 2, 4])
    permuted = model(x[order], order.argsort()[EDGES].flip(1))
    torch.testing.assert_close(permuted, model(x, EDGES)[order])


def step(model: DNFormer, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    out = model(features(dtype=torch.float32), EDGES)
    out.square().sum().backward()
    return [out.detach(), *(parameter.grad for parameter in model.parameters())]


def test_forward_same_seed_same_bits() -> None:
    model = DNFormer(5, 6, 3, 2, 2)
    first = [t.clone() for t in step(model, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, step(model, 3), strict=True))
    assert not torch.equal(first[0], step(model, 4)[0])


def test_forward_layers_draw_their_own_masks() -> None:
    # two equal layers on equal input, no other dropout
    model = DNFormer(5, 6, 3, 2, 2, dropout=0.0, attention_dropout=0.5)
    one, two = (block.attention for block in model.blocks)
    two.load_state_dict(one.state_dict())
    h = features(width=6, dtype=torch.float32)
    assert not torch.equal(one(h, EDGES), two(h, EDGES))


def test_reset_parameters_reproduces() -> None:
    torch.manual_seed(5)
    model = DNFormer(5, 6, 3, 2, 2, norm="pre", head_norm=True)
    torch.manual_seed(6)
    model.reset_parameters()
    first = {name: t.clone() for name, t in model.state_dict().items()}
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 9.0)
    torch.manual_seed(6)
    model.reset_parameters()
    for name, t in model.state_dict().items():
        assert torch.equal(t, first[name]), name


def test_dnformer_settings_reach_blocks() -> None:
    model = DNFormer(
        5, 6, 3, 2, 2, dropout=0.3, attention_dropout=0.4, lambda_width=7, lambda_init=0.6,
        lambda_bound="sigmoid", norm="pre", ffn_expansion=0.5, activation="gelu", head_norm=True,
    )  # fmt: skip
    for block in model.blocks:
        attention = block.attention
        assert attention.dropout == 0.4
        assert attention.norm is not None
        assert attention.lam.src.weight.shape == (7, 6)
        assert attention.lam.bound == "sigmoid"
        assert attention.lam.out.bias.sigmoid().tolist() == pytest.approx([0.6, 0.6])
        assert block.pre
        assert block.ffn.expand.weight.shape == (3, 6)
        assert isinstance(block.ffn.activation, torch.nn.GELU)
        assert block.dropout.p == block.ffn.dropout.p == 0.3


def test_depths_follow_schedule() -> None:
    model = DNFormer(5, 6, 3, 3, 2, lam="reparam")
    found = [block.attention.lam.init for block in model.blocks]
    assert found == pytest.approx([0.2, 0.35551, 0.47071], abs=5e-6)
    assert [b.attention.scale for b in model.blocks] == pytest.approx([1 - i for i in found])


@pytest.mark.parametrize(
    ("nodes", "edges", "error", "message"),
    [
        ([2, 2, 1, 0], [3, 2, 0], ConfigError, "2 layers take 3 and 2"),
        ([2, 3], [5], ConfigError, "2 layers take 3 and 2"),
        ([2, 2, 1], None, ConfigError, "num_sampled_edges 0"),
        (None, [3, 2], ConfigError, "num_sampled_nodes has 0 counts"),
        ([2, 2, 2], [3, 2], DataError, "add up to 6 and num_sampled_edges to 5"),
        ([2, 2, 1], [3, 3], DataError, "the batch has 5 nodes and 5 edges"),
        ([2, 2, 1], [4, 1], DataError, "must end in the nodes of hop l - 1"),
        ([1, 1, 3], [3, 2], DataError, "destination 3, but there are 2 destination nodes"),
    ],
)
def test_forward_wrong_counts(nodes, edges, error, message) -> None:
    edge_index = torch.tensor([[2, 1, 3, 4, 0], [0, 0, 1, 2, 3]])
    with pytest.raises(error, match=message):
        model_of()(features(5), edge_index, nodes, edges)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_layers": 0}, "num_layers = 0 must be at least 1"),
        ({"heads": 4}, "channels = 6 must be a multiple of heads = 4"),
        ({"norm": "batch"}, "norm = 'batch'"),
        ({"activation": "elu"}, "activation = 'elu'"),
        ({"dropout": 1.5}, "dropout = 1.5"),
        ({"attention_dropout": 1.0}, "dropout = 1.0"),
    ],
)
def test_dnformer_wrong_settings(settings: dict, message: str) -> None:
    sizes = {"in_channels": 5, "hidden_channels": 6, "out_channels": 3, "num_layers": 2, "heads": 2}
    with pytest.raises(ConfigError, match=message):
        DNFormer(**sizes | settings)


def test_nn_exports() -> None:
    assert dnformer.nn.__all__ == sorted(dnformer.nn.__all__)
    assert all(hasattr(dnformer.nn, name) for name in dnformer.nn.__all__)
