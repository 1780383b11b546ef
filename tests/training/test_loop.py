"""The loop against a literal loader: what it calls when, and what a step adds up to."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from dnformer.config import CheckpointConfig, EvalConfig, OptimConfig, TrainConfig
from dnformer.driver import Driver
from dnformer.errors import Stopped, TrainError
from dnformer.group import Group
from dnformer.nn.node_model import NodeModel
from dnformer.training.guards import Trouble
from dnformer.training.loop import Hooks, Loop, Settings, seeded
from dnformer.training.objectives import ClassObjective
from dnformer.training.optim import Optim
from dnformer.training.stages import Stages
from dnformer.training.state import TrainState


class Rows:
    """A loader over the rows of `x`, `batch_size` at a time, in the same order each epoch."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int) -> None:
        self._x, self._y, self._batch_size = x, y, batch_size
        self.seconds = {"sample": 0.0, "gather": 0.0}
        self.counts = {"rows": 0, "hits": 0, "bytes_read": 0}
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return -(-len(self._x) // self._batch_size)

    def num_seeds(self, index: int) -> int:
        return len(self._x[index * self._batch_size : (index + 1) * self._batch_size])

    def positions(self, index: int) -> np.ndarray:
        first = index * self._batch_size
        return np.arange(first, first + self.num_seeds(index))

    def key(self, index: int) -> int:
        return 1000 * self.epochs[-1] + index

    def draws(self, indices: Iterable[int]) -> Iterator[Data]:
        for index in indices:
            rows = slice(index * self._batch_size, (index + 1) * self._batch_size)
            yield Data(
                x=self._x[rows],
                y=self._y[rows],
                edge_index=torch.zeros(2, 0, dtype=torch.long),
                seed_rows=torch.arange(len(self._x[rows])),
                input_id=torch.from_numpy(self.positions(index)),
            )


class Net(NodeModel):
    """A linear model in the shape of a graph model; `middle` may be any module."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), middle, nn.Linear(4, 2)

    def forward(
        self, x: Tensor, edge_index: Tensor, nodes: object, edges: object, edge_attr: None
    ) -> Tensor:
        return self.last(self.middle(self.first(x)))


class Recorder:
    """Hooks that write down what the loop calls; validation gives the accuracies in turn."""

    def __init__(self, accuracies: Iterable[float] = ()) -> None:
        self.calls: list[tuple] = []
        self.records: list[dict] = []
        self._accuracies = iter(accuracies)
        self.state: TrainState | None = None
        self.trouble: Trouble | None = None
        self.notices: list[str] = []
        self.ends: set[int] = set()  # epochs done after which it is enough

    def hooks(self) -> Hooks:
        def evaluate() -> dict[str, float]:
            value = next(self._accuracies, 0.0)
            return {"val/accuracy": value, "val/loss": 1 - value}

        def save() -> None:
            assert self.state is not None
            self.calls.append(("save", self.state.epoch, self.state.step, self.state.steps_done))

        def record(values: dict) -> None:
            self.records.append(values)
            self.calls.append(("record", values["kind"], values["step"]))

        def not_finite(found: Trouble) -> TrainError:
            self.trouble = found
            return TrainError("not finite")

        driver = Driver(
            report=lambda values: self.calls.append(("report",)),
            pending=lambda: bool(self.notices),
            attend=lambda: self.notices.pop(0),
        )
        return Hooks(
            evaluate, record, save, self.ends.__contains__, lambda step: None, not_finite, driver
        )


def make_loop(
    recorder: Recorder,
    *,
    batch_size: int = 2,
    num_rows: int = 7,
    middle: nn.Module | None = None,
    dtype: torch.dtype = torch.float64,
    optim: OptimConfig | None = None,
    checkpoint: CheckpointConfig | None = None,
    evaluation: EvalConfig | None = None,
    weights: Tensor | None = None,
    **train: object,
) -> Loop:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 3, generator=generator, dtype=dtype)
    y = torch.arange(num_rows) % 2
    torch.manual_seed(0)
    model = Net(middle or nn.Identity()).to(dtype)
    found = TrainConfig.model_validate(
        {"epochs": 2, "micro_batches": 1, "monitor": "val/accuracy"} | train
    )
    used = Optim(
        model, optim or OptimConfig(lr=0.1), precision=found.precision, device=torch.device("cpu")
    )
    recorder.state = TrainState(model, used)
    settings = Settings(
        found,
        evaluation or EvalConfig(),
        checkpoint or CheckpointConfig(),
    )
    loader = Rows(x, y, batch_size)
    return Loop(
        recorder.state,
        loader,
        Group(),
        settings=settings,
        hooks=recorder.hooks(),
        objective=ClassObjective(num_classes=2),
        weights=torch.ones(num_rows, dtype=torch.float64) if weights is None else weights,
        stages=Stages(),
    )


def test_loop_calls_record_save_and_report_at_each_epoch_end():
    recorder = Recorder()
    loop = make_loop(recorder)
    loop.run()
    assert loop.done
    assert recorder.calls == [
        ("record", "epoch", 4), ("save", 1, 0, 4), ("report",),
        ("record", "epoch", 8), ("save", 2, 0, 8), ("report",),
    ]  # fmt: skip


def test_loop_saves_within_an_epoch_and_once_at_its_end():
    recorder = Recorder()
    make_loop(recorder, checkpoint=CheckpointConfig(every_steps=2, every_epochs=5)).run()
    saves = [call[1:] for call in recorder.calls if call[0] == "save"]
    # step 4 ends epoch 0 and is due by steps; step 8 ends the run
    assert saves == [(0, 2, 2), (1, 0, 4), (1, 2, 6), (2, 0, 8)]


def test_loop_saves_every_second_epoch_and_the_last():
    recorder = Recorder()
    make_loop(recorder, epochs=3, checkpoint=CheckpointConfig(every_epochs=2)).run()
    assert [call[1] for call in recorder.calls if call[0] == "save"] == [2, 3]


def test_loop_goes_on_within_an_epoch_from_what_was_saved():
    straight, halted, again = Recorder(), Recorder(), Recorder()
    make_loop(straight).run()
    saved = {}

    def save_and_die() -> None:
        saved["all"] = halted.state.snapshot()
        raise KeyboardInterrupt

    loop = make_loop(halted, checkpoint=CheckpointConfig(every_steps=2))
    loop._hooks = loop._hooks._replace(save=save_and_die)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop = make_loop(again)
    again.state.restore(saved["all"].tensors, saved["all"].values)
    assert (again.state.epoch, again.state.step) == (0, 2)
    loop.run()
    for one, other in zip(
        straight.state.model.parameters(), again.state.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)
    assert again.records[0]["train/loss"] == straight.records[0]["train/loss"]
    assert again.records[0]["step"] == 4


@pytest.mark.parametrize(("size", "count"), [(1, 6), (2, 3), (3, 2), (4, 2)], ids=str)
def test_step_is_the_same_however_it_is_cut_in_micro_batches(size, count):
    whole, cut = Recorder(), Recorder()
    make_loop(whole, batch_size=6, num_rows=6, epochs=1).run()
    make_loop(cut, batch_size=size, num_rows=6, epochs=1, micro_batches=count).run()
    for one, other in zip(
        whole.state.model.parameters(), cut.state.model.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-14)
    assert cut.state.steps_done == 1
    assert cut.records[0]["train/loss"] == pytest.approx(whole.records[0]["train/loss"], abs=1e-14)


def test_last_step_with_missing_micro_batches_weighs_its_seeds_alone():
    recorder = Recorder()
    # 4 micro-batches of 2, 2, 2 and 1 rows in steps of 3: the second step has one row
    loop = make_loop(recorder, micro_batches=3, epochs=1, log_every=1)
    loop.run()
    steps = [record for record in recorder.records if record["kind"] == "step"]
    assert [record["step"] for record in steps] == [1, 2]
    mean = (6 * steps[0]["train/loss"] + steps[1]["train/loss"]) / 7
    assert recorder.records[-1]["train/loss"] == pytest.approx(mean, abs=1e-14)


def test_batch_norm_averages_end_as_the_weighted_mean_of_the_micro_batches():
    recorder = Recorder()
    loop = make_loop(
        recorder, middle=nn.BatchNorm1d(4), num_rows=5, batch_size=3, micro_batches=2, epochs=1
    )
    x = loop._loader._x
    hidden = loop.state.model.first(x).detach()
    expected = 0.1 * (hidden[:3].mean(0) * 3 / 5 + hidden[3:].mean(0) * 2 / 5)
    loop.run()
    torch.testing.assert_close(loop.state.model.middle.running_mean, expected)


def test_loop_stops_when_patience_is_out_and_keeps_the_best():
    recorder = Recorder([0.5, 0.7, 0.6, 0.7, 0.9])
    loop = make_loop(recorder, epochs=9, patience=2)
    loop.run()
    assert loop.state.epoch == 4
    assert (loop.state.best_epoch, loop.state.best_value, loop.state.best_step) == (1, 0.7, 8)


def test_loop_ends_where_it_is_enough_and_saves_what_is_not_saved():
    recorder = Recorder()
    recorder.ends = {2}
    loop = make_loop(recorder, epochs=5, checkpoint=CheckpointConfig(every_epochs=4))
    loop.run()
    assert loop.state.epoch == 2
    assert [call[0] for call in recorder.calls].count("save") == 1
    assert recorder.calls[-1] == ("save", 2, 0, 8)
    # going on from there it is still enough, and nothing is to be saved
    recorder.calls.clear()
    loop.run()
    assert recorder.calls == []


def test_loop_that_stops_after_an_epoch_keeps_to_the_longer_schedule():
    rates = []
    for train in ({"epochs": 4}, {"epochs": 4, "stop_after": 2}, {"epochs": 2}):
        recorder = Recorder()
        loop = make_loop(recorder, optim=OptimConfig(schedule="cosine"), **train)
        loop.run()
        rates.append([record["lr"] for record in recorder.records])
    assert rates[1] == rates[0][:2]
    assert rates[1] != rates[2]
    assert recorder.calls[-2][0] == "save"


def test_loop_monitors_the_lowest_loss():
    recorder = Recorder([0.5, 0.7, 0.6])
    loop = make_loop(recorder, epochs=3, monitor="val/loss")
    loop.run()
    assert (loop.state.best_epoch, loop.state.best_value) == (1, pytest.approx(0.3))


def test_loop_validates_every_second_epoch_and_the_last():
    recorder = Recorder([0.5, 0.6, 0.7])
    make_loop(recorder, epochs=5, evaluation=EvalConfig(every_epochs=2)).run()
    epochs = [r["epoch"] for r in recorder.records if "val/accuracy" in r]
    assert epochs == [1, 3, 4]


def test_loop_that_is_done_trains_nothing():
    recorder = Recorder()
    loop = make_loop(recorder)
    loop.state.epoch = 2
    loop.run()
    assert recorder.calls == []


def test_loop_stops_at_a_loss_that_is_not_finite():
    recorder = Recorder()
    loop = make_loop(recorder)
    with torch.no_grad():
        loop.state.model.last.bias[0] = math.nan
    with pytest.raises(TrainError, match="not finite"):
        loop.run()
    assert recorder.calls == []
    assert recorder.trouble is not None
    assert (recorder.trouble.step, recorder.trouble.what) == (0, "loss")
    (suspect,) = recorder.trouble.suspects
    assert (suspect.micro_batch, suspect.nodes.tolist()) == (0, [0, 1])
    assert math.isnan(suspect.loss)


def test_loop_stops_at_a_gradient_that_is_not_finite():
    recorder = Recorder()
    # the loss is finite, its gradient is not
    loop = make_loop(recorder, middle=Sqrt(), num_rows=2)
    before = [p.clone() for p in loop.state.model.parameters()]
    with pytest.raises(TrainError, match="not finite"):
        loop.run()
    assert recorder.trouble is not None
    assert recorder.trouble.what == "gradient"
    assert [found.micro_batch for found in recorder.trouble.suspects] == [0]
    for one, other in zip(before, loop.state.model.parameters(), strict=True):
        assert torch.equal(one, other)


class Sqrt(nn.Module):
    """The root of zero, whose slope is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 0).sqrt()


