"""A graph as a stream: what a source yields whose edges and features need not fit into memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dnformer.data.table import (
    EdgeColumns,
    Int64Array,
    NodeColumns,
    Quantized,
    RawGraph,
    TargetColumn,
)


class EdgeChunk(NamedTuple):
    """Some edges, int64 `[E]` from `src` (the neighbour) to `dst`, and what they carry."""

    src: Int64Array
    dst: Int64Array
    edges: EdgeColumns = EdgeColumns()


@dataclass(frozen=True, kw_only=True)
class GraphStream:
    """A graph of nodes 0..N-1 in pieces; each call of `edges` and `nodes` begins anew.

    Attributes:
        num_nodes: N.
        num_edges: of all chunks, duplicates and self-loops included.
        edges: chunks of at least one edge between nodes, which the source has checked, in the
            source's order, all with the same columns.
        nodes: columns of the nodes 0..65,535, then of the next 65,536, and so on, with dense
            features and without ids; a block has a fingerprint's size, so it can be hashed,
            written and forgotten.
        where: names edge `e` of that order as a person finds it.
        counts: what the source read and left out, for the manifest.
    """

    num_nodes: int
    num_edges: int
    edges: Callable[[], Iterator[EdgeChunk]]
    nodes: Callable[[], Iterator[NodeColumns]]
    where: Callable[[int], str]
    counts: dict[str, int] = field(default_factory=dict)


def in_memory(stream: GraphStream) -> RawGraph:
    """All of `stream`, for a graph that fits."""
    chunks = list(stream.edges())
    src = _joined([chunk.src for chunk in chunks], np.int64)
    dst = _joined([chunk.dst for chunk in chunks], np.int64)
    return RawGraph(
        nodes=_all_nodes(list(stream.nodes())),
        src=src,
        dst=dst,
        where=stream.where,
        edges=_all_columns([chunk.edges for chunk in chunks]),
        counts=stream.counts,
    )


def _joined(pieces: list[Any], dtype: Any = None) -> Any:
    """One array of all pieces; None where they are None."""
    if not pieces:
        return None if dtype is None else np.empty(0, dtype)
    return None if pieces[0] is None else np.concatenate(pieces)


def _all_columns(pieces: list[EdgeColumns]) -> EdgeColumns:
    if not pieces:
        return EdgeColumns()
    return EdgeColumns(
        weight=_joined([piece.weight for piece in pieces]),
        attr=_joined([piece.attr for piece in pieces]),
        attr_names=pieces[0].attr_names,
        time=_joined([piece.time for piece in pieces]),
    )


def _all_nodes(blocks: list[NodeColumns]) -> NodeColumns:
    x: Any = blocks[0].x
    if isinstance(x, Quantized):
        x = Quantized(_joined([_values(block.x) for block in blocks]), x.scale)
    else:
        x = _joined([block.x for block in blocks])
    columns = [block.targets for block in blocks]
    return NodeColumns(
        num_nodes=sum(block.num_nodes for block in blocks),
        x=x,
        targets=tuple(
            TargetColumn(same[0].target, _joined([column.values for column in same]))
            for same in zip(*columns, strict=True)
        ),
        split=_joined([block.split for block in blocks]),
        time=_joined([block.time for block in blocks]),
    )


def _values(x: Any) -> Any:
    return x.values
