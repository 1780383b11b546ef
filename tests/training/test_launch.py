"""Whole runs in this process, and runs that are killed: what comes out, what is continued."""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from dnformer import storage
from dnformer.config import RunConfig, SplitConfig
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.raw import RawSource
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.errors import CheckpointError, ConfigError, DataError
from dnformer.parsing import parse
from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint
from dnformer.training.launch import Progress, evaluate, repeat, repeated, train
from dnformer.training.sinks import read_metrics

SHARED = Path(__file__).parents[2].parent / "shared"
STEPS = 9  # an epoch: 180 seeds in batches of 20


def last_tensors(run: str) -> dict[str, torch.Tensor]:
    found = newest_checkpoint(run)
    assert found is not None
    return read_checkpoint(*found)[0]


def assert_same_weights(one: str, other: str) -> None:
    first, second = last_tensors(one), last_tensors(other)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_train_learns_and_says_so(make_config, tmp_path):
    records = []
    config = make_config(tmp_path, train={"epochs": 12})
    result = train(config, progress=Progress(record=records.append))
    start = records.pop(0)
    assert (start["kind"], start["step"], start["attempt"], start["after"]) == ("start", 0, 1, None)
    steps = [record["step"] for record in records if record["kind"] == "step"]
    assert steps == list(range(1, 12 * STEPS + 1))
    records = [record for record in records if record["kind"] == "epoch"]
    assert [record["epoch"] for record in records] == list(range(12))
    assert result["epochs"] == 12
    assert result["run"] == str(tmp_path / "run")
    assert result["test"]["accuracy"] > 0.6
    best = max(records, key=lambda record: record["val/accuracy"])
    assert result["val"]["accuracy"] == best["val/accuracy"]
    assert result["best_epoch"] == best["epoch"]
    assert read_metrics(result["run"])[-1]["epoch"] == 11


@pytest.mark.parametrize(
    ("label", "metric", "others", "chance"),
    [
        ("tags", "auc", {"f1", "f1_macro"}, 0.5),
        ("size", "mae", {"rmse", "r2"}, 40.0),
        ("topic", "accuracy", {"f1_macro", "auc"}, 0.5),
    ],
    ids=["multilabel", "regression", "class"],
)
def test_train_on_each_kind_of_label(make_config, mixed, tmp_path, label, metric, others, chance):
    records = []
    config = make_config(
        tmp_path,
        data={"uri": mixed, "label": label},
        train={"epochs": 15},
        optim={"lr": 0.03},
    )
    result = train(config, progress=Progress(record=records.append))
    assert {"loss", metric, *others} == result["test"].keys()
    better = (lambda a, b: a < b) if metric == "mae" else (lambda a, b: a > b)
    assert better(result["test"][metric], chance)
    # the best epoch is the monitor's, which is the main metric
    monitored = [record[f"val/{metric}"] for record in records if record["kind"] == "epoch"]
    assert result["val"][metric] == (min if metric == "mae" else max)(monitored)
    assert "train/loss" in records[-1]
    assert evaluate(result["run"]) == result


@pytest.mark.parametrize("edge_bias", [True, False])
def test_train_on_edge_attributes(make_config, mixed, tmp_path, edge_bias):
    config = make_config(tmp_path, data={"uri": mixed}, model={"edge_bias": edge_bias})
    result = train(config)
    name = "model.blocks.0.attention.edge.weight"
    tensors = last_tensors(result["run"])
    assert (name in tensors) is edge_bias
    if edge_bias:
        # two attributes, and one that marks the loops that were added
        assert tensors[name].shape == (2, 3)
        assert tensors[name].abs().min() > 0
    assert evaluate(result["run"]) == result


