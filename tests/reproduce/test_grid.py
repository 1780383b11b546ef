"""Which runs a table consists of, and in which order."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dnformer.errors import ConfigError
from dnformer.reproduce import Asked, cells_of
from dnformer.reproduce.grid import HEADS, LAYERS


@pytest.fixture
def configs(tmp_path) -> Path:
    """Two datasets, one with a second model."""
    for dataset, model, values in (
        ("photo", "dnformer", {"loader": {"num_neighbors": [5, 3]}}),
        ("cora", "dnformer", {"loader": {"kind": "full"}, "data": {"seed": 7}}),
        ("cora", "wide", {"model": {"hidden": 128}}),
    ):  # fmt: skip
        path = tmp_path / dataset / f"{model}.yaml"
        path.parent.mkdir(exist_ok=True)
        own: dict[str, Any] = {"name": model, **values}
        own["data"] = {"uri": f"cache/{dataset}"} | own.get("data", {})
        path.write_text(yaml.safe_dump(own))
    return tmp_path


def test_table2_runs_all_models_on_a_split_before_the_next(configs):
    cells = cells_of(Asked("table2", configs, splits=2))
    assert [(cell.seed, cell.label, cell.dataset) for cell in cells] == [
        (0, "dnformer", "cora"), (0, "dnformer", "photo"), (0, "wide", "cora"),
        (1, "dnformer", "cora"), (1, "dnformer", "photo"), (1, "wide", "cora"),
    ]  # fmt: skip
    last = cells[-1]
    assert (last.config.seed, last.config.data_seed) == (1, 1)
    assert last.config.data.split is not None
    assert last.config.data.split.recipe() == {"random": (0.6, 0.2, 0.2)}
    assert last.settings == {"model.hidden": 128}


def test_table3_varies_our_own_config(configs):
    cells = cells_of(Asked("table3", configs, ["cora"], splits=1))
    assert [cell.settings for cell in cells] == [
        {"loader.kind": "full"} | more
        for more in (
            {}, {"model.attention": "single"}, {"model.attention": "single_wide"},
            {"model.lambda": "head"}, {"model.lambda": "fixed", "model.lambda_init": 0.5},
            {"model.lambda": "fixed", "model.lambda_init": 1.0},
        )
    ]  # fmt: skip


def test_figure2_begins_with_both_sweeps_and_shortens_the_fan_out(configs):
    cells = cells_of(Asked("figure2", configs, ["photo"], splits=1))
    shapes = [(cell.config.model.layers, cell.config.model.heads) for cell in cells]
    assert shapes[:10] == [
        (2, 1), (2, 2), (2, 4), (2, 8), (2, 16), (1, 2), (3, 2), (4, 2), (5, 2), (6, 2),
    ]  # fmt: skip
    assert sorted(shapes) == sorted((layers, heads) for layers in LAYERS for heads in HEADS)
    hops = {cell.config.model.layers: cell.config.loader.num_neighbors for cell in cells}
    assert (hops[1], hops[2], hops[6]) == ([5], [5, 3], [5, 3])


def test_other_protocols_split_otherwise(configs):
    (cell,) = cells_of(Asked("table2", configs, ["photo"], splits=1, protocol="column"))
    assert cell.config.data.split is not None
    assert cell.config.data.split.recipe() == {"column": True}


def write_candidates(folder: Path, **values: Any) -> None:
    text = {
        "seeds": [100, 101],
        "every_run": {"train.epochs": 30},
        "datasets": {"cora": {"loader.kind": "full"}, "photo": {}},
        "models": {
            "dnformer": {"cora": [{}, {"optim.lr": 0.01}], "photo": [{}, {"optim.lr": 0.02}]},
            "wide": {"cora": [{"model.hidden": 128}, {"model.hidden": 256}]},
        },
    }
    (folder / "candidates.yaml").write_text(yaml.safe_dump(text | values))


def test_candidates_are_run_on_their_own_seeds(configs):
    write_candidates(configs)
    cells = cells_of(Asked("tune", configs, splits=1))
    assert {cell.seed for cell in cells} == {100, 101}
    assert [(cell.dataset, cell.label) for cell in cells[:6]] == [
        ("cora", "dnformer 1"), ("photo", "dnformer 1"), ("cora", "dnformer 2"),
        ("photo", "dnformer 2"), ("cora", "wide 1"), ("cora", "wide 2"),
    ]  # fmt: skip
    assert cells[3].settings == {"train.epochs": 30, "optim.lr": 0.02}
    (only, *_) = cells_of(Asked("tune", configs, ["cora"], ["wide"]))
    assert only.settings == {"loader.kind": "full", "train.epochs": 30, "model.hidden": 128}


def test_candidates_have_one_budget(configs):
    write_candidates(configs, models={"a": {"cora": [{}]}, "b": {"cora": [{}, {}]}})
    with pytest.raises(ConfigError, match="a on cora has 1 candidates, b on cora has 2"):
        cells_of(Asked("tune", configs))


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"table": "table3", "models": ["wide"]}, "table3 is of dnformer alone"),
        ({"table": "table2", "models": ["none"]}, "none.yaml: cannot be read"),
        ({"table": "table2", "models": ["wode"]}, "wode.yaml: .* did you mean 'wide'?"),
        ({"table": "table2", "datasets": ["citeseer"]}, "citeseer: has no dnformer.yaml"),
        ({"table": "table2", "datasets": ["pubmed"]}, "cora.*; .* tune --datasets pubmed"),
        ({"table": "table3", "datasets": ["pubmed"]}, "pubmed: has no dnformer.yaml"),
        ({"table": "tune"}, "candidates.yaml: cannot be read"),
        ({"table": "table2", "configs": "nothing"}, "no folder DATASET with configs"),
    ],
    ids=["models", "model", "near", "dataset", "mend", "ablation", "candidates", "folder"],
)
def test_what_is_not_there_is_named(configs, asked, text):
    folder = configs / asked.pop("configs", ".")
    with pytest.raises(ConfigError, match=text):
        cells_of(Asked(configs=folder, **asked))


def test_candidates_of_an_unknown_name_are_refused(configs):
    write_candidates(configs)
    with pytest.raises(ConfigError, match="no candidates for model gnc; for dnformer, wide"):
        cells_of(Asked("tune", configs, models=["gnc"]))
