"""What changes weights: groups, updates by hand, skipped steps, precision, and a resume's bits."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch_geometric.nn import GraphNorm

from dnformer.config import OptimConfig
from dnformer.errors import CheckpointError
from dnformer.nn import DNFormer
from dnformer.training.optim import Optim, Position, parameter_groups

CPU = torch.device("cpu")
PRECISIONS = ["float32", "float64", "bf16", "fp16"]


class Trained:
    """A small model that learns which of three features is largest; each step sees other rows."""

    def __init__(self, precision: str = "float32", **settings: Any) -> None:
        torch.manual_seed(0)
        wide = torch.float64 if precision == "float64" else torch.float32
        self.model = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
        self.model.to(wide)
        self.optim = Optim(self.model, OptimConfig(**settings), precision=precision, device=CPU)
        x = torch.randn(64, 5)
        self.x, self.y = x.to(wide), x[:, :3].argmax(1)

    def gradients(self, step: int, factor: float = 1.0) -> float:
        """Leaves those of a step's loss in the parameters; the loss."""
        self.optim.optimizer.zero_grad()
        rows = torch.arange(16) + 16 * (step % 4)
        with self.optim.autocast():
            out = self.model(self.x[rows])
            loss = nn.functional.cross_entropy(out.to(self.x.dtype), self.y[rows]) * factor
        self.optim.backward(loss)
        return loss.item()

    def train(self, first: int, last: int) -> list[float]:
        losses = []
        for step in range(first, last):
            losses.append(self.gradients(step))
            assert self.optim.step(at(step)).applied
            self.optim.observe(better=step % 5 == 0)
        return losses

    def everything(self) -> dict[str, Tensor]:
        return dict(self.model.state_dict()) | self.optim.tensors()


def at(step: int) -> Position:
    return Position(step, 4, 10)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def grouped(model: nn.Module) -> set[str]:
    """Names of the parameters with `norm_weight_decay`."""
    config = OptimConfig(weight_decay=0.1, norm_weight_decay=0.2)
    groups = parameter_groups(model, config)
    decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert set(decays.values()) <= {0.1, 0.2}
    return {name for name, p in model.named_parameters() if decays[id(p)] == 0.2}


def test_parameter_groups_of_the_model():
    model = DNFormer(6, 8, 3, 1, 2, norm="pre", head_norm=True, edge_channels=2)
    assert grouped(model) == {
        "projection.bias",
        "blocks.0.attention.lam.dst.bias",
        "blocks.0.attention.lam.out.bias",
        "blocks.0.attention.norm.weight",
        "blocks.0.ffn.expand.bias",
        "blocks.0.ffn.contract.bias",
        *(f"blocks.0.norm{k}.{name}" for k in (1, 2) for name in ("weight", "bias")),
        "norm.weight",
        "norm.bias",
        "head.bias",
    }


def test_parameter_groups_of_lambdas_own():
    assert "blocks.0.attention.lam.raw" in grouped(DNFormer(6, 8, 3, 1, 2, lam="head"))
    reparam = DNFormer(6, 8, 3, 1, 2, lam="reparam")
    assert "blocks.0.attention.lam.vectors" not in grouped(reparam)
    assert "blocks.0.attention.norm.weight" in grouped(reparam)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d, GraphNorm, nn.LayerNorm, nn.RMSNorm], ids=lambda norm: norm.__name__
)
def test_parameter_groups_of_other_norms(norm: Callable[[int], nn.Module]):
    model = nn.Sequential(nn.Linear(3, 4, bias=False), norm(4))
    assert grouped(model) == {name for name, _ in model.named_parameters()} - {"0.weight"}


def test_parameter_groups_are_one_without_norm_weight_decay():
    model = DNFormer(6, 8, 3, 1, 2)
    (group,) = parameter_groups(model, OptimConfig())
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


def test_parameter_groups_leave_frozen_parameters_out():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    groups = parameter_groups(model, OptimConfig(norm_weight_decay=0))
    assert [[p.shape for p in group["params"]] for group in groups] == [[(2, 4)], [(2,)]]


def test_step_has_the_same_bits_in_one_group_and_in_two():
    one, two = Trained(weight_decay=0.1), Trained(weight_decay=0.1, norm_weight_decay=0.1)
    assert one.train(0, 10) == two.train(0, 10)
    assert same(one.everything(), two.everything())


