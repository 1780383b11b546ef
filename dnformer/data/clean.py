"""From edges as they came to edges as the cache stores them: policies, symmetry, order, counts.

`finish` does it for the edges of a range of destinations, which is all that any engine needs:
`clean` calls it once for a graph in memory, the engines once for each range.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dnformer.data.table import EdgeColumns, GraphTable, Int64Array, RawGraph
from dnformer.errors import ConfigError, DataError
from dnformer.parsing import Section

# an edge is sorted as the one int64 number dst * N + src
MAX_NODES = 3_037_000_499
NUM_EXAMPLES = 20


class Policies(Section):
    """What becomes of direction, repeated edges, self-loops and edges to nowhere."""

    direction: Literal["directed", "undirected"] = Field(
        "directed",
        description="directed keeps each edge as given; undirected adds the reverse where missing",
    )
    duplicates: Literal["drop", "keep", "sum", "error"] = Field(
        "drop",
        description="what to do with edges of one source and destination: drop keeps the one with "
        "the least columns, sum adds their weights and attributes and takes the earliest time",
    )
    self_loops: Literal["keep", "drop", "error"] = Field(
        "keep", description="what to do with an edge from a node to itself"
    )
    dangling: Literal["error", "drop", "add"] = Field(
        "error",
        description="what to do with an edge whose end is no row of the node table; add makes it "
        "a node without label, split and features",
    )


class Edges(NamedTuple):
    """Edges in any order.

    Attributes:
        key: dst * N + src, int64 `[E]`.
        columns: what they carry.
        row: where each came from, int64 `[E]`; None where nobody will ask.
    """

    key: Int64Array
    columns: EdgeColumns = EdgeColumns()
    row: Int64Array | None = None

    def take(self, rows: Any) -> "Edges":
        """These edges: a mask or positions."""
        row = None if self.row is None else self.row[rows]
        return Edges(self.key[rows], self.columns.take(rows), row)

    def has_columns(self) -> bool:
        """Whether there is more than the key to order."""
        columns = (self.columns.weight, self.columns.attr, self.columns.time, self.row)
        return any(column is not None for column in columns)


class Finished(NamedTuple):
    """Edges as the cache stores them, and what was done.

    Attributes:
        edges: sorted by (dst, src, weight, attributes, time).
        num_repeats: edges given that an equal (dst, src) was given for before.
        num_added: reverses added.
        repeated: the least keys among the repeated ones, up to `NUM_EXAMPLES`.
        first_repeat: rows of the first edge that repeats an earlier one, and of that one; where
            rows were given.
    """

    edges: Edges
    num_repeats: int
    num_added: int
    repeated: Int64Array
    first_repeat: tuple[int, int] | None


def finish(given: Edges, reverses: Edges | None, duplicates: str) -> Finished:
    """All edges into a range of destinations, finished. Sorts the arrays it is given in place.

    `drop` keeps the edge with the least (weight, attributes, time); `sum` adds weights and
    attributes in float64 in sorted order. A reverse of each given edge with the range's nodes as
    its source is in `reverses`; of these, as many are added as (dst, src) was given fewer times,
    the ones beyond that number in sorted order.

    Args:
        given: edges without those that the other policies drop.
        reverses: for undirected graphs; None for directed ones.
        duplicates: keep, drop, sum or error, which is as drop, for the caller to refuse.

    Raises:
        DataError: a sum is past float32.
    """
    plain = not given.has_columns() and duplicates != "keep"
    given = _in_order(given)
    again = _repeats(given.key)
    first_repeat = _first_repeat(given, again)
    num_repeats = int(np.count_nonzero(again))
    repeated = given.key[again]
    repeated = repeated[~_repeats(repeated)][:NUM_EXAMPLES].copy()
    if num_repeats and duplicates != "keep":
        given = _once(given, again, duplicates)
    num_added = 0
    if reverses is not None and reverses.key.size:
        num_given = given.key.size
        if plain:
            given = Edges(distinct(np.concatenate([given.key, reverses.key])))
        else:
            given = _with_reverses(given, _in_order(reverses), duplicates)
        num_added = given.key.size - num_given
    return Finished(given._replace(row=None), num_repeats, num_added, repeated, first_repeat)


def least(repeated: Iterable[Int64Array]) -> Int64Array:
    """The least keys of those that several ranges name."""
    return np.unique(np.concatenate([np.empty(0, np.int64), *repeated]))[:NUM_EXAMPLES]


def distinct(key: Int64Array) -> Int64Array:
    """`key` sorted, with each number once; `key` itself is sorted in place.

    np.unique does the same through a hash table, several times slower on millions of numbers.
    """
    key.sort()
    again = _repeats(key)
    return key[~again] if again.any() else key


def _repeats(key: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether each of a sorted array equals the one before."""
    again: npt.NDArray[np.bool_] = np.zeros(key.size, dtype=np.bool_)
    np.equal(key[1:], key[:-1], out=again[1:])
    return again