@pytest.mark.parametrize(("notice", "steps"), [("save", 8), ("stop", 2)])
def test_loop_saves_when_it_is_told_and_stops_when_it_is_told(notice, steps):
    recorder = Recorder()
    loop = make_loop(recorder, checkpoint=CheckpointConfig(every_epochs=9))
    loop._hooks = loop._hooks._replace(
        begin=lambda step: recorder.notices.append(notice) if step == 1 else None
    )
    if notice == "stop":
        with pytest.raises(Stopped, match="stopped at step 2, in epoch 1"):
            loop.run()
    else:
        loop.run()
    assert recorder.calls[0] == ("save", 0, 2, 2)
    assert loop.state.steps_done == steps


def test_loop_stopped_at_the_last_step_of_an_epoch_ends_it_when_it_goes_on():
    straight, halted, again = Recorder(), Recorder(), Recorder()
    make_loop(straight).run()
    loop = make_loop(halted)
    loop._hooks = loop._hooks._replace(
        begin=lambda step: halted.notices.append("stop") if step == 3 else None
    )
    with pytest.raises(Stopped):
        loop.run()
    saved = halted.state.snapshot()
    loop = make_loop(again)
    again.state.restore(saved.tensors, saved.values)
    loop.run()
    assert again.records[0]["train/loss"] == straight.records[0]["train/loss"]
    assert [r["step"] for r in again.records] == [4, 8]


