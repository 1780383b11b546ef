import pytest
import torch
from torch import Tensor
from torch_geometric import EdgeIndex

from dnformer.config.zoo import NodeFormerOptions
from dnformer.nn.zoo.nodeformer import (
    Kept,
    KernelAttention,
    NodeFormer,
    edge_likelihood,
    gumbel_weights,
    kernel_softmax,
    key_features,
    orthogonal_features,
    powers_of,
    query_features,
)
from tests.nn.helpers import EDGES, features
from tests.nn.zoo.checks import SHARED, check_model, close

OPTIONS = NodeFormerOptions(random_features=12, gumbel_samples=3)


def test_model() -> None:
    torch.manual_seed(0)
    check_model(NodeFormer(SHARED._replace(dropout=0.2), OPTIONS))


def adjacencies(order: int) -> list[Tensor]:
    """A_r[i, j] = 1 where 2^(r-1) edges or fewer lead from j to i, float64."""
    a = torch.eye(8, dtype=torch.float64)
    a[EDGES[1], EDGES[0]] = 1
    found = [a]
    for _ in range(order - 1):
        found.append((found[-1] @ found[-1] > 0).double())
    return found


def dense_kernel(q: Tensor, k: Tensor, draws: Tensor) -> Tensor:
    """The estimate of exp(q · k / √C) for each pair, up to factors of a query and of the head."""
    features = []
    for x, dim in ((q, (1,)), (k, (0, 1))):
        x = x / x.shape[1] ** 0.25
        exponent = x @ draws.T
        half = (x * x).sum(1, keepdim=True) / 2
        features.append((exponent - half - exponent.amax(dim, keepdim=True)).exp() + 1e-6)
    return features[0] @ features[1].T


def test_scores_equal_dense() -> None:
    torch.manual_seed(0)
    model = NodeFormer(SHARED, OPTIONS).double().eval()
    x = features()
    h = model.norm(x @ model.projection.weight + model.projection.bias)
    h = torch.where(h > 0, h, h.exp() - 1)
    draws = orthogonal_features(12, 8, torch.Generator().manual_seed(0)).double()
    for layer, norm in zip(model.layers, model.norms, strict=True):
        heads = []
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            q, k, v = (
                h @ linear.weight[part].T + linear.bias[part]
                for linear in (layer.query, layer.key, layer.value)
            )
            kernel = dense_kernel(q / 0.5, k / 0.5, draws)
            weight = kernel / kernel.sum(1, keepdim=True)
            for r, a in enumerate(adjacencies(2)):
                scale = (a.sum(1)[:, None] * a.sum(0)).sqrt()
                weight = weight + layer.bias[r, head].sigmoid() * a / scale
            heads.append(weight @ v)
        mixed = torch.cat(heads, 1) @ layer.out.weight.T + layer.out.bias
        h = norm(mixed + h)
    close(model(x, EDGES), h @ model.head.weight.T + model.head.bias)


def test_kernel_softmax_equals_dense() -> None:
    torch.manual_seed(0)
    q, k = torch.rand(2, 2, 8, 6, dtype=torch.float64)
    v, noise = torch.randn(2, 8, 3, dtype=torch.float64), torch.rand(2, 8, 4, dtype=torch.float64)
    weight = torch.einsum("him,hjm,hjs->hsij", q, k, noise)
    weight = weight / weight.sum(3, keepdim=True)
    close(kernel_softmax(q, k, v, noise), torch.einsum("hsij,hjd->hid", weight, v) / 4)


def test_kernel_estimates_softmax() -> None:
    torch.manual_seed(0)
    q, k = 0.5 * torch.randn(2, 1, 8, 4, dtype=torch.float64)
    v = torch.randn(1, 8, 3, dtype=torch.float64)
    exact = (q @ k.transpose(1, 2) / 2).softmax(2) @ v
    draws = orthogonal_features(40_000, 4, None).double()
    noise = torch.ones(1, 8, 1, dtype=torch.float64)
    found = kernel_softmax(query_features(q, draws), key_features(k, draws), v, noise)
    torch.testing.assert_close(found, exact, atol=0.02, rtol=0)


