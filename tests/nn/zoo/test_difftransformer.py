import pytest
import torch

from dnformer.config.zoo import DiffTransformerOptions
from dnformer.errors import ConfigError
from dnformer.nn.zoo.difftransformer import DiffTransformer
from tests.nn.helpers import EDGES, features
from tests.nn.zoo.checks import SHARED, check_model, close


@pytest.mark.parametrize("lam", ["reparam", "sigmoid"])
def test_model(lam: str) -> None:
    torch.manual_seed(0)
    options = DiffTransformerOptions.model_validate({"lambda": lam})
    check_model(DiffTransformer(SHARED._replace(dropout=0.2), options))


def test_scores_equal_dense() -> None:
    torch.manual_seed(0)
    model = DiffTransformer(SHARED, DiffTransformerOptions()).double().eval()
    h = features() @ model.projection.weight + model.projection.bias
    for block in model.blocks:
        layer, normed = block.attention, block.norm1(h)
        values = (normed @ layer.value.weight.T).view(8, 2, 4).transpose(0, 1)
        # the maps are tested with the layer
        heads = layer.maps(normed[None])[0] @ values
        heads = heads / (heads.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.scale
        h = h + heads.transpose(0, 1).flatten(1) @ layer.out.weight.T
        gate = block.norm2(h) @ block.gate.weight.T
        inner = gate * gate.sigmoid() * (block.norm2(h) @ block.expand.weight.T)
        h = h + inner @ block.contract.weight.T
    h = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    close(model(features(), EDGES), h @ model.head.weight.T + model.head.bias)
    close(model(features(), EDGES[:, :1]), model(features(), EDGES))


def test_scores_too_many_nodes() -> None:
    options = DiffTransformerOptions(max_nodes=7)
    with pytest.raises(ConfigError, match="over 8 nodes at once, of 7 allowed: make loader"):
        DiffTransformer(SHARED, options)(features().float(), EDGES)
