"""The source `pyg`: the raw files of PyG's citation, Amazon and co-author graphs, read by us.

Nodes, edges, features, labels and Planetoid's public split are those that torch_geometric's
own dataset classes give. The folder may be read-only; `processed/` is neither read nor written.
"""

import difflib
import re
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from pydantic import BaseModel, ConfigDict, Field

from dnformer import storage
from dnformer.data.clean import Policies
from dnformer.data.features import Where, count_classes, csr_from_parts, finite_csr, lay_out
from dnformer.data.sources.npz import load_npz
from dnformer.data.sources.unpickle import unpickle
from dnformer.data.table import SPLITS, Int64Array, NodeColumns, RawGraph, class_target
from dnformer.errors import ConfigError, DataError

# as PyG's classes do: both directions of each edge once, without self-loops
RAW_POLICIES = Policies(direction="undirected", duplicates="drop", self_loops="drop")

_NUM_VAL = 500  # the public split's validation nodes follow its training nodes
_PLANETOID = ("Cora", "CiteSeer", "PubMed")
_NPZ = {
    "Amazon/Computers": "amazon_electronics_computers.npz",
    "Amazon/Photo": "amazon_electronics_photo.npz",
    "Coauthor/CS": "ms_academic_cs.npz",
    "Coauthor/Physics": "ms_academic_phy.npz",
}
RAW_NAMES = (*(f"Planetoid/{name}" for name in _PLANETOID), *_NPZ)


class RawSource(BaseModel):
    """A graph in the raw layout that PyG's dataset classes read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description=f"one of {', '.join(RAW_NAMES)}")
    root: str = Field(
        description="URI of the folder with the raw files, of the one that holds it as raw/, or "
        "of the one above that, as PyG's root (root/Cora/raw); it may be read-only"
    )


def read_raw(source: RawSource) -> RawGraph:
    """The graph that `source` names, to be cleaned by `RAW_POLICIES`.

    Raises:
        ConfigError: there is no graph of that name.
        DataError: a file is missing, damaged, or holds something else than numbers.
    """
    if source.name not in RAW_NAMES:
        raise ConfigError(f"no graph {source.name!r}; there are {', '.join(_nearest(source.name))}")
    name = source.name.split("/")[1]
    if source.name in _NPZ:
        file = _NPZ[source.name]
        return _read_npz(storage.join(_folder(source.root, name, file), file))
    stem = f"ind.{name.lower()}"
    return _read_planetoid(f"{_folder(source.root, name, f'{stem}.graph')}/{stem}")


def _nearest(name: str) -> list[str]:
    """The known names, most alike first."""

    def likeness(known: str) -> float:
        whole, last = known.lower(), known.lower().split("/")[1]
        asked = name.lower()
        return max(difflib.SequenceMatcher(None, asked, form).ratio() for form in (whole, last))

    return sorted(RAW_NAMES, key=likeness, reverse=True)


def _folder(root: str, name: str, file: str) -> str:
    """The folder that holds `file`: `root`, its `raw`, or PyG's own `root/name/raw`."""
    root = storage.absolute(root)
    folders = [root, f"{root}/raw", f"{root}/{name}/raw"]
    for folder in folders:
        if storage.exists(f"{folder}/{file}"):
            return folder
    raise DataError(f"no file {file} in {', '.join(folders)}; give its folder as root")


def _read_planetoid(stem: str) -> RawGraph:
    """Reads the files `<stem>.allx`, `.tx`, ...

    `allx` are the features of the first nodes; row k of `tx` is that of node `test.index`[k].
    In CiteSeer 15 isolated nodes between those have no row: their features and label are 0.
    """
    allx, tx = _matrix(f"{stem}.allx"), _matrix(f"{stem}.tx")
    ally, ty, y = (_one_hot(f"{stem}.{part}") for part in ("ally", "ty", "y"))
    graph_file = f"{stem}.graph"
    src, dst, num_nodes = _adjacency_lists(graph_file)
    test = _read_test_index(f"{stem}.test.index", start=len(ally), stop=num_nodes)
    for part, found, expected in (
        ("allx", allx.shape[0], len(ally)),
        ("tx", tx.shape[0], len(test)),
        ("ty", len(ty), len(test)),
    ):
        if found != expected:
            raise DataError(f"{stem}.{part}: {found} rows, expected {expected}; fetch it again")
    if allx.shape[1] != tx.shape[1]:
        raise DataError(f"{stem}.tx: {tx.shape[1]} features, {stem}.allx has {allx.shape[1]}")
    num_train = len(y)
    if num_train + _NUM_VAL > len(ally):
        found = f"{stem}.y: {num_train} training nodes and {_NUM_VAL} for validation"
        raise DataError(f"{found} overlap the test nodes, which start at {len(ally)}")

    rows = np.full(num_nodes, len(ally) + len(test))  # the row of zeros, appended below
    rows[: len(ally)] = np.arange(len(ally))
    rows[test] = len(ally) + np.arange(len(test))
    x = sp.vstack([allx, tx, sp.csr_matrix((1, allx.shape[1]), dtype=allx.dtype)], format="csr")
    labels = np.concatenate([ally, ty, [0]])[rows]
    split: npt.NDArray[np.int8] = np.zeros(num_nodes, dtype=np.int8)
    split[:num_train] = SPLITS["train"]
    split[num_train : num_train + _NUM_VAL] = SPLITS["val"]
    split[test] = SPLITS["test"]
    nodes = _nodes(finite_csr(x[rows], where=_where(stem)), labels, name=stem, split=split)
    return _raw_graph(nodes, src, dst, name=graph_file)


