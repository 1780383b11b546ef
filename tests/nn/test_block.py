import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from dnformer.errors import ConfigError
from dnformer.nn import Block, DiffAttention
from dnformer.nn.block import FeedForward
from dnformer.nn.topology import Edges, add_self_loops, to_edges
from dnformer.ops import Topology

from .helpers import EDGES, features

TOPOLOGY = to_edges(EDGES, num_dst=8, num_src=8).topology


def block_of(**settings: object) -> Block:
    torch.manual_seed(0)
    return Block(DiffAttention(6, 2), **settings).double()


def part_of(topology: Topology, start: int, stop: int) -> Topology:
    first, last = topology.colptr[[start, stop]].tolist()
    return Topology(topology.colptr[start : stop + 1] - first, topology.row[first:last])


def test_forward_post_norm() -> None:
    block, h = block_of(dropout=0.0), features(width=6)
    middle = layer_norm(h + block.attention(h, EDGES), [6])
    hidden = (middle @ block.ffn.expand.weight.T + block.ffn.expand.bias).relu()
    ffn = hidden @ block.ffn.contract.weight.T + block.ffn.contract.bias
    torch.testing.assert_close(block(h, TOPOLOGY), layer_norm(middle + ffn, [6]))


def test_forward_pre_norm() -> None:
    block, h = block_of(norm="pre", activation="gelu", dropout=0.0), features(width=6)
    middle = h + block.attention(layer_norm(h, [6]), EDGES)
    hidden = gelu(layer_norm(middle, [6]) @ block.ffn.expand.weight.T + block.ffn.expand.bias)
    ffn = hidden @ block.ffn.contract.weight.T + block.ffn.contract.bias
    torch.testing.assert_close(block(h, TOPOLOGY), middle + ffn)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_forward_prefix_of_destinations(norm: str) -> None:
    block, h = block_of(norm=norm).eval(), features(width=6)
    out = block(h, part_of(TOPOLOGY, 0, 3))
    torch.testing.assert_close(out, block(h, TOPOLOGY)[:3])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_attend_some_covers_whole(norm: str) -> None:
    block, h = block_of(norm=norm).eval(), features(width=6)
    projected = block.project(h, 0)
    parts = []
    for start, stop in ((0, 1), (1, 5), (5, 8)):
        # loops are added range by range too
        nodes = torch.arange(start, stop)
        part = add_self_loops(Edges(part_of(TOPOLOGY, start, stop)), nodes).topology
        parts.append(block.attend_some(h[nodes], projected, part))
    whole = block(h, add_self_loops(Edges(TOPOLOGY)).topology)
    torch.testing.assert_close(torch.cat(parts), whole)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_forward_dropout_places(norm: str) -> None:
    # with (nearly) everything dropped only the residual stream is left, biases included
    block, h = block_of(norm=norm, dropout=1 - 1e-12), features(width=6)
    torch.nn.init.normal_(block.ffn.contract.bias)
    left = h if norm == "pre" else layer_norm(layer_norm(h, [6]), [6])
    torch.testing.assert_close(block(h, TOPOLOGY), left)


def test_feed_forward_dropout() -> None:
    ffn = FeedForward(6, expansion=2.0, activation="relu", dropout=1 - 1e-12).double()
    torch.nn.init.normal_(ffn.contract.bias)
    torch.testing.assert_close(ffn(features(width=6)), ffn.contract.bias.expand(8, 6))


@pytest.mark.parametrize(("expansion", "width"), [(2.0, 12), (0.5, 3), (1.5, 9), (0.01, 1)])
def test_block_ffn_width(expansion: float, width: int) -> None:
    assert block_of(ffn_expansion=expansion).ffn.expand.weight.shape == (width, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "none"}, "norm = 'none' is not one of post, pre"),
        ({"activation": "tanh"}, "activation = 'tanh' is not one of relu, gelu"),
        ({"dropout": -0.5}, "dropout = -0.5 is outside"),
        ({"ffn_expansion": 0.0}, "ffn_expansion = 0.0 must be above 0"),
    ],
)
def test_block_wrong_settings(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        block_of(**settings)
