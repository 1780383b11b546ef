"""A graph that is open: its structure and features memory-mapped, its splits computed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from dnformer import storage
from dnformer.config import SplitConfig
from dnformer.data.local_stores import default_folder
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.data.splits import make_splits, unlabelled
from dnformer.data.store import Store, open_store
from dnformer.data.table import Target
from dnformer.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

# of a range that is looked at at a time; a few arrays of them are held
_EDGES = 1 << 22


@final
class Graph:
    """N nodes, E edges grouped by destination, features and labels, read-only.

    Attributes:
        uri: the dataset's folder.
        manifest: what the dataset says of itself.
        store: the arrays, memory-mapped.
    """

    def __init__(
        self,
        uri: str,
        manifest: Manifest,
        store: Store,
        *,
        split: SplitConfig | None = None,
        seed: int = 0,
        label: str | None = None,
    ) -> None:
        self.uri, self.manifest, self.store = uri, manifest, store
        self._target = pick_target(manifest, label, uri)
        self.split_recipe = split or manifest.default_split
        self._seed = seed
        self._splits: dict[str, npt.NDArray[np.int64]] | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.manifest.num_nodes

    @property
    def num_edges(self) -> int:
        """E, directed, as stored."""
        return self.manifest.num_edges

    @property
    def num_features(self) -> int:
        """F."""
        return self.manifest.num_features

    @property
    def num_classes(self) -> int:
        """K, outputs of the chosen target; 0 without any."""
        return 0 if self._target is None else self.target.num_outputs

    @property
    def num_edge_features(self) -> int:
        """A, attributes of an edge."""
        return len(self.manifest.edge_attr_names)

    @property
    def target(self) -> Target:
        """What there is to learn about each node, of what the dataset has.

        Raises:
            DataError: the dataset has no labels.
        """
        if self._target is None:
            raise DataError(
                f"{self.uri}: the dataset has no labels, so there is nothing to learn; ingest it "
                "with a node table that has some"
            )
        return self.manifest.targets[self._target]

    @property
    def y(self) -> npt.NDArray[Any]:
        """The values of `target`, as `table.TargetColumn` has them."""
        target = self.target  # raises where there is none
        return self.store.targets[self.manifest.targets.index(target)]

    @property
    def has_target(self) -> bool:
        """Whether there is something to learn."""
        return self._target is not None

    @property
    def fingerprint(self) -> str:
        """Hash of the content, 64 hex digits."""
        return self.manifest.fingerprint

    @property
    def splits(self) -> dict[str, npt.NDArray[np.int64]]:
        """Ascending node indices of "train", "val" and "test".

        Raises:
            DataError: the split recipe does not fit the data.
        """
        if self._splits is None:
            self._splits = make_splits(
                self.split_recipe,
                y=self.y,
                num_classes=self.num_classes,
                kind=self.target.kind,
                stored=self.store.split,
                seed=self._seed,
                time=self.store.node_time,
            )
        return self._splits

    def split(self, name: str) -> "Tensor":
        """Node indices of "train", "val" or "test", int64, ascending."""
        # here, so that what needs no tensors (describe) need not wait for torch
        import torch

        if name not in self.splits:
            raise DataError(f"no split {name!r}; there are {', '.join(self.splits)}")
        return torch.from_numpy(self.splits[name].copy())

    def describe(self) -> dict[str, Any]:
        """Counts, degrees, homophily and split sizes; plain values."""
        in_degree = np.diff(self.store.colptr)
        out_degree = self._out_degree()
        facts: dict[str, Any] = {
            "uri": self.uri,
            "source": self.manifest.source,
            "fingerprint": self.fingerprint,
            "num_nodes": self.num_nodes,
            "num_edges": self.num_edges,
            "num_features": self.num_features,
            "features": self.manifest.features,
            "feature_density": self._density(),
            "num_classes": self.num_classes,
            "targets": {target.name: target.kind for target in self.manifest.targets},
            "edge_columns": self._edge_columns(),
            "in_degree": _spread(in_degree),
            "out_degree": _spread(out_degree),
            "isolated_nodes": int(((in_degree == 0) & (out_degree == 0)).sum()),
            "edge_homophily": self._homophily(),
            "class_counts": self._class_counts(),
            "policies": self.manifest.policies,
            "counts": self.manifest.counts,
        }
        return facts | {"split_recipe": self.split_recipe.recipe()} | self._split_sizes()

    def _edge_columns(self) -> list[str]:
        there = (("weight", self.manifest.edge_weight), ("time", self.manifest.edge_time))
        return [name for name, has in there if has] + self.manifest.edge_attr_names

    def _density(self) -> float | None:
        if self.manifest.features == "none":
            return None
        if self.manifest.features == "dense":
            return 1.0
        return self.manifest.num_values / (self.num_nodes * self.num_features)

    def _out_degree(self) -> npt.NDArray[np.int64]:
        degree = np.zeros(self.num_nodes, dtype=np.int64)
        for edges in self._edge_ranges():
            degree += np.bincount(self.store.row[edges], minlength=self.num_nodes)
        return degree

    def _edge_ranges(self) -> Iterator[slice]:
        """All edges in ranges: few enough to hold, but no fewer than makes a pass over N pay."""
        step = max(_EDGES, self.num_nodes)
        for begin in range(0, self.num_edges, step):
            yield slice(begin, min(begin + step, self.num_edges))

    def _homophily(self) -> float | None:
        """Share of edges between labelled nodes that join one class; None without any."""
        if not self._has_classes():
            return None
        y, colptr, row = self.y, self.store.colptr, self.store.row
        labelled = equal = 0
        for edges in self._edge_ranges():
            low = int(np.searchsorted(colptr, edges.start, side="right")) - 1
            high = int(np.searchsorted(colptr, edges.stop, side="left"))
            counts = np.diff(np.clip(colptr[low : high + 1], edges.start, edges.stop))
            target, source = np.repeat(y[low:high], counts), y[row[edges]]
            both = (target >= 0) & (source >= 0)
            labelled += int(np.count_nonzero(both))
            equal += int(np.count_nonzero(both & (target == source)))
        return equal / labelled if labelled else None

    def _has_classes(self) -> bool:
        return self.has_target and self.target.kind == "class"

    def _class_counts(self) -> dict[str, int]:
        if not self._has_classes():
            return {}
        counts = np.bincount(self.y[self.y >= 0], minlength=self.num_classes)
        names = self.target.classes or [str(label) for label in range(self.num_classes)]
        return dict(zip(names, counts.tolist(), strict=True))

    def _split_sizes(self) -> dict[str, Any]:
        try:
            sizes = {name: len(nodes) for name, nodes in self.splits.items()}
            left_out = unlabelled(self.split_recipe, y=self.y, stored=self.store.split)
        except DataError as error:
            return {"splits": {}, "split_problem": str(error)}
        return {"splits": sizes} | (
            {"split_unlabelled": left_out} if any(left_out.values()) else {}
        )


def _spread(degree: npt.NDArray[Any]) -> dict[str, float]:
    return {
        "min": int(degree.min()),
        "mean": float(degree.mean()),
        "max": int(degree.max()),
    }


def open_graph(
    uri: str | Path,
    *,
    split: SplitConfig | None = None,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    max_bytes: int | None = None,
    label: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Graph:
    """The graph of the dataset at `uri`, ready to sample; its node-local store is built if missing.

    Args:
        uri: the dataset's folder, local or any fsspec URI.
        split: which nodes train, validate and test; None: the recipe that ingest recorded, else
            the split that came with the data.
        seed: of a computed split.
        cache_dir: folder of node-local stores on this host; None: the user's cache folder.
        max_bytes: of all stores in it: where a new one needs room, those that were not used for
            longest are removed, unless a process has them open. None: any.
        label: name of the target to learn; None: the first.
        say: told when the store has to be built, and what makes room for it.

    Raises:
        DataError: there is no dataset, or it is damaged.
    """
    uri = storage.absolute(uri)
    manifest = read_manifest(uri)
    folder = Path(cache_dir).expanduser().resolve() if cache_dir else default_folder()
    store = open_store(uri, manifest, folder, max_bytes=max_bytes, say=say)
    return Graph(uri, manifest, store, split=split, seed=seed, label=label)


def pick_target(manifest: Manifest, label: str | None, uri: str) -> int | None:
    """The position of the target named `label`, or of the first; None where there is none.

    Raises:
        DataError: none has that name.
    """
    names = [target.name for target in manifest.targets]
    if label is None:
        return 0 if names else None
    if label not in names:
        raise DataError(f"{uri}: no label {label!r}; it has {', '.join(names) or 'none'}")
    return names.index(label)
