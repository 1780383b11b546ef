"""The source `synthetic`: graphs of any size from a seed, with classes to learn.

Every chunk of edges and block of nodes is a function of the seed and its number alone, so the
graph does not depend on threads, and nothing but the pieces at work is held.
"""

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from dnformer.cgroup import cores
from dnformer.data.counter_rng import key_of
from dnformer.data.fingerprint import BLOCK
from dnformer.data.sources.synthetic_kernels import (
    NOISE_MEAN,
    NOISE_STD,
    Pairs,
    classes_of,
    draw_edges,
    draw_noise,
    make_quantiles,
    make_shuffle,
)
from dnformer.data.stream import EdgeChunk, GraphStream
from dnformer.data.table import Features, NodeColumns, Quantized, class_target
from dnformer.data.threads import in_threads
from dnformer.errors import ConfigError

CHUNK_PAIRS = 65_536

# what a key is for; the shuffle has 0
_EDGES, _CENTROIDS, _NOISE = 1, 2, 3
_MAX_NODES = 1 << 32


class SyntheticSource(BaseModel):
    """A graph of equally large classes, whose nodes meet their own class more often.

    Each pair of nodes is in both directions; there is no self-loop and no split. Pairs are drawn
    one by one, so some come twice, more of them between hubs: ingest drops these by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sbm", "power_law", "rmat"] = Field(
        "sbm",
        description="whom an edge joins within the classes. sbm, stochastic block model: any two "
        "nodes alike; power_law (Chung and Lu): nodes whose expected degrees are a power law; "
        "rmat: nodes by R-MAT's recursion with 0.57, 0.19, 0.19, 0.05",
    )
    nodes: int = Field(10_000, ge=4, lt=_MAX_NODES, description="number of nodes")
    degree: float = Field(10.0, gt=0, description="mean number of neighbours of a node")
    edges: int | None = Field(
        None, ge=2, description="number of edges, both directions counted, instead of degree"
    )
    classes: int = Field(8, ge=2, description="number of classes")
    features: int = Field(64, ge=0, description="number of features")
    feature_dtype: Literal["float32", "float16", "int8"] = "float32"
    homophily: float = Field(0.8, ge=0, le=1, description="share of edges inside a class, 0 to 1")
    noise: float = Field(
        1.0,
        ge=0,
        le=1000,
        description="standard deviation of each feature around its class centroid, whose length "
        "is 1; the larger, the less features alone say",
    )
    exponent: float = Field(
        2.5, ge=2.05, le=10, description="power_law: a degree d is as frequent as d^-exponent"
    )
    seed: int = Field(0, ge=0, description="seed of all draws")

    @model_validator(mode="after")
    def _one_size(self) -> "SyntheticSource":
        if self.edges is not None and "degree" in self.model_fields_set:
            raise ValueError("takes edges or degree; found both")
        return self

    @property
    def num_pairs(self) -> int:
        """Pairs that are drawn, each an edge in both directions."""
        return self.edges // 2 if self.edges is not None else round(self.nodes * self.degree / 2)

    @property
    def name(self) -> str:
        """What a manifest calls it: all options that are not the defaults."""
        given = {"nodes": self.nodes, "seed": self.seed}
        given |= self.model_dump(exclude_defaults=True, exclude={"kind"})
        return f"synthetic:{self.kind} " + " ".join(f"{k}={v}" for k, v in given.items())


def open_synthetic(source: SyntheticSource, *, threads: int | None = None) -> GraphStream:
    """The graph of `source`, made in `threads` (all cores of this process) while it is read.

    Held are threads + 1 pieces: chunks of 131,072 edges (2 MiB) or blocks of 65,536 nodes.

    Raises:
        ConfigError: so many edges do not fit into so few nodes.
    """
    _check(source)
    plan = _plan(source)
    threads = threads or cores()
    num_chunks = -(-source.num_pairs // CHUNK_PAIRS)
    num_blocks = -(-source.nodes // BLOCK)

    def where(edge: int) -> str:
        chunk, at = divmod(edge, 2 * CHUNK_PAIRS)
        edges = _chunk(source, plan, chunk)
        return f"synthetic edge {edge}: {edges.src[at]} -> {edges.dst[at]}"

    return GraphStream(
        num_nodes=source.nodes,
        num_edges=2 * source.num_pairs,
        edges=lambda: in_threads(partial(_chunk, source, plan), range(num_chunks), threads),
        nodes=lambda: in_threads(partial(_block, source, plan), range(num_blocks), threads),
        where=where,
    )


def _check(source: SyntheticSource) -> None:
    if source.nodes < 2 * source.classes:
        raise ConfigError(
            f"{source.classes} classes need at least {2 * source.classes} nodes, not {source.nodes}"
        )
    small, larger = divmod(source.nodes, source.classes)
    inside = sum(
        count * size * (size - 1) // 2
        for count, size in ((source.classes - larger, small), (larger, small + 1))
    )
    across = source.nodes * (source.nodes - 1) // 2 - inside
    for there, share in ((inside, source.homophily), (across, 1 - source.homophily)):
        if source.num_pairs * share > there:
            wanted = f"{2 * source.num_pairs} edges and homophily {source.homophily:g}"
            limit = f"{source.nodes} nodes in {source.classes} classes have"
            raise ConfigError(f"{wanted} ask for more pairs than {limit}; lower the degree")


class _Plan(NamedTuple):
    """What all pieces share: how edges are drawn, and the centroids float32 `[K, F]`."""

    pairs: Pairs
    centroids: npt.NDArray[np.float32]


def _plan(source: SyntheticSource) -> _Plan:
    members = -(-source.nodes // source.classes)
    # a member's weight falls as its rank ^ (-1 / (exponent - 1)); the power inverts its sum
    is_power_law = source.kind == "power_law"
    power = (source.exponent - 1) / (source.exponent - 2) if is_power_law else 1.0
    quantiles, fraction_bits = make_quantiles(members, power)
    levels = (members - 1).bit_length() if source.kind == "rmat" else 0
    pairs = Pairs(
        shuffle=make_shuffle(source.nodes, source.seed),
        num_classes=np.uint64(source.classes),
        num_members=np.uint64(members),
        inside=np.uint64(round(source.homophily * 2**32)),
        quantiles=quantiles,
        fraction_bits=np.uint64(fraction_bits),
        levels=np.int64(levels),
    )
    return _Plan(pairs, _centroids(source))


def _centroids(source: SyntheticSource) -> npt.NDArray[np.float32]:
    """Random directions of length 1 `[K, F]`."""
    draws = np.empty(source.classes * source.features, dtype=np.float32)
    draw_noise(np.uint64(key_of(source.seed, "synthetic", _CENTROIDS)), draws)
    # half a step off the mean, so that no coordinate is 0, and no length
    rows = (draws.astype(np.float64) - NOISE_MEAN - 0.5).reshape(source.classes, source.features)
    # numpy adds in an order that depends on the machine, fsum's result is the nearest to the truth
    lengths = [math.sqrt(math.fsum(value * value for value in row.tolist())) for row in rows]
    centroids: npt.NDArray[np.float32] = (rows / np.array(lengths)[:, None]).astype(np.float32)
    return centroids


def _chunk(source: SyntheticSource, plan: _Plan, chunk: int) -> EdgeChunk:
    num_pairs = min(CHUNK_PAIRS, source.num_pairs - chunk * CHUNK_PAIRS)
    src, dst = (np.empty(2 * num_pairs, dtype=np.int64) for _ in range(2))
    draw_edges(plan.pairs, np.uint64(key_of(source.seed, "synthetic", _EDGES, chunk)), src, dst)
    return EdgeChunk(src, dst)


def _block(source: SyntheticSource, plan: _Plan, block: int) -> NodeColumns:
    first = block * BLOCK
    y = np.empty(min(BLOCK, source.nodes - first), dtype=np.int64)
    classes_of(plan.pairs.shuffle, np.uint64(source.classes), first, y)
    return NodeColumns(
        num_nodes=y.size,
        x=_features(source, plan.centroids, y, block),
        targets=class_target(y, source.classes),
    )


def _features(
    source: SyntheticSource,
    centroids: npt.NDArray[np.float32],
    y: npt.NDArray[np.int64],
    block: int,
) -> Features:
    """Class centroids plus noise."""
    if not source.features:
        return None
    x: npt.NDArray[Any] = np.empty((y.size, source.features), dtype=np.float32)
    draw_noise(np.uint64(key_of(source.seed, "synthetic", _NOISE, block)), x.reshape(-1))
    x -= np.float32(NOISE_MEAN)
    x *= np.float32(source.noise / NOISE_STD)
    x += centroids[y]
    if source.feature_dtype == "int8":
        # no value is further from 0 than a coordinate of a centroid and the largest sum of draws
        scale = np.float32((1 + source.noise * NOISE_MEAN / NOISE_STD) / 127)
        values = np.rint(x / scale).astype(np.int8)
        return Quantized(values, np.full(source.features, scale))
    return x.astype(source.feature_dtype, copy=False)
