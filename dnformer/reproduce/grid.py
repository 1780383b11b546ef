"""The runs that a table consists of, the most informative ones first.

Each dataset has a folder of configs, one file a model. Table 2 takes all of them; table 3 and
figure 2 vary DNFormer's own (the paper's ablations, and its heads and layers).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dnformer.config import RunConfig, load_config
from dnformer.errors import ConfigError
from dnformer.parsing import nearest, parse, put_all
from dnformer.reproduce.candidates import read_candidates

Table = Literal["table2", "table3", "figure2", "tune"]
# names of splits, as `data.split` takes them
Protocol = Literal["random", "per_class", "column"]

# the seven graphs of the paper, by the source that `dnformer ingest` takes
DATASETS = {
    "cora": "pyg:Planetoid/Cora",
    "citeseer": "pyg:Planetoid/CiteSeer",
    "pubmed": "pyg:Planetoid/PubMed",
    "computers": "pyg:Amazon/Computers",
    "photo": "pyg:Amazon/Photo",
    "cs": "pyg:Coauthor/CS",
    "physics": "pyg:Coauthor/Physics",
}

OURS = "dnformer"

# the ablations of table 3: w/o diff (one softmax, at width D and 2D) and w/o adapt
ABLATIONS: dict[str, dict[str, Any]] = {
    OURS: {},
    "w/o diff, D": {"model.attention": "single"},
    "w/o diff, 2D": {"model.attention": "single_wide"},
    "w/o adapt, one lambda a head": {"model.lambda": "head"},
    "w/o adapt, lambda 0.5": {"model.lambda": "fixed", "model.lambda_init": 0.5},
    "w/o adapt, lambda 1": {"model.lambda": "fixed", "model.lambda_init": 1.0},
}

HEADS, LAYERS = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6)

# where a run is and what its seed is are no part of what it computes
_ASIDE = {"name", "seed", "data.seed", "data.split"}


class Cell(NamedTuple):
    """A run of a table.

    Attributes:
        dataset: its name.
        label: what the table calls it: a model, an ablation, a number of layers and heads.
        protocol: of the split.
        seed: of weights, order and split.
        config: of the run.
    """

    dataset: str
    label: str
    protocol: Protocol
    seed: int
    config: RunConfig

    @property
    def settings(self) -> dict[str, Any]:
        """What the run computes: the fields that differ from the defaults, by dotted path."""
        return {
            leaf.path: leaf.value
            for leaf in self.config.given()
            if not leaf.runtime and leaf.path not in _ASIDE
        }


class Asked(NamedTuple):
    """Which runs are asked for.

    Attributes:
        table: which one; "tune": the comparison of candidates.
        configs: folder of `DATASET/MODEL.yaml` and of the candidates.
        datasets: names; None: all with a folder of configs, or with candidates.
        models: of table 2 and of the candidates; None: all there are.
        splits: of a table, each with its seed from 0 on; the candidates have their own.
        protocol: of the splits.
    """

    table: Table
    configs: Path
    datasets: list[str] | None = None
    models: list[str] | None = None
    splits: int = 10
    protocol: Protocol = "random"


def cells_of(asked: Asked) -> list[Cell]:
    """The runs that are asked for: all datasets and labels before the next seed.

    Raises:
        ConfigError: a config is not there, or wrong.
    """
    if asked.models is not None and asked.table in ("table3", "figure2"):
        raise ConfigError(f"{asked.table} is of {OURS} alone; leave out --models")
    if asked.table == "tune":
        candidates = read_candidates(asked.configs / "candidates.yaml")
        seeds: Sequence[int] = candidates.seeds
        variants = candidates.variants(asked.datasets, asked.models)
    else:
        seeds = range(asked.splits)
        names = asked.datasets or _datasets(asked.configs)
        variants = {name: dict(_variants(asked, name)) for name in names}
    labels = dict.fromkeys(label for each in variants.values() for label in each)
    return [
        Cell(name, label, asked.protocol, seed, _with_seed(own[label], asked.protocol, seed))
        for seed in seeds
        for label in labels
        for name, own in variants.items()
        if label in own
    ]


def _datasets(folder: Path) -> list[str]:
    """Those that have configs, in the paper's order, others behind."""
    found = {path.name for path in folder.glob("*") if path.is_dir()}
    if not found:
        raise ConfigError(f"{folder}: no folder DATASET with configs is there; --configs names it")
    return [*(name for name in DATASETS if name in found), *sorted(found - DATASETS.keys())]


def _variants(asked: Asked, dataset: str) -> Iterator[tuple[str, RunConfig]]:
    """(label, config) of a table's runs on a dataset, ours first."""
    folder = asked.configs / dataset
    if asked.table == "table2":
        for model in asked.models or _models(folder):
            yield model, _config(folder, model)
        return
    base = _config(folder, OURS)
    if asked.table == "table3":
        for label, changes in ABLATIONS.items():
            yield label, changed(base, changes)
        return
    for layers, heads in _shapes():
        hops = base.loader.num_neighbors[:layers]
        shape = {"model.layers": layers, "model.heads": heads, "loader.num_neighbors": hops}
        yield shape_label(layers, heads), changed(base, shape)


def shape_label(layers: int, heads: int) -> str:
    """What figure 2 calls a model of so many layers and heads."""
    return f"{layers} layer{'s' * (layers > 1)}, {heads} head{'s' * (heads > 1)}"


def _shapes() -> Iterator[tuple[int, int]]:
    """(layers, heads): the paper's two sweeps before the rest of the grid."""
    sweeps = [*((2, heads) for heads in HEADS), *((layers, 2) for layers in LAYERS)]
    yield from dict.fromkeys([*sweeps, *product(LAYERS, HEADS)])


def _models(folder: Path) -> list[str]:
    """Those with a config, ours, which each dataset needs, first."""
    return [OURS, *(name for name in _found(folder) if name != OURS)]


def _config(folder: Path, model: str) -> RunConfig:
    """A model's config; where it is not there, the error says what is."""
    path, found = folder / f"{model}.yaml", _found(folder)
    if not found:
        raise ConfigError(
            f"{folder}: has no {path.name}; configs are there for "
            f"{', '.join(_datasets(folder.parent))}; dnformer reproduce tune --datasets "
            f"{folder.name} finds those of a dataset that has candidates"
        )
    if model not in found:
        raise ConfigError(f"{path}: cannot be read: it is not there; {nearest(model, found)}")
    return load_config(path)


def _found(folder: Path) -> list[str]:
    """The models with a config."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def changed(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """`config` with values at dotted paths.

    Raises:
        ConfigError: they do not go together.
    """
    return parse(RunConfig, put_all(config.dump(), changes), name=config.name)


def _with_seed(config: RunConfig, protocol: Protocol, seed: int) -> RunConfig:
    """`config` on a split of `protocol`, with `seed` for it and for all that training draws."""
    return changed(config, {"seed": seed, "data.seed": seed, "data.split": protocol})
