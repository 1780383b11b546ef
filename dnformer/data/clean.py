"""From edges as they came to edges as the cache stores them: policies, symmetry, order, counts."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from dnformer.data.table import GraphTable, Int64Array, RawGraph
from dnformer.errors import DataError

# an edge is sorted as the one int64 number dst * N + src
_MAX_NODES = 3_037_000_499


class Policies(BaseModel):
    """What becomes of direction, repeated edges and self-loops."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    direction: Literal["directed", "undirected"] = Field(
        "directed",
        description="directed keeps each edge as given; undirected adds the reverse where missing",
    )
    duplicates: Literal["drop", "keep", "error"] = Field(
        "drop",
        description="what to do with an edge whose source and destination were given before",
    )
    self_loops: Literal["keep", "drop", "error"] = Field(
        "keep", description="what to do with an edge from a node to itself"
    )


def clean(raw: RawGraph, policies: Policies) -> GraphTable:
    """The graph with edges sorted by (dst, src) after self-loops, duplicates, direction, in turn.

    A duplicate is an edge whose (src, dst), as given, an earlier edge has; b -> a is none of
    a -> b. `undirected` adds b -> a as often as it falls short of a -> b, so edges that came in
    both directions stay as they are, and a self-loop, its own reverse, is never doubled.
    Takes up to 26 bytes an edge of the result beyond `raw`, which is not changed; about 55 an
    edge where duplicates are kept and undirected.

    `counts` are those of `raw` and, in edges unless named otherwise:
        edges_read: as given.
        self_loops: from a node to itself among them, every repetition counted.
        self_loops_dropped: all of those with `self_loops: drop`, else 0.
        duplicates_dropped: duplicates among the rest with `duplicates: drop`, else 0.
        edges_added_by_undirected: reverses that were missing; 0 where directed.
        num_edges: what is left, edges_read - both dropped + added.
        isolated_nodes: nodes without an edge to or from another node.

    Raises:
        DataError: an endpoint is no node, or an edge is what an `error` policy refuses.
    """
    num_nodes = raw.nodes.num_nodes
    _check_endpoints(raw)
    key = raw.dst * num_nodes
    key += raw.src
    loop = raw.src == raw.dst
    num_loops = int(np.count_nonzero(loop))
    if num_loops and policies.self_loops == "error":
        found = raw.where(int(np.argmax(loop)))
        raise DataError(f"{found} is a self-loop; remove it, or set self_loops to keep or drop")
    if num_loops and policies.self_loops == "drop":
        key = key[~loop]
    num_kept = key.size
    if policies.duplicates == "keep":
        key.sort()
    else:
        key = distinct(key)
    if policies.duplicates == "error" and key.size < num_kept:
        raise _duplicate(raw, policies)
    num_distinct = key.size
    if policies.direction == "undirected":
        key = _with_reverses(key, num_nodes, repeated=policies.duplicates == "keep")
    dst = key // num_nodes
    np.remainder(key, num_nodes, out=key)
    counts = {
        "edges_read": raw.src.size,
        "self_loops": num_loops,
        "self_loops_dropped": raw.src.size - num_kept,
        "duplicates_dropped": num_kept - num_distinct,
        "edges_added_by_undirected": key.size - num_distinct,
        "num_edges": key.size,
        "isolated_nodes": _count_isolated(key, dst, num_nodes),
    }
    return GraphTable(
        nodes=raw.nodes,
        src=key,
        dst=dst,
        policies=policies.model_dump(),
        counts={**raw.counts, **counts},
    )


def _check_endpoints(raw: RawGraph) -> None:
    num_nodes = raw.nodes.num_nodes
    if num_nodes > _MAX_NODES:
        raise DataError(f"{num_nodes:,} nodes; one process takes up to {_MAX_NODES:,}")
    for end in (raw.src, raw.dst):
        if end.size and (end.min() < 0 or end.max() >= num_nodes):
            edge = int(np.argmax((end < 0) | (end >= num_nodes)))
            found = f"{raw.where(edge)}: {end[edge]} is no node"
            raise DataError(f"{found}; the {num_nodes} nodes are 0 to {num_nodes - 1}")


def distinct(key: Int64Array) -> Int64Array:
    """`key` sorted, with each number once; `key` itself is sorted in place.

    np.unique does the same through a hash table, several times slower on millions of numbers.
    """
    key.sort()
    first: npt.NDArray[np.bool_] = np.ones(key.size, dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return key[first]


def _with_reverses(key: Int64Array, num_nodes: int, *, repeated: bool) -> Int64Array:
    """The sorted union of `key` and its reverses; of multisets where edges may be `repeated`."""
    both = np.concatenate([key, key])
    reverse = both[key.size :]
    dst = reverse // num_nodes
    np.remainder(reverse, num_nodes, out=reverse)
    reverse *= num_nodes
    reverse += dst
    del dst
    if not repeated:
        return distinct(both)
    forward, forward_times = np.unique(key, return_counts=True)
    backward, backward_times = np.unique(reverse, return_counts=True)
    union = distinct(np.concatenate([forward, backward]))
    times = np.zeros(union.size, dtype=np.int64)
    times[np.searchsorted(union, forward)] = forward_times
    at = np.searchsorted(union, backward)
    times[at] = np.maximum(times[at], backward_times)
    return np.repeat(union, times)


def _count_isolated(src: Int64Array, dst: Int64Array, num_nodes: int) -> int:
    touched: npt.NDArray[np.bool_] = np.zeros(num_nodes, dtype=np.bool_)
    other = src != dst
    touched[src[other]] = True
    touched[dst[other]] = True
    return num_nodes - int(np.count_nonzero(touched))


def _duplicate(raw: RawGraph, policies: Policies) -> DataError:
    """Names the first edge that repeats an earlier one, and that one."""
    edges = np.arange(raw.src.size)
    if policies.self_loops == "drop":
        edges = np.flatnonzero(raw.src != raw.dst)
    order = edges[np.lexsort((raw.src[edges], raw.dst[edges]))]  # stable: earlier edges first
    src, dst = raw.src[order], raw.dst[order]
    repeats = np.flatnonzero((src[1:] == src[:-1]) & (dst[1:] == dst[:-1])) + 1
    second = int(order[repeats].min())
    same = (raw.src == raw.src[second]) & (raw.dst == raw.dst[second])
    first = int(np.argmax(same))
    found = f"{raw.where(second)} repeats {raw.where(first)}"
    return DataError(f"{found}; remove it, or set duplicates to drop or keep")
