"""What a batch is made in: memory that is kept for the next one, and tables of local ids."""

from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from dnformer.loader import sampler_kernels as kernels
from dnformer.loader import tree_kernels

Array = npt.NDArray[Any]
# as `sampler_kernels` has them: (first, degree, who, begin, end) and (e_id, row, counts, e, stop)
Frontier = tuple[Array, Array, Array, int, int]
Edges = tuple[Array, Array, Array, int, int]


@final
class Growing:
    """An array that grows; what is in it may be kept."""

    def __init__(self, dtype: Any) -> None:
        self._array = np.empty(0, dtype)

    def room(self, size: int, *, keep: int = 0) -> Array:
        """The array with `size` numbers or more, of which the first `keep` are as they were."""
        if len(self._array) < size:
            array = np.empty(size + size // 4, self._array.dtype)
            array[:keep] = self._array[:keep]
            self._array = array
        return self._array


class Table(Protocol):
    """Which local id a node has in this batch."""

    def start(self, n_id: Array, n: int) -> int:
        """A new batch with the nodes n_id[:n]; the place of one that stands twice, or -1."""

    def relabel(self, rows: Array, edges: Edges, frontier: Frontier, n_id: Array, n: int) -> int:
        """Local ids of the edges' sources; new nodes go to `n_id`. Gives the new `n`."""


@final
class DirectTable:
    """A place for each node of the graph: the fastest, O(N) memory, cleared only once."""

    def __init__(self, num_nodes: int) -> None:
        self._table, self._stamp = np.zeros(num_nodes, np.int64), 0

    def start(self, n_id: Array, n: int) -> int:
        """Of distinct nodes; -1, or the place of one that stands twice."""
        self._stamp += 1 << 32
        return int(kernels.seed_direct(self._table, self._stamp, n_id, n))

    def relabel(self, rows: Array, edges: Edges, frontier: Frontier, n_id: Array, n: int) -> int:
        """By the kernel of this table."""
        return int(kernels.relabel_direct(rows, edges, (n_id, n), self._table, self._stamp))


@final
class _Places:
    """At least two places for each node of a batch."""

    def __init__(self, dtype: Any) -> None:
        self._memory = Growing(dtype)
        self.table = self._memory.room(0)

    def resize(self, num_nodes: int) -> None:
        capacity = 1024
        while capacity < 2 * num_nodes:
            capacity *= 2
        self.table = self._memory.room(capacity)[:capacity]

    def are_enough(self, num_nodes: int) -> bool:
        return 2 * num_nodes <= len(self.table)


@final
class HashTable:
    """Memory by the nodes of a batch, whatever the graph's size."""

    def __init__(self, dtype: Any) -> None:
        self._places = _Places(dtype)

    def start(self, n_id: Array, n: int) -> int:
        """Of distinct nodes; -1, or the place of one that stands twice."""
        self._places.resize(n)
        return int(kernels.seed_hash(self._places.table, n_id, n))

    def relabel(self, rows: Array, edges: Edges, frontier: Frontier, n_id: Array, n: int) -> int:
        """By the kernel of this table."""
        *_, e, stop = edges
        if not self._places.are_enough(n + stop - e):
            self._places.resize(n + stop - e)
            kernels.seed_hash(self._places.table, n_id, n)
        return int(kernels.relabel_hash(rows, edges, (n_id, n), self._places.table))


@final
class TreeTable:
    """The same of pairs (tree, node); `tree` holds the tree of each node, seed i beginning tree i.

    Args:
        dtype: of local ids.
    """

    def __init__(self, dtype: Any) -> None:
        self._places, self._tree = _Places(dtype), Growing(dtype)

    def start(self, n_id: Array, n: int) -> int:
        """Of nodes that are all different: each has its tree."""
        self._tree.room(n)[:n] = np.arange(n)
        self._places.resize(n)
        tree_kernels.seed_trees(self._places.table, n_id, self._tree.room(n), n)
        return -1

    def tree(self, n: int) -> Array:
        """Of the nodes so far."""
        return self._tree.room(n, keep=n)[:n]

    def relabel(self, rows: Array, edges: Edges, frontier: Frontier, n_id: Array, n: int) -> int:
        """By the kernel of this table."""
        *_, e, stop = edges
        tree = self._tree.room(n + stop - e, keep=n)
        if not self._places.are_enough(n + stop - e):
            self._places.resize(n + stop - e)
            tree_kernels.seed_trees(self._places.table, n_id, tree, n)
        nodes = (n_id, tree, n)
        return int(tree_kernels.relabel_trees(rows, edges, frontier, nodes, self._places.table))


@final
class Scratch:
    """Arrays of a batch in the making; one thread has them at a time.

    Args:
        dtype: int32 where node and edge ids fit, else int64.
        num_nodes: of the graph, for a table with a place for each; None: one that grows.
        trees: a table of trees in place of either.
    """

    def __init__(self, dtype: Any, num_nodes: int | None, *, trees: bool) -> None:
        self.trees = TreeTable(dtype) if trees else None
        self.table: Table = self.trees or (
            HashTable(dtype) if num_nodes is None else DirectTable(num_nodes)
        )
        self.first, self.degree, self.who = (Growing(d) for d in (np.int64, np.int64, np.uint64))
        self.n_id, self.row, self.e_id, self.counts = (Growing(dtype) for _ in range(4))
        # of the edges in time, and of the weighted draws
        self.admitted, self.weight = Growing(np.int64), Growing(np.float32)
        self.keys, self.places = Growing(np.float64), Growing(np.int64)
