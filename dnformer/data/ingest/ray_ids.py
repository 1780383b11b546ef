"""The engine `ray`: ids to indices; a range of ids meets in one task, each unit gets its answer.

Units send each id that they have once to the range it belongs to; there the ids of nodes are
sorted, so that the index of one is its rank there after all that come in earlier ranges.
"""

import bisect
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data import fingerprint as fp
from dnformer.data.ingest.ids import write_ids
from dnformer.data.ingest.ray_look import Looked, Plan, Unit, edge_batches, node_batches
from dnformer.data.manifest import PartFile
from dnformer.data.table import Int64Array

_MAX_RANGES = 1 << 10


def id_ranges(looked: Looked) -> list[Any]:
    """The least ids of all ranges but the first."""
    sent = looked.node_rows + 2 * looked.edge_rows
    count = min(-(-sent // looked.plan.sizes.range_ids), _MAX_RANGES)
    at = [len(looked.ids) * number // count for number in range(1, count)]
    return sorted({looked.ids[position] for position in at})


def encoded_ends(src: list[Any], dst: list[Any]) -> Any:
    """The ids of a unit of edges, as a dictionary array: each stands in the dictionary once.

    Both steps that need the dictionary get it in the same order.
    """
    return pa.concat_arrays([*src, *dst]).dictionary_encode()


def _distinct_ends(plan: Plan, unit: Unit) -> Any:
    ids, roles = plan.id_reader(), plan.edge_roles
    src, dst = list[Any](), list[Any]()
    for batch in edge_batches(plan, unit, ends=True):
        src.append(ids.read(batch, roles.src))
        dst.append(ids.read(batch, roles.dst))
    return encoded_ends(src, dst).dictionary


def send_ids(plan: Plan, unit: Unit, firsts: list[Any]) -> tuple[Any, int]:
    """A unit's ids by range, columns range, unit, at (position there), id; and how many."""
    if unit.of_nodes:
        ids = plan.id_reader()
        columns = [ids.read(batch, plan.source.id) for batch in node_batches(plan, unit, None)]
        sent = pa.chunked_array(columns, ids.type).combine_chunks()
    else:
        sent = _distinct_ends(plan, unit)
    at = pc.sort_indices(sent)
    sent = sent.take(at)
    ends = [*(_left_of(sent, first) for first in firsts), len(sent)]
    counts = np.diff([0, *ends])
    table = {
        "range": np.repeat(np.arange(counts.size), counts),
        "unit": np.full(len(sent), unit.number),
        "at": pc.cast(at, pa.int64()),
        "id": sent,
    }
    return pa.table(table), len(sent)


def _left_of(ids: Any, first: Any) -> int:
    return bisect.bisect_left(range(len(ids)), first, key=lambda at: ids[at].as_py())


class RangeFacts(NamedTuple):
    """What a range of ids is.

    Attributes:
        num_nodes: how many are nodes.
        largest: the largest of these, if it is an integer.
        repeat: (row, earlier row, id) of the first node row that repeats an earlier one's id.
        lacking: the first unit with an endpoint that is no node.
    """

    num_nodes: int = 0
    largest: int = -1
    repeat: tuple[int, int, Any] | None = None
    lacking: int | None = None


def sort_range(plan: Plan, offsets: list[int], sent: Any) -> tuple[Any, RangeFacts]:
    """The ids of the nodes of a range in order, and facts.

    Args:
        plan: of the ingest.
        offsets: rows of the node table before each unit of nodes.
        sent: what units sent to the range.
    """
    if not sent.num_rows:
        return pa.table({"id": pa.array([], plan.id_reader().type)}), RangeFacts()
    sent = sent.combine_chunks()
    of_nodes = sent.filter(pc.less(sent["unit"], len(offsets)))
    found = pc.unique((sent if plan.all_there else of_nodes)["id"])
    found = found.take(pc.sort_indices(found))
    lacking = None
    if not plan.all_there:
        others = sent.filter(pc.invert(pc.is_in(sent["id"], found)))
        lacking = pc.min(others["unit"]).as_py()
    facts = RangeFacts(
        num_nodes=len(found),
        largest=found[-1].as_py() if len(found) and pa.types.is_integer(found.type) else -1,
        repeat=_repeat(of_nodes, offsets),
        lacking=lacking,
    )
    return pa.table({"id": found}), facts


def _repeat(of_nodes: Any, offsets: list[int]) -> tuple[int, int, Any] | None:
    encoded = of_nodes["id"].combine_chunks().dictionary_encode()
    if len(encoded.dictionary) == of_nodes.num_rows:
        return None
    code = encoded.indices.to_numpy()
    row = np.asarray(offsets)[of_nodes["unit"].to_numpy()] + of_nodes["at"].to_numpy()
    order = np.lexsort((row, code))
    code, row = code[order], row[order]
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    earliest = np.repeat(row[starts], np.diff([*starts, code.size]))
    later = np.flatnonzero(row != earliest)
    at = later[np.argmin(row[later])]
    return int(row[at]), int(earliest[at]), encoded.dictionary[int(code[at])].as_py()


def lacking_ids(sent: Any, nodes: Any, unit: int) -> Any:
    """The ids that a unit of edges sent to a range and that are no node."""
    if not sent.num_rows:
        return nodes["id"].combine_chunks().slice(0, 0)
    ids = sent.filter(pc.equal(sent["unit"], unit))["id"]
    return ids.filter(pc.invert(pc.is_in(ids, nodes["id"]))).combine_chunks()


def answer(plan: Plan, num_node_units: int, first: int, sent: Any, nodes: Any) -> tuple[Any, int]:
    """The indices of what was sent to a range, columns unit, at, index, known; and how many.

    Args:
        plan: of the ingest.
        num_node_units: units of nodes.
        first: index of the range's first id.
        sent: what units sent.
        nodes: the ids of the range's nodes, in order.

    Returns:
        index is -1 for what is no node; known is whether it is in the node table.
    """
    if not sent.num_rows:
        none = pa.array([], pa.int64())
        columns = {"unit": none, "at": none, "index": none, "known": pa.array([], pa.bool_())}
        return pa.table(columns), 0
    ids = sent["id"].combine_chunks()
    rank = pc.index_in(ids, nodes["id"].combine_chunks())
    index = pc.fill_null(pc.add(pc.cast(rank, pa.int64()), first), -1)
    known = pc.is_valid(rank)
    if plan.all_there and plan.nodes is not None:
        known = pc.is_in(ids, ids.filter(pc.less(sent["unit"], num_node_units).combine_chunks()))
    columns = {"unit": sent["unit"], "at": sent["at"], "index": index, "known": known}
    return pa.table(columns), sent.num_rows


def placed(answers: Any) -> tuple[Int64Array, Any]:
    """(index, known) of a unit's ids by their position there."""
    count = answers.num_rows
    index: Int64Array = np.empty(count, np.int64)
    known = np.empty(count, np.bool_)
    at = answers["at"].to_numpy()
    index[at] = answers["index"].to_numpy()
    known[at] = answers["known"].to_numpy()
    return index, known


def write_id_part(
    uri: str, name: str, first: int, slices: list[tuple[int, int]], *ranges: Any
) -> tuple[PartFile, fp.Digests]:
    """Publishes the ids of the nodes from `first` on, a slice (start, count) of each range."""
    pieces = [
        table["id"].combine_chunks().slice(*part)
        for part, table in zip(slices, ranges, strict=True)
    ]
    return write_ids(uri, name, first, pa.concat_arrays(pieces))
