"""A few steps of a run's training, and a validation, on the clock."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnformer.config import RunConfig
from dnformer.data.graph import Graph
from dnformer.group import Group
from dnformer.inference.outputs import ExactOutputs
from dnformer.loader import FullLoader, Loader, NeighborLoader
from dnformer.nn.node_model import NodeModel
from dnformer.training.build import build_state
from dnformer.training.loop import seed_logits
from dnformer.training.state import TrainState


class Steps(NamedTuple):
    """Means over some micro-batches.

    Attributes:
        seconds: of one, forward, backward and update, its loading ahead included.
        nodes, edges: of one.
        saved_bytes: what its forward pass keeps for the backward pass.
        parameters: of the model.
    """

    seconds: float
    nodes: float
    edges: float
    saved_bytes: int
    parameters: int


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """So many threads for torch and the operator, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_steps(
    config: RunConfig, graph: Graph, seeds: Tensor, device: torch.device, *, budget_s: float
) -> Steps:
    """Trains on a graph for `budget_s` seconds after a first step, with any loss; at least a step.

    Args:
        config: the run's; nothing is compiled.
        graph: the run's, or one that stands in for it.
        seeds: the nodes that batches begin with.
        device: where it trains.
        budget_s: seconds.
    """
    train = config.train.model_copy(update={"compile": False})
    state = build_state(config.model_copy(update={"train": train}), graph, device)
    loader = _loader(config, state.model, graph, seeds, device)
    batches = loader.draws(itertools.cycle(range(len(loader))))
    saved = _saved_bytes(lambda: _step(state, next(batches), device))
    nodes = edges = count = 0
    begin = time.perf_counter()
    while not count or time.perf_counter() - begin < budget_s:
        batch = next(batches)
        _step(state, batch, device)
        count += 1
        nodes += batch.x.shape[0]
        edges += batch.edge_index.shape[1]
    seconds = (time.perf_counter() - begin) / count
    parameters = sum(p.numel() for p in state.model.parameters() if p.requires_grad)
    return Steps(seconds, nodes / count, edges / count, saved, parameters)


def _loader(
    config: RunConfig, model: NodeModel, graph: Graph, seeds: Tensor, device: torch.device
) -> Loader:
    loader = config.loader
    if loader.kind == "full":
        return FullLoader(graph, seeds, sparse=model.sparse_input)
    return NeighborLoader(
        graph, seeds, num_neighbors=loader.fan_out(config.model.layers),
        batch_size=loader.batch_size, sampling=loader.sampling, replace=loader.replace,
        temporal=loader.temporal, sparse=model.sparse_input, raw=device.type == "cuda",
        degrees=model.uses_degrees, threads=loader.threads, prefetch=loader.prefetch, device=device,
    )  # fmt: skip


def _step(state: TrainState, batch: Any, device: torch.device) -> None:
    state.model.train()
    state.optim.optimizer.zero_grad(set_to_none=True)
    dtype = next(state.model.parameters()).dtype
    with state.optim.autocast():
        logits = seed_logits(state.model, batch.to(device), dtype)
        # what a label's own loss takes does not count beside the rest
        loss = logits.to(dtype).square().mean()
    state.optim.backward(loss)
    state.optim.optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _saved_bytes(action: Callable[[], None]) -> int:
    """Bytes of the tensors that autograd keeps while `action` runs, each memory once."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        action()
    return sum(kept.values())


def time_exact(config: RunConfig, graph: Graph, device: torch.device) -> float:
    """Seconds of the model's exact outputs for all nodes of a graph, kernels compiled before."""
    model = build_state(config, graph, device).model
    outputs = ExactOutputs(model, graph, Group(device=device))
    for _ in range(2):
        begin = time.perf_counter()
        outputs([torch.arange(graph.num_nodes)])
    return time.perf_counter() - begin
