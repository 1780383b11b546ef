import pytest
import torch

from dnformer.errors import ConfigError
from dnformer.nn.dropout import Dropout


def noise(p: float, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(seed)
    return Dropout(p)(torch.ones(*shape, dtype=dtype))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_share_in_each_of_the_four_entries_of_a_draw(p: float) -> None:
    found = noise(p, 50_000, 4)
    share = (found == 0).double().mean(0)
    # five standard deviations
    tolerance = 5 * (p * (1 - p) / 50_000) ** 0.5
    torch.testing.assert_close(share, torch.full_like(share, p), rtol=0, atol=tolerance)
    kept = found[found != 0].unique()
    assert kept.tolist() == pytest.approx([1 / (1 - p)], rel=1e-3)


def test_dropout_entries_are_independent() -> None:
    kept = (noise(0.5, 50_000, 8) != 0).double() - 0.5
    correlation = 4 * kept.T @ kept / 50_000
    expected = torch.eye(8, dtype=torch.float64)
    torch.testing.assert_close(correlation, expected, rtol=0, atol=0.025)


def test_dropout_keeps_the_mean_of_a_share_that_is_rounded() -> None:
    # 0.3 is 19661 / 65536: what is kept is multiplied by the inverse of what is really kept
    assert noise(0.3, 1000).max().item() == pytest.approx(65536 / (65536 - 19661), rel=1e-7)


def test_dropout_same_seed_same_bits_whatever_the_threads() -> None:
    first = noise(0.5, 300, 129, seed=3)
    torch.set_num_threads(2)
    assert torch.equal(noise(0.5, 300, 129, seed=3), first)
    assert not torch.equal(noise(0.5, 300, 129, seed=4), first)


def test_dropout_draws_anew_each_time() -> None:
    layer, x = Dropout(0.5), torch.ones(64)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (2, 3, 5)], ids=str)
def test_dropout_shapes_and_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = noise(0.5, *shape, dtype=dtype)
    assert found.shape == shape
    assert found.dtype == dtype
    assert set(found.flatten().tolist()) <= {0.0, 2.0}


def test_dropout_gradient_is_the_noise() -> None:
    x = torch.arange(1.0, 41.0).view(5, 8).T.requires_grad_()  # not contiguous
    out = Dropout(0.4)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach() / x.detach())
    assert (x.grad == 0).any()
    assert (x.grad > 1).any()


def test_dropout_outside_training_and_at_zero_draws_nothing() -> None:
    x, before = torch.ones(5), torch.random.get_rng_state()
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x
    assert torch.equal(torch.random.get_rng_state(), before)


def test_dropout_of_nearly_everything_leaves_nothing() -> None:
    assert noise(1 - 1e-12, 1000).abs().max() == 0


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_wrong_share(p: float) -> None:
    with pytest.raises(ConfigError, match=f"dropout = {p} is outside"):
        Dropout(p)
