"""What a run will take, before anything is spent: memory, disk, hours.

N nodes, E edges, L layers, C channels of the model, W workers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from dnformer.config import RunConfig
from dnformer.data.graph import Graph, open_graph
from dnformer.data.layout import layout, num_bytes
from dnformer.data.local_stores import COMPLETE, default_folder
from dnformer.data.manifest import Manifest
from dnformer.doctor.machine import PROCESS_BYTES
from dnformer.doctor.measured import Steps, time_exact, time_steps, torch_threads
from dnformer.doctor.standin import stand_in

# tables of local ids, 8 bytes a node and thread, up to so many nodes
_SAMPLER_NODES = 1 << 23
_TRAIN_S = 2.0
_SHARES = (0.6, 0.2)
_ON_GPU = ("hot rows of the GPU", "activations", "model", "evaluation")
FORMULA = (
    "a worker: 640 MiB for the process + cache.hot_bytes + (threads + prefetch + 1 of the loader) "
    "batches of nodes x row + edges x 24 B + 2 x what autograd keeps of a step + parameters x "
    "width x (weights, gradient, 2 slots, best, 3 of a checkpoint in flight) + loader.threads x "
    "8 B x min(N, 2^23) + for eval.mode exact (9 C + classes) x N x width (of a model of the zoo "
    "the whole graph and what autograd would keep of it); with train.use_gpu "
    "activations, model and evaluation are the GPU's; the store's pages are the page cache's, "
    "which may drop them"
)


@dataclass(frozen=True)
class Estimate:
    """What a run will take.

    Attributes:
        memory_per_worker_bytes: the host's, by `formula`.
        gpu_memory_bytes: of the worker's GPU, likewise; 0 without.
        memory_bytes: what both consist of.
        store_bytes: of the node-local store on each host's disk.
        train_nodes, edges_per_epoch, steps_per_epoch: of an epoch.
        seconds_per_epoch: its validation, where each epoch has one, included.
        epochs: at most; patience may end a run earlier.
        hours: of all epochs.
        worker_hours, gpu_hours: hours x workers; None where seconds are not known.
        basis: what the seconds were measured on, and what they leave out.
    """

    memory_per_worker_bytes: int
    gpu_memory_bytes: int
    memory_bytes: dict[str, int]
    formula: str
    store_bytes: int
    train_nodes: int
    edges_per_epoch: int
    steps_per_epoch: int
    seconds_per_epoch: float | None
    epochs: int
    hours: float | None
    workers: int
    worker_hours: float | None
    gpu_hours: float | None
    basis: str


class Batch(NamedTuple):
    """Nodes and edges of a micro-batch, expected."""

    nodes: float
    edges: float


def store_bytes(manifest: Manifest) -> int:
    """What the node-local store of a dataset takes."""
    return num_bytes(layout(manifest))


def cache_folder(config: RunConfig) -> Path:
    """The folder of node-local stores of a run."""
    return Path(config.cache.dir).expanduser() if config.cache.dir else default_folder()


def has_store(config: RunConfig, manifest: Manifest) -> bool:
    """Whether this host has the dataset's store."""
    return (cache_folder(config) / manifest.fingerprint / COMPLETE).is_file()


def expected_batch(num_nodes: int, degree: float, fan_out: Sequence[int], num_seeds: int) -> Batch:
    """A batch in a graph as `stand_in` makes them.

    Of m draws among N nodes, of which t are there, N - (N - t) exp(-m / N) are there afterwards.
    """
    met = found = float(min(num_seeds, num_nodes))
    edges = 0.0
    for most in fan_out:
        # the mean of min(d, most) over geometric degrees d
        kept = 1.0 if most < 0 else 1 - (degree / (degree + 1)) ** most
        draws = found * degree * kept
        after = num_nodes - (num_nodes - met) * math.exp(-draws / num_nodes)
        edges, found, met = edges + draws, after - met, after
    return Batch(met, edges)


