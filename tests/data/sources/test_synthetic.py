import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dnformer.data.clean import Policies, clean
from dnformer.data.sources.synthetic import CHUNK_PAIRS, SyntheticSource, open_synthetic
from dnformer.data.stream import GraphStream, in_memory
from dnformer.data.table import NodeColumns, Quantized, RawGraph
from dnformer.errors import ConfigError
from dnformer.parsing import parse

KINDS = ("sbm", "power_law", "rmat")


def source_of(**options: Any) -> SyntheticSource:
    return parse(SyntheticSource, options)


def graph_of(**options: Any) -> RawGraph:
    return in_memory(open_synthetic(source_of(**options)))


def labels(raw: RawGraph) -> Any:
    return raw.nodes.targets[0].values


def digest(stream: GraphStream) -> str:
    """Of all bytes, whatever the pieces."""
    edges, nodes = hashlib.sha256(), hashlib.sha256()
    for chunk in stream.edges():
        edges.update(np.ascontiguousarray(np.stack([chunk.src, chunk.dst], axis=1)))
    for block in stream.nodes():
        x: Any = block.x
        for values in (block.targets[0].values, *(x if isinstance(x, Quantized) else (x,))):
            nodes.update(np.ascontiguousarray(values))
    return f"{edges.hexdigest()[:8]} {nodes.hexdigest()[:8]}"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "sbm"}, "f84dfcbf aa0ff8fa"),
        ({"kind": "power_law"}, "52f91f13 aa0ff8fa"),
        ({"kind": "power_law", "exponent": 3.1, "feature_dtype": "float16"}, "87d57b10 9e7d46f8"),
        ({"kind": "rmat", "feature_dtype": "int8"}, "df79820f a9fdd679"),
    ],
    ids=["sbm", "power_law", "float16", "int8"],
)
def test_synthetic_small_graphs_are_pinned(options: dict[str, Any], expected: str) -> None:
    # a change of these values changes the graphs that every demo and benchmark was made on
    assert digest(open_synthetic(source_of(nodes=200, **options))) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_does_not_depend_on_threads_or_on_what_came_before(kind: str) -> None:
    source = source_of(kind=kind, nodes=70_000, degree=10, features=3)
    one, many = open_synthetic(source, threads=1), open_synthetic(source, threads=5)
    expected = digest(one)
    assert digest(many) == expected
    assert digest(many) == expected  # each call begins anew
    other = replace(one, edges=open_synthetic(source_of(nodes=70_000, seed=1)).edges)
    assert digest(other).split()[0] != expected.split()[0]


def test_synthetic_seed_changes_everything() -> None:
    one, two = (digest(open_synthetic(source_of(nodes=200, seed=seed))) for seed in (0, 1))
    assert set(one.split()).isdisjoint(two.split())


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_pieces_have_one_size(kind: str) -> None:
    stream = open_synthetic(source_of(kind=kind, nodes=140_000, edges=300_000, features=2))
    assert stream.num_edges == 300_000
    edges, nodes = stream.edges(), stream.nodes()
    assert iter(edges) is edges  # made while they are asked for, none is a list
    sizes = [chunk.src.size for chunk in edges]
    assert sizes == [2 * CHUNK_PAIRS, 2 * CHUNK_PAIRS, 300_000 - 4 * CHUNK_PAIRS]
    assert [block.num_nodes for block in nodes] == [65_536, 65_536, 140_000 - 131_072]


