import math

import pytest
import torch

from dnformer.errors import ConfigError
from dnformer.nn.lam import LambdaSettings, ReparamLambda, make_lambda, reparam_init
from dnformer.ops import reference


@pytest.mark.parametrize(
    ("depth", "value"), [(1, 0.2), (2, 0.35551), (3, 0.47071), (4, 0.55606), (100, 0.8)]
)
def test_reparam_init(depth: int, value: float) -> None:
    assert reparam_init(depth) == pytest.approx(value, abs=5e-6)


def values_of(mode: torch.nn.Module, channels: int = 4) -> torch.Tensor:
    """Lambda on two edges to one destination."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, channels, generator=generator)
    lam = mode.combine(mode.hidden_dst(x[:1]), mode.hidden_src(x))
    return reference._edge_lambda(lam, torch.tensor([0, 0]), torch.tensor([0, 1]), torch.float32)


@pytest.mark.parametrize(
    "settings",
    [
        LambdaSettings(),
        LambdaSettings(lambda_init=0.8),
        LambdaSettings(lambda_bound="sigmoid"),
        LambdaSettings(lambda_width=7),
        LambdaSettings("head", None, 0.5, "softplus"),
        LambdaSettings("head", None, 0.5, "sigmoid"),
        LambdaSettings("fixed", None, 1.0),
    ],
    ids=str,
)
def test_make_lambda_starts_at_init(settings: LambdaSettings) -> None:
    mode = make_lambda(4, 2, settings, depth=1)
    expected = torch.full((2, 2), settings.lambda_init)
    torch.testing.assert_close(values_of(mode), expected)
    for parameter in mode.parameters():
        torch.nn.init.constant_(parameter, 3.0)
    mode.reset_parameters()
    torch.testing.assert_close(values_of(mode), expected)


def test_make_lambda_edge_width() -> None:
    assert make_lambda(8, 2, LambdaSettings(), depth=1).src.weight.shape == (4, 8)
    wide = make_lambda(8, 2, LambdaSettings(lambda_width=5), depth=1)
    assert wide.src.weight.shape == (5, 8)
    assert wide.src.bias is None


def test_edge_lambda_formula() -> None:
    torch.manual_seed(0)
    mode = make_lambda(4, 2, LambdaSettings(), depth=1)
    for parameter in mode.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    # W1 = [U, W] on the pair, the destination first
    w1 = torch.cat([mode.dst.weight, mode.src.weight], dim=1)
    pairs = torch.stack([torch.cat([x[0], x[0]]), torch.cat([x[0], x[1]])])
    hidden = (pairs @ w1.T + mode.dst.bias).relu()
    expected = (hidden @ mode.out.weight.T + mode.out.bias).exp().log1p()
    torch.testing.assert_close(values_of(mode), expected)


def test_reparam_lambda_formula() -> None:
    torch.manual_seed(0)
    mode = ReparamLambda(3, head_width=4, depth=2)
    (q1, k1), (q2, k2) = mode.vectors.detach()
    expected = math.exp(q1 @ k1) - math.exp(q2 @ k2) + 0.355509
    bias, squash = mode.head_values()
    assert squash == "identity"
    assert bias.tolist() == pytest.approx([expected] * 3, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (LambdaSettings("edges"), "lam = 'edges' is not one of edge, head, fixed, reparam"),
        (LambdaSettings(lambda_bound="relu"), "lambda_bound = 'relu'"),
        (LambdaSettings(lambda_init=0.0), "lambda_init > 0"),
        (LambdaSettings(lambda_init=1.0, lambda_bound="sigmoid"), "0 < lambda_init < 1"),
        (LambdaSettings(lambda_width=0), "lambda_width = 0 must be at least 1"),
    ],
)
def test_make_lambda_wrong(settings: LambdaSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_lambda(4, 2, settings, depth=1)


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        (LambdaSettings("reparam", lambda_init=0.5), "lambda_init = 0.5"),
        (LambdaSettings("fixed", lambda_bound="sigmoid"), "lambda_bound = 'sigmoid'"),
        (LambdaSettings("head", lambda_width=3), "lambda_width = 3"),
    ],
)
def test_make_lambda_warns_of_ignored(settings: LambdaSettings, ignored: str) -> None:
    with pytest.warns(UserWarning, match=f"lam = '{settings.lam}' ignores {ignored}"):
        make_lambda(4, 2, settings, depth=1)