def test_loop_saves_after_seconds():
    recorder = Recorder()
    make_loop(recorder, checkpoint=CheckpointConfig(every_s=1e-9, every_epochs=9)).run()
    assert [call[3] for call in recorder.calls if call[0] == "save"] == list(range(1, 9))


def test_loop_weighs_the_nodes_in_the_loss():
    recorder, masked = Recorder(), Recorder()
    weights = torch.tensor([1.0, 0.5, 2, 0.1, 3, 1, 1], dtype=torch.float64)
    loop = make_loop(masked, weights=weights, epochs=1, batch_size=7)
    loop.run()
    plain = make_loop(recorder, epochs=1)
    x, y = plain._loader._x, plain._loader._y
    loss = nn.functional.cross_entropy(plain.state.model(x, None, None, None, None), y,
                                       reduction="none")  # fmt: skip
    expected = float((loss.detach().double() * weights).sum() / weights.sum())
    assert masked.records[0]["train/loss"] == pytest.approx(expected, abs=1e-12)


def test_loop_never_keeps_a_value_that_is_no_number_as_the_best():
    recorder = Recorder([math.nan, 0.5, math.nan])
    loop = make_loop(recorder, epochs=3)
    loop.run()
    assert (loop.state.best_value, loop.state.best_epoch) == (0.5, 1)


