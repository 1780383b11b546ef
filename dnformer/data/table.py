"""A graph as columns in memory: what a source yields, and what the cache writer takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

Int64Array: TypeAlias = npt.NDArray[np.int64]
Features: TypeAlias = npt.NDArray[np.float32] | sp.csr_matrix | None

# codes of the split column
SPLITS = {"train": 1, "val": 2, "test": 3}


@dataclass(frozen=True, kw_only=True)
class NodeColumns:
    """Columns of N nodes in index order.

    Attributes:
        num_nodes: N.
        x: features, float32 `[N, F]` dense, or CSR with sorted indices and no stored zero, or None.
        y: class of each node, int64 `[N]`, -1 where it has none; None without labels.
        num_classes: K; 0 without labels.
        classes: class names in order of class, where labels were strings.
        split: int8 `[N]`, a code of `SPLITS`, 0 for no split; None where none came with the data.
        ids: original ids in index order, strictly ascending (ints by value, strings by UTF-8
            bytes): int64 `[N]` or a list of str; None where the ids are 0..N-1 themselves.
    """

    num_nodes: int
    x: Features = None
    y: Int64Array | None = None
    num_classes: int = 0
    classes: list[str] | None = None
    split: npt.NDArray[np.int8] | None = None
    ids: Int64Array | list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class RawGraph:
    """A graph as its source gave it: edges in any order, duplicates and self-loops included.

    Attributes:
        nodes: the node columns.
        src: source (the neighbour) of each edge as a node index, int64 `[E]`.
        dst: destination of each edge as a node index, int64 `[E]`.
        where: names edge `e` as a person finds it, for example "edges.csv row 17: a -> b".
        counts: what the source read and left out, for the manifest.
    """

    nodes: NodeColumns
    src: Int64Array
    dst: Int64Array
    where: Callable[[int], str]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GraphTable:
    """A cleaned graph: `dst`, `src` int64 `[E]` sorted by (dst, src), policies and their counts."""

    nodes: NodeColumns
    src: Int64Array
    dst: Int64Array
    policies: dict[str, str]
    counts: dict[str, int]
