"""The parts of a run, each made from the run's config."""

import sys
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dnformer.config import LoaderConfig, RunConfig
from dnformer.data.counter_rng import key_of
from dnformer.data.graph import Graph, open_graph
from dnformer.errors import BackendError, DataError
from dnformer.group import Group
from dnformer.loader import Cached, FullLoader, Loader, NeighborLoader, Visits, open_source
from dnformer.nn import DNFormer
from dnformer.nn.node_model import NodeModel
from dnformer.nn.zoo import ZOO, Shared
from dnformer.training.evaluate import Evaluator
from dnformer.training.loop import seeded
from dnformer.training.loss_weights import objective_for, training_weights
from dnformer.training.objectives import Objective
from dnformer.training.optim import Optim
from dnformer.training.state import TrainState, check_weights


def open_run_graph(config: RunConfig, fingerprint: str) -> Graph:
    """The dataset of a run.

    Raises:
        DataError: there is none, or it is another one than the run began with.
    """
    graph = open_graph(
        config.data.uri,
        split=config.data.split,
        seed=config.data_seed,
        cache_dir=Path(config.cache.dir) if config.cache.dir else None,
        max_bytes=config.cache.max_bytes,
        label=config.data.label,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    check_dataset(config.data.uri, graph.fingerprint, fingerprint)
    return graph


def check_dataset(uri: str, found: str, made_with: str) -> None:
    """Whether the dataset at `uri`, of fingerprint `found`, is the one that a run began with.

    Raises:
        DataError: it is another one.
    """
    if found != made_with:
        raise DataError(
            f"{uri} holds dataset {found[:12]}, the run was made with {made_with[:12]}; put that "
            "one back, or ingest it again"
        )


class Sizes(Protocol):
    """What a model's shapes follow from: a graph, a trained run or an exported model."""

    @property
    def num_features(self) -> int:
        """F."""

    @property
    def num_classes(self) -> int:
        """K, outputs."""

    @property
    def num_edge_features(self) -> int:
        """A, attributes of an edge."""


def build_model(config: RunConfig, graph: Sizes) -> NodeModel:
    """The model for a graph, with initial weights that follow from the seed."""
    with seeded(key_of(config.seed, "train"), torch.device("cpu")):
        make = _dnformer if config.model.name == "dnformer" else _of_zoo
        built = make(config, graph)
    return built.to(torch.float64 if config.train.precision == "float64" else torch.float32)


def trained_model(config: RunConfig, sizes: Sizes, weights: dict[str, Tensor]) -> NodeModel:
    """The model for such sizes with `weights`, in evaluation mode, on the CPU.

    Raises:
        CheckpointError: the weights are not those of such a model.
    """
    model = build_model(config, sizes)
    check_weights(model, weights)
    model.load_state_dict(weights)
    return model.eval()


def _dnformer(config: RunConfig, graph: Sizes) -> NodeModel:
    model = config.model
    return DNFormer(
        graph.num_features,
        model.hidden,
        graph.num_classes,
        model.layers,
        model.heads,
        dropout=model.dropout,
        attention_dropout=model.attention_dropout,
        attention=model.attention,
        lam=model.lam,
        lambda_width=model.lambda_width,
        lambda_init=model.lambda_init,
        lambda_bound=model.lambda_bound,
        norm=model.norm,
        ffn_expansion=model.ffn_expansion,
        activation=model.activation,
        head_norm=model.head_norm,
        self_loops=model.self_loops,
        edge_channels=graph.num_edge_features if model.edge_bias else 0,
        input_dropout=model.input_dropout,
        input_norm=model.input_norm,
        activation_checkpointing=config.train.activation_checkpointing,
    )


def _of_zoo(config: RunConfig, graph: Sizes) -> NodeModel:
    model = config.model
    shared = Shared(
        graph.num_features,
        graph.num_classes,
        hidden=model.hidden,
        layers=model.layers,
        heads=model.heads,
        dropout=model.dropout,
        activation=model.activation,
        input_dropout=model.input_dropout,
        input_norm=model.input_norm,
    )
    return ZOO[model.name](shared, model.options)


def build_state(config: RunConfig, graph: Graph, device: torch.device) -> TrainState:
    """Where a run begins."""
    model = build_model(config, graph).to(device)
    if config.train.compile and isinstance(model, DNFormer):
        model.compile_blocks()
    optim = Optim(model, config.optim, precision=config.train.precision, device=device)
    return TrainState(model, optim)


class Seeds(NamedTuple):
    """The nodes that train: their indices, and their weights in the loss, float64, above 0."""

    nodes: Tensor
    weights: Tensor


def training_seeds(config: RunConfig, graph: Graph, objective: Objective) -> Seeds:
    """The nodes of split train that count in the loss.

    Raises:
        DataError: there is none.
    """
    nodes, weights = graph.split("train"), training_weights(graph, objective, config.loss)
    keep = weights > 0
    if not keep.any():
        raise DataError(
            f"{graph.uri}: no node of split 'train' has a label; choose another data.split"
        )
    return Seeds(nodes[keep], weights[keep])


class Parts(NamedTuple):
    """What a run consists of beside its graph; `features` are None where they are sparse."""

    state: TrainState
    objective: Objective
    seeds: Seeds
    features: Cached | None
    evaluator: Evaluator


def build_parts(config: RunConfig, graph: Graph, group: Group) -> Parts:
    """The parts of a run, for one worker of `group`.

    Raises:
        ConfigError: a setting does not fit the graph.
        DataError: there is nothing to learn or to measure.
    """
    objective = objective_for(graph, config.loss, config.train.monitor)
    seeds = training_seeds(config, graph, objective)
    features = _open_features(config, graph, seeds, group.device)
    state = build_state(config, graph, group.device)
    evaluator = Evaluator(
        state.model,
        graph,
        group,
        objective=objective,
        loader=_every_hop(config) if config.eval.mode == "sampled" else None,
        seed=config.seed,
        features=features,
    )
    return Parts(state, objective, seeds, features, evaluator)


def _every_hop(config: RunConfig) -> LoaderConfig:
    """The loader's section, with a fan-out for each of the model's hops."""
    loader = config.loader
    return loader.model_copy(update={"num_neighbors": loader.fan_out(config.model.layers)})


def _open_features(
    config: RunConfig, graph: Graph, seeds: Seeds, device: torch.device
) -> Cached | None:
    """Where dense features come from, with the rows kept that training meets most."""
    loader = config.loader
    fan_out = loader.fan_out(config.model.layers)
    visits = Visits(seeds.nodes.numpy(), fan_out, loader.batch_size)
    return open_source(graph.store, config.cache, visits=visits, device=device)


def build_loader(config: RunConfig, graph: Graph, parts: Parts, device: torch.device) -> Loader:
    """The training loader of a run, whose batches go to `device`."""
    nodes, loader, model = parts.seeds.nodes, config.loader, parts.state.model
    if loader.kind == "full":
        return FullLoader(graph, nodes, seed=config.seed, sparse=model.sparse_input)
    return NeighborLoader(
        graph, nodes, num_neighbors=loader.fan_out(config.model.layers),
        batch_size=loader.batch_size, seed=config.seed, sampler=loader.sampler,
        sampling=loader.sampling, replace=loader.replace, temporal=loader.temporal,
        sparse=model.sparse_input, raw=device.type == "cuda", threads=loader.threads,
        prefetch=loader.prefetch, degrees=model.uses_degrees, features=parts.features,
        device=device,
    )  # fmt: skip


def device_for(use_gpu: bool) -> torch.device:
    """The device of an in-process run.

    Raises:
        BackendError: a GPU is asked for and none is there.
    """
    if use_gpu and not torch.cuda.is_available():
        raise BackendError("train.use_gpu is true, but torch sees no CUDA device; set it to false")
    return torch.device("cuda" if use_gpu else "cpu")
