"""The engine `ray`: a second look at a few edges, to name them as the engine `local` does."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data.ingest import ray_tasks as tasks
from dnformer.data.ingest.ray_look import Looked, Plan, Unit, edge_batches


def named(looked: Looked, rows: list[int]) -> list[str]:
    """Names the edges in some rows of the edge table, as a person finds them."""
    shared, units = tasks.share(looked.plan), looked.units_of(nodes=False)
    offsets = [unit.offset for unit in units]
    wanted: dict[int, list[int]] = {}
    for row in rows:
        wanted.setdefault(int(np.searchsorted(offsets, row, side="right")) - 1, []).append(row)
    calls = ((shared, units[at], inside) for at, inside in wanted.items())
    ends = {row: pair for found in tasks.each(ends_at, calls) for row, pair in found.items()}
    return [f"{looked.edge_where.where(row)}: {ends[row][0]} -> {ends[row][1]}" for row in rows]


def ends_at(plan: Plan, unit: Unit, rows: list[int]) -> dict[int, tuple[Any, Any]]:
    """{row: (src, dst)} of some rows of a unit."""
    ids, found = plan.id_reader(), {}
    for batch in edge_batches(plan, unit, ends=True):
        ends = [ids.read(batch, name) for name in (plan.edge_roles.src, plan.edge_roles.dst)]
        for row in rows:
            at = row - batch.offset
            if 0 <= at < batch.columns.num_rows:
                found[row] = (ends[0][at].as_py(), ends[1][at].as_py())
    return found


def repeats(looked: Looked, pairs: list[tuple[Any, Any]]) -> list[int]:
    """The row of each (src, dst) of `pairs` that repeats it first, ascending."""
    shared = tasks.share((looked.plan, pairs))
    rows: dict[tuple[Any, Any], list[int]] = {pair: [] for pair in pairs}
    units = looked.units_of(nodes=False)
    for found in tasks.each(rows_of, ((shared, unit) for unit in units)):
        for pair, inside in found.items():
            rows[pair] += inside
    return sorted(found[1] for found in rows.values() if len(found) > 1)


def rows_of(
    shared: tuple[Plan, list[tuple[Any, Any]]], unit: Unit
) -> dict[tuple[Any, Any], list[int]]:
    """{(src, dst): the first two rows with it} of a unit."""
    plan, pairs = shared
    ids, rows = plan.id_reader(), dict[tuple[Any, Any], list[int]]()
    known = set(pairs)
    sources, targets = (pa.array(sorted(set(end)), ids.type) for end in zip(*pairs, strict=True))
    for batch in edge_batches(plan, unit, ends=True):
        src, dst = (ids.read(batch, name) for name in (plan.edge_roles.src, plan.edge_roles.dst))
        near = pc.and_(pc.is_in(src, sources), pc.is_in(dst, targets))
        for at in np.flatnonzero(near.to_numpy(zero_copy_only=False)).tolist():
            pair = (src[at].as_py(), dst[at].as_py())
            inside = rows.setdefault(pair, [])
            if pair in known and len(inside) < 2:
                inside.append(batch.offset + at)
    return {pair: inside for pair, inside in rows.items() if inside}


def first_dangling(plan: Plan, unit: Unit, lacking: list[Any]) -> tuple[int, str, Any]:
    """(row, column, id) of the first edge of a unit with an end in `lacking`, some arrays.

    As by the engine `local`, the destination is named where the source is a node.
    """
    ids = plan.id_reader()
    none = pa.concat_arrays(lacking)
    roles = plan.edge_roles
    for batch in edge_batches(plan, unit, ends=True):
        src, dst = (ids.read(batch, name) for name in (roles.src, roles.dst))
        missing = [pc.is_in(end, none).to_numpy(zero_copy_only=False) for end in (src, dst)]
        either = np.flatnonzero(missing[0] | missing[1])
        if either.size:
            at = int(either[0])
            name, end = (roles.src, src) if missing[0][at] else (roles.dst, dst)
            return batch.offset + at, name, end[at].as_py()
    raise AssertionError("an edge of this unit leads to nowhere")
