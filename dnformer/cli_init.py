"""The command `init`: a run's YAML from what a dataset says of itself."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import yaml

from dnformer.cli_common import Json, waiting
from dnformer.cli_storage import StorageOptions, configure_storage
from dnformer.config.fields import fields
from dnformer.errors import ConfigError, DataError

if TYPE_CHECKING:
    from dnformer.data.manifest import Manifest

_SEEDS, _BATCH_BYTES = (32, 1024), 256 << 20
# (nodes that train at most, epochs): as many steps as a small run needs, whatever the size
_EPOCHS = ((20_000, 200), (1_000_000, 50), (math.inf, 10))
_FEW_NEIGHBORS, _LAYERS = 10, 2
_WIDTH = 98


class _Setting(NamedTuple):
    path: str
    value: Any
    note: str = ""


def init(
    uri: Annotated[str, typer.Argument(metavar="URI", help="Folder of a dataset.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="YAML to write.")] = "run.yaml",
    force: Annotated[bool, typer.Option("--force", help="Replace a file at --out.")] = False,
    storage_options: StorageOptions = None,
    as_json: Json = False,
) -> None:
    """Write a commented config of a run that fits a dataset; it trains as it is."""
    path = Path(out)
    if path.exists() and not (force and path.is_file()):
        mend = "--force replaces it, or choose another --out"
        raise ConfigError(f"{out} is there already; {mend if path.is_file() else 'it is a folder'}")
    configure_storage(storage_options)
    with waiting("looking"):
        from dnformer import storage
        from dnformer.data.manifest import read_manifest

        manifest = read_manifest(storage.absolute(uri))
        settings = list(_settings(uri, manifest))
    storage.write_bytes(str(path), _text(uri, manifest, settings).encode())
    if as_json:
        print(json.dumps({"file": out} | {each.path: each.value for each in settings}))
    else:
        print(f"{out}: {settings[0].value}, for {_facts(manifest)}")
        print(f"  next: dnformer train {out}    # dnformer doctor --config {out}: memory and hours")


def _settings(uri: str, manifest: "Manifest") -> Iterator[_Setting]:
    """The fields that are written, in their order."""
    from dnformer.training.objectives import metrics_of

    if not manifest.targets:
        raise DataError(f"{uri}: the dataset has no labels, so there is nothing to train on")
    target, split = manifest.targets[0], _split(manifest)
    batch, note = _batch(manifest, _train_nodes(manifest, split))
    others = ", ".join(each.name for each in manifest.targets[1:])
    yield _Setting("name", _name(uri))
    yield _Setting("storage_path", "runs")
    yield _Setting("seed", 0)
    yield _Setting("data.uri", uri)
    yield _Setting("data.label", target.name, f"this dataset also has {others}" if others else "")
    yield _Setting("data.split", split, _split_note(manifest))
    yield _Setting("loader.num_neighbors", _fan_out(manifest), _degree_note(manifest))
    yield _Setting("loader.batch_size", batch, note)
    yield _Setting("model.hidden", 64)
    yield _Setting("model.layers", _LAYERS)
    yield _Setting("model.heads", 2)
    yield _Setting("optim.lr", 0.005)
    yield _Setting("train.epochs", _epochs(_train_nodes(manifest, split)))
    yield _Setting("train.patience", 50)
    metrics = metrics_of(target)
    yield _Setting("train.monitor", f"val/{metrics[0]}",
                   f"a label of kind {target.kind} has {', '.join(metrics)}")  # fmt: skip


def _name(uri: str) -> str:
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", uri.rstrip("/").rpartition("/")[2]).strip("-._")
    return last or "run"


def _split(manifest: "Manifest") -> dict[str, Any]:
    if manifest.split is not None:
        return manifest.split.recipe()
    return {"column": True} if manifest.stored_split else {"random": [0.6, 0.2, 0.2]}


def _split_note(manifest: "Manifest") -> str:
    if manifest.split is not None:
        return "recorded by ingest"
    if manifest.stored_split:
        return "the data came with it"
    return "or time: [0.6, 0.2, 0.2], the earliest train" if manifest.node_time else ""


def _train_nodes(manifest: "Manifest", split: dict[str, Any]) -> int:
    """How many train, guessed where that takes the data."""
    if "planetoid" in split:
        return min(manifest.num_nodes, int(split["planetoid"]) * manifest.num_classes)
    (recipe,) = split.values()
    share = recipe[0] if isinstance(recipe, list | tuple) else 0.6
    return max(1, int(share * manifest.num_nodes))


def _fan_out(manifest: "Manifest") -> list[int]:
    return [15, 10] if manifest.num_edges > _FEW_NEIGHBORS * manifest.num_nodes else [10, 5]


def _degree_note(manifest: "Manifest") -> str:
    return f"a node has {manifest.num_edges / manifest.num_nodes:.1f} on average"


def _batch(manifest: "Manifest", train_nodes: int) -> tuple[int, str]:
    """Some ten steps an epoch, but no batch that takes much memory."""
    from dnformer.doctor.estimate import expected_batch

    low, high = _SEEDS
    size = min(max(2 ** round(math.log2(max(train_nodes / 10, 1))), low), high)
    degree = manifest.num_edges / manifest.num_nodes
    row = 4 * manifest.num_features
    if manifest.features == "sparse":
        row = 8 * manifest.num_values // manifest.num_nodes
    while True:
        nodes, edges = expected_batch(manifest.num_nodes, degree, _fan_out(manifest), size)
        taken = nodes * (row + 16) + edges * 24
        if taken <= _BATCH_BYTES or size == low:
            break
        size //= 2
    return size, (
        f"so about {nodes:,.0f} nodes and {edges:,.0f} edges, {taken / 2**20:,.1f} MiB, of which "
        "several are in memory at a time"
    )


def _epochs(train_nodes: int) -> int:
    return next(epochs for most, epochs in _EPOCHS if train_nodes <= most)


def _facts(manifest: "Manifest") -> str:
    target = manifest.targets[0]
    return (
        f"{manifest.num_nodes:,} nodes, {manifest.num_edges:,} edges, "
        f"{manifest.num_features:,} {manifest.features} features, label {target.name!r} of kind "
        f"{target.kind} with {target.num_outputs} outputs"
    )


def _text(uri: str, manifest: "Manifest", settings: list[_Setting]) -> str:
    lines = [
        *_comment(f"A run on {uri}: {_facts(manifest)}."),
        "# What is not here has its default: docs/config.md lists all fields.",
    ]
    described = {each.path: each.description for each in fields()}
    section = ""
    for path, value, note in settings:
        head, _, key = path.rpartition(".")
        if head != section:
            lines += ["", f"{head}:"]
            section = head
        indent = "  " if head else ""
        text = described[path] + (f" ({note})" if note else "")
        lines += [indent + line for line in _comment(text)]
        lines.append(f"{indent}{key}: {_plain(value)}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    words, lines = text.split(), ["#"]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > _WIDTH - 2:
            lines.append("#")
        lines[-1] += f" {word}"
    return lines


def _plain(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()