def test_synthetic_makes_no_more_than_is_asked_for() -> None:
    made = []
    stream = open_synthetic(source_of(nodes=10**6, edges=10**11), threads=2)
    for chunk in stream.edges():
        made.append(chunk.src.size)
        if len(made) == 3:
            break  # ends at once, though 763,000 chunks are left
    assert made == [2 * CHUNK_PAIRS] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_synthetic_has_the_size_homophily_and_classes_asked_for(
    kind: str, homophily: float
) -> None:
    raw = graph_of(kind=kind, nodes=4001, classes=5, degree=12, homophily=homophily)
    y = labels(raw)
    assert np.bincount(y).tolist() == [801, 800, 800, 800, 800]
    assert raw.nodes.targets[0].target.num_outputs == 5
    assert raw.src.size == 4001 * 12
    assert min(raw.src.min(), raw.dst.min()) >= 0
    assert max(raw.src.max(), raw.dst.max()) <= 4000
    # 24,000 pairs: standard deviation 0.3 %
    assert np.mean(y[raw.src] == y[raw.dst]) == pytest.approx(homophily, abs=0.02)
    # every class has its share of edges
    assert np.bincount(y[raw.dst]) / raw.dst.size == pytest.approx(np.full(5, 0.2), abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_pairs_are_in_both_directions_without_loops(kind: str) -> None:
    raw = graph_of(kind=kind, nodes=500)
    assert np.array_equal(raw.src[0::2], raw.dst[1::2])
    assert np.array_equal(raw.dst[0::2], raw.src[1::2])
    counts = clean(raw, Policies(direction="undirected", self_loops="error")).counts
    assert counts["edges_added_by_undirected"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_synthetic_node_numbers_say_nothing(kind: str) -> None:
    raw = graph_of(kind=kind, nodes=30_011, classes=7, features=1)
    y, degree = labels(raw), np.bincount(raw.dst, minlength=30_011)
    nodes = np.arange(30_011)
    for groups in (nodes % 2, nodes % 7, nodes % 64, nodes // 469):
        count = groups.max() + 1
        table = np.zeros((count, 7))
        np.add.at(table, (groups, y), 1)
        expected = table.sum(axis=1, keepdims=True) / 7
        chi_square = ((table - expected) ** 2 / expected).sum()
        freedom = (count - 1) * 6
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
    assert abs(np.corrcoef(nodes, degree)[0, 1]) < 0.03
    assert np.mean(y[1:] == y[:-1]) == pytest.approx(1 / 7, abs=0.01)


def test_synthetic_sbm_pairs_are_uniform() -> None:
    """Over many graphs every pair inside, and every pair across, is drawn equally often."""
    times = np.zeros((8, 8))
    for seed in range(400):
        raw = graph_of(nodes=8, classes=2, edges=12, homophily=0.6, seed=seed)
        rank = np.argsort(np.argsort(labels(raw), kind="stable"))  # class 0 first
        np.add.at(times, (rank[raw.src], rank[raw.dst]), 1)
    one, other = np.triu_indices(8, 1)
    drawn, same = times[one, other], one // 4 == other // 4
    # 2,400 pairs, 60 % over 12 pairs inside, 40 % over 16 across; 5 standard deviations
    assert np.all(np.abs(drawn[same] - 120) < 5 * np.sqrt(120))
    assert np.all(np.abs(drawn[~same] - 60) < 5 * np.sqrt(60))


@pytest.mark.parametrize("exponent", [2.2, 2.5, 3.0])
def test_synthetic_power_law_has_the_exponent_asked_for(exponent: float) -> None:
    raw = graph_of(
        kind="power_law", nodes=100_000, classes=4, degree=20, features=1, exponent=exponent
    )
    degree = np.sort(np.bincount(raw.dst, minlength=100_000))[::-1]
    # the degree of the k-th node falls as k ^ (-1 / (exponent - 1)), far from both ends
    ranks = np.unique(np.geomspace(100, 10_000, 30).astype(int))
    slope = np.polyfit(np.log(ranks), np.log(degree[ranks]), 1)[0]
    assert slope == pytest.approx(-1 / (exponent - 1), abs=0.03)


def test_synthetic_rmat_degrees_are_those_of_its_recursion() -> None:
    # 2^13 members a class: a node of member m has 0.76 of the edges for each 0 in m, 0.24 for a 1
    raw = graph_of(kind="rmat", nodes=4 * 8192, classes=4, degree=30, features=1)
    degree = np.sort(np.bincount(raw.dst, minlength=4 * 8192))[::-1]
    share = np.array([0.76 ** (13 - ones) * 0.24**ones for ones in (0, 1, 2)])
    expected = share * raw.dst.size / 4
    starts, counts = (0, 4, 56), (4, 52, 312)
    for start, count, mean in zip(starts, counts, expected, strict=True):
        found = degree[start : start + count].mean()
        assert found == pytest.approx(mean, rel=0.04)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("nodes", "classes"), [(4, 2), (5, 2), (7, 3), (4097, 2), (70_001, 9), (2**17, 16)]
)
def test_synthetic_any_number_of_nodes(kind: str, nodes: int, classes: int) -> None:
    raw = graph_of(kind=kind, nodes=nodes, classes=classes, degree=1, features=1)
    sizes = np.bincount(labels(raw), minlength=classes)
    assert (sizes.sum(), sizes.max() - sizes.min() <= 1) == (nodes, True)
    assert max(raw.src.max(), raw.dst.max()) < nodes
    assert np.all(raw.src != raw.dst)


def test_synthetic_every_node_is_reached() -> None:
    raw = graph_of(nodes=3001, classes=2, degree=30, features=1)
    assert np.all(np.bincount(raw.src, minlength=3001) > 0)


def test_synthetic_noise_is_the_distance_from_centroids() -> None:
    raw = graph_of(nodes=3000, classes=3, features=16, noise=0.5)
    x, y = raw.nodes.x, labels(raw)
    assert isinstance(x, np.ndarray)
    centroids = np.stack([x[y == label].mean(axis=0) for label in range(3)])
    assert np.linalg.norm(centroids, axis=1) == pytest.approx(np.ones(3), abs=0.1)
    noise = (x - centroids[y]).ravel()
    assert noise.std() == pytest.approx(0.5, abs=0.01)
    # as a normal distribution has it: 68.3 % within one, 95.4 % within two standard deviations
    assert np.mean(np.abs(noise) < 0.5) == pytest.approx(0.683, abs=0.02)
    assert np.mean(np.abs(noise) < 1.0) == pytest.approx(0.954, abs=0.02)
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.02


def test_synthetic_noise_zero_gives_the_centroids() -> None:
    raw = graph_of(nodes=70_000, classes=2, features=2, noise=0, degree=1)
    x, y = raw.nodes.x, labels(raw)
    assert isinstance(x, np.ndarray)
    first = np.array([np.argmax(y == 0), np.argmax(y == 1)])
    assert np.array_equal(x, x[first][y])  # over more than one block of rows


@pytest.mark.parametrize("noise", [0.0, 0.3, 30.0])
def test_synthetic_small_feature_types_are_near(noise: float) -> None:
    exact, half, byte = (
        graph_of(nodes=1000, noise=noise, feature_dtype=kind).nodes.x
        for kind in ("float32", "float16", "int8")
    )
    assert isinstance(exact, np.ndarray)
    assert isinstance(half, np.ndarray)
    assert isinstance(byte, Quantized)
    assert half.dtype == np.float16
    assert np.array_equal(half, exact.astype(np.float16))
    assert byte.values.dtype == np.int8
    assert np.abs(byte.values * byte.scale - exact).max() <= byte.scale[0] * 0.5001


def test_synthetic_no_features() -> None:
    assert graph_of(nodes=20, classes=2, features=0).nodes.x is None


def test_synthetic_where_names_the_edge() -> None:
    stream = open_synthetic(source_of(nodes=20_000, edges=140_000, features=1))
    raw = in_memory(stream)
    for edge in (1, 131_072, 139_999):
        expected = f"synthetic edge {edge}: {raw.src[edge]} -> {raw.dst[edge]}"
        assert stream.where(edge) == expected


def test_synthetic_name_says_how_to_make_it_again() -> None:
    assert source_of(nodes=300, seed=0).name == "synthetic:sbm nodes=300 seed=0"
    source = source_of(kind="rmat", nodes=300, edges=600, feature_dtype="int8")
    assert source.name == "synthetic:rmat nodes=300 seed=0 edges=600 feature_dtype=int8"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 16, "degree": 20}, "320 edges .* ask for more pairs than 16 nodes in 8"),
        ({"nodes": 16, "degree": 2}, "ask for more pairs than 16 nodes in 8 classes have; lower"),
        ({"nodes": 15}, "8 classes need at least 16 nodes, not 15"),
    ],
    ids=["too-dense", "too-homophilous", "too-many-classes"],
)
def test_synthetic_impossible_graph_is_refused(options: dict[str, Any], message: str) -> None:
    options = {"nodes": 16, **options}
    with pytest.raises(ConfigError, match=message):
        open_synthetic(source_of(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "rmatt"}, "kind"),
        ({"degrees": 3}, "unknown key 'degrees'; did you mean 'degree'"),
        ({"degree": 3, "edges": 10}, "takes edges or degree; found both"),
        ({"homophily": 1.1}, "homophily"),
        ({"exponent": 2.0}, "exponent"),
        ({"feature_dtype": "float64"}, "feature_dtype"),
        ({"nodes": 2**32}, "nodes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_synthetic_source_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        source_of(**options)
    assert "\n" not in str(caught.value)


def test_in_memory_of_no_edges() -> None:
    stream = GraphStream(
        num_nodes=2,
        num_edges=0,
        edges=lambda: iter(()),
        nodes=lambda: iter([NodeColumns(num_nodes=2)]),
        where=str,
    )
    raw = in_memory(stream)
    assert (raw.src.size, raw.dst.size, raw.nodes.num_nodes) == (0, 0, 2)
