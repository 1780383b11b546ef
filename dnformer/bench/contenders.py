"""What is measured: our operator and layer, our reference, PyG's layers, the floor, a yardstick.

Each contender is a function of prepared inputs and a pass, `forward` (without autograd) or
`forward+backward`, that gives a step; a step returns the output and the gradients of all inputs
and parameters. All are importable by name, so that another process can make the same step.

N source nodes, M destination nodes, E edges, H heads, D head width, C = H·D, R width of the lambda
hidden layer, here R = D.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from dnformer.bench import floor
from dnformer.bench.asked import draft
from dnformer.bench.graphs import Csc
from dnformer.nn import DiffAttention
from dnformer.ops import QK, Lambda, Topology, diff_attention, reference, transpose

FORWARD, BOTH = "forward", "forward+backward"

Results = tuple[Any, ...]
Step = Callable[[], Results]


class Problem(NamedTuple):
    """A graph, and the size and mode of the attention over it; plain values.

    Attributes:
        graph: the graph.
        heads: H.
        width: D.
        attention: "diff", "single" or "single_wide".
        lam: "edge" or "head", for "diff".
        device: "cpu" or "cuda".
        dtype: name of a torch dtype.
    """

    graph: Csc
    heads: int
    width: int
    attention: str = "diff"
    lam: str = "edge"
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def edge_bytes(self) -> int:
        """Of one tensor `[E, H, D]`."""
        return self.graph.num_edges * self.heads * self.width * self._item_bytes

    @property
    def _item_bytes(self) -> int:
        return torch.empty(0, dtype=getattr(torch, self.dtype)).element_size()

    def read_bytes(self, passes: str) -> int:
        """What the floor reads, in "diff" with lambda "edge"."""
        rows = 3 if passes == FORWARD else 9  # of H·D: k is two of them, and so is q
        numbers = rows * self.heads * self.width + self.width
        return self.graph.num_edges * numbers * self._item_bytes


class Operands(NamedTuple):
    """Inputs of the operator, leaves of autograd, and the output's gradient `[M, H, D]`."""

    topology: Topology
    qk: QK
    v: Tensor
    lam: Lambda | None
    grad_out: Tensor

    def leaves(self) -> list[Tensor]:
        """Everything with a gradient."""
        lam = () if self.lam is None else (t for t in self.lam[:4] if t.numel())
        return [*self.qk, self.v, *lam]


class LayerInputs(NamedTuple):
    """Inputs of a layer: node features `[N, C]`, edges in both forms, the output's gradient."""

    problem: Problem
    topology: Topology
    edge_index: Tensor
    x: Tensor
    grad_out: Tensor


class Contender(NamedTuple):
    """How a step is made.

    Attributes:
        impl: its name.
        scope: "op", "layer", "floor" or "graph"; ours is compared with others of its scope.
        prepare: makes of a `Problem` what `build` takes.
        build: makes the step for a pass.
        edge_tensors: how many tensors `[E, H, D]` it holds at its peak, about.
    """

    impl: str
    scope: str
    prepare: Callable[[Problem], Any]
    build: Callable[[Any, str], Callable[[], Any]]
    edge_tensors: int = 0

    def step(self, problem: Problem, passes: str) -> Callable[[], Any]:
        """The step, from the problem alone."""
        return self.build(self.prepare(problem), passes)


def topology_of(problem: Problem) -> Topology:
    """The graph with its transpose built, as a batch comes to a training step."""
    topology = problem.graph.topology(problem.device)
    return topology._replace(transposed=transpose(topology, problem.graph.num_src))


