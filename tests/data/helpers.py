"""Graphs that hypothesis draws, with every kind of column, and whether an open graph is one."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

from dnformer.data.graph import Graph
from dnformer.data.read import read_ids
from dnformer.data.table import (
    EdgeColumns,
    GraphTable,
    NodeColumns,
    Quantized,
    Target,
    TargetColumn,
    class_target,
)

whole = st.integers(-(2**63), 2**63 - 1)


def _floats(width: int) -> st.SearchStrategy[float]:
    finite = st.floats(width=width, allow_nan=False, allow_infinity=False)
    return finite.map(lambda x: x + 0.0)  # no -0.0


@st.composite
def matrices(draw: st.DrawFn, values: Any, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    rows = st.lists(values, min_size=shape[1], max_size=shape[1])
    found = draw(st.lists(rows, min_size=shape[0], max_size=shape[0]))
    return np.array(found, dtype=dtype).reshape(shape)


@st.composite
def features(draw: st.DrawFn, num_nodes: int) -> Any:
    shape = (num_nodes, draw(st.integers(1, 4)))
    kind = draw(st.sampled_from(["none", "float32", "float16", "int8", "sparse"]))
    if kind == "none":
        return None
    if kind == "sparse":
        return sp.csr_matrix(draw(matrices(st.just(0.0) | _floats(32), shape, np.float32)))
    if kind == "int8":
        values = draw(matrices(st.integers(-128, 127), shape, np.int8))
        scales = matrices(st.floats(0, 2.0**100, width=32), (1, shape[1]), np.float32)
        return Quantized(values, draw(scales)[0])
    return draw(matrices(_floats(int(kind[5:])), shape, kind))


@st.composite
def targets(draw: st.DrawFn, num_nodes: int) -> tuple[TargetColumn, ...]:
    names = draw(st.lists(st.text(min_size=1, max_size=3), unique=True, max_size=4))
    return tuple(draw(_target(name, num_nodes)) for name in names)


@st.composite
def _target(draw: st.DrawFn, name: str, num_nodes: int) -> TargetColumn:
    kind = draw(st.sampled_from(["class", "multilabel", "regression"]))
    width = draw(st.integers(1, 4))
    if kind == "class":
        texts = st.lists(st.text(max_size=3), min_size=width, max_size=width)
        column = draw(matrices(st.integers(-1, width - 1), (num_nodes, 1), np.int64))
        return class_target(column[:, 0].copy(), width, draw(st.none() | texts), name)[0]
    values: Any = st.integers(-1, 1)
    if kind == "regression":
        values = st.just(float("nan")) | _floats(32)
    dtype = np.int8 if kind == "multilabel" else np.float32
    column = draw(matrices(values, (num_nodes, width), dtype))
    return TargetColumn(Target(name=name, kind=kind, num_outputs=width), column)


@st.composite
def node_columns(draw: st.DrawFn) -> NodeColumns:
    num_nodes = draw(st.integers(1, 8))
    each: dict[str, Any] = {"min_size": num_nodes, "max_size": num_nodes}
    columns: dict[str, Any] = {"x": draw(features(num_nodes)), "targets": draw(targets(num_nodes))}
    if draw(st.booleans()):
        columns["split"] = np.array(draw(st.lists(st.integers(0, 3), **each)), dtype=np.int8)
    if draw(st.booleans()):
        columns["time"] = np.array(draw(st.lists(whole, **each)))
    ids = draw(st.sampled_from(["index", "int", "string"]))
    if ids == "int":
        columns["ids"] = np.array(sorted(draw(st.lists(whole, unique=True, **each))))
    if ids == "string":
        texts = st.lists(st.text(max_size=5), unique=True, **each)
        columns["ids"] = sorted(draw(texts), key=str.encode)
    return NodeColumns(num_nodes=num_nodes, **columns)


@st.composite
def edge_columns(draw: st.DrawFn, num_edges: int) -> EdgeColumns:
    columns: dict[str, Any] = {}
    if draw(st.booleans()):
        columns["weight"] = draw(matrices(_floats(32), (num_edges, 1), np.float32))[:, 0].copy()
    if draw(st.booleans()):
        names = draw(st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=3))
        columns["attr"] = draw(matrices(_floats(32), (num_edges, len(names)), np.float32))
        columns["attr_names"] = tuple(names)
    if draw(st.booleans()):
        columns["time"] = np.array(
            draw(st.lists(whole, min_size=num_edges, max_size=num_edges)), dtype=np.int64
        )
    return EdgeColumns(**columns)


@st.composite
def tables(draw: st.DrawFn) -> GraphTable:
    """A table with edges sorted by (dst, src); of equal ones in any order."""
    nodes = draw(node_columns())
    node = st.integers(0, nodes.num_nodes - 1)
    pairs = np.array(sorted(draw(st.lists(st.tuples(node, node), max_size=20))), dtype=np.int64)
    dst, src = pairs.reshape(-1, 2).T.copy()
    return GraphTable(
        nodes=nodes,
        dst=dst,
        src=src,
        policies={"direction": "x"},
        counts={"edges_read": len(dst)},
        edges=draw(edge_columns(len(dst))),
    )


def every_column() -> GraphTable:
    """Six nodes with one column of each kind, quantized features, integer ids."""
    numbers = np.array([[0.5], [np.nan], [2], [3], [4], [5]], dtype=np.float32)
    targets = (
        *class_target(np.array([0, 1, -1, 1, 0, 0]), 2, ["no", "yes"]),
        TargetColumn(Target(name="number", kind="regression", num_outputs=1), numbers),
        TargetColumn(
            Target(name="many", kind="multilabel", num_outputs=3),
            (np.arange(18, dtype=np.int8) % 3 - 1).reshape(6, 3),
        ),
    )
    nodes = NodeColumns(
        num_nodes=6,
        x=Quantized(np.arange(-6, 6, dtype=np.int8).reshape(6, 2), np.array([0.5, 2], np.float32)),
        targets=targets,
        split=np.array([1, 2, 3, 0, 1, 1], dtype=np.int8),
        ids=np.array([3, 5, 9, 10, 11, 40]),
        time=np.arange(6),
    )
    edges = EdgeColumns(
        weight=np.arange(8, dtype=np.float32),
        attr=np.arange(16, dtype=np.float32).reshape(8, 2) / 7,
        attr_names=("a", "b"),
        time=np.arange(8),
    )
    dst, src = np.array([0, 0, 1, 1, 1, 4, 5, 5]), np.array([1, 2, 0, 0, 4, 4, 0, 3])
    return GraphTable(nodes=nodes, dst=dst, src=src, edges=edges, policies={"a": "b"}, counts={})


def same(found: np.ndarray | None, wanted: np.ndarray | None) -> bool:
    """Equal in type, shape and each value; NaN is NaN."""
    if found is None or wanted is None:
        return found is wanted
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    return bool(np.array_equal(found, wanted, equal_nan=found.dtype.kind == "f"))


def assert_holds(graph: Graph, table: GraphTable) -> None:
    """Whether the open graph is the table, value for value."""
    store, nodes, manifest, edges = graph.store, table.nodes, graph.manifest, table.edges
    assert graph.num_nodes == nodes.num_nodes
    assert np.repeat(np.arange(graph.num_nodes), np.diff(store.colptr)).tolist() == (
        table.dst.tolist()
    )
    assert store.row.tolist() == table.src.tolist()
    assert tuple(manifest.edge_attr_names) == edges.attr_names
    for found, wanted in (
        (store.weight, edges.weight),
        (store.edge_attr, edges.attr),
        (store.edge_time, edges.time),
        (store.split, nodes.split),
        (store.node_time, nodes.time),
    ):
        assert same(found, wanted)
    _assert_features(graph, nodes.x)
    assert manifest.targets == [column.target for column in nodes.targets]
    for found, column in zip(store.targets, nodes.targets, strict=True):
        assert same(found, column.values)
    assert (manifest.policies, manifest.counts) == (table.policies, table.counts)
    assert original_ids(graph) == ([] if nodes.ids is None else list(nodes.ids))


def original_ids(graph: Graph) -> list[Any]:
    """Of all nodes; empty where they are 0..N-1."""
    found: list[Any] = []
    for part in graph.manifest.id_files:
        for piece in read_ids(graph.uri, graph.manifest, part, len(found)):
            found += piece.tolist()
    return found


def _assert_features(graph: Graph, x: Any) -> None:
    store = graph.store
    if isinstance(x, sp.csr_matrix):
        assert store.x is None
        assert graph.num_features == x.shape[1]
        assert store.x_indptr.tolist() == x.indptr.tolist()
        assert store.x_indices.tolist() == x.indices.tolist()
        assert same(store.x_values, x.data)
        return
    quantized = isinstance(x, Quantized)
    assert same(store.x, x.values if quantized else x)
    assert same(store.x_scale, x.scale if quantized else None)
