"""200 mutated datasets: each gives a DataError, or reads as exactly the same graph."""

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pytest
import scipy.sparse as sp

from dnformer import storage
from dnformer.data.cache import write_cache
from dnformer.data.graph import Graph, open_graph
from dnformer.data.table import GraphTable, NodeColumns, class_target
from dnformer.errors import DataError

from .helpers import every_column, original_ids, same
from .mutants import MUTATIONS, Files, mutant

NUM_MUTANTS = 200


class Original(NamedTuple):
    """A sound dataset: its files and, as plain values, its graph."""

    files: Files
    graph: dict[str, Any]


def whole_graph(graph: Graph) -> dict[str, Any]:
    """Everything that must not change silently."""
    store = graph.store
    found = {field.name: getattr(store, field.name) for field in fields(store)}
    found |= {f"y_{number}": values for number, values in enumerate(found.pop("targets"))}
    found.pop("lease")
    named = {"targets": graph.manifest.targets, "attr": graph.manifest.edge_attr_names}
    return {
        **{name: None if array is None else array.copy() for name, array in found.items()},
        **named,
        "ids": original_ids(graph),
    }


def is_same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        same(found[name], value)
        if isinstance(value, np.ndarray) or value is None
        else found[name] == value
        for name, value in wanted.items()
    )


def several_parts() -> GraphTable:
    """Two blocks of nodes, thus two files of each kind; sparse features and string ids."""
    num_nodes, rng = 65_540, np.random.default_rng(1)
    dst = np.sort(np.append(rng.integers(0, num_nodes, 300), [65_536, 65_539]))
    x = sp.random(num_nodes, 9, density=1e-3, format="csr", dtype=np.float32, random_state=0)
    nodes = NodeColumns(
        num_nodes=num_nodes,
        x=sp.csr_matrix(x),
        targets=class_target(rng.integers(-1, 3, num_nodes), 3),
        ids=[f"{node:05d}" for node in range(num_nodes)],
    )
    src = np.arange(len(dst))
    return GraphTable(nodes=nodes, dst=dst, src=src, policies={}, counts={})


def original(table: GraphTable, folder: Path) -> Original:
    uri = f"memory://{uuid.uuid4().hex}"
    write_cache(table, uri, source="test", part_bytes=1)
    graph = whole_graph(open_graph(uri, cache_dir=folder))
    fs, root = fsspec.url_to_fs(uri)
    files = {name.removeprefix(f"{root}/"): fs.cat_file(name) for name in fs.find(root)}
    storage.remove(uri)
    # the same names in each run
    token = next(name for name in files if name.startswith("edges/")).split("-")[1]
    plain = {name.replace(token, "x"): data for name, data in files.items()}
    plain["manifest.json"] = files["manifest.json"].replace(token.encode(), b"x")
    return Original(plain, graph)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Original]]:
    folder = tmp_path_factory.mktemp("originals")
    return [original(table, folder) for table in (every_column(), several_parts())]


def problem(files: Files, wanted: dict[str, Any], folder: Path) -> str | None:
    """What is wrong with how a mutant is read; None where a DataError or the same graph is."""
    uri = f"memory://{uuid.uuid4().hex}"
    for name, data in files.items():
        storage.write_bytes(f"{uri}/{name}", data)
    try:
        graph = open_graph(uri, cache_dir=folder)
        found = whole_graph(graph)
    except DataError as error:
        if len(str(error)) > 2000 or "\n" in str(error).strip():
            return f"no clear line: {error!s:.300}"
        left = [path.name for path in folder.glob("*") if path.is_dir()] if folder.exists() else []
        return f"a refused dataset left {left}" if left else None
    except Exception as error:  # noqa: BLE001 - this is what must not be
        return f"{type(error).__name__}: {error!s:.300}"
    finally:
        storage.remove(uri)
    return None if is_same(found, wanted) else "another graph"


@pytest.mark.parametrize("kind", range(len(MUTATIONS)), ids=[m.__name__ for m in MUTATIONS])
def test_open_graph_of_a_mutant_is_refused_or_the_same(
    originals: list[Original], tmp_path: Path, kind: int
) -> None:
    found = {}
    for seed in range(kind, NUM_MUTANTS, len(MUTATIONS)):
        # the small one is the faster
        base = originals[seed % 5 == 0]
        found[seed] = problem(mutant(seed, base.files), base.graph, tmp_path / "stores")
        shutil.rmtree(tmp_path / "stores", ignore_errors=True)
    assert {seed: text for seed, text in found.items() if text} == {}
