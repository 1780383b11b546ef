"""A second look at staged edges: which rows of which files a policy was about."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data.ingest.scan import EdgeStage, staged_batches
from dnformer.data.table import Int64Array


def edges_at(edges: EdgeStage, rows: Iterable[int]) -> list[str]:
    """Names the edges in some rows, as a person finds them."""
    wanted, start, named = sorted(rows), 0, {}
    for batch in edges.batches():
        for row in wanted:
            if start <= row < start + batch.num_rows:
                src, dst = (batch.column(end)[row - start].as_py() for end in (0, 1))
                named[row] = edges.example(row, src, dst)
        start += batch.num_rows
        if not wanted or start > wanted[-1]:
            break
    return [named[row] for row in wanted]


def self_loops(edges: EdgeStage, limit: int) -> list[int]:
    """The first rows of edges from a node to itself."""
    start, rows = 0, list[int]()
    for batch in edges.batches():
        same = pc.equal(batch.column(0), batch.column(1)).to_numpy(zero_copy_only=False)
        rows += (np.flatnonzero(same)[: limit - len(rows)] + start).tolist()
        start += batch.num_rows
        if len(rows) >= limit:
            break
    return rows


def repeats(edges: EdgeStage, pairs: list[tuple[Any, Any]]) -> list[int]:
    """The row of each (src, dst) of `pairs` that repeats it first, ascending."""
    if not pairs:
        return []
    start, times, rows = 0, dict.fromkeys(pairs, 0), list[int]()
    kind = next(edges.batches()).column(0).type
    sources, targets = (pa.array(sorted(set(end)), kind) for end in zip(*pairs, strict=True))
    for batch in edges.batches():
        there = pc.is_in(batch.column(1), targets)
        at: Int64Array = np.flatnonzero(there.to_numpy(zero_copy_only=False))
        found = batch.select([0, 1]).take(pa.array(at))
        near = pc.is_in(found.column(0), sources).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(near).tolist():
            pair = (found.column(0)[row].as_py(), found.column(1)[row].as_py())
            if pair in times:
                times[pair] += 1
                if times[pair] == 2:
                    rows.append(start + int(at[row]))
        start += batch.num_rows
        if len(rows) == len(times):
            break
    return sorted(rows)


def missing_end(edges: EdgeStage, row: int, nodes: Path, ends: tuple[str, str]) -> tuple[str, Any]:
    """(column, id) of the end of a dangling edge that is no row of the node table."""
    start = 0
    for batch in edges.batches():
        if row < start + batch.num_rows:
            break
        start += batch.num_rows
    src, dst = (batch.column(end)[row - start] for end in (0, 1))
    known = any(pc.index(ids.column(0), src).as_py() >= 0 for ids in staged_batches(nodes))
    return (ends[1], dst.as_py()) if known else (ends[0], src.as_py())


def rechunked(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """The first column of `batches` in arrays of `rows`, the last one shorter."""
    held, count = list[Any](), 0
    for batch in batches:
        column = batch.column(0)
        while count + len(column) >= rows:
            yield pa.concat_arrays([*held, column[: rows - count]])
            column = column[rows - count :]
            held, count = [], 0
        if len(column):
            held.append(column)
            count += len(column)
    if count:
        yield pa.concat_arrays(held)


def ids_at(path: Path, indices: Iterable[int]) -> dict[int, Any]:
    """{index: id} of a few indices, from all ids in order in a staged file."""
    wanted, start, found = sorted(set(indices)), 0, {}
    for batch in staged_batches(path):
        for index in wanted:
            if start <= index < start + batch.num_rows:
                found[index] = batch.column(0)[index - start].as_py()
        start += batch.num_rows
    return found