def test_train_monitor_of_another_kind_is_refused(make_config, mixed, tmp_path):
    config = make_config(
        tmp_path, data={"uri": mixed, "label": "tags"}, train={"monitor": "val/accuracy"}
    )
    with pytest.raises(ConfigError, match=r"choose one of val/auc, val/f1, val/f1_macro, val/loss"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_train_label_that_is_not_there_is_refused(make_config, mixed, tmp_path):
    config = make_config(tmp_path, data={"uri": mixed, "label": "colour"})
    with pytest.raises(DataError, match="no label 'colour'; it has topic, tags, size"):
        train(config)


def test_train_monitor_spelt_out_is_the_same_run(make_config, mixed, tmp_path):
    found = []
    for monitor in (None, "val/mae"):
        config = make_config(
            tmp_path, data={"uri": mixed, "label": "size"}, train={"monitor": monitor}
        )
        found.append(train(config))
    assert found[0] == found[1]


def test_repeat_says_which_metric(make_config, mixed, tmp_path):
    said = []
    config = make_config(tmp_path, data={"uri": mixed, "label": "size"}, train={"epochs": 1})
    result = repeat(config, 2, progress=Progress(said.append))
    assert result["metric"] == "mae"
    assert result["mean"] == statistics.fmean(result["values"])
    assert said[-1] == f"repeat 2/2: test mae {result['values'][1]:.4g}"


@pytest.mark.parametrize("mode", ["exact", "sampled"])
def test_evaluate_gives_what_train_gave(make_config, tmp_path, mode):
    result = train(make_config(tmp_path, eval={"mode": mode}))
    assert evaluate(result["run"]) == result


def test_evaluate_refuses_a_run_without_checkpoint(make_config, tmp_path):
    result = train(make_config(tmp_path))
    storage.remove(storage.join(result["run"], "checkpoints"))
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        evaluate(result["run"])


def test_train_of_a_finished_run_gives_its_result_again(make_config, tmp_path):
    config, said = make_config(tmp_path), []
    result = train(config)
    assert train(config, progress=Progress(say=said.append)) == result
    assert "is finished" in said[0]
    assert not Path(result["run"], "metrics", "2-0.jsonl").exists()


def test_train_of_one_run_twice_gives_the_same_bits(make_config, tmp_path):
    for name in ("a", "b"):
        train(make_config(tmp_path / name))
    assert_same_weights(str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"))


def test_train_fresh_starts_over(make_config, tmp_path):
    train(make_config(tmp_path))
    result = train(make_config(tmp_path, optim={"lr": 0.02}), start="fresh")
    assert [record["step"] for record in read_metrics(result["run"])][:2] == [0, 1]


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"loader": {"kind": "full"}}, id="full"),
        pytest.param({"train": {"micro_batches": 2}}, id="micro-batches"),
        pytest.param({"train": {"precision": "float64"}}, id="float64"),
        pytest.param({"optim": {"name": "adamw", "schedule": "cosine"}}, id="adamw"),
        pytest.param({"model": {"attention": "single", "norm": "pre"}}, id="single-pre"),
        pytest.param({"model": {"lambda": "reparam"}}, id="reparam"),
    ],
)  # fmt: skip
def test_train_runs_each_setting(make_config, tmp_path, sections):
    result = train(make_config(tmp_path, **sections))
    assert 0 <= result["test"]["accuracy"] <= 1


def test_train_holds_on_to_the_split_recipe_of_its_first_start(make_config, tmp_path):
    uri = str(tmp_path / "data")
    source = SyntheticSource(nodes=60, classes=2, features=4, degree=4)
    config = make_config(tmp_path, data={"uri": uri, "split": None})
    ingest(source, uri, split=SplitConfig(random=(0.6, 0.2, 0.2)))
    result = train(config)
    ingest(source, uri, split=SplitConfig(random=(0.2, 0.2, 0.6)))
    assert evaluate(result["run"]) == result
    with pytest.raises(CheckpointError, match=r"data\.split is \{'random': \[0\.2, 0\.2, 0\.6\]\}"):
        train(config)


def test_train_into_memory_storage(make_config, tmp_path):
    uri = f"memory://{tmp_path.name}"
    result = train(make_config(uri))
    assert result["run"] == f"{uri}/run"
    assert evaluate(result["run"]) == result
    assert len(read_metrics(result["run"])) == 1 + 3 * STEPS + 3


def test_train_without_dataset_names_it(make_config, tmp_path):
    config = make_config(tmp_path, data={"uri": str(tmp_path / "nothing")})
    with pytest.raises(DataError, match="no dataset here"):
        train(config)