def test_step_decays_each_group_by_its_own():
    trained = Trained(name="adamw", lr=0.5, weight_decay=0.1, norm_weight_decay=0.0)
    before = copied(trained.model.state_dict())
    for parameter in trained.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trained.optim.step(at(0))
    for name, after in trained.model.state_dict().items():
        share = 0.95 if name in ("0.weight", "3.weight") else 1.0
        torch.testing.assert_close(after, before[name] * share)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_step_is_torchs_plain_optimizer(name):
    trained = Trained(name=name, lr=0.01, weight_decay=0.1)
    plain = Trained()
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    optimizer = kind(plain.model.parameters(), lr=0.01, weight_decay=0.1, foreach=False)
    for step in range(10):
        trained.gradients(step)
        plain.gradients(step)
        trained.optim.step(at(step))
        optimizer.step()
    for found, expected in zip(trained.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_step_follows_the_schedule():
    trained = Trained(lr=1.0, schedule="step", decay_epochs=1, decay_factor=0.5)
    trained.gradients(0)
    trained.optim.step(Position(9, 4, 10))
    assert [group["lr"] for group in trained.optim.optimizer.param_groups] == [0.25]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_gives_the_norm_before_clipping(precision):
    free, clipped = Trained(precision), Trained(precision, clip_norm=0.01)
    free.gradients(0)
    clipped.gradients(0)
    update = clipped.optim.step(at(0))
    norms = {name: _norm(trained.model) for name, trained in [("free", free), ("own", clipped)]}
    scale = free.optim.values()["scaler"]["scale"] if precision == "fp16" else 1.0
    assert update.grad_norm == pytest.approx(norms["free"] / scale, rel=1e-5)
    assert norms["own"] == pytest.approx(0.01, rel=1e-3)


def _norm(model: nn.Module) -> float:
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters()))


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_with_a_gradient_that_is_not_finite_changes_nothing(precision, bad):
    trained = Trained(precision, ema_decay=0.9, clip_norm=1.0)
    trained.train(0, 3)
    before = copied(trained.everything())
    trained.gradients(3)
    trained.model[3].weight.grad[1, 2] = bad
    update = trained.optim.step(at(3))
    assert not update.applied
    assert not math.isfinite(update.grad_norm)
    assert same(trained.everything(), before)
    trained.train(3, 4)
    assert not same(trained.everything(), before)


def test_step_under_fp16_halves_the_scale_where_it_is_too_high():
    trained = Trained("fp16")
    trained.train(0, 2)
    values = trained.optim.values()["scaler"]
    assert values["growth_tracker"] == 2
    trained.gradients(2, factor=1e4)
    assert not trained.optim.step(at(2)).applied
    assert trained.optim.values()["scaler"] == {"scale": values["scale"] / 2, "growth_tracker": 0}
    assert trained.optim.scaled_too_much


def test_step_under_fp16_without_a_loss_of_its_own():
    # as on a rank that has no micro-batch in the first step: the others' gradients come in
    trained = Trained("fp16")
    for parameter in trained.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert trained.optim.step(at(0)).applied


def test_scaled_too_much_ends_below_a_scale_of_one():
    trained = Trained("fp16")
    steps = 0
    while trained.optim.scaled_too_much:
        trained.gradients(0)
        trained.model[0].bias.grad.fill_(math.nan)
        trained.optim.step(at(0))
        steps += 1
    assert steps == 17
    assert not Trained("bf16").optim.scaled_too_much


@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_learns_in_each_precision(precision):
    trained = Trained(precision, lr=0.02, weight_decay=0)
    losses = trained.train(0, 60)
    assert losses[-1] < 0.6 * losses[0]
    # all of them go the same way, as far as their precision goes
    plain = Trained("float64", lr=0.02, weight_decay=0).train(0, 60)
    assert losses[-1] == pytest.approx(plain[-1], rel=0.1)
    assert {p.dtype for p in trained.model.parameters()} == {trained.x.dtype}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_is_mixed(precision):
    trained = Trained(precision)
    with trained.optim.autocast():
        out = trained.model(trained.x)
    assert out.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def test_observe_decays_after_patience():
    optim = Trained(schedule="plateau", plateau_patience=2, lr=1.0, decay_factor=0.5).optim
    rates = []
    for better in [True, False, True, False, False, False, False, False, True]:
        optim.observe(better=better)
        rates.append(optim.rate(at(0)))
    assert rates == [1, 1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25]


def test_observe_without_plateau_changes_no_rate():
    optim = Trained(lr=1.0, plateau_patience=1).optim
    for _ in range(3):
        optim.observe(better=False)
    assert optim.rate(at(0)) == 1
    assert optim.values()["plateau"]["decays"] == 0


def test_averaged_holds_the_average_and_keeps_buffers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optim = Optim(model, OptimConfig(ema_decay=0.5), precision="float32", device=CPU)
    model(torch.randn(8, 2)).square().sum().backward()
    optim.step(Position(100, 1, 200))
    own = copied(model.state_dict())
    averages = copied(optim.tensors())
    assert not torch.equal(own["0.weight"], averages["ema.0.weight"])
    with optim.averaged():
        inside = copied(model.state_dict())
    for name, parameter in model.named_parameters():
        assert torch.equal(inside[name], averages[f"ema.{name}"])
        assert torch.equal(parameter, own[name])
    assert torch.equal(inside["1.running_mean"], own["1.running_mean"])


