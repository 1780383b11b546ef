"""Runs of the zoo's transformers: each trains, and phases and losses of their own are resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dnformer.config import RunConfig
from dnformer.errors import ConfigError
from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint
from dnformer.training.launch import Progress, evaluate, train

MODELS = ["nodeformer", "sgformer", "polynormer", "dualformer", "difftransformer"]
FULL = {"kind": "full"}


class Killed(Exception):
    pass


def polynormer(local_epochs: int) -> dict[str, Any]:
    return {"name": "polynormer", "options": {"local_epochs": local_epochs}}


def tensors(run: Path) -> dict[str, torch.Tensor]:
    found = newest_checkpoint(str(run))
    assert found is not None
    return read_checkpoint(*found)[0]


@pytest.mark.parametrize("name", MODELS)
def test_train_and_evaluate_agree(
    make_config: Callable[..., RunConfig], tmp_path: Path, name: str
) -> None:
    config = make_config(tmp_path, model={"name": name}, train={"epochs": 2})
    result = train(config)
    assert result["epochs"] == 2
    assert evaluate(result["run"])["test"] == result["test"]


def test_train_on_the_whole_graph_learns(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    for name in MODELS:
        options = {"local_epochs": 8} if name == "polynormer" else {}
        model = {"name": name, "options": options, "dropout": 0.0}
        config = make_config(
            tmp_path, name=name, model=model, loader=FULL, train={"epochs": 15, "log_every": None},
            optim={"lr": 0.02},
        )  # fmt: skip
        assert train(config)["test"]["accuracy"] > 0.6, name


def test_train_too_many_nodes_names_the_settings(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    model = {"name": "difftransformer", "options": {"max_nodes": 250}}
    config = make_config(tmp_path, model=model, train={"epochs": 1})
    with pytest.raises(ConfigError, match="over 300 nodes at once, of 250 allowed"):
        train(config)
    sampled = make_config(tmp_path / "sampled", model=model, train={"epochs": 1},
                          eval={"mode": "sampled"})  # fmt: skip
    assert train(sampled)["epochs"] == 1


@pytest.mark.parametrize("loader", [FULL, {"num_neighbors": 4}], ids=["full", "sampled"])
def test_polynormer_trains_one_part_at_a_time(
    make_config: Callable[..., RunConfig], tmp_path: Path, loader: dict[str, Any]
) -> None:
    def trained(epochs: int) -> dict[str, torch.Tensor]:
        config = make_config(
            tmp_path / str(epochs), model=polynormer(2), loader=loader,
            train={"epochs": epochs}, optim={"weight_decay": 0.1},
        )  # fmt: skip
        train(config)
        return tensors(tmp_path / str(epochs) / "run")

    one, two, three = (trained(epochs) for epochs in (1, 2, 3))
    of_global = [n for n in one if n.startswith("model.global_part") and "weight" in n]
    of_local = [n for n in one if n.startswith("model.local_head")]
    for name in of_global:
        assert torch.equal(one[name], two[name]), name
        assert not torch.equal(two[name], three[name]), name
    for name in of_local:
        assert not torch.equal(one[name], two[name]), name
        assert torch.equal(two[name], three[name]), name
    assert int(three["model.epoch"]) == 2


@pytest.mark.parametrize("killed_in", [1, 3], ids=["local", "global"])
def test_polynormer_killed_in_either_phase_ends_with_the_same_bits(
    make_config: Callable[..., RunConfig], tmp_path: Path, killed_in: int
) -> None:
    def config(folder: str) -> RunConfig:
        return make_config(
            tmp_path / folder, model=polynormer(2), train={"epochs": 4, "log_every": 1},
            optim={"ema_decay": 0.9},
        )  # fmt: skip

    def kill(record: dict[str, Any]) -> None:
        if record["kind"] == "step" and record["epoch"] == killed_in:
            raise Killed

    with pytest.raises(Killed):
        train(config("killed"), progress=Progress(record=kill))
    starts: list[dict[str, Any]] = []
    result = train(config("killed"), progress=Progress(record=starts.append))
    assert starts[0]["step"] == 9 * killed_in
    straight = train(config("straight"))
    assert result["test"] == straight["test"]
    one, other = tensors(tmp_path / "killed" / "run"), tensors(tmp_path / "straight" / "run")
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_nodeformer_edge_loss_counts_in_the_training_loss(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    def first_loss(edge_loss: float) -> float:
        records: list[dict[str, Any]] = []
        config = make_config(
            tmp_path / str(edge_loss), loader=FULL,
            model={"name": "nodeformer", "options": {"edge_loss": edge_loss}},
            train={"epochs": 1},
        )  # fmt: skip
        train(config, progress=Progress(record=records.append))
        return next(r["train/loss"] for r in records if r["kind"] == "epoch")

    without, half, whole = (first_loss(weight) for weight in (0.0, 0.5, 1.0))
    assert half > without
    assert whole - without == pytest.approx(2 * (half - without), rel=1e-4)
