"""A model whose attention logits are rounded to few bits, layer by layer, everything else exact.

Dynamic, symmetric, per tensor: the logits of one softmax of one layer are multiples of their
largest absolute value over 2^(b-1) - 1, found anew in each layer as the layers before gave it.

E edges, H heads, B softmaxes, K classes.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch_geometric.utils import softmax

from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference import Layers, RangeLimits, destination_ranges
from dnformer.nn import Block, DiffAttention, DNFormer
from dnformer.nn.attention import Projected
from dnformer.ops import Topology

_LIMITS = RangeLimits()


def quantised(values: Tensor, step: Tensor) -> Tensor:
    """`values` rounded to multiples of `step`; where that is 0, they are all 0."""
    return torch.where(step > 0, (values / step).round() * step, values)


class _QuantisedAttention(nn.Module):
    """Stands for an attention inside a block: its logits are multiples of `step` `[B]`."""

    def __init__(self, attention: DiffAttention, num_bits: int) -> None:
        super().__init__()
        self.attention, self.levels = attention, 2 ** (num_bits - 1) - 1
        self.step: Tensor | None = None

    def project(self, x: Tensor, num_dst: int | None = None) -> Projected:
        """The attention's own."""
        return self.attention.project(x, num_dst)

    def with_destinations(self, projected: Projected, x: Tensor) -> Projected:
        """The attention's own."""
        return self.attention.with_destinations(projected, x)

    def look(
        self, projected: Projected, topology: Topology, edge_attr: Tensor | None = None
    ) -> None:
        """Widens the step to the logits of these edges."""
        logits = self.attention.edge_logits(projected, topology, edge_attr)  # [E, H, B]
        if len(logits):
            step = logits.abs().amax((0, 1)) / self.levels
            self.step = step if self.step is None else torch.maximum(self.step, step)

    def attend(
        self, projected: Projected, topology: Topology, edge_attr: Tensor | None = None
    ) -> Tensor:
        """The attention's output with rounded logits, as `ops.reference` defines it."""
        own, dst = self.attention, topology.dst()
        logits = own.edge_logits(projected, topology, edge_attr)
        if self.step is not None:
            logits = quantised(logits, self.step)
        a = softmax(logits, dst, num_nodes=topology.num_dst)
        weight = a[..., 0]
        lam = own.edge_weights(projected, topology, edge_attr).lam
        if lam is not None:
            weight = weight - lam * a[..., 1]
        message = weight.unsqueeze(-1) * projected.v[topology.row]  # [E, H, D]
        out = message.new_zeros(topology.num_dst, *message.shape[1:]).index_add(0, dst, message)
        if own.norm is not None:
            out = own.norm(out) * own.scale
        mixed: Tensor = own.out(out.flatten(1))
        return mixed


@torch.no_grad()
def quantised_outputs(model: DNFormer, graph: Graph, nodes: Tensor, num_bits: int) -> Tensor:
    """The model's outputs `[S, K]` of `nodes` where all logits have `num_bits`, 2 or more."""
    rounded = copy.deepcopy(model).eval()
    layers = Layers(rounded, graph, Group(), _LIMITS)
    h = layers.embed()
    for block in rounded.blocks:
        attention = _QuantisedAttention(block.attention, num_bits)
        block.attention = cast(DiffAttention, attention)
        projected = layers.project(block, h)
        _find_step(attention, layers, block, h, projected)
        h = layers.run(block, h, projected, layers.nodes)
    return rounded.classify(h[nodes])


def _find_step(
    attention: _QuantisedAttention, layers: Layers, block: Block, h: Tensor, projected: Projected
) -> None:
    everyone = torch.arange(len(h)).numpy()
    for part in destination_ranges(layers.graph.store.colptr, everyone, layers.limits):
        edges = layers.edges(everyone[part], like=h)
        attention.look(block.with_destinations(projected, h[part]), *edges)
