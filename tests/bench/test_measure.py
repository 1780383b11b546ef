import pytest

from dnformer.bench import contenders, graphs
from dnformer.bench.contenders import BOTH, FORWARD, Problem
from dnformer.bench.measure import Entry, measure, pair
from dnformer.bench.memory import measurable

PROBLEM = Problem(graphs.uniform(20, 200), heads=2, width=4)


def test_rows_are_compared_within_scope_problem_and_pass():
    other = PROBLEM._replace(graph=graphs.uniform(20, 400))
    racers = [contenders.OP, contenders.REFERENCE_OP, contenders.LAYER, contenders.FLOOR]
    entries = pair(racers, PROBLEM, [FORWARD, BOTH], memory=False)
    entries += pair(racers, other, [BOTH], memory=False)
    rows = measure("some", entries, repeats=1)
    assert [(row.impl, row.passes, row.num_edges) for row in rows] == [
        (entry.contender.impl, entry.passes, entry.problem.graph.num_edges) for entry in entries
    ]
    for start in (0, 4, 8):
        op, reference, layer, floor = rows[start : start + 4]
        assert op.to_ours == layer.to_ours == floor.to_floor == 1
        assert reference.to_ours == reference.seconds / op.seconds
        assert layer.to_floor == layer.seconds / floor.seconds
        assert floor.to_ours is None
    assert all(row.low == row.seconds == row.high for row in rows)
    assert all(row.extra_bytes is None for row in rows)


def test_row_with_a_label_is_not_compared_with_ours():
    (row,) = measure("some", [Entry(contenders.OP, PROBLEM, BOTH, "another mode")], repeats=1)
    assert (row.impl, row.to_ours) == ("another mode", None)


def test_contender_that_does_not_fit_is_left_out_and_says_so():
    huge = contenders.TRANSFORMER_CONV._replace(edge_tensors=10**12)
    entries = [Entry(huge, PROBLEM, BOTH, memory=True), Entry(contenders.LAYER, PROBLEM, BOTH)]
    left_out, ours = measure("some", entries, repeats=1)
    assert left_out.seconds is None
    assert left_out.to_ours is None
    assert left_out.extra_bytes is None
    assert "left out: would take about" in left_out.note
    assert ours.seconds is not None


@pytest.mark.skipif(not measurable(), reason="needs Linux's /proc/self/clear_refs")
def test_memory_is_the_growth_with_the_edges():
    problem = Problem(graphs.uniform(500, 30_000), heads=2, width=32)
    (row,) = measure("some", pair([contenders.TRANSFORMER_CONV], problem, [BOTH]), repeats=1)
    # PyG holds at least k and v of each edge and their gradients: 4 floats of each of D
    assert row.extra_bytes > 30_000 * 2 * 4 * 32 * 4
    assert row.bytes_per_edge_head == pytest.approx(row.extra_bytes / 60_000, rel=0.2)
    assert row.note == ""