def _in_order(edges: Edges) -> Edges:
    """Sorted by key, then weight, attributes, time and row."""
    if not edges.has_columns():
        edges.key.sort()
        return edges
    order = np.argsort(edges.key)
    key = edges.key[order]
    again = _repeats(key)
    tied = again.copy()
    tied[:-1] |= again[1:]
    at = np.flatnonzero(tied)
    if at.size:
        rows = order[at]
        order[at] = rows[np.lexsort(_tie_breakers(edges.take(rows)))]
    return Edges(key, edges.columns.take(order), None if edges.row is None else edges.row[order])


def _tie_breakers(edges: Edges) -> list[npt.NDArray[Any]]:
    """What orders equal edges, the least significant first, as np.lexsort has it."""
    columns = edges.columns
    attr = [] if columns.attr is None else list(columns.attr.T)
    ordered = [edges.key, columns.weight, *attr, columns.time, edges.row]
    return [column for column in reversed(ordered) if column is not None]


def _first_repeat(edges: Edges, again: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    if edges.row is None or not again.any():
        return None
    # of each key all but its earliest row repeat an earlier one; columns may have moved it
    starts = np.flatnonzero(~again)
    earliest = np.minimum.reduceat(edges.row, starts)
    group = np.cumsum(~again) - 1
    later = edges.row != earliest[group]
    at = np.flatnonzero(later)[np.argmin(edges.row[later])]
    return int(edges.row[at]), int(earliest[group[at]])


def _once(edges: Edges, again: npt.NDArray[np.bool_], duplicates: str) -> Edges:
    """One edge of each run of equal keys."""
    starts = np.flatnonzero(~again)
    kept = edges.take(starts)
    if duplicates != "sum":
        return kept
    columns, group = edges.columns, np.cumsum(~again) - 1
    weight, attr, time = columns.weight, columns.attr, columns.time
    return kept._replace(
        columns=EdgeColumns(
            weight=None if weight is None else _sums(weight, group),
            attr=None if attr is None else np.stack([_sums(a, group) for a in attr.T], axis=1),
            attr_names=columns.attr_names,
            time=None if time is None else np.minimum.reduceat(time, starts),
        )
    )


def _sums(values: npt.NDArray[np.float32], group: Int64Array) -> npt.NDArray[np.float32]:
    """Sums in float64 by ascending group, added one after the other."""
    with np.errstate(over="ignore"):
        total = np.bincount(group, weights=values.astype(np.float64)).astype(np.float32)
    if not np.isfinite(total).all():
        raise DataError(
            "the sum over a repeated edge is past 3.4e38, the largest float32; scale the columns, "
            "or set duplicates to drop"
        )
    total += np.float32(0)  # no -0.0
    return total


def _with_reverses(given: Edges, reverses: Edges, duplicates: str) -> Edges:
    """`given` and those of `reverses` that it falls short of; both sorted."""
    again = _repeats(reverses.key)
    if duplicates != "keep" and again.any():
        reverses = _once(reverses, again, duplicates)
        again = np.zeros(reverses.key.size, dtype=np.bool_)
    starts = np.flatnonzero(~again)
    times = np.arange(again.size) - starts[np.cumsum(~again) - 1]
    first = np.searchsorted(given.key, reverses.key, side="left")
    stop = np.searchsorted(given.key, reverses.key, side="right")
    missing = reverses.take(times >= stop - first)
    columns = _joined(given.columns, missing.columns)
    return _in_order(Edges(np.concatenate([given.key, missing.key]), columns))


def _joined(one: EdgeColumns, other: EdgeColumns) -> EdgeColumns:
    weight, attr, time = (
        None if a is None or b is None else np.concatenate([a, b])
        for a, b in (
            (one.weight, other.weight),
            (one.attr, other.attr),
            (one.time, other.time),
        )
    )
    return EdgeColumns(weight=weight, attr=attr, attr_names=one.attr_names, time=time)


def check_policies(policies: Policies, *, num_nodes: int, edges: EdgeColumns) -> None:
    """Refuses what these policies cannot do with such edges.

    Raises:
        ConfigError: `sum` has nothing to add.
        DataError: there are too many nodes.
    """
    if policies.duplicates == "sum" and edges.weight is None and edges.attr is None:
        raise ConfigError(
            "duplicates sum adds the weights and attributes of repeated edges, and these edges "
            "have neither; name a weight column, or use drop"
        )
    if num_nodes > MAX_NODES:
        raise DataError(f"{num_nodes:,} nodes; one dataset takes up to {MAX_NODES:,}")


def counts_of(
    policies: Policies,
    *,
    num_read: int,
    num_loops: int,
    num_repeats: int,
    num_added: int,
    num_dangling: int = 0,
) -> dict[str, int]:
    """What the policies did, by name.

    edges_read: as given.
    dangling_dropped: with `dangling: drop`, those with an end that is no node.
    self_loops: from a node to itself among the rest, every repetition counted.
    self_loops_dropped: all of those with `self_loops: drop`, else 0.
    duplicates_dropped: duplicates among the rest with `duplicates: drop`, else 0.
    duplicates_summed: with `duplicates: sum`, those added to another edge.
    edges_added_by_undirected: reverses that were missing; 0 where directed.
    num_edges: what is left, edges_read - those gone + added.
    """
    loops_dropped = num_loops if policies.self_loops == "drop" else 0
    gone = 0 if policies.duplicates == "keep" else num_repeats
    summed = {"duplicates_summed": gone} if policies.duplicates == "sum" else {}
    return {
        "edges_read": num_read,
        **({"dangling_dropped": num_dangling} if policies.dangling == "drop" else {}),
        "self_loops": num_loops,
        "self_loops_dropped": loops_dropped,
        "duplicates_dropped": 0 if summed else gone,
        **summed,
        "edges_added_by_undirected": num_added,
        "num_edges": num_read - num_dangling - loops_dropped - gone + num_added,
    }


def clean(raw: RawGraph, policies: Policies) -> GraphTable:
    """The graph with edges sorted by (dst, src) after self-loops, duplicates, direction, in turn.

    A duplicate is an edge whose (src, dst), as given, an earlier edge has; b -> a is none of
    a -> b. `undirected` adds b -> a as often as it falls short of a -> b, so edges that came in
    both directions stay as they are, and a self-loop, its own reverse, is never doubled.
    Takes up to 26 bytes an edge of the result beyond `raw`, which is not changed; about 70 and
    twice the columns where duplicates are kept or edges have columns.

    `counts` are those of `raw`, of `counts_of`, and
        isolated_nodes: nodes without an edge to or from another node.

    Raises:
        DataError: an endpoint is no node, or an edge is what an `error` policy refuses.
    """
    num_nodes = raw.nodes.num_nodes
    check_policies(policies, num_nodes=num_nodes, edges=raw.edges)
    _check_endpoints(raw)
    loop = raw.src == raw.dst
    num_loops = int(np.count_nonzero(loop))
    if num_loops and policies.self_loops == "error":
        found = raw.where(int(np.argmax(loop)))
        raise DataError(f"{found} is a self-loop; remove it, or set self_loops to keep or drop")
    given = _edges(raw, raw.dst, raw.src, rows=policies.duplicates == "error")
    kept = None if not num_loops or policies.self_loops != "drop" else ~loop
    reverses = None
    if policies.direction == "undirected":
        reverses = _edges(raw, raw.src, raw.dst, rows=False)
    if kept is not None:
        given = given.take(kept)
        reverses = None if reverses is None else reverses.take(kept)
    done = finish(given, reverses, policies.duplicates)
    if policies.duplicates == "error" and done.first_repeat is not None:
        second, first = (raw.where(row) for row in done.first_repeat)
        found = f"{second} repeats {first}"
        raise DataError(f"{found}; remove it, or set duplicates to drop or keep")
    dst = done.edges.key // num_nodes
    src = done.edges.key % num_nodes
    counts = counts_of(
        policies, num_read=raw.src.size, num_loops=num_loops,
        num_repeats=done.num_repeats, num_added=done.num_added,
    )  # fmt: skip
    counts["isolated_nodes"] = _count_isolated(src, dst, num_nodes)
    return GraphTable(
        nodes=raw.nodes,
        src=src,
        dst=dst,
        edges=done.edges.columns,
        policies=policies.model_dump(),
        counts={**raw.counts, **counts},
    )


def _edges(raw: RawGraph, dst: Int64Array, src: Int64Array, *, rows: bool) -> Edges:
    key = dst * raw.nodes.num_nodes
    key += src
    return Edges(key, raw.edges, np.arange(key.size) if rows else None)


def _check_endpoints(raw: RawGraph) -> None:
    num_nodes = raw.nodes.num_nodes
    for end in (raw.src, raw.dst):
        if end.size and (end.min() < 0 or end.max() >= num_nodes):
            edge = int(np.argmax((end < 0) | (end >= num_nodes)))
            found = f"{raw.where(edge)}: {end[edge]} is no node"
            raise DataError(f"{found}; the {num_nodes} nodes are 0 to {num_nodes - 1}")


def _count_isolated(src: Int64Array, dst: Int64Array, num_nodes: int) -> int:
    touched: npt.NDArray[np.bool_] = np.zeros(num_nodes, dtype=np.bool_)
    other = src != dst
    touched[src[other]] = True
    touched[dst[other]] = True
    return num_nodes - int(np.count_nonzero(touched))
