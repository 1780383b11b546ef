"""The best model of a run, and what its outputs mean."""

import hashlib
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dnformer.config import RunConfig, StorageConfig
from dnformer.data.graph import Graph, pick_target
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.data.table import Target
from dnformer.errors import CheckpointError, ConfigError
from dnformer.nn import DNFormer
from dnformer.nn.node_model import NodeModel
from dnformer.training.build import check_dataset, open_run_graph, trained_model
from dnformer.training.checkpoints import read_newest
from dnformer.training.run import reach_run, read_result
from dnformer.training.state import no_best_model, parse_values


class Trained(NamedTuple):
    """A run with its best weights; it has the sizes of its model, as `build.Sizes` asks.

    Attributes:
        run: its folder.
        config: its config.
        manifest: of the dataset that it was trained on.
        target: what its outputs are about.
        units: of numbers, the mean and scale that make them of the outputs.
        weights: the best ones, by name, on the CPU.
        epochs: how many it has done.
        best_epoch: the one, from 0, that ended with the best weights.
        result: of a run that has come to its end, as `train` gives it.
        versions: of the libraries that it trained with, as it noted them.
    """

    run: str
    config: RunConfig
    manifest: Manifest
    target: Target
    units: dict[str, list[float]]
    weights: dict[str, Tensor]
    epochs: int
    best_epoch: int
    result: dict[str, Any] | None
    versions: dict[str, str]

    @property
    def num_features(self) -> int:
        """F."""
        return self.manifest.num_features

    @property
    def num_classes(self) -> int:
        """K, outputs."""
        return self.target.num_outputs

    @property
    def num_edge_features(self) -> int:
        """A, attributes of an edge."""
        return len(self.manifest.edge_attr_names)

    @property
    def layerwise(self) -> bool:
        """Whether the model is computed layer by layer; others see the whole graph at once."""
        return self.config.model.name == "dnformer"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights' names, types, shapes and values, whatever file they are in."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.weights.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def model(self) -> NodeModel:
        """A new model with the weights, in evaluation mode, on the CPU.

        Raises:
            CheckpointError: the weights are not those of such a model.
        """
        return trained_model(self.config, self, self.weights)

    def dnformer(self) -> DNFormer:
        """The same of a run of DNFormer.

        Raises:
            ConfigError: the run is of another model.
            CheckpointError: as `model` says.
        """
        if not self.layerwise:
            raise ConfigError(
                f"{self.run} is a run of {self.config.model.name}; only the attention of DNFormer "
                "can be read: train a run with model: {name: dnformer}"
            )
        return cast(DNFormer, self.model())

    def graph(self) -> Graph:
        """The dataset that it was trained on, with its split.

        Raises:
            DataError: it is gone, or another one by now.
        """
        return open_run_graph(self.config, self.manifest.fingerprint)


def open_trained(run: str, reached: StorageConfig) -> Trained:
    """The best model of the run in the folder `run`; sets how this process reaches stores.

    Raises:
        CheckpointError: there is no run, or it has no best weights (yet).
        DataError: the dataset that it was trained on is gone, or is another one by now.
    """
    uri, config, fingerprint = reach_run(run, reached)
    tensors, document = read_newest(uri)
    if document.meta.fingerprint != fingerprint:
        raise CheckpointError(f"{uri}: its checkpoint belongs to another run; train it --fresh")
    # copied: the file's own memory is not aligned, on which last bits may depend
    weights = {
        name.removeprefix("best."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("best.")
    }
    if not weights:
        raise no_best_model(uri)
    manifest = read_manifest(config.data.uri)
    check_dataset(config.data.uri, manifest.fingerprint, fingerprint)
    position = pick_target(manifest, config.data.label, config.data.uri)
    assert position is not None  # it was trained on one
    values = parse_values(document.state)
    return Trained(
        run=uri,
        config=config,
        manifest=manifest,
        target=manifest.targets[position],
        units=document.meta.target,
        weights=weights,
        epochs=values.epoch,
        best_epoch=values.best_epoch,
        result=read_result(uri),
        versions=document.meta.versions,
    )
