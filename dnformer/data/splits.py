"""Train, validation and test nodes of a graph, computed when it is opened.

The protocols of the field differ: `random` is one uniform permutation, `per_class` the
class-balanced one of the BernNet family, `planetoid` the 20-a-class one (Yang et al., 2016).
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.counter_rng import key_of, permutation
from dnformer.data.sources.npz import load_npz
from dnformer.data.table import SPLITS
from dnformer.errors import DataError

Nodes = npt.NDArray[np.int64]
_PLANETOID_VAL, _PLANETOID_TEST = 500, 1000


def make_splits(
    recipe: SplitConfig,
    *,
    y: npt.NDArray[Any],
    num_classes: int,
    stored: npt.NDArray[np.int8] | None,
    seed: int,
    kind: str = "class",
    time: Nodes | None = None,
) -> dict[str, Nodes]:
    """Ascending node indices of "train", "val" and "test"; nodes without a label are in none.

    Args:
        recipe: which split.
        y: the target's values, as `table.TargetColumn` has them.
        num_classes: K.
        stored: the split column that came with the data, or None.
        seed: of the permutation, for a computed split.
        kind: of the target.
        time: of each node, or None.

    Raises:
        DataError: the recipe does not fit the data, parts overlap, or one has no labelled node.
    """
    given = _given(recipe, len(y), stored)
    if given is not None:
        parts = given
    elif recipe.time is not None:
        parts = _by_time(recipe.time, np.flatnonzero(_labelled(y)), time)
    else:
        _refuse_classless(recipe, kind)
        parts = _computed(recipe, y, num_classes, seed)
    labelled = {name: np.sort(nodes[_labelled(y[nodes])]) for name, nodes in parts.items()}
    for name, nodes in labelled.items():
        if len(nodes) == 0:
            where = "" if recipe.file is None else f"{recipe.file}: "
            size = len(parts[name])
            found = f"has {size} nodes, none with a label" if size else "is empty"
            raise DataError(f"{where}split {name!r} {found}; choose another data.split")
    return labelled


def unlabelled(
    recipe: SplitConfig, *, y: npt.NDArray[Any], stored: npt.NDArray[np.int8] | None
) -> dict[str, int]:
    """How many nodes of each part `make_splits` leaves out, as they have no label.

    Only a split that is given, by a file or with the data, has any.

    Raises:
        DataError: the given split is not what it must be.
    """
    given = _given(recipe, len(y), stored) or {}
    return {name: int((~_labelled(y[nodes])).sum()) for name, nodes in given.items()}


def _given(
    recipe: SplitConfig, num_nodes: int, stored: npt.NDArray[np.int8] | None
) -> dict[str, Nodes] | None:
    if recipe.file is not None:
        return _read(recipe.file, num_nodes)
    return None if recipe.column is None else _stored(stored)


def _refuse_classless(recipe: SplitConfig, kind: str) -> None:
    by_class = {"per_class", "planetoid"} & recipe.recipe().keys()
    if by_class and kind != "class":
        raise DataError(
            f"split {by_class.pop()} counts the nodes of each class, but the label is of kind "
            f"{kind}; set data.split to random, time, column or file"
        )


def _labelled(y: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which nodes have a class, or any known label or number."""
    known = ~np.isnan(y) if np.issubdtype(y.dtype, np.floating) else y >= 0
    return np.asarray(known if y.ndim == 1 else known.any(axis=1))


def _computed(
    recipe: SplitConfig, y: npt.NDArray[Any], num_classes: int, seed: int
) -> dict[str, Nodes]:
    labelled = np.flatnonzero(_labelled(y))
    if len(labelled) == 0:
        raise DataError("no node has a label, so no split can be computed; set data.split.file")
    order = labelled[permutation(len(labelled), key_of(seed, "split"))]
    if recipe.random is not None:
        return _cut(order, *(int(share * len(order)) for share in recipe.random[:2]))
    if recipe.per_class is not None:
        share = recipe.per_class[0]
        train = _of_each_class(order, y, num_classes, round(share * len(order) / num_classes))
        return _after(train, order, int(recipe.per_class[1] * len(order)), None)
    assert recipe.planetoid is not None
    train = _of_each_class(order, y, num_classes, recipe.planetoid)
    needed = len(train) + _PLANETOID_VAL + _PLANETOID_TEST
    if needed > len(order):
        raise DataError(f"split planetoid needs {needed} labelled nodes, found {len(order)}")
    return _after(train, order, _PLANETOID_VAL, _PLANETOID_TEST)


