from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from dnformer.config import SplitConfig
from dnformer.data.cache import write_cache
from dnformer.data.graph import Graph, open_graph
from dnformer.data.table import GraphTable, NodeColumns, class_target
from dnformer.errors import DataError

MakeGraph = Callable[..., Graph]

# 0 and 1 of class 0, 2 and 3 of class 1, 4 unlabelled, 5 isolated
EDGES = [(1, 0), (2, 0), (2, 2), (3, 2), (4, 3)]
COLUMNS: dict[str, Any] = {
    "num_nodes": 6,
    "x": [[1, 0]] * 6,
    "y": [0, 0, 1, 1, -1, 1],
    "num_classes": 2,
    "split": [1, 2, 3, 1, 0, 3],
}


def test_open_graph_has_the_counts(make_graph: MakeGraph) -> None:
    graph = make_graph(EDGES, **COLUMNS)
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes) == (6, 5, 2, 2)
    assert graph.fingerprint == graph.manifest.fingerprint


def test_open_graph_stored_split_is_the_default(make_graph: MakeGraph) -> None:
    graph = make_graph(EDGES, **COLUMNS)
    assert graph.split_recipe == SplitConfig(column=True)
    train = graph.split("train")
    assert train.dtype == torch.int64
    assert train.tolist() == [0, 3]
    assert graph.split("val").tolist() == [1]
    assert graph.split("test").tolist() == [2, 5]


def test_split_is_a_copy(make_graph: MakeGraph) -> None:
    graph = make_graph(EDGES, **COLUMNS)
    graph.split("train")[0] = 5
    assert graph.split("train").tolist() == [0, 3]


def test_split_of_another_name_is_an_error(make_graph: MakeGraph) -> None:
    with pytest.raises(DataError, match="no split 'valid'; there are train, val, test"):
        make_graph(EDGES, **COLUMNS).split("valid")


def test_splits_without_labels_are_an_error(make_graph: MakeGraph) -> None:
    graph = make_graph(EDGES)
    with pytest.raises(DataError, match="has no labels"):
        graph.split("train")


def test_splits_without_a_recipe_are_an_error(make_graph: MakeGraph) -> None:
    graph = make_graph(EDGES, **COLUMNS | {"split": None})
    with pytest.raises(DataError, match=r"no split came with this dataset"):
        graph.split("train")


def test_open_graph_recipes_have_an_order(
    make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    recorded = SplitConfig(random=(0.6, 0.2, 0.2))
    table = make_table(EDGES, **COLUMNS)
    write_cache(table, str(tmp_path / "data"), source="test", split=recorded)
    graph = open_graph(tmp_path / "data", cache_dir=tmp_path)
    assert graph.split_recipe == recorded
    assert [len(nodes) for nodes in graph.splits.values()] == [3, 1, 1]
    column = SplitConfig(column=True)
    graph = open_graph(tmp_path / "data", split=column, cache_dir=tmp_path)
    assert graph.split_recipe == column
    assert graph.split("train").tolist() == [0, 3]


def test_open_graph_seed_draws_the_split(
    make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    table = make_table([], num_nodes=40, y=[0] * 40, num_classes=1)
    write_cache(table, str(tmp_path / "data"), source="test")
    recipe = SplitConfig(random=(0.5, 0.25, 0.25))
    found = [
        open_graph(tmp_path / "data", split=recipe, seed=seed, cache_dir=tmp_path).split("test")
        for seed in (0, 1, 0)
    ]
    assert found[0].tolist() == found[2].tolist() != found[1].tolist()


def test_open_graph_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none: no dataset here .*; make one: dnformer ingest"):
        open_graph(tmp_path / "none", cache_dir=tmp_path)


def test_open_graph_relative_path_is_made_whole(
    make_table: Callable[..., GraphTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_cache(make_table(EDGES, **COLUMNS), "data", source="test")
    graph = open_graph("data", cache_dir="stores")
    assert graph.uri == str(tmp_path / "data")
    assert (tmp_path / "stores" / graph.fingerprint / "complete").exists()


def test_open_graph_says_when_it_builds_the_store(
    make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    write_cache(make_table(EDGES), str(tmp_path / "data"), source="test")
    said: list[str] = []
    for _ in range(2):
        open_graph(tmp_path / "data", cache_dir=tmp_path, say=said.append)
    assert len(said) == 1
    assert "building the node-local store" in said[0]


def test_describe_gives_the_facts(make_graph: MakeGraph) -> None:
    facts = make_graph(EDGES, **COLUMNS, classes=["red", "blue"]).describe()
    assert facts["source"] == "test"
    assert facts["in_degree"] == {"min": 0, "mean": 5 / 6, "max": 2}
    assert facts["out_degree"] == {"min": 0, "mean": 5 / 6, "max": 2}
    assert facts["isolated_nodes"] == 1
    # 1-0 and 2-2 and 3-2 join one class, 2-0 does not, 4 has none
    assert facts["edge_homophily"] == 0.75
    assert facts["class_counts"] == {"red": 2, "blue": 3}
    assert facts["features"] == "dense"
    assert facts["feature_density"] == 1.0
    assert facts["split_recipe"] == {"column": True}
    assert facts["splits"] == {"train": 2, "val": 1, "test": 2}
    assert facts["counts"] == {"edges_read": 5}


def test_describe_counts_edges_in_ranges(tmp_path: Path) -> None:
    # more than one range, with borders among the edges of a node
    code = np.sort(np.random.default_rng(0).integers(0, 49, 5_000_000))
    dst, src = code // 7, code % 7
    y = np.array([0, 1, 0, 1, -1, 0, 1])
    nodes = NodeColumns(num_nodes=8, targets=class_target(np.append(y, 1), 2))
    table = GraphTable(nodes=nodes, dst=dst, src=src, policies={}, counts={})
    write_cache(table, str(tmp_path / "data"), source="test")
    facts = open_graph(tmp_path / "data", cache_dir=tmp_path).describe()
    labelled = (y[src] >= 0) & (y[dst] >= 0)
    assert facts["edge_homophily"] == (y[src] == y[dst])[labelled].mean()
    assert facts["out_degree"]["max"] == np.bincount(src).max()
    assert facts["isolated_nodes"] == 1


def test_describe_sparse_features_have_a_density(make_graph: MakeGraph) -> None:
    x = sp.csr_matrix(np.array([[1, 0, 0], [0, 2, 3]], dtype=np.float32))
    assert make_graph([(0, 1)], x=x).describe()["feature_density"] == 0.5


def test_describe_bare_graph_has_no_figures_of_what_is_not_there(make_graph: MakeGraph) -> None:
    facts = make_graph([], num_nodes=2).describe()
    assert facts["isolated_nodes"] == 2
    assert facts["edge_homophily"] is None
    assert facts["feature_density"] is None
    assert facts["class_counts"] == {}
    assert facts["splits"] == {}


def test_describe_labelled_graph_without_a_split_has_no_sizes(make_graph: MakeGraph) -> None:
    facts = make_graph(EDGES, **COLUMNS | {"split": None}).describe()
    assert facts["splits"] == {}
    assert facts["class_counts"] == {"0": 2, "1": 3}
