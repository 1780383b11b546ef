"""The public names change on purpose only."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import dnformer
import dnformer.errors
import dnformer.nn
from dnformer.config import load_config
from dnformer.data.ingest.run import ingest
from dnformer.data.sources.synthetic import SyntheticSource


def test_public_names():
    assert dnformer.__all__ == [
        "DNFormer", "NeighborLoader", "NeighborSampler", "evaluate", "ingest", "load", "open_graph",
        "predict", "train", "tune",
    ]  # fmt: skip
    assert dnformer.nn.__all__ == ["Block", "DNFormer", "DiffAttention"]


@pytest.mark.parametrize("name", dnformer.__all__)
def test_public_name_can_be_imported(name):
    assert getattr(dnformer, name).__name__ == name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'DNFormers'"):
        dnformer.DNFormers  # noqa: B018


def test_every_error_has_one_base_and_an_exit_code():
    errors = [
        value
        for value in vars(dnformer.errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert {error.__name__ for error in errors} == {
        "DNFormerError", "ConfigError", "DataError", "CheckpointError", "BackendError",
        "TrainError", "Stopped", "InUseError", "LostError",
    }  # fmt: skip
    assert all(issubclass(error, dnformer.errors.DNFormerError) for error in errors)
    assert {error.exit_code for error in errors} == {1, 2, 143}


@pytest.mark.parametrize(
    "module",
    [
        "dnformer",
        "dnformer.cli",
        "dnformer.data.ingest.run",
        "dnformer.data.graph",
        "dnformer.config",
    ],
)
def test_module_does_not_wait_for_torch(module):
    code = f"import sys, {module}; print('torch' in sys.modules, 'ray' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False False\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a dataset `data`, and run.yaml for it."""
    folder = tmp_path_factory.mktemp("api")
    ingest(SyntheticSource(nodes=40, classes=2, features=4, degree=4), str(folder / "data"))
    (folder / "run.yaml").write_text(yaml.safe_dump(values(folder)))
    return folder


def values(folder: Path) -> dict[str, Any]:
    """Of a small run, as YAML has them."""
    return {
        "name": "small",
        "storage_path": str(folder / "runs"),
        "data": {"uri": str(folder / "data"), "split": {"random": [0.6, 0.2, 0.2]}},
        "loader": {"num_neighbors": 3, "batch_size": 8},
        "model": {"hidden": 4},
        "train": {"epochs": 2, "threads": 1},
        "cache": {"dir": str(folder / "stores")},
    }


def test_train_takes_a_file_a_mapping_or_a_config(folder, capsys):
    first = dnformer.train(folder / "run.yaml", start="fresh")
    assert (first.run, first.epochs) == (str(folder / "runs" / "small"), 2)
    # finished: the same run, whatever it came from
    assert dnformer.train(str(folder / "run.yaml")) == first
    assert dnformer.train(values(folder)) == first
    assert dnformer.train(load_config(folder / "run.yaml")) == first
    assert dnformer.evaluate(first.run) == first
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "epoch" not in printed.err


def test_train_with_settings_says_how_it_goes_when_asked(folder, capsys):
    settings = {"name": "longer", "train.epochs": 3}
    for config in (folder / "run.yaml", load_config(folder / "run.yaml")):
        result = dnformer.train(config, settings=settings, start="fresh", verbose=True)
        assert (result.run, result.epochs) == (str(folder / "runs" / "longer"), 3)
        assert "epoch 3/3" in capsys.readouterr().err


def test_train_refuses_a_setting_that_there_is_not(folder):
    with pytest.raises(dnformer.errors.ConfigError, match=r"unknown key 'optim\.rl'"):
        dnformer.train(folder / "run.yaml", settings={"optim.rl": 1})
    with pytest.raises(dnformer.errors.ConfigError, match=r"nowhere\.yaml: cannot be read"):
        dnformer.train("nowhere.yaml")


@pytest.mark.ray
def test_tune_finds_the_best_and_leaves_its_config(folder, capsys):
    space = {"model.layers": {"choice": [1, 2]}}
    settings = {"name": "search", "tune.space": space, "tune.search": "grid", "tune.num_trials": 2}
    found = dnformer.tune(folder / "run.yaml", settings=settings)
    assert found.search == str(folder / "runs" / "search")
    assert [trial.params for trial in found.trials] == [{"model.layers": 1}, {"model.layers": 2}]
    assert found.best is not None
    assert found.config.model.layers == found.best.params["model.layers"]
    assert load_config(folder / "runs" / "search" / "best.yaml") == found.config
    assert capsys.readouterr().out == ""
