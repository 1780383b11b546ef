import io

import pytest
from rich.console import Console

from dnformer.bench.report import Findings, Row, Target, show


@pytest.mark.parametrize(
    ("target", "met", "line"),
    [
        (Target("c", "a", 7.0, at_least=6), True, "met          a: 7.00, target at least 6"),
        (Target("c", "a", 5.0, at_least=6), False, "not met      a: 5.00, target at least 6"),
        (Target("c", "a", 1.0, 0.9, 1.1), True,
         "met          a: 1.00, target at least 0.9 and at most 1.1"),
        (Target("c", "a", 1.2, 0.9, 1.1), False,
         "not met      a: 1.20, target at least 0.9 and at most 1.1"),
        (Target("c", "a", 1.2), True, "shown        a: 1.20, no target"),
        (Target("c", "a", None, at_most=3), None, "not measured a: target at most 3"),
    ],
)  # fmt: skip
def test_target_stands_beside_what_was_found(target, met, line):
    assert target.met is met
    assert target.as_dict()["met"] is met
    assert target.line().strip() == line


def test_show_prints_every_figure_and_leaves_the_unknown_empty():
    rows = [
        Row("layer", "uniform", "layer", "dnformer", "forward", 400_000, 2, 32, seconds=0.1234,
            low=0.1, high=2.5, to_ours=1, to_floor=3.25, extra_bytes=64 << 20,
            bytes_per_edge_head=20.5),
        Row("layer", "uniform", "layer", "GATConv", "forward", note="left out: [too] large"),
    ]  # fmt: skip
    console = Console(file=io.StringIO(), width=150)
    show(Findings(rows, [Target("layer", "ratio", 2.0, at_least=1)]), console)
    title, head, ours, peer, target = console.file.getvalue().strip().splitlines()
    assert title.strip() == "layer"
    assert "B/edge/head" in head
    figures = "400,000 2×32 123 100 2,500 1 3.25 67.1 20.5"
    assert ours.split()[4:] == figures.split()
    assert peer.split() == ["uniform", "layer", "GATConv", "forward", "left", "out:", "[too]",
                            "large"]  # fmt: skip
    assert "met" in target
