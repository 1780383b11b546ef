"""best.yaml trains to its trial's value; what mattered; the best against the baseline."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dnformer import storage
from dnformer.config import RunConfig, load_config
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.parsing import parse, read_yaml
from dnformer.training import launch
from dnformer.training.run import read_run
from dnformer.tuning.results import (
    Paired,
    best_config,
    changed,
    importance,
    paired,
    repeat_configs,
    repeat_top,
    write_best,
)
from dnformer.tuning.space import Space
from dnformer.tuning.trials import Trial


def config(**values: Any) -> RunConfig:
    return parse(RunConfig, {"name": "search", "data": {"uri": "/data"}} | values)


def trial(number: int = 3, *, state: Any = "finished", value: float = 0.75, **params: Any) -> Trial:
    named = {path.replace("_", ".", 1): setting for path, setting in params.items()}
    return Trial(number, named, state, values=(value,), facts={"epochs": 5})


def test_best_config_is_the_trials_under_another_name():
    ran = config(
        name="a/search/trials/0003", model={"heads": 4}, train={"epochs": 9, "stop_after": 8},
        tune={"space": {"model.heads": {"choice": [1, 4]}}},
    )  # fmt: skip
    best = best_config(ran, trial())
    assert best == config(
        name="a/search-best", model={"heads": 4}, train={"epochs": 9, "stop_after": 8}
    )


def test_best_config_of_a_stopped_trial_stops_there():
    ran = config(name="search/trials/0003/leg-1", train={"epochs": 9})
    best = best_config(ran, trial(state="stopped"))
    assert best == config(name="search-best", train={"epochs": 9, "stop_after": 5})


def test_changed_has_what_differs_and_what_decides_bits():
    assert changed(config(model={"lambda": "head", "heads": 2}, loader={"num_neighbors": 5})) == {
        "name": "search",
        "seed": 0,
        "data": {"uri": "/data", "seed": None},
        "loader": {"num_neighbors": [5]},
        "model": {"lambda": "head"},
        "train": {"micro_batches": None, "threads": None},
    }


@given(
    lr=st.floats(1e-8, 1e3), decay=st.floats(0, 1e3), seed=st.integers(0, 2**63), log=st.booleans(),
    split=st.sampled_from([None, {"random": [0.6, 0.2, 0.2]}, {"column": True}, {"planetoid": 20}]),
)  # fmt: skip
def test_changed_as_yaml_is_the_same_config(lr, decay, seed, log, split):
    one = config(
        seed=seed, data={"uri": "s3://b/data", "split": split, "seed": seed + 1},
        optim={"lr": lr, "weight_decay": decay}, storage={"options": {"s3": {"anon": log}}},
        train={"workers": [1, 2], "epochs": 7}, checkpoint={"every_steps": 3 if log else None},
    )  # fmt: skip
    assert parse(RunConfig, read_yaml(yaml.safe_dump(changed(one)), name="best")) == one


def test_write_best_says_whose_it_is():
    uri = write_best("memory://runs/search", config(), trial(), monitor="val/accuracy")
    assert uri == "memory://runs/search/best.yaml"
    lines = storage.read_bytes(uri).decode().splitlines()
    assert lines[:2] == [
        "# The best of the search memory://runs/search: trial 3, val/accuracy 0.75 in 5 epochs.",
        "# It trains to the same value: dnformer train best.yaml",
    ]
    assert lines[2] == "name: search"
    assert "data: {uri: /data, seed: null}" in lines
    goes_on = config(train={"continue_from": "/runs/search/trials/0001/leg-0"})
    write_best("memory://runs/search", goes_on, trial(), monitor="val/accuracy")
    lines = storage.read_bytes(uri).decode().splitlines()
    assert lines[2] == "# It goes on from train.continue_from, whose folder it needs."


def test_best_yaml_trains_to_the_trials_value_from_any_folder(tmp_path, monkeypatch):
    ingest(SyntheticSource(nodes=60, classes=3, features=4, degree=4), str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    ran = config(
        name="search/trials/0003", data={"uri": "data", "split": {"random": [0.6, 0.2, 0.2]}},
        loader={"num_neighbors": 3, "batch_size": 8}, model={"hidden": 4},
        optim={"schedule": "cosine"}, train={"epochs": 6, "stop_after": 2},
        cache={"dir": str(tmp_path / "stores")},
    )  # fmt: skip
    value = launch.train(ran)["val"]["accuracy"]
    stored, _ = read_run("runs/search/trials/0003")
    # as if a scheduler had stopped it there
    stored = stored.model_copy(update={"train": stored.train.model_copy(update={"stop_after": 9})})
    stopped = Trial(3, {}, "stopped", values=(value,), facts={"epochs": 2})
    best = best_config(stored, stopped)
    assert (best.data.seed, best.train.micro_batches) == (0, 1)
    assert best.train.threads is not None
    uri = write_best(str(tmp_path / "runs" / "search"), best, stopped, monitor="val/accuracy")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = launch.train(load_config(uri))
    assert Path(result["run"]) == tmp_path / "runs" / "search-best"
    assert (result["epochs"], result["val"]["accuracy"]) == (2, value)


def trials(count: int, *, higher: bool = True) -> list[Trial]:
    """Of which the learning rate decides the value, and nothing else does."""
    random, made = np.random.default_rng(0), []
    for number in range(count):
        lr = float(np.exp(random.uniform(np.log(1e-4), np.log(1e-2))))
        params = {
            "optim.lr": lr,
            "loader.num_neighbors": [[5], [10, 5]][random.integers(2)],
            "model.layers": int(random.integers(1, 5)),
            "model.heads": 2,
        }
        if number % 2:
            params["model.dropout"] = float(random.uniform(0, 0.9))
        made.append(Trial(number, params, values=(lr if higher else -lr,), state="stopped"))
    return made


SPACE = {
    "optim.lr": {"loguniform": [1e-4, 1e-2]},
    "loader.num_neighbors": {"choice": [[5], [10, 5]]},
    "model.layers": {"int": [1, 4]},
    "model.heads": {"choice": [1, 2]},
    "model.dropout": {"uniform": [0, 0.9]},
}
WHOLE = Space(config(tune={"space": SPACE})).dimensions


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("count", [8, 30])
def test_importance_finds_what_decides(count, higher):
    shares = importance(WHOLE, trials(count, higher=higher), higher=higher)
    # heads have one value, and dropout is not in all
    assert set(shares) == {"optim.lr", "loader.num_neighbors", "model.layers"}
    assert shares["optim.lr"] > 0.6
    assert sum(shares.values()) == pytest.approx(1)


def test_importance_of_too_few_or_equal_trials_is_empty():
    few = [
        *trials(3),
        Trial(3, {"optim.lr": 1e-3}, "running"),
        Trial(4, {"optim.lr": 1e-3}, "failed"),
        Trial(5, {"optim.lr": 1e-3}, values=(math.nan,), state="finished"),
    ]
    assert importance(WHOLE, few, higher=True) == {}
    equal = [Trial(n, {"optim.lr": 1e-3 + n / 1e3}, "finished", values=(0.5,)) for n in range(6)]
    assert importance(WHOLE, equal, higher=True) == {}
    one_value = [Trial(n, {"model.heads": 2}, "finished", values=(n / 9,)) for n in range(6)]
    assert importance(WHOLE, one_value, higher=True) == {}


def test_paired_of_a_clear_difference():
    baseline = [0.5, 0.25, 0.75, 0.5, 0.25, 0.75]
    found = paired(baseline, [value + 0.125 * (1 + i % 2) for i, value in enumerate(baseline)])
    assert found.mean_difference == 0.1875
    # of six values of which half are 0.125, half 0.25
    assert (found.low, found.high) == (
        pytest.approx(0.1458, abs=1e-4),
        pytest.approx(0.2292, abs=1e-4),
    )
    assert found.p == pytest.approx(2 / 2**6)
    assert found.note == ""
    assert paired(baseline, [0.5] * 6) == paired(baseline, [0.5] * 6)


def test_paired_of_no_difference():
    assert paired([0.5, 0.25], [0.5, 0.25]) == Paired(0.0, 0.0, 0.0, 1.0, 2)


def test_paired_of_few_says_that_p_cannot_be_small():
    found = paired([0.5] * 5, [0.625, 0.75, 0.875, 1.0, 0.5625])
    assert found.p == 2 / 2**5
    assert found.note.startswith("p of 5 pairs is never below 0.05, ")
    assert found.note.endswith("give --repeat 6 or more")
    assert paired([0.5], [0.75]) == Paired(0.25, None, None, 1.0, 1)


def test_repeat_configs_have_one_seed_and_full_length():
    base = config(seed=1, train={"epochs": 9}, tune={"space": {"model.heads": {"choice": [1, 4]}}})
    ran = config(
        name="search/trials/0003/leg-1", seed=1, data={"uri": "/data", "seed": 1},
        model={"heads": 4}, train={"epochs": 9, "stop_after": 5, "threads": 1, "micro_batches": 1,
                                   "continue_from": "/runs/search/trials/0001/leg-0"},
    )  # fmt: skip
    configs = repeat_configs(base, [(trial(), ran)])
    assert configs == {
        "baseline": config(name="search/repeats/baseline", seed=1, train={"epochs": 9}),
        "trial-3": config(
            name="search/repeats/trial-3", seed=1, model={"heads": 4},
            train={"epochs": 9, "micro_batches": 1},
        ),
    }  # fmt: skip
    assert launch.repeated(configs["trial-3"], 2).name == "search/repeats/trial-3/repeat-2"


def test_repeat_top_compares_with_the_baseline():
    def repeat(config: RunConfig) -> dict[str, Any]:
        values = [0.5 + config.model.heads / 8, 0.25 + config.model.heads / 8]
        return {"metric": "accuracy", "values": values}

    configs = {"baseline": config(model={"heads": 1}), "trial-3": config(model={"heads": 2})}
    baseline, best = repeat_top(configs, repeat)
    std = pytest.approx(2**0.5 / 8)
    assert baseline == ("baseline", "accuracy", 0.5, std, [0.625, 0.375], None)
    assert best[:5] == ("trial-3", "accuracy", 0.625, std, [0.75, 0.5])
    assert best.against == Paired(0.125, 0.125, 0.125, 0.5, 2)
