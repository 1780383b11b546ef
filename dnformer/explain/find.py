"""From the ids that a person gives to nodes, and from nodes to their ids."""

import difflib
from collections.abc import Iterator, Sequence
from heapq import nsmallest
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
    # one id may be written in two ways
    named = [text if manifest.ids == "string" else _plain(text) for text in map(str.strip, given)]
    try:
        nodes = indices_of(uri, manifest, named)
    except DataError as error:
        raise DataError(f"{error}{_instead(uri, manifest, named)}") from None
    places = {str(id_): node for node, id_ in ids_of(uri, manifest, nodes).items()}
    return list(dict.fromkeys(places[text] for text in named))


def _plain(text: str) -> str:
    try:
        return str(int(text))
    except ValueError:
        return text


def ids_of(uri: str, manifest: Manifest, nodes: Array) -> dict[int, str | int]:
    """The original id of each of `nodes`."""
    ascending = np.unique(nodes)
    found = Ids(uri, manifest).of(ascending).to_pylist()
    return dict(zip(ascending.tolist(), found, strict=True))


def _instead(uri: str, manifest: Manifest, given: Sequence[str]) -> str:
    """What a person may have meant by the first id that there is not."""
    if manifest.ids == "index":
        return f"; its nodes are 0 to {manifest.num_nodes - 1}"
    known = list(islice(_ids(uri, manifest), _COMPARED))
    unknown = next(text for text in given if not _is_known(uri, manifest, text))
    near: Sequence[Any] = []
    if manifest.ids == "string":
        near = difflib.get_close_matches(unknown, known, _NEAREST)
    elif unknown.lstrip("-").isdecimal():
        near = nsmallest(_NEAREST, known, key=lambda id_: abs(id_ - int(unknown)))
    if near:
        return f"; nearest to {unknown}: {', '.join(map(str, near))}"
    return f"; it has ids like {', '.join(map(str, known[:_NEAREST]))}"


def _is_known(uri: str, manifest: Manifest, text: str) -> bool:
    try:
        return len(indices_of(uri, manifest, [text])) == 1
    except DataError:
        return False


def _ids(uri: str, manifest: Manifest) -> Iterator[Any]:
    ids = Ids(uri, manifest)
    for first in range(0, manifest.num_nodes, _AT_A_TIME):
        yield from ids.of(range(first, min(first + _AT_A_TIME, manifest.num_nodes))).to_pylist()
