"""The source `synthetic`: a stochastic block model with features, from a seed."""

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from dnformer.data.clean import distinct
from dnformer.data.features import lay_out
from dnformer.data.table import Int64Array, NodeColumns, RawGraph, class_target
from dnformer.errors import ConfigError

_BLOCK_ROWS = 65_536


class SyntheticSource(BaseModel):
    """A graph of equally large classes, whose nodes meet their own class more often."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sbm"] = Field("sbm", description="sbm: stochastic block model")
    nodes: int = Field(10_000, ge=2, description="number of nodes")
    classes: int = Field(8, ge=2, description="number of classes")
    features: int = Field(64, ge=1, description="number of features")
    degree: float = Field(10.0, gt=0, description="expected number of neighbours of a node")
    homophily: float = Field(
        0.8, ge=0, le=1, description="expected share of edges inside a class, 0 to 1"
    )
    noise: float = Field(
        1.0,
        ge=0,
        description="standard deviation of each feature around its class centroid, whose length "
        "is 1; the larger, the less features alone say",
    )
    seed: int = Field(0, ge=0, description="seed of all draws")


def sbm(source: SyntheticSource) -> RawGraph:
    """The graph of `source`: each pair once in both directions, no self-loop, no split.

    Every pair inside a class is an edge with one probability, every pair across classes with
    another one. Node numbers say nothing about the class.

    Raises:
        ConfigError: so many edges do not fit into so few nodes.
    """
    if source.classes > source.nodes:
        raise ConfigError(
            f"{source.classes} classes need at least as many nodes, not {source.nodes}"
        )
    rng = np.random.Generator(np.random.PCG64(source.seed))
    y = rng.permutation(np.arange(source.nodes, dtype=np.int64) % source.classes)
    x = _features(rng, source, y)
    one, other = _pairs(rng, source, y)
    src, dst = np.concatenate([one, other]), np.concatenate([other, one])
    nodes = NodeColumns(
        num_nodes=source.nodes, x=lay_out(x, "dense"), targets=class_target(y, source.classes)
    )
    return RawGraph(
        nodes=nodes,
        src=src,
        dst=dst,
        where=lambda edge: f"synthetic edge {edge}: {src[edge]} -> {dst[edge]}",
    )


def _features(
    rng: np.random.Generator, source: SyntheticSource, y: Int64Array
) -> npt.NDArray[np.float32]:
    """Class centroids, random directions of length 1, plus normal noise."""
    # the sum in a norm depends on the CPU's vector width, in float64 too little to be seen in x
    wide = rng.standard_normal((source.classes, source.features))
    centroids = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    x = rng.standard_normal((source.nodes, source.features), dtype=np.float32)
    x *= np.float32(source.noise)
    for start in range(0, source.nodes, _BLOCK_ROWS):  # centroids[y] would be a second x
        x[start : start + _BLOCK_ROWS] += centroids[y[start : start + _BLOCK_ROWS]]
    return x


def _pairs(
    rng: np.random.Generator, source: SyntheticSource, y: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Both ends of each edge, every pair at most once."""
    sizes = np.bincount(y, minlength=source.classes).astype(np.int64)
    inside = int((sizes * (sizes - 1) // 2).sum())
    across = source.nodes * (source.nodes - 1) // 2 - inside
    edges = source.nodes * source.degree / 2
    kinds = (
        (inside, edges * source.homophily, _draw_inside),
        (across, edges * (1 - source.homophily), _draw_across),
    )
    keys = []
    for pairs, expected, draw in kinds:
        if expected > pairs:
            wanted = f"degree {source.degree:g} and homophily {source.homophily:g}"
            limit = f"{source.nodes} nodes in {source.classes} classes have"
            raise ConfigError(f"{wanted} ask for more pairs than {limit}; lower the degree")
        count = int(rng.binomial(pairs, expected / pairs)) if expected else 0
        key = np.empty(0, dtype=np.int64)
        while key.size < count:
            one, other = draw(rng, y, sizes, max(count - key.size, count // 4) + 16)
            drawn = np.minimum(one, other) * source.nodes + np.maximum(one, other)
            key = distinct(np.concatenate([key, drawn]))
        keys.append(rng.choice(key, size=count, replace=False, shuffle=False))
    key = np.concatenate(keys)
    return key // source.nodes, key % source.nodes


def _draw_inside(
    rng: np.random.Generator, y: Int64Array, sizes: Int64Array, count: int
) -> tuple[Int64Array, Int64Array]:
    """Uniform pairs of two nodes of one class, with repetition."""
    pairs = sizes * (sizes - 1)
    group = rng.choice(sizes.size, size=count, p=pairs / pairs.sum())
    first = rng.integers(0, sizes[group])
    second = rng.integers(0, sizes[group] - 1)
    second += second >= first
    members = np.argsort(y, kind="stable")
    start = (np.cumsum(sizes) - sizes)[group]
    return members[start + first], members[start + second]


def _draw_across(
    rng: np.random.Generator, y: Int64Array, sizes: Int64Array, count: int
) -> tuple[Int64Array, Int64Array]:
    """At most `count` uniform pairs of nodes of two classes, with repetition."""
    one, other = rng.integers(0, y.size, count), rng.integers(0, y.size, count)
    keep = y[one] != y[other]
    return one[keep], other[keep]
