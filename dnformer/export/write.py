"""Writes the best weights of a run as a folder that others can use."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import NamedTuple

import safetensors.torch
import torch
from torch import nn

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.errors import ConfigError
from dnformer.export.about import (
    CARD,
    CONFIG,
    PROGRAM,
    WEIGHTS,
    About,
    Weights,
    dataset_of,
    public_config,
    read_about,
)
from dnformer.export.card import card
from dnformer.export.program import program as record
from dnformer.training.trained import Trained, open_trained

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
        CheckpointError: there is no run, or it has no best weights yet.
        DataError: its dataset is gone, or was changed.
        ConfigError: `out` holds something.
        BackendError: torch cannot record the model as a program.
    """
    out = storage.absolute(out)
    trained = open_trained(run, reached)
    _refuse_other(out, overwrite=overwrite)
    model = trained.model()
    weights = safetensors.torch.save(trained.weights, metadata={"format": "pt"})
    about = _about(trained, model, weights)
    files = {WEIGHTS: weights, CARD: card(about, with_program=program).encode()}
    if program:
        say("recording the program")
        files[PROGRAM] = record(model, trained)
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


def _about(trained: Trained, model: nn.Module, weights: bytes) -> About:
    config, result = trained.config, trained.result or {}
    return About(
        created_by=f"dnformer {version('dnformer')}",
        versions={"torch": torch.__version__},
        name=config.name,
        config=public_config(config),
        target=trained.target,
        units=trained.units,
        dataset=dataset_of(config.data.uri, trained.manifest),
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        epochs=trained.epochs,
        best_epoch=trained.best_epoch,
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