def operands(problem: Problem) -> Operands:
    """Random inputs of the operator."""
    (_, colptr, _, num_src), heads, width = problem.graph, problem.heads, problem.width
    num_dst = len(colptr) - 1
    branch = width if problem.attention == "single" else 2 * width
    hidden = width if problem.lam == "edge" else 0
    draw = _drawer(problem)
    lam = None
    if problem.attention == "diff":
        sizes = ((num_dst, hidden), (num_src, hidden), (heads, hidden), (heads,))
        u, w, weight, bias = (draw(*size) for size in sizes)
        lam = Lambda(u, w, weight, bias, "softplus")
    return Operands(
        topology_of(problem),
        QK(draw(num_dst, heads, branch), draw(num_src, heads, branch)),
        draw(num_src, heads, width),
        lam,
        draw(num_dst, heads, width).detach(),
    )


def layer_inputs(problem: Problem) -> LayerInputs:
    """Random inputs of a layer; its input has a gradient, as that of all layers but the first."""
    topology, channels = topology_of(problem), problem.heads * problem.width
    draw = _drawer(problem)
    edge_index = torch.stack([topology.row, topology.dst()])
    x = draw(problem.graph.num_src, channels)
    grad_out = draw(topology.num_dst, channels).detach()
    return LayerInputs(problem, topology, edge_index, x, grad_out)


def _drawer(problem: Problem) -> Callable[..., Tensor]:
    generator = torch.Generator(problem.device).manual_seed(0)
    options = {"dtype": getattr(torch, problem.dtype), "device": problem.device}
    return lambda *size: torch.randn(*size, generator=generator, **options).requires_grad_()


def _step(
    forward: Callable[[], Tensor], leaves: list[Tensor], grad_out: Tensor, passes: str
) -> Step:
    def alone() -> Results:
        with torch.no_grad():
            return (forward(),)

    def both() -> Results:
        out = forward()
        return (out, *torch.autograd.grad(out, leaves, grad_out))

    return alone if passes == FORWARD else both


def op(inputs: Operands, passes: str) -> Step:
    """Our operator."""
    topology, qk, v, lam, grad_out = inputs
    return _step(lambda: diff_attention(topology, qk, v, lam), inputs.leaves(), grad_out, passes)


def reference_op(inputs: Operands, passes: str) -> Step:
    """The operator's definition in plain PyTorch."""
    topology, qk, v, lam, grad_out = inputs
    return _step(
        lambda: reference.diff_attention(topology, qk, v, lam), inputs.leaves(), grad_out, passes
    )


def layer(inputs: LayerInputs, passes: str) -> Step:
    """Our layer: projections, lambda, operator, output projection."""
    module = _our_layer(inputs.problem)
    num_dst, topology, x = inputs.topology.num_dst, inputs.topology, inputs.x
    return _step(
        lambda: module.attend(module.project(x, num_dst), topology),
        [x, *module.parameters()],
        inputs.grad_out,
        passes,
    )


def reference_layer(inputs: LayerInputs, passes: str) -> Step:
    """Our layer around the operator's definition."""
    module = _our_layer(inputs.problem)
    num_dst, topology, x = inputs.topology.num_dst, inputs.topology, inputs.x

    def forward() -> Tensor:
        q, u, k, v, w = module.project(x, num_dst)
        lam = None if module.lam is None else module.lam.combine(u, w)
        out = reference.diff_attention(topology, QK(q, k), v, lam)
        mixed: Tensor = module.out(out.flatten(1))
        return mixed

    return _step(forward, [x, *module.parameters()], inputs.grad_out, passes)


def _our_layer(problem: Problem) -> DiffAttention:
    channels = problem.heads * problem.width
    module = DiffAttention(channels, problem.heads, attention=problem.attention, lam=problem.lam)
    for parameter in module.parameters():
        # lambda's output weight is 0 at first, which would spare its hidden layer's gradients
        nn.init.normal_(parameter, std=channels**-0.5)
    return module.to(problem.device, getattr(torch, problem.dtype))


def transformer_conv(inputs: LayerInputs, passes: str) -> Step:
    """PyG's layer of one softmax over dot products, as it comes."""
    channels = inputs.x.shape[1]
    return _peer(TransformerConv((channels, channels), *_sizes(inputs)), inputs, passes)


