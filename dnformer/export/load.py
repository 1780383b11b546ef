"""Opens an exported model."""

import hashlib
from typing import final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from dnformer import storage
from dnformer.config import RunConfig
from dnformer.data.table import Target
from dnformer.errors import CheckpointError
from dnformer.export.about import WEIGHTS, About, read_about
from dnformer.training.build import trained_model


@final
class LoadedModel(nn.Module):
    """A trained model, in evaluation mode, with what is needed to apply it.

    Attributes:
        network: the model itself, as `training.build` makes it.
        about: all that its folder says.
        config: of the run that trained it.
        target: what it predicts.
        classes: names of the classes or labels; None where they have none.
    """

    def __init__(self, network: nn.Module, about: About) -> None:
        super().__init__()
        self.network, self.about = network, about
        self.config: RunConfig = about.run_config
        self.target: Target = about.target
        self.classes: list[str] | None = about.target.classes

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        num_sampled_nodes: list[int] | None = None,
        num_sampled_edges: list[int] | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """Outputs `[N, K]`, or `[S, K]` of a sampled batch's seeds, as the model's own forward."""
        out: Tensor = self.network(x, edge_index, num_sampled_nodes, num_sampled_edges, edge_attr)
        return out

    def decide(self, out: Tensor) -> Tensor:
        """What outputs mean, `[N, K]`: probabilities, or numbers in the label's own units."""
        if self.target.kind == "class":
            return out.softmax(dim=-1)
        if self.target.kind == "multilabel":
            return out.sigmoid()
        units = self.about.units
        mean, scale = (torch.tensor(units[name], device=out.device) for name in ("mean", "scale"))
        return (out.double() * scale + mean).to(out.dtype)


def load(uri: str) -> LoadedModel:
    """The exported model in the folder `uri`, on the CPU and in evaluation mode.

    Nothing is unpickled, and only files inside the folder are read.

    Args:
        uri: as given to `dnformer export --out`: local or any fsspec URI.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    uri = storage.absolute(uri)
    about = read_about(uri)
    weights = _weights(uri, about)
    try:
        network = trained_model(about.run_config, about, weights)
    except CheckpointError as error:
        raise CheckpointError(f"{uri}: {error}; export the run again") from None
    return LoadedModel(network, about).eval()


def _weights(uri: str, about: About) -> dict[str, Tensor]:
    content = storage.read_if_exists(storage.join(uri, about.weights.file))
    if content is None or hashlib.sha256(content).hexdigest() != about.weights.sha256:
        found = "is missing" if content is None else "was changed"
        raise CheckpointError(f"{uri}: {WEIGHTS} {found} since it was written; export it again")
    try:
        weights: dict[str, Tensor] = safetensors.torch.load(content)
    except SafetensorError as error:
        raise CheckpointError(f"{uri}/{WEIGHTS} cannot be read: {error}") from None
    return weights
