from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dnformer.data.clean import Edges, Finished, Policies, clean, finish, least
from dnformer.data.table import EdgeColumns, NodeColumns, RawGraph
from dnformer.errors import ConfigError, DataError

Pairs = list[tuple[int, int]]


def raw_graph(pairs: Pairs, num_nodes: int = 5) -> RawGraph:
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return RawGraph(
        nodes=NodeColumns(num_nodes=num_nodes),
        src=edges[:, 0].copy(),
        dst=edges[:, 1].copy(),
        where=lambda edge: f"row {edge + 1}",
        counts={"from_source": 7},
    )


def cleaned(pairs: Pairs, **policies: str) -> Pairs:
    table = clean(raw_graph(pairs), Policies.model_validate(policies))
    return list(zip(table.src.tolist(), table.dst.tolist(), strict=True))


def brute_force(pairs: Pairs, policies: Policies) -> tuple[Pairs, dict[str, int]]:
    kept = [pair for pair in pairs if policies.self_loops == "keep" or pair[0] != pair[1]]
    times = Counter(kept)
    if policies.duplicates == "drop":
        times = Counter(set(kept))
    num_distinct = times.total()
    if policies.direction == "undirected":
        times |= Counter({(dst, src): count for (src, dst), count in times.items()})
    result = sorted(times.elements(), key=lambda pair: (pair[1], pair[0]))
    touched = {node for pair in result if pair[0] != pair[1] for node in pair}
    return result, {
        "edges_read": len(pairs),
        "self_loops": sum(src == dst for src, dst in pairs),
        "self_loops_dropped": len(pairs) - len(kept),
        "duplicates_dropped": len(kept) - num_distinct,
        "edges_added_by_undirected": len(result) - num_distinct,
        "num_edges": len(result),
        "isolated_nodes": 5 - len(touched),
    }


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=30),
    direction=st.sampled_from(["directed", "undirected"]),
    duplicates=st.sampled_from(["drop", "keep"]),
    self_loops=st.sampled_from(["drop", "keep"]),
)
def test_clean_any_edges_equals_brute_force(
    pairs: Pairs, direction: str, duplicates: str, self_loops: str
) -> None:
    policies = Policies.model_validate(
        {"direction": direction, "duplicates": duplicates, "self_loops": self_loops}
    )
    raw = raw_graph(pairs)
    table = clean(raw, policies)
    expected, counts = brute_force(pairs, policies)
    assert list(zip(table.src.tolist(), table.dst.tolist(), strict=True)) == expected
    assert table.counts == {"from_source": 7, **counts}
    assert table.policies == policies.model_dump()
    assert table.src.dtype == table.dst.dtype == np.int64
    assert list(zip(raw.src.tolist(), raw.dst.tolist(), strict=True)) == pairs  # left alone


def test_clean_defaults_keep_direction_and_loops_and_drop_duplicates() -> None:
    assert cleaned([(1, 0), (3, 3), (0, 2), (1, 0)]) == [(1, 0), (0, 2), (3, 3)]


def test_clean_undirected_adds_only_missing_reverses() -> None:
    pairs = [(0, 1), (1, 0), (0, 2), (3, 3)]
    assert cleaned(pairs, direction="undirected") == [(1, 0), (2, 0), (0, 1), (0, 2), (3, 3)]


def test_clean_undirected_keep_takes_the_larger_number_of_times() -> None:
    pairs = [(0, 1), (0, 1), (1, 0), (2, 2), (2, 2)]
    kept = cleaned(pairs, direction="undirected", duplicates="keep")
    assert kept == [(1, 0), (1, 0), (0, 1), (0, 1), (2, 2), (2, 2)]


def test_clean_large_node_numbers_stay_exact() -> None:
    top = 2**28 - 1  # dst * N + src is past 2**53, where floats are no longer exact
    table = clean(raw_graph([(top, top - 1), (top - 1, top - 1)], top + 1), Policies())
    assert table.src.tolist() == [top - 1, top]
    assert table.dst.tolist() == [top - 1, top - 1]


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"duplicates": "error"}, r"^row 4 repeats row 2; .*set duplicates to drop or keep$"),
        ({"self_loops": "error"}, r"^row 3 is a self-loop; .*set self_loops to keep or drop$"),
        ({"self_loops": "drop", "duplicates": "error"}, r"^row 4 repeats row 2;"),
    ],
    ids=["duplicates", "self-loops", "duplicates-without-loops"],
)
def test_clean_error_policy_names_the_first_edge(policies: dict[str, str], message: str) -> None:
    pairs = [(4, 0), (1, 2), (3, 3), (1, 2), (3, 3), (4, 0), (1, 2)]
    with pytest.raises(DataError, match=message):
        cleaned(pairs, **policies)


def test_clean_error_policies_accept_a_graph_without_either() -> None:
    pairs = [(0, 1), (1, 0)]
    kept = cleaned(pairs, direction="undirected", duplicates="error", self_loops="error")
    assert kept == [(1, 0), (0, 1)]


# (src, dst, weight, attributes, time); few values, so that edges repeat in part and in full
EDGE = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.5, -1.25, 3e7]),
    st.tuples(st.sampled_from([0.0, 0.1]), st.sampled_from([1.0, 1e-3])), st.integers(-1, 1),
)  # fmt: skip
Edge = tuple[int, int, float, tuple[float, float], int]


def in_order(edges: list[Edge]) -> list[Edge]:
    return sorted(edges, key=lambda e: (e[1], e[0], *e[2:]))


