import math

import pytest
import torch
from torch import Tensor

from dnformer.errors import ConfigError
from dnformer.nn.zoo.differential import DifferentialAttention, SequenceBlock, turned
from tests.nn.zoo.checks import close


def sequences(channels: int = 12, size: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, size, channels, generator=generator, dtype=torch.float64)


def attention(lam: str, **settings: bool) -> DifferentialAttention:
    torch.manual_seed(0)
    return DifferentialAttention(12, 3, lam=lam, depth=2, **settings).double()


def rotated(x: Tensor) -> Tensor:
    """As complex numbers: channels 2i, 2i + 1 are one, turned by t / 10000^(2i / D)."""
    size, width = x.shape
    pairs = torch.view_as_complex(x.reshape(size, width // 2, 2).contiguous())
    angle = torch.tensor(
        [[t / 10_000 ** (2 * i / width) for i in range(width // 2)] for t in range(size)],
        dtype=torch.float64,
    )
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(1)


def softmax(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    weight = (q @ k.T / q.shape[1] ** 0.5).exp()
    weight = weight.tril() if causal else weight
    return weight / weight.sum(1, keepdim=True)


def dense(layer: DifferentialAttention, x: Tensor, *, causal: bool, rotary: bool) -> Tensor:
    """One sequence, head by head, from the papers' formulas."""
    reparam = layer.of_layer is not None
    width, values = (2, 4) if reparam else (4, 4)
    turn = rotated if rotary else lambda y: y
    q, k, v = x @ layer.query.weight.T, x @ layer.key.weight.T, x @ layer.value.weight.T
    start = 0.8 - 0.6 * math.exp(-0.3)
    heads = []
    for head in range(3):
        first, second = 2 * head, 2 * head + 1
        of_first, of_second = (turn(q[:, i * width : (i + 1) * width]) for i in (first, second))
        keys = (first, second) if reparam else (head, head)
        k_first, k_second = (turn(k[:, i * width : (i + 1) * width]) for i in keys)
        value = v[:, head * values : (head + 1) * values]
        if reparam:
            (q1, k1), (q2, k2) = layer.of_layer.vectors
            lam = (q1 @ k1).exp() - (q2 @ k2).exp() + start
        else:
            lam = (x @ layer.of_query.weight[head]).sigmoid()[:, None]
        out = (
            softmax(of_first, k_first, causal) - lam * softmax(of_second, k_second, causal)
        ) @ value
        if reparam:
            out = out / (out.square().mean(1, keepdim=True) + 1e-5).sqrt() * (1 - start)
            out = out * layer.norm.weight
        heads.append(out)
    return torch.cat(heads, 1) @ layer.out.weight.T


@pytest.mark.parametrize("rotary", [False, True], ids=["set", "rotary"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("lam", ["reparam", "sigmoid"])
def test_attention_equals_dense(lam: str, causal: bool, rotary: bool) -> None:
    layer, x = attention(lam, causal=causal, rotary=rotary), sequences()
    if layer.norm is not None:
        torch.nn.init.uniform_(layer.norm.weight, 0.5, 1.5)
    expected = torch.stack([dense(layer, one, causal=causal, rotary=rotary) for one in x])
    close(layer(x), expected)


@pytest.mark.parametrize("lam", ["reparam", "sigmoid"])
def test_attention_maps_give_the_output(lam: str) -> None:
    layer, x = attention(lam, causal=True, rotary=True), sequences()
    values = layer.value(x).unflatten(-1, (3, -1)).transpose(1, 2)
    heads = layer.maps(x) @ values
    if layer.norm is not None:
        heads = layer.norm(heads) * layer.scale
    close(layer(x), layer.out(heads.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("lam", ["reparam", "sigmoid"])
def test_attention_gradients(lam: str) -> None:
    layer = attention(lam, causal=True, rotary=True)
    x = sequences(size=4).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))
    layer(x).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_attention_causal_sees_nothing_later() -> None:
    layer, x = attention("reparam", causal=True, rotary=True), sequences()
    changed = x.clone()
    changed[:, 4:] += 1
    close(layer(changed)[:, :4], layer(x)[:, :4])
    assert not layer(changed)[:, 4].allclose(layer(x)[:, 4])


def test_attention_starts_at_lambda_init() -> None:
    starts = [DifferentialAttention(12, 3, depth=depth).scale for depth in (1, 2, 3, 4)]
    assert [round(1 - scale, 5) for scale in starts] == [0.2, 0.35551, 0.47071, 0.55606]


def test_turned_depends_on_the_distance_alone() -> None:
    q, k = turned(torch.ones(6, 4).double()), turned(torch.arange(4.0).expand(6, 4).double())
    logits = q @ k.T
    close(logits[1:, 1:], logits[:-1, :-1])


def test_attention_wrong_settings() -> None:
    with pytest.raises(ConfigError, match=r"channels = 12 must be a multiple of 8: .* heads = 4"):
        DifferentialAttention(12, 4)
    with pytest.raises(ConfigError, match="width 1 is odd"):
        DifferentialAttention(6, 3, rotary=True)
    with pytest.raises(ConfigError, match="lam = 'edge' is not one of reparam, sigmoid"):
        DifferentialAttention(12, 3, lam="edge")


def test_block_equals_formula() -> None:
    layer, x = attention("reparam", causal=True), sequences()
    block = SequenceBlock(layer, 12, dropout=0.5).double().eval()

    def rms(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    y = x + layer(rms(x))
    gate = rms(y) @ block.gate.weight.T
    hidden = gate * gate.sigmoid() * (rms(y) @ block.expand.weight.T)
    assert hidden.shape[-1] == 32
    close(block(x), y + hidden @ block.contract.weight.T)
    assert not block.train()(x).allclose(block(x))
