"""Original ids of nodes, and back: streams over the dataset's id files, of which none is held."""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dnformer.data.manifest import Manifest
from dnformer.data.read import read_ids
from dnformer.errors import DataError
from dnformer.inference.exact import Nodes

Array = npt.NDArray[Any]

_SHOWN = 5


def _pieces(uri: str, manifest: Manifest, after: int) -> Iterator[tuple[int, Any]]:
    """(first node, ids) of the stretches that end after node `after`, in order."""
    first = 0
    for part in manifest.id_files:
        if first + part.rows > after:
            at = first
            for piece in read_ids(uri, manifest, part, first):
                yield at, piece if isinstance(piece, pa.Array) else pa.array(piece)
                at += len(piece)
        first += part.rows


@final
class Ids:
    """The original ids of nodes that are asked for in ascending order.

    Args:
        uri: the dataset.
        manifest: its manifest.
    """

    def __init__(self, uri: str, manifest: Manifest) -> None:
        self._uri, self._manifest = uri, manifest
        self._stream: Iterator[tuple[int, Any]] | None = None
        self._first, self._piece = 0, pa.array([])

    def of(self, nodes: Nodes) -> Any:
        """The ids of `nodes`, ascending and after those of the last call, as an Arrow array.

        Raises:
            DataError: an id file is damaged.
        """
        wanted = np.arange(nodes.start, nodes.stop) if isinstance(nodes, range) else nodes
        if self._manifest.ids == "index":
            return pa.array(wanted)
        found, at = [], 0
        while at < len(wanted):
            stop = int(np.searchsorted(wanted, self._first + len(self._piece)))
            if stop > at:
                found.append(self._piece.take(pa.array(wanted[at:stop] - self._first)))
                at = stop
            else:
                self._next(int(wanted[at]))
        return pa.concat_arrays(found)

    def _next(self, node: int) -> None:
        if self._stream is None:
            self._stream = _pieces(self._uri, self._manifest, node)
        self._first, self._piece = next(self._stream)


def indices_of(uri: str, manifest: Manifest, given: Sequence[str | int]) -> Array:
    """The nodes with the original ids `given`, ascending, each once.

    Raises:
        DataError: some are unknown, and named; or an id file is damaged.
    """
    texts = list(dict.fromkeys(str(each).strip() for each in given))
    if manifest.ids == "string":
        wanted = pa.array(texts)
    else:
        wanted = pa.array([_number(text, uri) for text in texts], pa.int64())
    if manifest.ids == "index":
        nodes = np.asarray(wanted)
        known = (nodes >= 0) & (nodes < manifest.num_nodes)
    else:
        nodes, known = _found(uri, manifest, wanted)
    if not known.all():
        unknown = [text for text, is_known in zip(texts, known, strict=True) if not is_known]
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise DataError(f"{uri} has no node {', '.join(unknown[:_SHOWN])}{more}")
    return np.unique(nodes)


def _number(text: str, uri: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise DataError(f"{uri} has integers as ids, and no node {text}") from None
    return number if abs(number) < 2**63 else -1


def _found(uri: str, manifest: Manifest, wanted: Any) -> tuple[Array, Array]:
    """(node of each of `wanted`, whether there is one)."""
    nodes = np.full(len(wanted), -1)
    for first, piece in _pieces(uri, manifest, 0):
        places = pc.index_in(piece.cast(wanted.type), value_set=wanted)
        there = np.flatnonzero(np.asarray(places.is_valid()))
        nodes[np.asarray(places.drop_null())] = first + there
    return nodes, nodes >= 0