def gatv2_conv(inputs: LayerInputs, passes: str) -> Step:
    """PyG's GATv2, without self-loops, so that all have the same edges."""
    channels = inputs.x.shape[1]
    module = GATv2Conv((channels, channels), *_sizes(inputs), add_self_loops=False)
    return _peer(module, inputs, passes)


def gat_conv(inputs: LayerInputs, passes: str) -> Step:
    """PyG's GAT, likewise."""
    channels = inputs.x.shape[1]
    module = GATConv((channels, channels), *_sizes(inputs), add_self_loops=False)
    return _peer(module, inputs, passes)


def _sizes(inputs: LayerInputs) -> tuple[int, int]:
    return inputs.problem.width, inputs.problem.heads


def _peer(module: nn.Module, inputs: LayerInputs, passes: str) -> Step:
    problem, x, edge_index = inputs.problem, inputs.x, inputs.edge_index
    module = module.to(problem.device, getattr(torch, problem.dtype))
    num_dst = inputs.topology.num_dst
    leaves = [x, *(p for p in module.parameters() if p.requires_grad)]
    return _step(lambda: module((x, x[:num_dst]), edge_index), leaves, inputs.grad_out, passes)


def floor_by_table(inputs: Operands, passes: str) -> Callable[[], float]:
    """The floor, one table of rows after the other."""
    return floor.by_table(_reads(inputs, passes))


def floor_by_edge(inputs: Operands, passes: str) -> Callable[[], float]:
    """The floor, all rows of an edge together."""
    return floor.by_edge(_reads(inputs, passes))


def _reads(inputs: Operands, passes: str) -> list[floor.Pass]:
    topology, (q, k), v, lam, grad_out = inputs
    w = v.new_empty(v.shape[0], 0) if lam is None else lam.w
    reads = [floor.forward_reads(topology.row, k, v, w)]
    if passes == BOTH:
        assert topology.transposed is not None
        reads.append(floor.backward_reads(topology.row, k, v))
        reads.append(floor.source_reads(topology.transposed.col, q, grad_out))
    return reads


def build_transpose(inputs: Operands, passes: str) -> Step:
    """What a batch pays once for all its layers: the edges by source."""
    topology, num_src = inputs.topology, inputs.v.shape[0]
    return lambda: tuple(transpose(topology, num_src))


def yardstick(path: str) -> Contender:
    """The draft in a file with `build_index` and `diff_attention`; it is given lambda.

    Raises:
        ConfigError: there is no such file, or it has other functions.
    """
    module = draft(path, ("build_index", "diff_attention"))
    return Contender("yardstick", "op", operands, partial(_yardstick, module))


def _yardstick(module: Any, inputs: Operands, passes: str) -> Step:
    topology, (q, k), v, _, grad_out = inputs
    lam = torch.rand(topology.num_edges, v.shape[1], requires_grad=True)
    index = module.build_index(topology.dst(), topology.row, topology.num_dst)
    return _step(
        lambda: module.diff_attention(q, k, v, lam, index), [q, k, v, lam], grad_out, passes
    )


OP = Contender("dnformer", "op", operands, op)
REFERENCE_OP = Contender("reference", "op", operands, reference_op)
FLOOR = Contender("floor", "floor", operands, floor_by_table)
FLOOR_BY_EDGE = Contender("floor by edge", "floor", operands, floor_by_edge)
TRANSPOSE = Contender("transpose", "graph", operands, build_transpose)
LAYER = Contender("dnformer", "layer", layer_inputs, layer)
REFERENCE_LAYER = Contender("reference", "layer", layer_inputs, reference_layer)
TRANSFORMER_CONV = Contender("TransformerConv", "layer", layer_inputs, transformer_conv, 7)
PEERS = (
    TRANSFORMER_CONV,
    Contender("GATv2Conv", "layer", layer_inputs, gatv2_conv, 7),
    Contender("GATConv", "layer", layer_inputs, gat_conv, 5),
)
