import hashlib

import numpy as np
import pytest
from pydantic import ValidationError

from dnformer.data.clean import Policies, clean
from dnformer.data.synthetic import SyntheticSource, sbm
from dnformer.data.table import RawGraph
from dnformer.errors import ConfigError


def digest(raw: RawGraph) -> str:
    sha = hashlib.sha256()
    for array in (raw.src, raw.dst, raw.nodes.targets[0].values, raw.nodes.x):
        assert isinstance(array, np.ndarray)
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def test_sbm_small_graph_is_pinned() -> None:
    # a change of this value changes the graph that every demo and benchmark was made on
    assert digest(sbm(SyntheticSource(nodes=200))) == "7fc994677491a236"


def test_sbm_seed_changes_everything() -> None:
    assert digest(sbm(SyntheticSource(nodes=200, seed=1))) != digest(
        sbm(SyntheticSource(nodes=200))
    )


def test_sbm_each_pair_once_in_both_directions() -> None:
    raw = sbm(SyntheticSource(nodes=500))
    strict = Policies(direction="undirected", duplicates="error", self_loops="error")
    table = clean(raw, strict)
    assert table.counts["edges_added_by_undirected"] == 0
    assert table.counts["num_edges"] == raw.src.size > 0


@pytest.mark.parametrize("homophily", [0.0, 0.5, 1.0])
def test_sbm_has_the_degree_homophily_and_classes_asked_for(homophily: float) -> None:
    source = SyntheticSource(nodes=4000, classes=5, degree=12.0, homophily=homophily)
    raw = sbm(source)
    y = raw.nodes.targets[0].values
    assert y is not None
    assert np.bincount(y).tolist() == [800] * 5
    assert raw.nodes.targets[0].target.num_outputs == 5
    # 24,000 pairs expected: standard deviation 155 pairs, 0.3 % of the homophily
    assert raw.src.size / 4000 == pytest.approx(12.0, abs=0.4)
    assert np.mean(y[raw.src] == y[raw.dst]) == pytest.approx(homophily, abs=0.02)
    # nodes of one class do not sit together
    assert abs(np.corrcoef(np.arange(4000), y)[0, 1]) < 0.1


def test_sbm_pairs_are_uniform() -> None:
    """Over many graphs every pair inside, and every pair across, is an edge equally often."""
    times = np.zeros((8, 8))
    for seed in range(400):
        raw = sbm(SyntheticSource(nodes=8, classes=2, degree=3.0, homophily=0.6, seed=seed))
        y = raw.nodes.targets[0].values
        assert y is not None
        rank = np.argsort(np.argsort(y, kind="stable"))  # class 0 first
        times[rank[raw.src], rank[raw.dst]] += 1
    one, other = np.triu_indices(8, 1)
    often, same = times[one, other] / 400, one // 4 == other // 4
    # 12 pairs carry 7.2 edges inside, 16 carry 4.8 across; 5 standard deviations of 400 draws
    assert np.all(np.abs(often[same] - 0.6) < 5 * np.sqrt(0.6 * 0.4 / 400))
    assert np.all(np.abs(often[~same] - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 400))


def test_sbm_noise_is_the_distance_from_centroids() -> None:
    raw = sbm(SyntheticSource(nodes=3000, classes=3, features=16, noise=0.5))
    x, y = raw.nodes.x, raw.nodes.targets[0].values
    assert isinstance(x, np.ndarray)
    assert y is not None
    centroids = np.stack([x[y == label].mean(axis=0) for label in range(3)])
    assert np.linalg.norm(centroids, axis=1) == pytest.approx(np.ones(3), abs=0.1)
    assert (x - centroids[y]).std() == pytest.approx(0.5, abs=0.01)


def test_sbm_noise_zero_gives_the_centroids() -> None:
    raw = sbm(SyntheticSource(nodes=70_000, classes=2, features=2, noise=0.0, degree=1.0))
    x, y = raw.nodes.x, raw.nodes.targets[0].values
    assert isinstance(x, np.ndarray)
    assert y is not None
    first = np.array([np.argmax(y == 0), np.argmax(y == 1)])
    assert np.array_equal(x, x[first][y])  # over more than one block of rows


def test_sbm_where_names_the_edge() -> None:
    raw = sbm(SyntheticSource(nodes=8, classes=2, degree=2.0))
    assert raw.where(1) == f"synthetic edge 1: {raw.src[1]} -> {raw.dst[1]}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 8, "degree": 20.0}, "ask for more pairs than 8 nodes in 8 classes have"),
        ({"nodes": 16, "degree": 2.0}, "ask for more pairs than 16 nodes in 8 classes have"),
        ({"nodes": 4}, "8 classes need at least as many nodes, not 4"),
    ],
    ids=["too-dense", "too-homophilous", "too-many-classes"],
)
def test_sbm_impossible_graph_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sbm(SyntheticSource.model_validate(options))


def test_synthetic_source_unknown_option_is_refused() -> None:
    with pytest.raises(ValidationError, match="degrees"):
        SyntheticSource.model_validate({"degrees": 3})