def test_gumbel_weights_choose_as_often_as_asked() -> None:
    torch.manual_seed(0)
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    # at a low temperature a draw is one node: Gumbel's trick
    weight = p.log().exp()[None, :, None] ** 20 * gumbel_weights((1, 3, 20_000), 0.05)
    chosen = weight[0].argmax(0).bincount(minlength=3) / 20_000
    torch.testing.assert_close(chosen.double(), p, atol=0.02, rtol=0)
    assert torch.equal(gumbel_weights((2, 3, 4), 0.25).amax(1), torch.ones(2, 4).double())


def test_orthogonal_features_in_blocks() -> None:
    draws = orthogonal_features(10, 4, torch.Generator().manual_seed(0))
    directions = draws / draws.norm(dim=1, keepdim=True)
    for block in directions.split(4):
        torch.testing.assert_close(block @ block.T, torch.eye(len(block)))


def test_edge_likelihood_equals_dense() -> None:
    torch.manual_seed(0)
    q, k = torch.rand(2, 2, 8, 6, dtype=torch.float64)
    attention = q @ k.transpose(1, 2)
    attention = attention / attention.sum(2, keepdim=True)
    a = adjacencies(1)[0]
    log = attention.log() / a.sum(1)[:, None]
    expected = (log * a).sum() / (2 * a.sum())
    close(edge_likelihood(q, k, powers_of(EDGES, 8, 0).edges), expected)


def test_extra_loss_in_training_only() -> None:
    torch.manual_seed(0)
    shared = SHARED._replace(layers=1)
    model = NodeFormer(shared, OPTIONS.model_copy(update={"edge_loss": 0.5}))
    model.eval()(features().float(), EDGES)
    assert model.extra_loss is None
    torch.manual_seed(1)
    model.train()(features().float(), EDGES)
    halved = model.extra_loss
    assert halved is not None
    assert halved > 0
    model = NodeFormer(shared, OPTIONS.model_copy(update={"edge_loss": 0.0}))
    model(features().float(), EDGES)
    assert model.extra_loss is None


@pytest.mark.parametrize(("form", "start"), [("sigmoid", 0.1), ("identity", 1.0)])
def test_bias_starts_as_the_authors_do(form: str, start: float) -> None:
    options = NodeFormerOptions(bias_form=form, bias_order=3)
    attention = KernelAttention(8, 2, options)
    assert torch.equal(attention.bias.detach(), torch.full((3, 2), start))


def test_powers_duplicates_and_loops_count_once() -> None:
    doubled = torch.cat([EDGES, EDGES, torch.tensor([[3], [3]])], 1)
    for powers in (powers_of(EDGES, 8, 3), powers_of(doubled, 8, 3)):
        for power, a in zip(powers.powers, adjacencies(3), strict=True):
            scale = (a.sum(1)[:, None] * a.sum(0)).sqrt()
            x = features().requires_grad_()
            out = power.mean(x)
            close(out, a / scale @ x)
            weight = features().flip(0)
            close(torch.autograd.grad(out, x, weight)[0], (a / scale).T @ weight)


def test_kept_of_two_graphs() -> None:
    kept = Kept(2)
    first, second, third = EDGES.clone(), EDGES[:, :3].clone(), EDGES[:, :2].clone()
    powers = kept(first, 8)
    assert kept(EdgeIndex(first, sparse_size=(8, 8)), 8) is powers
    kept(second, 8)
    assert kept(first, 8) is powers
    assert kept(first, 9) is not powers
    kept(third, 8)
    assert kept(first, 8) is not powers
    powers = kept(first, 8)
    first[0, 0] = 3
    assert kept(first, 8) is not powers