def once(edges: list[Edge], duplicates: str) -> list[Edge]:
    groups: dict[tuple[int, int], list[Edge]] = {}
    for edge in in_order(edges):
        groups.setdefault(edge[:2], []).append(edge)
    if duplicates == "keep":
        return in_order(edges)
    if duplicates == "drop":
        return [group[0] for group in groups.values()]
    summed = []
    for (src, dst), group in groups.items():
        weight = np.float32(sum(np.float64(np.float32(e[2])) for e in group))
        attr = tuple(
            float(np.float32(sum(np.float64(np.float32(e[3][a])) for e in group))) for a in range(2)
        )
        summed.append((src, dst, float(weight), attr, min(e[4] for e in group)))
    return summed


def with_reverses(edges: list[Edge], duplicates: str) -> list[Edge]:
    given = once(edges, duplicates)
    times = Counter(edge[:2] for edge in given)
    seen: Counter[tuple[int, int]] = Counter()
    added = []
    for src, dst, *columns in once([(e[1], e[0], *e[2:]) for e in edges], duplicates):
        if seen[src, dst] >= times[src, dst]:
            added.append((src, dst, *columns))
        seen[src, dst] += 1
    return in_order(given + added)


@given(
    edges=st.lists(EDGE, min_size=1, max_size=25),
    direction=st.sampled_from(["directed", "undirected"]),
    duplicates=st.sampled_from(["drop", "keep", "sum"]),
    self_loops=st.sampled_from(["drop", "keep"]),
)
def test_clean_any_edges_with_columns_equal_plain_lists(
    edges: list[Edge], direction: str, duplicates: str, self_loops: str
) -> None:
    policies = Policies.model_validate(
        {"direction": direction, "duplicates": duplicates, "self_loops": self_loops}
    )
    raw = raw_graph([edge[:2] for edge in edges])
    columns = EdgeColumns(
        weight=np.array([edge[2] for edge in edges], np.float32),
        attr=np.array([edge[3] for edge in edges], np.float32),
        attr_names=("a", "b"),
        time=np.array([edge[4] for edge in edges], np.int64),
    )
    table = clean(replace(raw, edges=columns), policies)
    kept = [edge for edge in edges if self_loops == "keep" or edge[0] != edge[1]]
    expected = once(kept, duplicates)
    if direction == "undirected":
        expected = with_reverses(kept, duplicates)
    found = table.edges
    assert found.weight is not None
    assert found.attr is not None
    assert found.time is not None
    assert table.src.tolist() == [edge[0] for edge in expected]
    assert table.dst.tolist() == [edge[1] for edge in expected]
    assert found.weight.tolist() == [np.float32(edge[2]) for edge in expected]
    assert found.attr.tolist() == [[np.float32(a) for a in edge[3]] for edge in expected]
    assert found.time.tolist() == [edge[4] for edge in expected]
    assert (found.weight.dtype, found.attr.dtype) == (np.float32, np.float32)
    repeats = len(kept) - len({edge[:2] for edge in kept})
    assert table.counts["duplicates_dropped"] == (repeats if duplicates == "drop" else 0)
    assert table.counts.get("duplicates_summed", 0) == (repeats if duplicates == "sum" else 0)
    assert table.counts["num_edges"] == len(expected)


def test_finish_by_range_equals_finish_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 9, (2, 300))
    weight = rng.integers(0, 3, 300).astype(np.float32)
    num_nodes = 9

    def part(low: int, high: int) -> Finished:
        forward, backward = (
            Edges((b * num_nodes + a)[mask], EdgeColumns(weight=weight[mask]))
            for a, b in ((src, dst), (dst, src))
            for mask in [(b >= low) & (b < high)]
        )
        return finish(forward, backward, "keep")

    whole, parts = part(0, 9), [part(0, 4), part(4, 5), part(5, 9)]
    assert np.concatenate([p.edges.key for p in parts]).tolist() == whole.edges.key.tolist()
    weights = [p.edges.columns.weight for p in parts]
    assert np.concatenate(weights).tolist() == whole.edges.columns.weight.tolist()
    assert sum(p.num_repeats for p in parts) == whole.num_repeats
    assert sum(p.num_added for p in parts) == whole.num_added
    assert least(p.repeated for p in parts).tolist() == whole.repeated.tolist()


def test_finish_names_the_least_repeated_edges() -> None:
    key = np.array([7, 3, 7, 7, 5, 3] + [9] * 100 + list(range(100, 140)) * 2)
    done = finish(Edges(key), None, "drop")
    assert done.repeated.tolist() == [3, 7, 9, *range(100, 117)]
    assert done.num_repeats == 2 + 1 + 99 + 40


def test_clean_sum_past_float32_is_refused() -> None:
    edges = EdgeColumns(weight=np.array([3e38, 3e38], np.float32))
    with pytest.raises(DataError, match=r"past 3.4e38, the largest float32; scale"):
        clean(replace(raw_graph([(0, 1), (0, 1)]), edges=edges), Policies(duplicates="sum"))


def test_clean_sum_without_anything_to_add_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"these edges have neither; name a weight column"):
        cleaned([(0, 1)], duplicates="sum")


@pytest.mark.parametrize("pair", [(0, 5), (5, 0), (-1, 0), (0, -1)])
def test_clean_dangling_endpoint_is_refused(pair: tuple[int, int]) -> None:
    wrong = next(node for node in pair if node)
    with pytest.raises(DataError, match=rf"^row 2: {wrong} is no node; the 5 nodes are 0 to 4$"):
        cleaned([(0, 1), pair])


def test_clean_too_many_nodes_are_refused() -> None:
    with pytest.raises(DataError, match="3,037,000,500 nodes"):
        clean(raw_graph([], num_nodes=3_037_000_500), Policies())


def test_policies_unknown_value_is_refused() -> None:
    with pytest.raises(ValidationError, match="directed"):
        Policies.model_validate({"direction": "both"})
    with pytest.raises(ValidationError, match="loops"):
        Policies.model_validate({"loops": "keep"})