def test_repeat_gives_mean_and_std_over_seeds_and_splits(make_config, tmp_path):
    result = repeat(make_config(tmp_path), 2)
    values = result["values"]
    assert len(set(values)) == 2
    assert result["mean"] == statistics.fmean(values)
    assert result["std"] == statistics.stdev(values)
    assert sorted(os.listdir(tmp_path / "run")) == ["repeat-0", "repeat-1"]
    assert repeat(make_config(tmp_path), 2) == result


def test_repeated_counts_seeds_on(make_config, tmp_path):
    config = make_config(tmp_path, data={"seed": 7})
    assert (repeated(config, 2).seed, repeated(config, 2).data_seed) == (2, 9)
    assert repeated(config, 2).name == "run/repeat-2"


@pytest.fixture
def killed(values, tmp_path):
    """Starts `dnformer train`, kills it in a step after its first checkpoint; the config."""

    def run(**sections: dict) -> RunConfig:
        plain = values(tmp_path / "killed", **sections)
        config = parse(RunConfig, plain)
        file = tmp_path / "killed.yaml"
        file.write_text(yaml.safe_dump(plain))
        uri = str(tmp_path / "killed" / "run")
        command = [sys.executable, "-m", "dnformer.cli", "train", str(file)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            # it is written while training goes on
            while newest_checkpoint(uri) is None:
                assert process.poll() is None, "the run ended before it could be killed"
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
        return config

    return run


def test_train_killed_in_an_epoch_resumes_and_ends_with_the_same_bits(
    killed, make_config, tmp_path
):
    # 8 epochs of 90 steps; no multiple of 97 below 720 is the end of an epoch
    sections = {
        "loader": {"batch_size": 2},
        "train": {"epochs": 8},
        "checkpoint": {"every_steps": 97, "every_epochs": 99},
    }
    config = killed(**sections)
    run = str(tmp_path / "killed" / "run")
    found = newest_checkpoint(run)
    assert found is not None
    resumed_at = json.loads(found[1])["state"]["steps_done"]
    done = max(record["step"] for record in read_metrics(run))
    train(config)

    starts = sorted(os.listdir(Path(run) / "metrics"))
    assert starts == ["1-0.jsonl", f"2-{resumed_at}.jsonl"]
    assert 0 < resumed_at <= done < 720
    assert resumed_at % 90 != 0, "the checkpoint is in the middle of an epoch"
    assert done - resumed_at <= 97, "no more steps run twice than the interval"
    steps = [record["step"] for record in read_metrics(run) if record["kind"] == "step"]
    assert steps == list(range(1, 721))

    straight = train(make_config(tmp_path / "straight", **sections))
    assert_same_weights(run, straight["run"])
    starts = [r["step"] for r in read_metrics(run) if r["kind"] == "start"]
    assert starts == [0, resumed_at]
    losses = [
        [r["train/loss"] for r in read_metrics(uri) if r["kind"] != "start"]
        for uri in (run, straight["run"])
    ]
    assert losses[0] == losses[1]


def test_train_refuses_more_workers_than_micro_batches(make_config, tmp_path):
    train(make_config(tmp_path))
    with pytest.raises(ConfigError, match="more than the 1"):
        train(make_config(tmp_path, train={"workers": 2}))


@pytest.mark.shared
def test_train_physics_stays_below_3_gib(make_config, tmp_path):
    """Its features are 1.1 GB dense, several times that with copies; they stay sparse."""
    source = RawSource(name="Coauthor/Physics", root=str(SHARED / "data"))
    ingest(source, str(tmp_path / "physics"))
    values = {
        "name": "physics",
        "data": {"uri": str(tmp_path / "physics"), "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": 5},
        "train": {"epochs": 1},
        "cache": {"dir": str(tmp_path / "store")},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "dnformer.cli", "train", "run.yaml", "--json"]
    code = (
        "import json, resource, subprocess, sys;"
        "result = json.loads(subprocess.run(sys.argv[1:], capture_output=True, check=True).stdout);"
        "result['peak_kib'] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "print(json.dumps(result))"
    )
    measured = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=tmp_path, capture_output=True, check=True
    )
    result = json.loads(measured.stdout)
    assert result["peak_kib"] < 3 * 2**20
    assert result["test"]["accuracy"] > 0.85
