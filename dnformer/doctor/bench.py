"""Some seconds of operator, sampler and storage, beside what the log of measurements has.

A machine below its range is called slow, and no more: it trains.
"""

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from dnformer import storage
from dnformer.cgroup import cores
from dnformer.data.graph import Graph
from dnformer.doctor.check import Check, within
from dnformer.doctor.probe import mend_of, text_of
from dnformer.doctor.standin import random_graph
from dnformer.errors import DNFormerError
from dnformer.loader import NeighborSampler
from dnformer.ops import QK, Lambda, Topology, diff_attention

_LOG = "dnformer/bench/LOG.md, 2026-11-30"
_SECONDS = 1.5
_STORAGE_BYTES, _STORAGE_S = 8 << 20, 20.0


class Expected(NamedTuple):
    """A range of throughput: `typical` was measured, and a quarter of it is slow.

    Attributes:
        typical: where the source has it.
        unit: of both.
        source: where it is written.
    """

    typical: float
    unit: str
    source: str

    def judged(self, found: float, what: str) -> str:
        """`found` in words, with a note where it is slow."""
        low = self.typical / 4
        text = f"{found:,.1f} {self.unit} ({what}; {self.typical:g} in {self.source})"
        load, own = os.getloadavg()[0], cores()
        busy = f", on a busy machine (load {load:.1f}, {own} cores)" if load > own else ""
        return f"{text}; slow: below {low:g}{busy}" if found < low else text


# forward and backward, E = 400,000, 4 heads of 64: 200 ms on 2 threads
OPERATOR = Expected(2.0, "M edges/s", _LOG)
# [15, 10, 5], batch 1024, 10^6 nodes, 10^7 edges, one thread
SAMPLER = Expected(53.0, "M sampled edges/s", _LOG)
# the log has no store's throughput: at 20 MB/s a checkpoint of 10^7 parameters takes 4 s
STORAGE = Expected(80.0, "MB/s", "no log; a checkpoint's needs")


def bench(uri: str) -> list[Check]:
    """Measures operator, sampler and the storage at `uri`; some 10 s, kernels being compiled.

    Args:
        uri: a folder; nothing is left there.
    """
    graph = random_graph(1_000_000, 10_000_000)
    return [
        _operator(),
        _sampler(graph),
        *_storage(uri),
    ]


def _rate(action: Callable[[], int]) -> float:
    """What `action` counts, a second; its first call does not count."""
    action()
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < _SECONDS:
        done += action()
    return done / (time.perf_counter() - begin)


def _operator() -> Check:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    graph = random_graph(20_000, 400_000).store
    topology = Topology(
        torch.from_numpy(graph.colptr).to(device),
        torch.from_numpy(graph.row.astype(np.int64)).to(device),
    )
    n, heads, width = 20_000, 4, 64
    sizes = [(n, heads, 2 * width), (n, heads, 2 * width), (n, heads, width), (n, width),
             (n, width), (heads, width), (heads,)]  # fmt: skip
    q, k, v, u, w, weight, bias = (
        torch.rand(size, device=device, requires_grad=True) for size in sizes
    )

    def step() -> int:
        lam = Lambda(u, w, weight, bias, "softplus")
        torch.autograd.backward(diff_attention(topology, QK(q, k), v, lam).sum())
        if cuda:
            torch.cuda.synchronize()
        return topology.num_edges

    rate = _rate(step) / 1e6
    if cuda:
        found = f"{rate:,.1f} M edges/s on the GPU; the log has no range for one yet"
        return Check("bench operator", True, found)
    what = f"{torch.get_num_threads()} threads, 4 heads of 64"
    return Check("bench operator", True, OPERATOR.judged(rate, what))


def _sampler(graph: Graph) -> Check:
    sampler, keys = NeighborSampler(graph, [15, 10, 5]), iter(range(1 << 30))
    seeds = np.random.default_rng(0).permutation(graph.num_nodes)[:1024]

    def step() -> int:
        return len(sampler.sample(seeds, next(keys)).row)

    found = SAMPLER.judged(_rate(step) / 1e6, "one thread, [15, 10, 5]")
    return Check("bench sampler", True, found)


def _storage(uri: str) -> list[Check]:
    probe = storage.join(storage.absolute(uri), f".dnformer-bench-{uuid.uuid4().hex}")
    content = np.random.default_rng(0).bytes(_STORAGE_BYTES)
    steps: list[tuple[str, Callable[[], object]]] = [
        ("bench write", lambda: storage.write_bytes(probe, content)),
        ("bench read", lambda: storage.read_bytes(probe)),
    ]
    checks = []
    try:
        for name, step in steps:
            begin = time.perf_counter()
            try:
                within(_STORAGE_S, step)
            except (OSError, DNFormerError) as error:
                checks.append(Check(name, False, text_of(error), mend_of(error, uri, name[6:])))
                break
            rate = _STORAGE_BYTES / (time.perf_counter() - begin) / 1e6
            checks.append(Check(name, True, STORAGE.judged(rate, "one object of 8 MiB")))
    finally:
        with suppress(OSError, DNFormerError):
            within(_STORAGE_S, lambda: storage.remove(probe))
    return checks
