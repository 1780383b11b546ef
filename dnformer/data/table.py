"""A graph as columns in memory: what a source yields, and what the cache writer takes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from pydantic import Field

from dnformer.parsing import Section

Int64Array: TypeAlias = npt.NDArray[np.int64]

# codes of the split column
SPLITS = {"train": 1, "val": 2, "test": 3}

# what a value of a target of each kind is; in this order of type, "has none" is -1, -1, NaN
TARGET_DTYPES: dict[str, type[np.generic]] = {
    "class": np.int64,
    "multilabel": np.int8,
    "regression": np.float32,
}


class Quantized(NamedTuple):
    """Features in 8 bits: `values` int8 `[N, F]` times `scale` float32 `[F]`."""

    values: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]


Dense: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float16]
Features: TypeAlias = Dense | Quantized | sp.csr_matrix | None


class Target(Section):
    """Something to learn about each node."""

    name: str = Field(min_length=1, description="how a run picks it: data.label")
    kind: Literal["class", "multilabel", "regression"]
    num_outputs: int = Field(ge=1, description="classes, labels or numbers of a node")
    classes: list[str] | None = Field(None, description="their names, where labels were strings")


class TargetColumn(NamedTuple):
    """A target's values for N nodes.

    Attributes:
        target: what they are.
        values: int64 `[N]`, -1 for none, of kind class; int8 `[N, K]` of 0, 1 and -1 for unknown,
            multilabel; float32 `[N, K]`, NaN for none, regression.
    """

    target: Target
    values: npt.NDArray[Any]


def class_target(
    y: Int64Array | None, num_classes: int, classes: list[str] | None = None, name: str = "label"
) -> tuple[TargetColumn, ...]:
    """The targets of a graph with one class a node; none where `y` is None or K is 0."""
    if y is None or num_classes == 0:
        return ()
    target = Target(name=name, kind="class", num_outputs=num_classes, classes=classes)
    return (TargetColumn(target, y),)


@dataclass(frozen=True, kw_only=True)
class NodeColumns:
    """Columns of N nodes in index order.

    Attributes:
        num_nodes: N.
        x: features: float32 or float16 `[N, F]`, `Quantized`, CSR of float32 with sorted indices
            and no stored zero, or None.
        targets: what there is to learn; the first is the default.
        split: int8 `[N]`, a code of `SPLITS`, 0 for no split; None where none came with the data.
        ids: original ids in index order, strictly ascending (ints by value, strings by UTF-8
            bytes): int64 `[N]` or a list of str; None where the ids are 0..N-1 themselves.
        time: int64 `[N]`, or None.
    """

    num_nodes: int
    x: Features = None
    targets: tuple[TargetColumn, ...] = ()
    split: npt.NDArray[np.int8] | None = None
    ids: Int64Array | list[str] | None = None
    time: Int64Array | None = None


@dataclass(frozen=True, kw_only=True)
class EdgeColumns:
    """What edges carry, row i for edge i: weight float32 `[E]`, attr float32 `[E, A]`, time int64.

    `attr_names` are the names of the A attributes.
    """

    weight: npt.NDArray[np.float32] | None = None
    attr: npt.NDArray[np.float32] | None = None
    attr_names: tuple[str, ...] = ()
    time: Int64Array | None = None

    def take(self, rows: Any) -> "EdgeColumns":
        """These rows: a slice, a mask or positions."""
        weight, attr, time = (
            None if column is None else column[rows]
            for column in (self.weight, self.attr, self.time)
        )
        return EdgeColumns(weight=weight, attr=attr, attr_names=self.attr_names, time=time)


@dataclass(frozen=True, kw_only=True)
class RawGraph:
    """A graph as its source gave it: edges in any order, duplicates and self-loops included.

    Attributes:
        nodes: the node columns.
        src: source (the neighbour) of each edge as a node index, int64 `[E]`.
        dst: destination of each edge as a node index, int64 `[E]`.
        where: names edge `e` as a person finds it, for example "edges.csv row 17: a -> b".
        counts: what the source read and left out, for the manifest.
        edges: what the edges carry.
    """

    nodes: NodeColumns
    src: Int64Array
    dst: Int64Array
    where: Callable[[int], str]
    edges: EdgeColumns = EdgeColumns()
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GraphTable:
    """A cleaned graph: `dst`, `src` int64 `[E]` sorted by (dst, src), policies and their counts."""

    nodes: NodeColumns
    src: Int64Array
    dst: Int64Array
    policies: dict[str, str]
    counts: dict[str, int]
    edges: EdgeColumns = EdgeColumns()
