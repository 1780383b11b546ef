"""Nodes are found by their original ids, and what is not there is told with the nearest."""

import re

import numpy as np
import pytest

from dnformer.data.cache import write_cache
from dnformer.data.manifest import read_manifest
from dnformer.errors import DataError
from dnformer.explain.find import find_nodes, ids_of

NAMES = ["anna", "berta", "carla", "<script>"]


@pytest.fixture(scope="module")
def uris(make_table, tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("ids")
    kinds = {"string": sorted(NAMES), "int": np.array([-4, 10, 20, 1000]), "index": None}
    for name, ids in kinds.items():
        write_cache(make_table([(0, 1), (2, 3)], ids=ids), str(folder / name), source="test")
    return {name: str(folder / name) for name in kinds}


@pytest.mark.parametrize(
    ("kind", "given", "nodes"),
    [
        ("string", ["carla", " anna ", "carla", "<script>"], [3, 1, 0]),
        ("int", ["20", "-4", "+20"], [2, 0]),
        ("index", ["3", "0"], [3, 0]),
    ],
)
def test_nodes_are_found_in_the_order_given(uris, kind, given, nodes):
    manifest = read_manifest(uris[kind])
    assert find_nodes(uris[kind], manifest, given) == nodes
    found = ids_of(uris[kind], manifest, nodes)
    assert [str(found[node]) for node in nodes] == [
        text.strip().lstrip("+") for text in dict.fromkeys(given)
    ][: len(nodes)]


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("string", "bertha", "no node bertha; nearest to bertha: berta"),
        ("string", "xyz", "no node xyz; it has ids like <script>, anna, berta"),
        ("int", "12", "no node 12; nearest to 12: 10, 20, -4"),
        ("int", "anna", "integers as ids, and no node anna; it has ids like -4, 10, 20"),
        ("int", "9" * 40, f"nearest to {'9' * 40}: 1000, 20, 10"),
        ("index", "4", "no node 4; its nodes are 0 to 3"),
    ],
)
def test_unknown_id_is_refused_with_the_nearest(uris, kind, given, says):
    with pytest.raises(DataError, match=re.escape(says)):
        find_nodes(
            uris[kind], read_manifest(uris[kind]), ["20", given] if kind == "int" else [given]
        )