def _by_time(
    shares: tuple[float, float, float], labelled: Nodes, time: Nodes | None
) -> dict[str, Nodes]:
    """The earliest first; of the same time, by index."""
    if time is None:
        raise DataError(
            "split time needs times of nodes, and this dataset has none; ingest it with "
            "--node-time, or choose another data.split"
        )
    order = labelled[np.argsort(time[labelled], kind="stable")]
    return _cut(order, *(int(share * len(order)) for share in shares[:2]))


def _cut(order: Nodes, num_train: int, num_val: int) -> dict[str, Nodes]:
    train, val, test = np.split(order, [num_train, num_train + num_val])
    return {"train": train, "val": val, "test": test}


def _of_each_class(order: Nodes, y: Nodes, num_classes: int, count: int) -> Nodes:
    """The first `count` nodes of each class in `order`; all of a smaller class."""
    return np.concatenate([order[y[order] == label][:count] for label in range(num_classes)])


def _after(train: Nodes, order: Nodes, num_val: int, num_test: int | None) -> dict[str, Nodes]:
    rest = order[~np.isin(order, train)]
    val, test = rest[:num_val], rest[num_val:]
    return {"train": train, "val": val, "test": test[:num_test]}


def _stored(stored: npt.NDArray[np.int8] | None) -> dict[str, Nodes]:
    if stored is None:
        raise DataError(
            "no split came with this dataset; set data.split, for example "
            "data.split={random: [0.6, 0.2, 0.2]}"
        )
    return {name: np.flatnonzero(stored == code) for name, code in SPLITS.items()}


def _read(uri: str, num_nodes: int) -> dict[str, Nodes]:
    path = storage.absolute(uri)
    arrays = _read_json(path) if path.endswith(".json") else load_npz(path)
    if "valid" in arrays and "val" in arrays:
        raise DataError(f"{uri}: has both 'val' and 'valid'; leave one")
    if "valid" in arrays:
        arrays["val"] = arrays.pop("valid")
    parts = {}
    for name in SPLITS:
        if name not in arrays:
            found = ", ".join(arrays) or "nothing"
            raise DataError(
                f"{uri}: no {name!r}; it needs train, val (or valid), test; has {found}"
            )
        parts[name] = _indices(arrays[name], f"{uri}: {name!r}", num_nodes)
    _refuse_overlap(parts, uri)
    return parts


def _read_json(path: str) -> dict[str, npt.NDArray[Any]]:
    try:
        values = json.loads(storage.read_bytes(path))
        return {name: np.asarray(indices) for name, indices in values.items()}
    except (ValueError, AttributeError, RecursionError):
        raise DataError(f"{path}: no readable .json of node indices") from None


def _indices(values: npt.NDArray[np.generic], name: str, num_nodes: int) -> Nodes:
    if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
        raise DataError(f"{name} must be a list of node indices; found {values.dtype}")
    nodes = values.astype(np.int64)
    wrong = np.flatnonzero((nodes < 0) | (nodes >= num_nodes))
    if len(wrong):
        raise DataError(
            f"{name} position {wrong[0]}: node {nodes[wrong[0]]} is not in 0..{num_nodes - 1}"
        )
    once, count = np.unique(nodes, return_counts=True)
    if (count > 1).any():
        raise DataError(f"{name} has node {once[count > 1][0]} more than once")
    return nodes


def _refuse_overlap(parts: dict[str, Nodes], uri: str) -> None:
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        both = np.intersect1d(parts[first], parts[second])
        if len(both):
            raise DataError(f"{uri}: node {both[0]} is in {first!r} and in {second!r}")
