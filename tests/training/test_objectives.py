"""Losses and metrics of each kind of target, beside torch's losses and torchmetrics."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional import mean_absolute_error, mean_squared_error, r2_score
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_accuracy,
    multiclass_f1_score,
    multilabel_auroc,
    multilabel_f1_score,
)

from dnformer.data.table import Target
from dnformer.errors import ConfigError
from dnformer.training.objectives import (
    ClassObjective,
    MultilabelObjective,
    RegressionObjective,
    better,
    main_metric,
    metrics_of,
    monitor_for,
    shown,
)
from dnformer.training.scores import known_nodes

LABELS = torch.tensor([[1, 0], [0, -1], [1, 1], [-1, 0]], dtype=torch.int8)
SCORES = torch.tensor([[2.0, 1.0], [-1.0, 5.0], [-0.5, 3.0], [9.0, -2.0]], dtype=torch.float64)
NUMBERS = torch.tensor([[10.0, 7.0], [30.0, math.nan], [20.0, 7.0]])


def regression(y: torch.Tensor) -> RegressionObjective:
    return RegressionObjective(y, torch.ones(len(y), dtype=torch.float64))


def drawn(kind: str, num_outputs: int, size: int, seed: int = 0):
    """An objective, and outputs and targets, of which about a fifth is unknown."""
    generator = torch.Generator().manual_seed(seed)
    out = 2 * torch.randn(size, num_outputs, generator=generator)
    unknown = torch.rand(size, num_outputs, generator=generator) < 0.2
    if kind == "class":
        y = torch.randint(num_outputs, (size,), generator=generator)
        return ClassObjective(num_outputs), out, y.masked_fill(unknown[:, 0], -1)
    if kind == "multilabel":
        y = torch.randint(2, (size, num_outputs), generator=generator, dtype=torch.int8)
        return MultilabelObjective(num_outputs), out, y.masked_fill(unknown, -1)
    y = 50 + 3 * torch.randn(size, num_outputs, generator=generator)
    y = y.masked_fill(unknown, math.nan)
    return regression(y), out, y


KINDS = [("class", 2), ("class", 7), ("multilabel", 3), ("regression", 2)]


def plain_loss(objective, out, y):
    return objective.loss(out, y, torch.ones(len(y)).to(out))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_class_loss_and_gradient_are_those_of_torch(dtype, smoothing, weighted):
    _, out, y = drawn("class", 5, 40)
    weights = torch.tensor([0.2, 1.0, 3.0, 0.7, 9.0], dtype=torch.float64) if weighted else None
    objective = ClassObjective(5, label_smoothing=smoothing, class_weights=weights)
    found, expected = (out.to(dtype).requires_grad_() for _ in range(2))
    weight = objective.weight(y)
    assert weight.dtype == torch.float64
    (objective.loss(found, y, weight.to(dtype)) / weight.sum()).backward()
    F.cross_entropy(
        expected,
        y,
        None if weights is None else weights.to(dtype),
        ignore_index=-1,
        label_smoothing=smoothing,
    ).backward()
    tolerance = 1e-7 if dtype == torch.float32 else 1e-16
    torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=tolerance)
    assert not found.grad[y < 0].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_class_loss_of_parts_adds_up_to_torchs_weighted_mean(smoothing):
    _, out, y = drawn("class", 5, 40)
    out, weights = out.double(), torch.tensor([0.2, 1.0, 3.0, 0.7, 9.0], dtype=torch.float64)
    objective = ClassObjective(5, label_smoothing=smoothing, class_weights=weights)
    weight = objective.weight(y)
    total = sum(
        objective.loss(out[rows], y[rows], weight[rows]) for rows in (slice(7), slice(7, 40))
    )
    expected = F.cross_entropy(out, y, weights, ignore_index=-1, label_smoothing=smoothing)
    torch.testing.assert_close(total / weight.sum(), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_loss_is_weighted_node_by_node(kind, num_outputs):
    objective, out, y = drawn(kind, num_outputs, 9)
    out, mask = out.double().requires_grad_(), torch.arange(9.0, dtype=torch.float64) % 4
    one_by_one = [
        weight * plain_loss(objective, out[i : i + 1], y[i : i + 1])
        for i, weight in enumerate(mask)
    ]
    weight = objective.weight(y)
    assert set(weight.tolist()) <= {0.0, 1.0}
    loss = objective.loss(out, y, weight * mask)
    torch.testing.assert_close(loss, sum(one_by_one))
    loss.backward()
    assert not out.grad[mask == 0].any()
    assert out.grad[(mask > 0) & (weight > 0)].any(dim=1).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_class_loss_with_weights_and_a_mask(smoothing):
    _, out, y = drawn("class", 3, 12)
    out, weights = out.double(), torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    objective = ClassObjective(3, label_smoothing=smoothing, class_weights=weights)
    mask = torch.arange(12.0, dtype=torch.float64) % 3
    each = F.cross_entropy(
        out, y, weights, ignore_index=-1, label_smoothing=smoothing, reduction="none"
    )
    found = objective.loss(out, y, objective.weight(y) * mask)
    torch.testing.assert_close(found, (each * mask).sum())


@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_loss_and_gradient_without_weight_are_zero(kind, num_outputs):
    objective, out, y = drawn(kind, num_outputs, 9)
    out.requires_grad_()
    loss = objective.loss(out, y, torch.zeros(9))
    loss.backward()
    assert loss.item() == 0
    assert not out.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_loss_and_count_of_half_precision_are_float32(kind, num_outputs, dtype):
    objective, out, y = drawn(kind, num_outputs, 300)
    out, weight = out.to(dtype), objective.weight(y).to(dtype)
    loss, counts = objective.loss(out, y, weight), objective.count(out, y)
    assert loss.dtype == counts.dtype == torch.float32
    expected = objective.loss(out.double(), y, weight.double())
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    # half precision would not count to 300
    torch.testing.assert_close(
        counts.double(), objective.count(out.double(), y), rtol=1e-5, atol=1e-3
    )


@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_unknown_nodes_are_in_no_loss_and_no_metric(kind, num_outputs):
    objective, out, y = drawn(kind, num_outputs, 60)
    unknown = torch.arange(60) % 3 == 0
    y[unknown] = math.nan if kind == "regression" else -1
    known = y[~unknown]
    assert not objective.weight(y)[unknown].any()
    found, expected = objective.evaluate(out, y), objective.evaluate(out[~unknown], known)
    assert found == pytest.approx(expected, rel=1e-14)
    torch.testing.assert_close(objective.count(out, y), objective.count(out[~unknown], known))
    torch.testing.assert_close(
        objective.loss(out, y, objective.weight(y).float()),
        objective.loss(out[~unknown], known, objective.weight(known).float()),
    )


@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_nothing_is_measured_where_nothing_is_known(kind, num_outputs):
    objective, out, y = drawn(kind, num_outputs, 4)
    y[:] = math.nan if kind == "regression" else -1
    for size in (4, 0):
        assert objective.evaluate(out[:size], y[:size]) == {}
    if kind != "multilabel":
        assert objective.running(objective.count(out.double(), y)) == {}


def reference(kind: str, out: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """torchmetrics on everything at once."""
    num_outputs = out.shape[1]
    if kind == "class":
        out, y = out[y >= 0], y[y >= 0]
        found = {
            "accuracy": multiclass_accuracy(out, y, num_outputs, average="micro"),
            "f1_macro": multiclass_f1_score(out, y, num_outputs, average="macro"),
        }
        if num_outputs == 2:
            found["auc"] = binary_auroc(out.double().softmax(dim=1)[:, 1], y)
    elif kind == "multilabel":
        probability, y = out.double().sigmoid(), y.long()
        found = {
            "f1": multilabel_f1_score(
                probability, y, num_outputs, average="micro", ignore_index=-1
            ),
            "f1_macro": multilabel_f1_score(
                probability, y, num_outputs, average="macro", ignore_index=-1
            ),
            "auc": multilabel_auroc(probability, y, num_outputs, ignore_index=-1),
        }
    else:
        units = regression(y).values()
        out = out.double() * torch.tensor(units["scale"]) + torch.tensor(units["mean"])
        known = ~y.isnan()
        y = y.double()
        columns = [r2_score(o[k], t[k]) for o, t, k in zip(out.T, y.T, known.T, strict=True)]
        found = {
            "mae": mean_absolute_error(out[known], y[known]),
            "rmse": mean_squared_error(out[known], y[known], squared=False),
            "r2": torch.stack(columns).mean(),
        }
    return {name: float(value) for name, value in found.items()}


@settings(max_examples=30)
@given(
    kind=st.sampled_from([("class", 2), ("class", 3), ("class", 40), *KINDS[2:]]),
    size=st.integers(30, 200),
    parts=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_running_of_summed_counts_equals_torchmetrics(kind, size, parts, seed):
    objective, out, y = drawn(*kind, size, seed)
    pairs = zip(out.chunk(parts), y.chunk(parts), strict=True)
    counts = [objective.count(*pair) for pair in pairs]
    assert all(count.shape == (objective.num_counts,) for count in counts)
    running = objective.running(torch.stack(counts).double().sum(dim=0))
    expected = reference(kind[0], out, y)
    # torchmetrics divides in float32
    assert running == pytest.approx({name: expected[name] for name in running}, rel=2e-6)
    evaluated = objective.evaluate(out, y)
    assert evaluated.pop("loss") > 0
    assert evaluated == pytest.approx(expected, rel=2e-6)


def test_class_f1_macro_is_over_the_classes_that_are_met_or_predicted():
    # class 2 is only predicted, class 3 neither
    y, predicted = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 2, 1, 1])
    out = F.one_hot(predicted, 4).float()
    assert ClassObjective(4).evaluate(out, y)["f1_macro"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_class_evaluation_is_without_weights_and_smoothing():
    _, out, y = drawn("class", 3, 50)
    weights = torch.tensor([1.0, 5.0, 9.0], dtype=torch.float64)
    objective = ClassObjective(3, label_smoothing=0.2, class_weights=weights)
    assert objective.evaluate(out, y) == ClassObjective(3).evaluate(out, y)
    expected = F.cross_entropy(out.double(), y, ignore_index=-1).item()
    assert objective.evaluate(out, y)["loss"] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_class_auc_does_not_depend_on_the_scale_of_the_outputs(scale):
    objective, out, y = drawn("class", 2, 200)
    expected = ClassObjective(2).evaluate(out, y)["auc"]
    assert 0.3 < expected < 0.7
    assert objective.evaluate(out * scale, y)["auc"] == expected


def test_class_auc_needs_both_classes():
    objective, out = ClassObjective(2), torch.randn(4, 2)
    assert "auc" not in objective.evaluate(out, torch.ones(4, dtype=torch.int64))
    assert objective.defined(torch.tensor([1, 1, -1])) == ["loss", "accuracy", "f1_macro"]
    assert "auc" in objective.defined(torch.tensor([1, 1, 0]))


def test_multilabel_loss_is_over_known_entries():
    terms = -F.logsigmoid(torch.where(LABELS == 1, SCORES, -SCORES))
    expected = terms[LABELS >= 0].sum() / 2
    torch.testing.assert_close(plain_loss(MultilabelObjective(2), SCORES, LABELS), expected)
    changed = SCORES.clone()
    changed[LABELS < 0] = 77.0
    torch.testing.assert_close(plain_loss(MultilabelObjective(2), changed, LABELS), expected)


def test_multilabel_metrics():
    found = MultilabelObjective(2).evaluate(SCORES, LABELS)
    # known: (2, 1) (1, 0) (-1, 0) (-.5, 1) (3, 1) (-2, 0): two hits, one false alarm, one miss
    assert found["f1"] == pytest.approx(4 / 6)
    assert found["f1_macro"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    # label 0: 2 and -0.5 over -1; label 1: 3 over 1 and -2
    assert found["auc"] == 1.0
    assert MultilabelObjective(2).evaluate(-SCORES, LABELS)["auc"] == 0.0


def test_multilabel_auc_needs_a_label_with_both_values():
    y = torch.tensor([[1, 1], [0, 1], [1, 1]], dtype=torch.int8)
    assert "auc" in MultilabelObjective(2).defined(y)
    assert MultilabelObjective(1).defined(y[:, 1:]) == ["loss", "f1", "f1_macro"]


def test_multilabel_f1_of_nothing_positive_is_zero():
    found = MultilabelObjective(2).running(torch.zeros(6, dtype=torch.float64))
    assert found == {"f1": 0.0, "f1_macro": 0.0}


def test_regression_metrics_are_in_the_targets_units():
    # outputs of 0 predict the means, 20 and 7
    found = regression(NUMBERS).evaluate(torch.zeros(3, 2), NUMBERS)
    assert found["mae"] == pytest.approx(20 / 5)
    assert found["rmse"] == pytest.approx(math.sqrt(200 / 5))
    # of the first number; the second doesn't vary
    assert found["r2"] == pytest.approx(0, abs=1e-12)
    # three entries have variance 1 together, of which the mean is over K = 2; the others are right
    assert found["loss"] == pytest.approx(3 / 3 / 2)


def test_regression_values_lead_back_to_the_target():
    objective = regression(NUMBERS)
    mean, scale = (torch.tensor(objective.values()[name]) for name in ("mean", "scale"))
    torch.testing.assert_close(mean, torch.tensor([20.0, 7.0]))
    out = ((NUMBERS - mean) / scale).nan_to_num()
    assert objective.evaluate(out, NUMBERS)["mae"] == pytest.approx(0, abs=1e-6)
    assert ClassObjective(3).values() == MultilabelObjective(3).values() == {}


def test_regression_units_leave_out_nodes_that_weigh_nothing():
    y = torch.cat([NUMBERS, torch.tensor([[1e9, 1e9]])])
    masked = RegressionObjective(y, torch.tensor([1, 1, 1, 0], dtype=torch.float64))
    assert masked.values() == regression(NUMBERS).values()
    # twice the weight is as twice the node
    twice = RegressionObjective(NUMBERS, torch.tensor([1, 1, 2], dtype=torch.float64))
    assert twice.values() == regression(torch.cat([NUMBERS, NUMBERS[2:]])).values()


def test_regression_loss_and_gradient_leave_out_what_is_unknown():
    out = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    loss = plain_loss(regression(NUMBERS), out, NUMBERS)
    loss.backward()
    scale = math.sqrt(200 / 3)
    errors = [1 + 10 / scale, 1.0, 1 - 10 / scale, 1.0, 1.0]
    assert loss.item() == pytest.approx(sum(e * e for e in errors) / 2)
    expected = [[errors[0], 1.0], [errors[2], 0.0], [1.0, 1.0]]
    torch.testing.assert_close(out.grad, torch.tensor(expected, dtype=torch.float64))


def test_regression_does_not_depend_on_units():
    metres = torch.tensor([[10.0], [30.0], [math.nan], [20.0]])
    millimetres = metres * 1000 + 5e5
    out = torch.linspace(-1, 1, 4, dtype=torch.float64).view(4, 1)
    first = regression(metres).evaluate(out, metres)
    second = regression(millimetres).evaluate(out, millimetres)
    assert second["loss"] == pytest.approx(first["loss"])
    assert second["r2"] == pytest.approx(first["r2"])
    assert second["mae"] == pytest.approx(1000 * first["mae"])


def test_regression_of_a_column_that_nothing_is_known_of():
    y = torch.tensor([[1.0, math.nan], [3.0, math.nan]])
    assert regression(y).evaluate(torch.zeros(2, 2), y)["mae"] == 1.0


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-20, 12345.678])
def test_regression_r2_needs_a_number_that_varies(value):
    objective, y = regression(NUMBERS), torch.full((1000, 2), value)
    assert objective.defined(y) == ["loss", "mae", "rmse"]
    y[0, 0] += 1.0
    assert "r2" in objective.defined(y)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_metrics_of_an_output_that_is_not_finite_are_nan(kind, num_outputs, wrong):
    objective, out, y = drawn(kind, num_outputs, 60)
    names = objective.evaluate(out, y).keys()
    # beside what is unknown, and not where the target is
    node = (
        int(((y if kind == "class" else y[:, 0]) == 0).nonzero()[0]) if kind != "regression" else 0
    )
    y[node] = 1.0 if kind == "regression" else 0
    out[node, -1] = wrong
    found = objective.evaluate(out, y)
    assert found.keys() == names
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("kind", ["class", "multilabel", "regression"])
def test_evaluate_in_ranges_equals_all_at_once(kind):
    # 26,214 nodes of 40 outputs are a range
    objective, out, y = drawn(kind, 40, 60_000)
    found, out = objective.evaluate(out, y), out.double()
    expected = objective.running(objective.count(out, y))
    expected["loss"] = float(plain_loss(objective, out, y) / known_nodes(y).sum())
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_metrics_of_what_is_kept_batch_by_batch_are_the_same(kind, num_outputs):
    objective, out, y = drawn(kind, num_outputs, 60)
    kept = [objective.kept(*pair) for pair in zip(out.split(7), y.split(7), strict=True)]
    assert objective.metrics(torch.cat(kept), y) == objective.evaluate(out, y)


def test_class_keeps_no_more_than_it_needs():
    _, out, y = drawn("class", 40, 60)
    assert ClassObjective(40).kept(out, y).shape == (60, 2)
    assert ClassObjective(2).kept(out[:, :2], y.clamp(max=1)).shape == (60, 3)


def target(kind: str, num_outputs: int) -> Target:
    return Target(name="label", kind=kind, num_outputs=num_outputs)


@pytest.mark.parametrize(("kind", "num_outputs"), KINDS)
def test_metrics_of_names_what_is_measured(kind, num_outputs):
    names = metrics_of(target(kind, num_outputs))
    objective, out, y = drawn(kind, num_outputs, 60)
    assert objective.evaluate(out, y).keys() == set(names)
    assert main_metric(names) == names[0]


@pytest.mark.parametrize(
    ("kind", "num_outputs", "asked", "expected"),
    [
        ("class", 7, None, "val/accuracy"),
        ("class", 7, "val/f1_macro", "val/f1_macro"),
        ("class", 2, "val/auc", "val/auc"),
        ("multilabel", 3, None, "val/auc"),
        ("regression", 1, None, "val/mae"),
        ("multilabel", 3, "val/f1", "val/f1"),
        ("regression", 1, "val/loss", "val/loss"),
    ],
)
def test_monitor_for(kind, num_outputs, asked, expected):
    assert monitor_for(target(kind, num_outputs), asked) == expected


@pytest.mark.parametrize(
    ("kind", "num_outputs", "asked", "allowed"),
    [
        ("regression", 2, "val/accuracy", "val/mae, val/rmse, val/r2, val/loss"),
        ("class", 3, "val/auc", "val/accuracy, val/f1_macro, val/loss"),
        ("class", 2, "train/auc", "val/accuracy, val/f1_macro, val/loss, val/auc"),
    ],
)
def test_monitor_for_another_target_is_refused(kind, num_outputs, asked, allowed):
    with pytest.raises(ConfigError, match=f"{kind} with {num_outputs} outputs; choose.*{allowed}$"):
        monitor_for(target(kind, num_outputs), asked)


@pytest.mark.parametrize(
    ("monitor", "value", "best", "expected"),
    [
        ("val/accuracy", 0.6, 0.5, True),
        ("val/accuracy", 0.5, 0.5, False),
        ("val/loss", 0.4, 0.5, True),
        ("val/mae", 0.5, 0.5, False),
        ("val/r2", -0.1, -0.2, True),
        ("val/loss", 9.0, None, True),
        ("val/loss", 9.0, math.nan, True),
        ("val/accuracy", math.nan, None, False),
        ("val/accuracy", math.nan, 0.1, False),
        ("val/loss", math.nan, 0.1, False),
        ("val/loss", -math.inf, 0.1, False),
        ("val/r2", math.inf, math.nan, False),
    ],
)
def test_better(monitor, value, best, expected):
    assert better(monitor, value, best) is expected


def test_main_metric_and_shown():
    assert main_metric({"loss": 1.0, "f1": 0.5, "auc": 0.6}) == "auc"
    assert main_metric({"loss": 1.0, "f1_macro": 0.5, "auc": 0.6, "accuracy": 0.5}) == "accuracy"
    assert main_metric(["loss", "f1"]) == "f1"
    assert shown("auc", 0.61234) == "61.23 %"
    assert shown("mae", 0.061234) == "0.06123"
    assert shown("r2", -0.061234) == "-0.06123"
