"""NodeFormer: attention of all nodes over all nodes by random features, and a bias of the edges.

N nodes, E edges, H heads, C channels (the width of each head, too), F input features, K classes,
M random features, S Gumbel samples, R powers of the adjacency matrix.
"""

from typing import ClassVar, NamedTuple, final

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dnformer.config.zoo import NodeFormerOptions
from dnformer.nn.dropout import Dropout
from dnformer.nn.projection import InputProjection
from dnformer.nn.topology import to_edges
from dnformer.nn.zoo.neighbours import Neighbours
from dnformer.nn.zoo.shared import Shared, ZooModel
from dnformer.ops import Topology, transpose

# added to each random feature, so that no denominator is 0
_STABILISER = 1e-6


@final
class NodeFormer(ZooModel):
    """NodeFormer (Wu et al., NeurIPS 2022), the authors' model for graphs of medium size.

    h = drop(ELU(LN(x W + b))), then per layer h = drop(LN(attention(h) + h)), and a linear head.
    The nodes of a sampled batch attend among themselves. Time grows with N·H·S·M·C.

    Args:
        shared: settings of all models.
        options: its own.
    """

    sparse_input: ClassVar[bool] = True

    def __init__(self, shared: Shared, options: NodeFormerOptions) -> None:
        super().__init__(shared)
        channels = shared.hidden
        self.projection = InputProjection(shared.in_channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.dropout = Dropout(shared.dropout)
        self.layers = nn.ModuleList(
            KernelAttention(channels, shared.heads, options) for _ in range(shared.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(shared.layers))
        self.head = nn.Linear(channels, shared.out_channels)
        self._edge_loss = options.edge_loss
        self._powers = Kept(options.bias_order)

    def scores(self, x: Tensor, edge_index: Tensor, degree: Tensor | None) -> Tensor:
        """Scores `[N, K]`."""
        graph = self._powers(edge_index, x.shape[0])
        h = self.dropout(nn.functional.elu(self.norm(self.projection(x))))
        likelihood = h.new_zeros(())
        for layer, norm in zip(self.layers, self.norms, strict=True):
            attended, found = layer(h, graph)
            h = self.dropout(norm(attended + h))
            likelihood = likelihood + found
        if self.training and self._edge_loss:
            self.extra_loss = -self._edge_loss * likelihood / len(self.layers)
        scores: Tensor = self.head(h)
        return scores


@final
class KernelAttention(nn.Module):
    """Softmax attention over all nodes in linear time, with Gumbel noise in training.

    With random features q, k of queries and keys over √tau, and Gumbel noise g over tau, sample s
    gives node i the sum over j of q_i·k_j exp(g_js) v_j over that of q_i·k_j exp(g_js). The
    samples' mean, plus b_r Â_r v of each order r, is mixed over the heads by a linear map.
    """

    def __init__(self, channels: int, heads: int, options: NodeFormerOptions) -> None:
        super().__init__()
        self.heads, self.options = heads, options
        self.query, self.key, self.value = (nn.Linear(channels, heads * channels) for _ in range(3))
        self.out = nn.Linear(heads * channels, channels)
        self.squash = options.bias_form == "sigmoid"
        self.bias = nn.Parameter(
            torch.full((options.bias_order, heads), 0.1 if self.squash else 1.0)
        )

    def forward(self, h: Tensor, graph: "PowersOfGraph") -> tuple[Tensor, Tensor]:
        """Of each node `[N, C]`; and in training how likely attention finds the edges, 0-d."""
        options, scale = self.options, self.options.tau**-0.5
        q, k, v = (self._heads(linear(h)) for linear in (self.query, self.key, self.value))
        # in evaluation always the same, whatever the state of torch's generator
        generator = None if self.training else torch.Generator().manual_seed(0)
        draws = orthogonal_features(options.random_features, h.shape[1], generator).to(k)
        q, k = query_features(q * scale, draws), key_features(k * scale, draws)
        noise = torch.ones_like(k[..., :1])
        if self.training:
            noise = gumbel_weights((*k.shape[:2], options.gumbel_samples), options.tau).to(k)
        out = kernel_softmax(q, k, v, noise).transpose(0, 1).flatten(1)  # [N, H C]
        values = v.transpose(0, 1).flatten(1)
        bias = self.bias.sigmoid() if self.squash else self.bias
        for power, of_heads in zip(graph.powers, bias, strict=True):
            out = out + power.mean(values) * of_heads.repeat_interleave(h.shape[1])
        likelihood = h.new_zeros(())
        if self.training and options.edge_loss:
            likelihood = edge_likelihood(q, k, graph.edges)
        return self.out(out), likelihood

    def _heads(self, x: Tensor) -> Tensor:
        """[H, N, C]."""
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)


def kernel_softmax(
    q: Float[Tensor, "H N M"],
    k: Float[Tensor, "H N M"],
    v: Float[Tensor, "H N C"],
    noise: Float[Tensor, "H N S"],
) -> Float[Tensor, "H N C"]:
    """Values weighted by q_i · k_j noise_js over their sum, and the mean of that over the samples.

    The paper's equation 7.
    """
    num_samples, num_features = noise.shape[2], k.shape[2]
    keys = (noise.unsqueeze(3) * k.unsqueeze(2)).flatten(2)  # [H, N, S M]
    # a column of ones gives the denominators
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    sums = (keys.transpose(1, 2) @ values).view(len(q), num_samples, num_features, -1)
    sums = sums.transpose(1, 2).flatten(2)  # [H, M, S (C + 1)]
    found = (q @ sums).view(*q.shape[:2], num_samples, -1)  # [H, N, S, C + 1]
    return (found[..., :-1] / found[..., -1:]).mean(2)


def edge_likelihood(
    q: Float[Tensor, "H N M"], k: Float[Tensor, "H N M"], edges: Topology
) -> Float[Tensor, ""]:
    """Mean over edges and heads of log attention over in-degree: the paper's equation 11.

    Attention here is that without noise.
    """
    row, col = edges.row, edges.dst()
    weight = (q[:, col] * k[:, row]).sum(2)  # [H, E]
    total = (q * k.sum(1, keepdim=True)).sum(2)  # [H, N]
    log = weight.log() - total.log()[:, col]
    mean: Tensor = (log / edges.colptr.diff()[col]).mean()
    return mean


def query_features(
    q: Float[Tensor, "H N C"], draws: Float[Tensor, "M C"]
) -> Float[Tensor, "H N M"]:
    """Positive random features (arXiv 2009.14794), over each node's largest."""
    exponent, half_square = _exponents(q, draws)
    return _features(exponent - half_square - exponent.amax(2, keepdim=True))


def key_features(k: Float[Tensor, "H N C"], draws: Float[Tensor, "M C"]) -> Float[Tensor, "H N M"]:
    """The same over each head's largest, as keys are added up."""
    exponent, half_square = _exponents(k, draws)
    return _features(exponent - half_square - exponent.amax((1, 2), keepdim=True))


def _exponents(x: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    x = x * x.shape[-1] ** -0.25
    return x @ draws.T, x.square().sum(-1, keepdim=True) / 2


def _features(exponent: Tensor) -> Tensor:
    features: Tensor = (exponent.exp() + _STABILISER) * exponent.shape[-1] ** -0.5
    return features


def gumbel_weights(shape: tuple[int, ...], tau: float) -> Float[Tensor, "H N S"]:
    """exp(g / tau) of Gumbel noise g, over the largest of the nodes, in float64.

    A factor that all nodes share changes no weight.
    """
    noise = -torch.empty(shape, dtype=torch.float64).exponential_().log() / tau
    return (noise - noise.amax(1, keepdim=True)).exp()


def orthogonal_features(
    num_features: int, channels: int, generator: torch.Generator | None
) -> Float[Tensor, "M C"]:
    """Random directions, orthogonal in blocks of C, with the lengths of normal vectors."""
    blocks = [_rotation(channels, generator) for _ in range(-(-num_features // channels))]
    lengths = torch.randn(num_features, channels, generator=generator).norm(dim=1)
    drawn: Tensor = lengths.unsqueeze(1) * torch.cat(blocks)[:num_features]
    return drawn


def _rotation(channels: int, generator: torch.Generator | None) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(channels, channels, generator=generator))
    # QR leaves signs that are not random (Mezzadri, math-ph/0609050), which biases the kernel; the
    # authors take it as it is
    rotation: Tensor = (q * r.diagonal().sign()).T
    return rotation


class Power(NamedTuple):
    """The pairs of nodes that a number of edges joins at most, each with itself.

    Attributes:
        pairs: by destination, N of them.
        into: 1 / √in-degree `[N, 1]`, float64.
        out_of: 1 / √out-degree `[N, 1]`, float64.
    """

    pairs: Neighbours
    into: Tensor
    out_of: Tensor

    def mean(self, h: Tensor) -> Tensor:
        """The sum of h_j / √(in-degree of i · out-degree of j) over i's neighbours j."""
        return self.pairs.sum_of_batch(h * self.out_of.to(h.dtype)) * self.into.to(h.dtype)


class PowersOfGraph(NamedTuple):
    """The edges with a loop at each node, and the pairs within 1, 2, 4, .. of them."""

    edges: Topology
    powers: list[Power]


def powers_of(edge_index: Tensor, num_nodes: int, order: int) -> PowersOfGraph:
    """The first `order` of a graph's powers.

    Raises:
        DataError: an index is out of range.
    """
    given = to_edges(edge_index, num_dst=num_nodes, num_src=num_nodes).topology
    colptr, row = (part.cpu().numpy() for part in given[:2])
    shape = (num_nodes, num_nodes)
    matrix = scipy.sparse.csr_array((np.ones(len(row), np.float32), row, colptr), shape)
    matrix = scipy.sparse.csr_array(matrix + scipy.sparse.eye_array(num_nodes, dtype=np.float32))
    edges, found = _topology(matrix, edge_index.device), []
    for r in range(order):
        if r:
            matrix = matrix @ matrix
        # one, however many paths there are
        matrix.data[:] = 1
        found.append(_power(matrix, edge_index.device))
    return PowersOfGraph(edges, found)


def _power(matrix: "scipy.sparse.csr_array", device: torch.device) -> Power:
    topology = _topology(matrix, device)
    into, out_of = (
        torch.from_numpy(matrix.sum(axis)).to(device).double().rsqrt().unsqueeze(1)
        for axis in (1, 0)
    )
    topology = topology._replace(transposed=transpose(topology, topology.num_dst))
    return Power(Neighbours(topology, topology.colptr.diff().double(), None), into, out_of)


def _topology(matrix: "scipy.sparse.csr_array", device: torch.device) -> Topology:
    colptr, row = (
        torch.from_numpy(part.astype(np.int64)).to(device)
        for part in (matrix.indptr, matrix.indices)
    )
    return Topology(colptr, row)


@final
class Kept:
    """The powers of a graph, kept while batches bring the same `edge_index`.

    A product of two matrices may cost more than a training step. Two graphs are kept, those of
    training and of evaluation.
    """

    def __init__(self, order: int) -> None:
        self._order = order
        # with the tensor itself, so that no other one can come to lie where it is
        self._graphs: list[tuple[Tensor, int, PowersOfGraph]] = []

    def __call__(self, edge_index: Tensor, num_nodes: int) -> PowersOfGraph:
        """Of this graph, made anew where it is not one of the last two."""
        edge_index = edge_index.as_subclass(Tensor)
        for known, version, powers in self._graphs:
            same = known.is_set_to(edge_index) and version == edge_index._version
            if same and len(powers.edges.colptr) == num_nodes + 1:
                return powers
        powers = powers_of(edge_index, num_nodes, self._order)
        self._graphs = [*self._graphs[-1:], (edge_index, edge_index._version, powers)]
        return powers
