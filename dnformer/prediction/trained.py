"""The best model of a run, and what its outputs mean."""

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

from dnformer import storage
from dnformer.config import RunConfig, StorageConfig
from dnformer.data.graph import pick_target
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.data.table import Target
from dnformer.errors import CheckpointError, DataError
from dnformer.nn.node_model import NodeModel
from dnformer.training.build import build_model
from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint
from dnformer.training.run import read_result, read_run
from dnformer.training.state import check_weights


class Trained(NamedTuple):
    """A run as far as a prediction needs it.

    Attributes:
        run: its folder.
        config: its config.
        manifest: of the dataset that it was trained on.
        target: what its outputs are about.
        units: of numbers, the mean and scale that make them of the outputs.
        weights: the best ones, by name.
        fingerprint: hash of the weights, 64 hex digits.
        finished: whether the run has come to its end.
        versions: of the libraries that it trained with, as it noted them.
    """

    run: str
    config: RunConfig
    manifest: Manifest
    target: Target
    units: dict[str, list[float]]
    weights: dict[str, Tensor]
    fingerprint: str
    finished: bool
    versions: dict[str, str]

    @property
    def layerwise(self) -> bool:
        """Whether the model is computed layer by layer; others see the whole graph at once."""
        return self.config.model.name == "dnformer"

    def model(self) -> NodeModel:
        """A new model with the weights, in evaluation mode, on the CPU.

        Raises:
            CheckpointError: the weights are not those of such a model.
        """
        model = build_model(self.config, _Sizes(self.manifest, self.target))
        check_weights(model, self.weights)
        model.load_state_dict(self.weights)
        return model.eval()


class _Sizes(NamedTuple):
    """What the shapes of a model follow from."""

    manifest: Manifest
    target: Target

    @property
    def num_features(self) -> int:
        return self.manifest.num_features

    @property
    def num_classes(self) -> int:
        return self.target.num_outputs

    @property
    def num_edge_features(self) -> int:
        return len(self.manifest.edge_attr_names)


def open_trained(run: str, reached: StorageConfig) -> Trained:
    """The best model of the run in the folder `run`; sets how this process reaches stores.

    Raises:
        CheckpointError: there is no run, or it has no best weights (yet).
        DataError: the dataset that it was trained on is gone, or is another one by now.
    """
    storage.configure(reached)
    uri = storage.absolute(run)
    config, fingerprint = read_run(uri)
    storage.configure(config.storage.joined(reached))
    found = newest_checkpoint(uri)
    if found is None:
        raise CheckpointError(f"{uri}: no checkpoint yet; train it first")
    tensors, document = read_checkpoint(*found)
    if document.meta.fingerprint != fingerprint:
        raise CheckpointError(f"{uri}: its checkpoint belongs to another run; train it --fresh")
    # copied: the file's own memory is not aligned, on which last bits may depend
    weights = {
        name.removeprefix("best."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("best.")
    }
    if not weights:
        raise CheckpointError(
            f"{uri}: no validation gave a number yet, so there is no best model; train it further"
        )
    manifest = read_manifest(config.data.uri)
    if manifest.fingerprint != fingerprint:
        raise DataError(
            f"{config.data.uri} holds dataset {manifest.fingerprint[:12]}, the run was trained on "
            f"{fingerprint[:12]}; ingest that one again"
        )
    position = pick_target(manifest, config.data.label, config.data.uri)
    assert position is not None  # it was trained on one
    return Trained(
        run=uri,
        config=config,
        manifest=manifest,
        target=manifest.targets[position],
        units=document.meta.target,
        weights=weights,
        fingerprint=fingerprint_of(weights),
        finished=read_result(uri) is not None,
        versions=document.meta.versions,
    )


def fingerprint_of(weights: dict[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, whatever file they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_schema(trained: Trained, manifest: Manifest, uri: str) -> None:
    """Whether the model can be applied to a dataset.

    Raises:
        DataError: it has other features or edge attributes than the model was trained with.
    """
    own = trained.manifest
    differing = []
    if manifest.num_features != own.num_features:
        differing.append(f"{manifest.num_features} features, not {own.num_features}")
    names = own.edge_attr_names if trained.config.model.edge_bias else []
    if names and manifest.edge_attr_names != names:
        found = ", ".join(manifest.edge_attr_names) or "none"
        differing.append(f"edge attributes {found}, not {', '.join(names)}")
    if differing:
        raise DataError(
            f"{uri} has {' and '.join(differing)}; {trained.run} can predict only what has the "
            "same columns as the data that it was trained on"
        )