def test_loop_clips_the_gradient_and_records_its_norm_before():
    free, clipped = Recorder(), Recorder()
    make_loop(free, epochs=1, num_rows=2).run()
    make_loop(clipped, epochs=1, num_rows=2, optim=OptimConfig(lr=0.1, clip_norm=1e-3)).run()

    def norm(recorder: Recorder) -> float:
        squares = [p.grad.square().sum() for p in recorder.state.model.parameters()]
        return math.sqrt(float(sum(squares)))

    assert norm(free) == pytest.approx(free.records[0]["grad_norm"], rel=1e-9)
    assert norm(free) > 1e-3
    assert norm(clipped) == pytest.approx(1e-3, rel=1e-3)
    assert clipped.records[0]["grad_norm"] == free.records[0]["grad_norm"]


def test_loop_sets_the_learning_rate_of_each_step():
    recorder = Recorder()
    loop = make_loop(recorder, optim=OptimConfig(lr=0.1, schedule="cosine"))
    loop.run()
    rate = loop.state.optim.optimizer.param_groups[0]["lr"]
    assert rate == pytest.approx(0.1 * 0.5 * (1 + math.cos(math.pi * 7 / 8)))


def test_dropout_follows_the_keys_and_not_the_caller():
    results = []
    for seed in (1, 2):
        recorder = Recorder()
        loop = make_loop(recorder, middle=nn.Dropout(0.5))
        torch.manual_seed(seed)
        loop.run()
        results.append(recorder.records[-1]["train/loss"])
    assert results[0] == results[1]


def test_seeded_puts_the_callers_generator_back():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first = torch.rand(1)
    with seeded((1 << 64) - 1, torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


def test_epoch_record_says_where_the_time_went():
    recorder = Recorder()
    make_loop(recorder).run()
    record = recorder.records[0]
    assert {
        "sample", "gather", "copy", "forward", "backward", "reduce", "optimizer", "wait",
        "evaluate", "checkpoint",
    } == set(record["stage_seconds"])  # fmt: skip
    assert record["stage_seconds"]["forward"]["mean"] > 0
    assert record["peak_rss_bytes"]["max"] > 1 << 20
    assert record["world_size"] == 1
    assert record["grad_norm"] > 0
    assert record["seeds_per_s"] == pytest.approx(7 / record["seconds"])


def test_step_records_are_of_the_steps_since_the_last():
    every, each = Recorder(), Recorder()
    make_loop(every, log_every=3, epochs=3).run()
    make_loop(each, log_every=1, epochs=3).run()
    steps = [record["train/loss"] for record in each.records if record["kind"] == "step"]
    third = [record for record in every.records if record["kind"] == "step"]
    assert [record["step"] for record in third] == [3, 6, 9, 12]
    # rows of the steps: 2, 2, 2, 1
    assert third[0]["train/loss"] == pytest.approx(sum(steps[:3]) / 3, abs=1e-12)
    mixed = (steps[3] + 2 * steps[4] + 2 * steps[5]) / 5
    assert third[1]["train/loss"] == pytest.approx(mixed, abs=1e-12)
