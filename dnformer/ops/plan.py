# mypy: allow-untyped-defs, allow-untyped-decorators
"""How the CPU kernels cut their work: tasks of a fixed number of edges, whoever runs them.

So results have the same bits for any number of threads, and a hub is shared like anything else.
"""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

TASK_EDGES = 4096
# what a row costs beside its edges, in edges
_ROW = 4


class Plan(NamedTuple):
    """Tasks that cover all rows of a grouping of edges.

    Attributes:
        tasks: `[T, 5]` first and last + 1 row, first and last + 1 edge, and the slot: -1, or, for
            a piece of a row that is longer than a task, the piece's number.
        hubs: `[*, 3]` for each such row the row, and its first and last + 1 slot.
    """

    tasks: NDArray[np.int64]
    hubs: NDArray[np.int64]

    @property
    def num_pieces(self) -> int:
        """How many pieces all hubs have."""
        return int(self.hubs[-1, 2]) if len(self.hubs) else 0


def make_plan(ptr: NDArray[Any], task_edges: int = TASK_EDGES) -> Plan:
    """The plan for rows whose edges are `ptr[i]` to `ptr[i + 1]`."""
    tasks, hubs = _cut(ptr, task_edges)
    return Plan(tasks, hubs)


@numba.njit(nogil=True, cache=True)
def _cut(ptr, task_edges):
    num_rows, num_edges = len(ptr) - 1, ptr[-1]
    most_pieces = 2 * (num_edges // task_edges) + 2
    tasks = np.empty((2 * most_pieces + _ROW * num_rows // task_edges + 2, 5), np.int64)
    hubs = np.empty((num_edges // task_edges + 1, 3), np.int64)
    num_tasks = num_hubs = num_pieces = 0
    first, cost = 0, 0
    for i in range(num_rows):
        degree = ptr[i + 1] - ptr[i]
        if degree > task_edges or cost >= task_edges:
            if i > first:
                tasks[num_tasks] = first, i, np.int64(ptr[first]), np.int64(ptr[i]), -1
                num_tasks += 1
            first, cost = i, 0
        cost += degree + _ROW
        if degree > task_edges:
            hubs[num_hubs] = i, num_pieces, num_pieces
            end = np.int64(ptr[i + 1])
            for start in range(np.int64(ptr[i]), end, task_edges):
                stop = min(start + task_edges, end)
                tasks[num_tasks] = i, i + 1, start, stop, num_pieces
                num_tasks += 1
                num_pieces += 1
            hubs[num_hubs, 2] = num_pieces
            num_hubs += 1
            first, cost = i + 1, 0
    if num_rows > first:
        tasks[num_tasks] = first, num_rows, np.int64(ptr[first]), np.int64(ptr[num_rows]), -1
        num_tasks += 1
    return tasks[:num_tasks].copy(), hubs[:num_hubs].copy()