def estimate(config: RunConfig, manifest: Manifest, *, threads: int) -> Estimate:
    """What the run of `config` on a dataset takes; trains for some seconds to tell.

    Args:
        config: the run's.
        manifest: of its dataset.
        threads: of a worker.
    """
    device, basis = _device(config)
    real = _open(config, manifest)
    graph = real or stand_in(manifest, max_nodes=1_000_000, max_edges=8_000_000)
    train_nodes, val_nodes, guess = _split_sizes(config, manifest, real)
    seeds = graph.split("train") if real else torch.arange(graph.num_nodes)
    with torch_threads(threads):
        steps = time_steps(config, graph, seeds, device, budget_s=_TRAIN_S)
        exact_s = _exact_seconds(config, manifest, device)
    batch, scale = _scaled(config, manifest, graph, steps)
    batches = 1 if config.loader.kind == "full" else -(-train_nodes // config.loader.batch_size)
    workers = max(config.train.max_workers, 1)
    each_s = steps.seconds * scale
    if config.eval.mode == "sampled":  # a forward pass is about a third of a step
        exact_s = each_s / 3 * -(-val_nodes // config.loader.batch_size)
    seconds = (batches * each_s + exact_s / config.eval.every_epochs) / workers
    on = (
        "the dataset's own store"
        if real
        else "a random graph of its mean degree and features (its store, once built, tells more)"
    )
    basis = (
        f"{basis}measured on this machine for {_TRAIN_S:g} s, {threads} thread(s), on {on}; "
        f"workers are taken to share an epoch evenly and for nothing{guess}"
    )
    known = device.type == "cuda" or not config.train.use_gpu
    epochs = min(config.train.epochs, config.train.stop_after or config.train.epochs)
    hours = seconds * epochs / 3600 if known else None
    gpus = config.train.gpu_share * workers if config.train.use_gpu else 0.0
    memory = _memory(config, manifest, steps, batch)
    on_gpu = sum(memory[name] for name in _ON_GPU) if config.train.use_gpu else 0
    return Estimate(
        memory_per_worker_bytes=sum(memory.values()) - on_gpu,
        gpu_memory_bytes=on_gpu,
        memory_bytes=memory,
        formula=FORMULA,
        store_bytes=store_bytes(manifest),
        train_nodes=train_nodes,
        edges_per_epoch=int(batch.edges * batches),
        steps_per_epoch=-(-batches // (config.train.micro_batches or workers)),
        seconds_per_epoch=seconds if known else None,
        epochs=epochs,
        hours=hours,
        workers=workers,
        worker_hours=None if hours is None else hours * workers,
        gpu_hours=None if hours is None else hours * gpus,
        basis=basis,
    )


def _device(config: RunConfig) -> tuple[torch.device, str]:
    if not config.train.use_gpu:
        return torch.device("cpu"), ""
    if torch.cuda.is_available():
        return torch.device("cuda"), ""
    return torch.device("cpu"), "there is no GPU here to time; sizes "


def _open(config: RunConfig, manifest: Manifest) -> Graph | None:
    """The run's graph, where its store need not be built."""
    if not has_store(config, manifest):
        return None
    return open_graph(
        config.data.uri, split=config.data.split, seed=config.data_seed,
        cache_dir=cache_folder(config), label=config.data.label,
    )  # fmt: skip


def _split_sizes(
    config: RunConfig, manifest: Manifest, graph: Graph | None
) -> tuple[int, int, str]:
    """(nodes that train, nodes that validate, what was guessed)."""
    if graph is not None:
        return len(graph.splits["train"]), len(graph.splits["val"]), ""
    split, n = config.data.split or manifest.default_split, manifest.num_nodes
    if split.planetoid is not None:
        return min(n, split.planetoid * manifest.num_classes), min(n, 500), ""
    shares = split.random or split.per_class or split.time
    if shares is not None:
        return max(1, int(shares[0] * n)), int(shares[1] * n), ""
    guess = "; 60 % of the nodes are taken to train: the split is known once the store is built"
    return max(1, int(_SHARES[0] * n)), int(_SHARES[1] * n), guess


def _scaled(
    config: RunConfig, manifest: Manifest, graph: Graph, steps: Steps
) -> tuple[Batch, float]:
    """A batch of the run, and how many times the measured one's time it takes."""
    if config.loader.kind == "full":
        there = Batch(manifest.num_nodes, manifest.num_edges)
        return there, sum(there) / max(steps.nodes + steps.edges, 1)
    size, fan_out = config.loader.batch_size, config.loader.fan_out(config.model.layers)
    degree = manifest.num_edges / manifest.num_nodes
    there = expected_batch(manifest.num_nodes, degree, fan_out, size)
    here = expected_batch(graph.num_nodes, degree, fan_out, size)
    nodes, edges = there.nodes / here.nodes, there.edges / max(here.edges, 1)
    return Batch(steps.nodes * nodes, steps.edges * edges), max(nodes, edges)


def _exact_seconds(config: RunConfig, manifest: Manifest, device: torch.device) -> float:
    if config.eval.mode != "exact":
        return 0.0
    small = stand_in(manifest, max_nodes=20_000, max_edges=200_000)
    share = (small.num_nodes + small.num_edges) / (manifest.num_nodes + manifest.num_edges)
    return time_exact(config, small, device) / share


def _memory(config: RunConfig, manifest: Manifest, steps: Steps, batch: Batch) -> dict[str, int]:
    loader, model, train = config.loader, config.model, config.train
    dense = manifest.features == "dense"
    width = 8 if train.precision == "float64" else 4
    row = width * manifest.num_features
    if manifest.features == "sparse":
        row = 8 * manifest.num_values // manifest.num_nodes
    attributes = 4 * len(manifest.edge_attr_names)
    one = batch.nodes * (row + 16) + batch.edges * (24 + attributes)
    ahead = 1 if loader.kind == "full" else loader.threads + loader.prefetch + 1
    grown = max(batch.nodes / max(steps.nodes, 1), 1.0)
    copies = 8 + (config.optim.ema_decay is not None)
    exact = (9 * model.hidden + manifest.num_classes) * manifest.num_nodes * width
    if model.name != "dnformer":
        whole = manifest.num_nodes * (row + 16) + manifest.num_edges * 24
        exact = int(whole + steps.saved_bytes * manifest.num_nodes / max(steps.nodes, 1))
    return {
        "process": PROCESS_BYTES,
        "hot rows": config.cache.hot_bytes if dense else 0,
        "hot rows of the GPU": config.cache.hot_gpu_bytes if dense and train.use_gpu else 0,
        "batches": int(ahead * one),
        "activations": int(2 * steps.saved_bytes * grown),
        "model": steps.parameters * width * copies,
        "sampler": loader.threads * 8 * min(manifest.num_nodes, _SAMPLER_NODES),
        "evaluation": exact if config.eval.mode == "exact" else 0,
    }
