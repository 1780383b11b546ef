from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dnformer.data.clean import Policies, clean
from dnformer.data.table import NodeColumns, RawGraph
from dnformer.errors import DataError

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