def _read_npz(file: str) -> RawGraph:
    """Reads an adjacency and a feature matrix, both CSR, and labels."""
    parts = load_npz(file)
    x = _npz_csr(parts, "attr", file)
    x.sum_duplicates()
    adjacency = _npz_csr(parts, "adj", file)
    labels = _npz_part(parts, "labels", file)
    num_nodes = x.shape[0]
    if adjacency.shape != (num_nodes, num_nodes) or labels.shape != (num_nodes,):
        found = f"adj {list(adjacency.shape)}, labels {list(labels.shape)}"
        raise DataError(f"{file}: {found} do not fit the {num_nodes} rows of attr")
    if labels.dtype.kind not in "iu":
        raise DataError(f"{file}: labels are {labels.dtype}; they must be integers")
    edges = adjacency.tocoo()
    src, dst = edges.row.astype(np.int64), edges.col.astype(np.int64)
    x = finite_csr(x, where=_where(file))
    x.data[x.data > 0] = 1
    return _raw_graph(_nodes(x, labels.astype(np.int64), name=file), src, dst, name=file)


def _where(name: str) -> Where:
    return lambda node: f"{name} node {node}"


def _nodes(
    x: Any, y: Int64Array, *, name: str, split: npt.NDArray[np.int8] | None = None
) -> NodeColumns:
    if not len(y):
        raise DataError(f"{name}: no nodes")
    return NodeColumns(
        num_nodes=len(y),
        x=lay_out(x, "auto"),
        targets=class_target(y, count_classes(y, num_classes=None, where=_where(name))),
        split=split,
    )


def _raw_graph(nodes: NodeColumns, src: Int64Array, dst: Int64Array, *, name: str) -> RawGraph:
    return RawGraph(
        nodes=nodes, src=src, dst=dst, where=lambda edge: f"{name}: {src[edge]} -> {dst[edge]}"
    )


def _unpickled(file: str, kinds: tuple[type, ...], wanted: str) -> Any:
    value = unpickle(storage.read_bytes(file), name=file)
    if not isinstance(value, kinds):
        raise DataError(f"{file}: holds a {type(value).__name__}, expected {wanted}")
    return value


def _matrix(file: str) -> Any:
    value = _unpickled(file, (sp.csr_matrix, np.ndarray), "a matrix")
    if value.ndim != 2:
        raise DataError(f"{file}: an array of shape {list(value.shape)}, expected a matrix")
    matrix = sp.csr_matrix(value)
    matrix.sum_duplicates()
    return matrix


def _one_hot(file: str) -> Int64Array:
    """The column of the largest entry of each row, the first of equals."""
    value = _unpickled(file, (np.ndarray,), "an array of one-hot rows")
    if value.ndim != 2 or not value.size:
        raise DataError(f"{file}: an array of shape {list(value.shape)}, expected one-hot rows")
    columns: Int64Array = value.argmax(axis=1).astype(np.int64)
    return columns


def _adjacency_lists(file: str) -> tuple[Int64Array, Int64Array, int]:
    """Source and destination of each edge of {node: [neighbour, ...]}, and its number of nodes."""
    graph = _unpickled(file, (dict,), "a dict of lists of nodes")
    lists = graph.values()
    if not all(type(neighbours) is list for neighbours in lists):
        raise DataError(f"{file}: a node's neighbours are no list; fetch the file again")
    try:
        if not all(type(node) is int for node in chain(graph, chain.from_iterable(lists))):
            raise TypeError
        pairs = chain.from_iterable(repeat(node, len(near)) for node, near in graph.items())
        src = np.fromiter(pairs, dtype=np.int64)
        dst = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
    except (TypeError, OverflowError):
        raise DataError(f"{file}: a node is no integer; fetch the file again") from None
    return src, dst, len(graph)


def _read_test_index(file: str, *, start: int, stop: int) -> Int64Array:
    """Distinct nodes in `start`..`stop`-1, one a line, `start` and `stop`-1 among them."""
    nodes = []
    for line, text in enumerate(storage.read_bytes(file).splitlines(), start=1):
        if not re.fullmatch(rb"\s*\d{1,18}\s*", text):
            raise DataError(f"{file} line {line}: {text[:40]!r} is no node; fetch the file again")
        nodes.append(int(text))
    ordered = sorted(nodes)
    if len(set(nodes)) < len(nodes) or ordered[:1] != [start] or ordered[-1:] != [stop - 1]:
        found = f"{len(set(nodes))} nodes, {ordered[0]} to {ordered[-1]}" if nodes else "no node"
        expected = f"each once, {start} to {stop - 1}"
        raise DataError(f"{file}: {len(nodes)} lines, {found}; expected {expected}")
    return np.array(nodes, dtype=np.int64)


def _npz_part(parts: dict[str, npt.NDArray[Any]], key: str, file: str) -> npt.NDArray[Any]:
    if key not in parts:
        raise DataError(f"{file}: no array {key!r}; it has {', '.join(sorted(parts))}")
    return parts[key]


def _npz_csr(parts: dict[str, npt.NDArray[Any]], prefix: str, file: str) -> Any:
    data, indices, indptr, shape = (
        _npz_part(parts, f"{prefix}_{part}", file)
        for part in ("data", "indices", "indptr", "shape")
    )
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
        raise DataError(f"{file}: {prefix}_shape is {shape!r:.60}; expected two sizes")
    size = (int(shape[0]), int(shape[1]))
    return csr_from_parts(data, indices, indptr, size, name=f"{file}: {prefix}")
