"""Writes the best weights of a run as a folder that others can use."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from dnformer import storage
from dnformer.config import RunConfig, StorageConfig
from dnformer.data.graph import pick_target
from dnformer.data.manifest import read_manifest
from dnformer.data.table import Target
from dnformer.errors import CheckpointError, ConfigError, DataError
from dnformer.export.about import (
    CARD,
    CONFIG,
    PROGRAM,
    WEIGHTS,
    About,
    Dataset,
    Sizes,
    Weights,
    dataset_of,
    public_config,
    read_about,
    sizes,
)
from dnformer.export.card import card
from dnformer.export.program import program as record
from dnformer.parsing import parse
from dnformer.training.build import build_model
from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint
from dnformer.training.run import read_result, read_run
from dnformer.training.state import Values, check_weights

_BY_ITSELF = StorageConfig()


class Exported(NamedTuple):
    """What `export` wrote.

    Attributes:
        uri: the folder.
        files: their bytes by name.
        about: what `config.json` says.
    """

    uri: str
    files: dict[str, int]
    about: About


class _Best(NamedTuple):
    """The best weights of a run, and what is known of them."""

    weights: dict[str, Tensor]
    units: dict[str, list[float]]
    values: Values


def export(
    run: str,
    out: str,
    *,
    program: bool = False,
    overwrite: bool = False,
    reached: StorageConfig = _BY_ITSELF,
    say: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Writes the best weights of a run to the folder `out`, whole or not at all.

    Args:
        run: the run's folder.
        out: a folder, local or any fsspec URI, that is empty or missing.
        program: write `model.pt2` too, as `program.program` says.
        overwrite: replace another exported model at `out`.
        reached: how stores are reached; the run's own config has the rest.
        say: told what takes a while.

    Raises:
        CheckpointError: there is no run, it has no best weights yet, or its dataset was changed.
        DataError: its dataset is gone.
        ConfigError: `out` holds something.
        BackendError: torch cannot record the model as a program.
    """
    run, out = storage.absolute(run), storage.absolute(out)
    config, fingerprint = read_run(run)
    storage.configure(config.storage.joined(reached))
    _refuse_other(out, overwrite=overwrite)
    dataset, target = _learnt(config, fingerprint)
    best = _best(run)
    model = _model(config, sizes(dataset, target), best.weights)
    weights = safetensors.torch.save(best.weights, metadata={"format": "pt"})
    about = _about(run, config, best, weights, model, dataset, target)
    files = {WEIGHTS: weights, CARD: card(about, with_program=program).encode()}
    if program:
        say("recording the program")
        files[PROGRAM] = record(model, sizes(dataset, target))
    # last: without it there is no exported model
    files[CONFIG] = about.model_dump_json(indent=1).encode()
    _publish(out, files)
    return Exported(out, {name: len(content) for name, content in files.items()}, about)


def _refuse_other(out: str, *, overwrite: bool) -> None:
    names = storage.list_names(out)
    if not names and storage.exists(out) and not storage.is_folder(out):
        raise ConfigError(f"{out} is a file; choose a folder")
    if not names:
        return
    if CONFIG not in names:
        raise ConfigError(
            f"{out} holds {', '.join(names[:3])} and no exported model; choose an empty folder"
        )
    read_about(out)
    if not overwrite:
        raise ConfigError(f"{out} holds an exported model; --overwrite replaces it")


def _learnt(config: RunConfig, fingerprint: str) -> tuple[Dataset, Target]:
    manifest = read_manifest(config.data.uri)
    if manifest.fingerprint != fingerprint:
        raise CheckpointError(
            f"{config.data.uri} holds dataset {manifest.fingerprint[:12]}, the run was made with "
            f"{fingerprint[:12]}; put that one back"
        )
    position = pick_target(manifest, config.data.label, config.data.uri)
    if position is None:
        raise DataError(f"{config.data.uri}: the dataset has no labels")
    return dataset_of(config.data.uri, manifest), manifest.targets[position]


def _best(run: str) -> _Best:
    found = newest_checkpoint(run)
    if found is None:
        raise CheckpointError(f"{run}: no checkpoint yet; train it first")
    tensors, document = read_checkpoint(*found)
    prefix = "best."
    weights = {
        # copied: a part of the file's memory is of all its tensors
        name.removeprefix(prefix): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    if not weights:
        raise CheckpointError(f"{run}: no validation gave a number yet, so there is no best model")
    values = parse(Values, document.state, name=f"{run}: the checkpoint's state")
    return _Best(weights, document.meta.target, values)


def _model(config: RunConfig, shapes: Sizes, weights: dict[str, Tensor]) -> nn.Module:
    model = build_model(config, shapes)
    check_weights(model, weights)
    model.load_state_dict(weights)
    return model.eval()


def _about(
    run: str,
    config: RunConfig,
    best: _Best,
    weights: bytes,
    model: nn.Module,
    dataset: Dataset,
    target: Target,
) -> About:
    result = read_result(run) or {}
    return About(
        created_by=f"dnformer {version('dnformer')}",
        versions={"torch": torch.__version__},
        name=config.name,
        config=public_config(config),
        target=target,
        units=best.units,
        dataset=dataset,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        epochs=best.values.epoch,
        best_epoch=best.values.best_epoch,
        metrics={split: result[split] for split in ("val", "test") if split in result},
        weights=Weights(bytes=len(weights), sha256=hashlib.sha256(weights).hexdigest()),
    )


def _publish(out: str, files: dict[str, bytes]) -> None:
    """Writes all files, the last of which says that they are there; on a fault none stays."""
    storage.remove(storage.join(out, CONFIG))
    storage.remove(storage.join(out, PROGRAM))
    try:
        for name, content in files.items():
            storage.write_bytes(storage.join(out, name), content)
    except BaseException:
        for name in files:
            with suppress(OSError):
                storage.remove(storage.join(out, name))
        storage.remove_empty(out)
        raise
