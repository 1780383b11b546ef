"""Ingest: each kind of source end to end into a dataset, and the config that names one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from dnformer.config import SplitConfig
from dnformer.data.graph import open_graph
from dnformer.data.ingest.run import IngestConfig, ingest
from dnformer.data.ingest.tables import TableSource
from dnformer.data.sources.raw import RawSource
from dnformer.data.sources.synthetic import SyntheticSource
from dnformer.errors import ConfigError, DataError
from dnformer.parsing import parse

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


def write_tables(folder: Path) -> TableSource:
    (folder / "edges.csv").write_text("src,dst\nb,a\nb,a\nc,a\nc,c\n")
    (folder / "nodes.csv").write_text("id,label,f0,f1\na,x,1,0\nc,y,0,1\nb,x,1,1\n")
    return TableSource(edges=str(folder / "edges.csv"), nodes=str(folder / "nodes.csv"))


def test_ingest_tables_counts_what_the_policies_did(tmp_path):
    manifest, written = ingest(write_tables(tmp_path), str(tmp_path / "out"))
    assert written
    assert (manifest.num_nodes, manifest.num_edges) == (3, 3)
    assert manifest.targets[0].classes == ["x", "y"]
    assert manifest.policies == {
        "direction": "directed", "duplicates": "drop", "self_loops": "keep", "dangling": "error",
    }  # fmt: skip
    assert manifest.counts["duplicates_dropped"] == 1
    assert manifest.counts["self_loops"] == 1
    graph = open_graph(tmp_path / "out", cache_dir=tmp_path)
    # ids by rank: a, b, c
    assert graph.store.row.tolist() == [1, 2, 2]
    assert graph.store.colptr.tolist() == [0, 2, 2, 3]
    assert graph.store.x.tolist() == [[1, 0], [1, 1], [0, 1]]


def test_ingest_policies_override_the_sources(tmp_path):
    policies = {"direction": "undirected", "self_loops": "drop"}
    manifest, _ = ingest(write_tables(tmp_path), str(tmp_path / "out"), policies=policies)
    assert manifest.num_edges == 4
    with pytest.raises(DataError, match=r"edges\.csv row 2"):
        ingest(write_tables(tmp_path), str(tmp_path / "two"), policies={"duplicates": "error"})
    with pytest.raises(ConfigError, match="unknown key 'directions'; did you mean 'direction'"):
        ingest(write_tables(tmp_path), str(tmp_path / "two"), policies={"directions": "x"})
    assert not (tmp_path / "two").exists()


def test_ingest_again_writes_nothing(tmp_path):
    source = write_tables(tmp_path)
    first, _ = ingest(source, str(tmp_path / "out"))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    second, written = ingest(source, str(tmp_path / "out"))
    assert not written
    assert second == first
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")} == before


def test_ingest_records_the_split_recipe_outside_the_fingerprint(tmp_path):
    source = SyntheticSource(nodes=50, classes=2, features=2, degree=4)
    plain, _ = ingest(source, str(tmp_path / "plain"))
    with_split, _ = ingest(
        source, str(tmp_path / "split"), split=SplitConfig(random=(0.5, 0.25, 0.25))
    )
    assert plain.fingerprint == with_split.fingerprint
    graph = open_graph(tmp_path / "split", cache_dir=tmp_path)
    assert {name: len(nodes) for name, nodes in graph.splits.items()} == {
        "train": 25, "val": 12, "test": 13,
    }  # fmt: skip


def test_ingest_data_of_pyg(tmp_path):
    data = Data(
        x=torch.eye(3),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]),
        y=torch.tensor([0, 1, 0]),
        train_mask=torch.tensor([True, False, False]),
        val_mask=torch.tensor([False, True, False]),
        test_mask=torch.tensor([False, False, True]),
    )
    ingest(data, str(tmp_path / "out"))
    graph = open_graph(tmp_path / "out", cache_dir=tmp_path)
    assert graph.store.row.tolist() == [2, 0, 1]
    assert graph.split("val").tolist() == [1]


def test_ingest_refuses_what_it_cannot_read(tmp_path):
    with pytest.raises(DataError, match="HeteroData"):
        ingest(HeteroData(), str(tmp_path / "out"))
    with pytest.raises(DataError, match="a str is not supported"):
        ingest("pyg:Planetoid/Cora", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "out is required"),
        ({"out": "o"}, "takes one source of pyg, ogb, synthetic, table; found none"),
        ({"out": "o", "pyg": {"name": "a", "root": "b"}, "synthetic": {}}, "found pyg, synthetic"),
        ({"out": "o", "table": {"edgs": "e"}}, "'table.edgs'; did you mean 'edges'"),
    ],
    ids=["empty", "no source", "two sources", "misspelt"],
)
def test_ingest_config_refuses(values, message):
    with pytest.raises(ConfigError, match=message):
        parse(IngestConfig, values)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes"),
    [
        ("Planetoid/Cora", 2708, 10556, 1433, 7),
        ("Planetoid/CiteSeer", 3327, 9104, 3703, 6),
        ("Planetoid/PubMed", 19717, 88648, 500, 3),
        ("Amazon/Computers", 13752, 491722, 767, 10),
        ("Amazon/Photo", 7650, 238162, 745, 8),
        ("Coauthor/CS", 18333, 163788, 6805, 15),
        ("Coauthor/Physics", 34493, 495924, 8415, 5),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ingest_of_the_seven_graphs(tmp_path, name, nodes, edges, features, classes):
    source = RawSource(name=name, root=str(SHARED))
    manifest, _ = ingest(source, str(tmp_path / "out"))
    found = open_graph(tmp_path / "out", cache_dir=tmp_path)
    assert (found.num_nodes, found.num_edges) == (nodes, edges)
    assert (found.num_features, found.num_classes) == (features, classes)
    degree = np.diff(found.store.colptr)
    assert degree.sum() == edges
    assert manifest.features == ("dense" if name.startswith("Amazon") else "sparse")