def test_averaged_without_one_is_the_model():
    trained = Trained()
    before = copied(trained.model.state_dict())
    with trained.optim.averaged():
        assert same(dict(trained.model.state_dict()), before)
    assert not any(name.startswith("ema.") for name in trained.optim.tensors())


EVERYTHING = {
    "lr": 0.02,
    "schedule": "plateau",
    "plateau_patience": 2,
    "norm_weight_decay": 0.0,
    "clip_norm": 1.0,
    "ema_decay": 0.9,
    "warmup_steps": 3,
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_restore_gives_the_bits_of_a_straight_run(precision, stop):
    straight = Trained(precision, **EVERYTHING)
    straight.train(0, 12)
    first = Trained(precision, **EVERYTHING)
    first.train(0, stop)
    stored = safetensors.torch.save(first.everything())
    second = Trained(precision, **EVERYTHING)
    tensors = safetensors.torch.load(stored)
    second.optim.restore(tensors, first.optim.values())
    second.model.load_state_dict({k: tensors[k] for k in second.model.state_dict()})
    second.train(stop, 12)
    assert same(second.everything(), straight.everything())
    assert second.optim.values() == straight.optim.values()
    assert straight.optim.values()["plateau"]["decays"] > 0


def test_tensors_are_named_by_parameter_and_plain():
    trained = Trained(ema_decay=0.9)
    assert set(trained.optim.tensors()) == {f"ema.{name}" for name in trained.model.state_dict()}
    trained.train(0, 1)
    tensors = trained.optim.tensors()
    slots = {f"optim.{n}.{s}" for n in trained.model.state_dict()
             for s in ("step", "exp_avg", "exp_avg_sq")}  # fmt: skip
    assert slots <= tensors.keys()
    assert all(t.is_contiguous() and t.device == CPU and not t.requires_grad
               for t in tensors.values())  # fmt: skip


def test_restore_copies():
    trained, other = Trained(ema_decay=0.9), Trained(ema_decay=0.9)
    trained.train(0, 2)
    tensors = copied(trained.optim.tensors())
    other.optim.restore(tensors, trained.optim.values())
    for tensor in tensors.values():
        tensor.fill_(7)
    assert same(other.optim.tensors(), trained.optim.tensors())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optim.0.weight.exp_avg": None}, "lacks a tensor, optim.0.weight.exp_avg"),
        ({"optim.9.weight.exp_avg": torch.ones(2)}, "too many, optim.9.weight.exp_avg"),
        ({"optim.0.bias.exp_avg_sq": torch.ones(3)}, r"0.bias.exp_avg_sq is \[3\].* \[16\]"),
        ({"optim.0.bias.step": torch.ones(2)}, r"0.bias.step is \[2\].* \[\]"),
        ({"ema.3.bias": None}, "lacks a tensor, ema.3.bias"),
        ({"ema.4.bias": torch.ones(3)}, "too many, ema.4.bias"),
        ({"ema.3.bias": torch.ones(4)}, r"ema.3.bias is \[4\].* \[3\]"),
    ],
    ids=["no slot", "other slot", "slot shape", "step shape", "no ema", "other ema", "ema shape"],
)
def test_restore_refuses_tensors_that_do_not_fit(change, message):
    trained = Trained(ema_decay=0.9)
    trained.train(0, 1)
    tensors = {k: v for k, v in (trained.optim.tensors() | change).items() if v is not None}
    with pytest.raises(CheckpointError, match=message):
        Trained(ema_decay=0.9).optim.restore(tensors, trained.optim.values())


@pytest.mark.parametrize("saved", [None, 0.9], ids=["without", "with"])
def test_restore_refuses_an_average_more_or_less(saved):
    trained = Trained(ema_decay=saved)
    trained.train(0, 1)
    other = Trained(ema_decay=None if saved else 0.9)
    with pytest.raises(CheckpointError, match=r"ema\.0\.bias"):
        other.optim.restore(trained.optim.tensors(), trained.optim.values())


@pytest.mark.parametrize(("saved", "now"), [("fp16", "bf16"), ("float32", "fp16")])
def test_restore_refuses_a_scale_more_or_less(saved, now):
    trained = Trained(saved)
    with pytest.raises(CheckpointError, match=r"gradient scale, this train\.precision"):
        Trained(now).optim.restore(trained.optim.tensors(), trained.optim.values())


@pytest.mark.parametrize("values", [{}, {"plateau": {}, "scaler": None}, {"plateau": 1}], ids=str)
def test_restore_refuses_damaged_values(values):
    with pytest.raises(CheckpointError, match="damaged"):
        Trained().optim.restore({}, values)
