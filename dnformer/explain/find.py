"""From the ids that a person gives to nodes, and from nodes to their ids."""

import difflib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer.data.manifest import Manifest
from dnformer.errors import DataError
from dnformer.prediction.ids import Ids, indices_of

Array = npt.NDArray[Any]

_NEAREST = 3
# ids that an unknown one is compared with: a second or two
_COMPARED = 200_000
_AT_A_TIME = 1 << 14


def find_nodes(uri: str, manifest: Manifest, given: Sequence[str]) -> list[int]:
    """The nodes with the original ids `given`, each once, in the order given.

    Raises:
        DataError: there is no such id; the message names the nearest ones.
    """
    try:
        nodes = indices_of(uri, manifest, given)
    except DataError as error:
        raise DataError(f"{error}{_instead(uri, manifest, given)}") from None
    places = {str(id_): int(node) for node, id_ in ids_of(uri, manifest, nodes).items()}
    named = (text.strip() for text in given)
    found = (places[text if text in places else str(int(text))] for text in named)
    return list(dict.fromkeys(found))


def ids_of(uri: str, manifest: Manifest, nodes: Array) -> dict[int, str | int]:
    """The original id of each of `nodes`."""
    ascending = np.unique(nodes)
    found = Ids(uri, manifest).of(ascending).to_pylist()
    return dict(zip(ascending.tolist(), found, strict=True))


def _instead(uri: str, manifest: Manifest, given: Sequence[str]) -> str:
    """What a person may have meant by the first id that there is not."""
    if manifest.ids == "index":
        return f"; its nodes are 0 to {manifest.num_nodes - 1}"
    pool = islice(_ids(uri, manifest), _COMPARED)
    if manifest.ids == "string":
        known = list(pool)
        unknown = next(text for text in map(str.strip, given) if text not in set(known))
        near: Sequence[Any] = difflib.get_close_matches(unknown, known, _NEAREST)
        return f"; the nearest to {unknown} are {_listed(near)}" if near else _some(known)
    numbers = np.fromiter(pool, np.int64)
    wrong = [text for text in map(str.strip, given) if not _is_among(text, numbers)]
    try:
        distance = np.abs(numbers.astype(np.float64) - int(wrong[0]))
    except (ValueError, OverflowError):
        return _some(numbers.tolist())
    near = numbers[np.argsort(distance, kind="stable")[:_NEAREST]].tolist()
    return f"; the nearest to {wrong[0]} are {_listed(near)}"


def _ids(uri: str, manifest: Manifest) -> Iterator[Any]:
    ids = Ids(uri, manifest)
    for first in range(0, manifest.num_nodes, _AT_A_TIME):
        yield from ids.of(range(first, min(first + _AT_A_TIME, manifest.num_nodes))).to_pylist()


def _is_among(text: str, numbers: Array) -> bool:
    try:
        return int(text) in numbers
    except (ValueError, OverflowError):
        return False


def _some(known: Sequence[Any]) -> str:
    return f"; it has ids like {_listed(known[:_NEAREST])}"


def _listed(ids: Sequence[Any]) -> str:
    return ", ".join(map(str, ids))
