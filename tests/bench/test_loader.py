from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dnformer.bench import loader
from dnformer.bench.loader import CASES, Findings, Row, Settings
from dnformer.errors import ConfigError, DataError
from dnformer.loader import pyg_lib

TINY = Settings(repeats=1, scale=2e-3, batches=3)

# as ../shared/yardsticks has it; each batch is its seeds and one edge for each
DRAFT = """
import numpy as np

def graph(num_nodes, num_edges):
    colptr = np.linspace(0, num_edges, num_nodes + 1).astype(np.int64)
    return colptr, (np.arange(num_edges) % num_nodes).astype(np.int32)

def sample(indptr, indices, seeds, fanouts, seed):
    assert list(fanouts) == [15, 10, 5]
    one = np.zeros(len(seeds), np.int64)
    return seeds, np.arange(len(seeds) + 1), one, one
"""


def found(*names: str, settings: Settings = TINY) -> list[Findings]:
    return list(loader.run(settings, names, say=lambda text: None))


def check(row: Row) -> None:
    """A measured row whose figures agree with each other."""
    assert row.seconds is not None
    assert row.low is not None
    assert row.high is not None
    assert 0 < row.low <= row.seconds <= row.high
    assert row.edges is not None
    assert row.edges_per_s == pytest.approx(row.edges * row.batches / row.seconds)
    assert row.seeds_per_s is not None
    assert row.nodes is not None
    # of a batch; rounding may have lost a digit
    seeds = round(row.seeds_per_s * row.seconds / row.batches, 6)
    assert row.nodes >= seeds > 0


def test_sampler_case_races_a_yardstick_where_one_is_given(tmp_path: Path) -> None:
    (findings,) = found("sampler")
    assert [(row.impl, row.threads) for row in findings.rows[:2]] == [
        ("dnformer", 1),
        ("dnformer", 2),
    ]
    draft, threads, peer = findings.targets
    assert (draft.at_least, draft.found, draft.met) == (1.7, None, None)
    assert threads.at_least == 1.7
    one, two = findings.rows[:2]
    check(one)
    check(two)
    assert threads.found == pytest.approx(two.edges_per_s / one.edges_per_s)
    assert (peer.found is None) is not pyg_lib.is_available()
    path = tmp_path / "draft.py"
    path.write_text(DRAFT)
    (findings,) = found("sampler", settings=TINY._replace(yardstick=str(path)))
    row = next(row for row in findings.rows if row.impl == "yardstick")
    check(row)
    assert row.edges == 8
    assert findings.rows[0].graph == "yardstick's"
    assert findings.targets[0].found == pytest.approx(
        findings.rows[0].edges_per_s / row.edges_per_s
    )


@pytest.mark.skipif(pyg_lib.is_available(), reason="pyg-lib is installed")
def test_peers_that_are_not_there_are_left_out_with_a_reason() -> None:
    for findings in found("sampler", "loader"):
        left_out = [row for row in findings.rows if row.seconds is None]
        assert [row.note.partition(":")[0] for row in left_out] == ["left out"]


def test_kinds_case_has_every_draw() -> None:
    (findings,) = found("kinds")
    assert [row.impl for row in findings.rows] == [
        "uniform", "replace", "weighted", "weighted, replace", "labor", "temporal",
    ]  # fmt: skip
    for row in findings.rows:
        check(row)
    (target,) = findings.targets
    assert target.found is not None
    assert target.at_most == 1


def test_loader_case_says_where_the_time_goes(make_graph: Any) -> None:
    edges = [(node, (node + step) % 30) for node in range(30) for step in range(1, 5)]
    graph = make_graph(edges, x=np.ones((30, 2), np.float32))
    (findings,) = found("loader", settings=TINY._replace(graph=graph.uri))
    ours = [row for row in findings.rows if row.impl == "dnformer"]
    assert [row.threads for row in ours] == [1, 2]
    for row in ours:
        check(row)
        assert row.graph == "data"
        # 24 of the 30 nodes are seeds, 8 of each batch
        assert row.batches == 3
        assert set(row.stages) == {"sample", "gather", "wait"}
        assert all(seconds > 0 for seconds in row.stages.values())
    (made,) = found("loader")
    assert made.rows[0].graph == "power-law"


def test_wrong_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "other.py").write_text("x = 1")
    for settings, names, error, message in (
        (Settings(yardstick="nowhere.py"), [], ConfigError, "there is no such file"),
        (Settings(yardstick=str(tmp_path / "other.py")), [], ConfigError, "no function graph"),
        (Settings(graph="nowhere"), [], DataError, "no dataset here"),
        (Settings(), ["samplers"], ConfigError, "did you mean 'sampler'"),
    ):
        with pytest.raises(error, match=message):
            loader.run(settings, names, say=said.append)
    assert said == []


def test_setting_that_no_case_reads_warns(make_graph: Any) -> None:
    said: list[str] = []
    graph = make_graph([(0, 1)])
    loader.run(TINY._replace(graph=graph.uri), ["kinds"], say=said.append)
    assert said == ["warning: --graph is ignored, only loader reads it"]


def test_as_json_and_the_table_have_every_row() -> None:
    findings = [
        Findings(
            [
                Row("sampler", "power law", "dnformer", 2, 0.5, 0.4, 0.6, 10, 20.0, 3e6, 7.0, 9.0,
                    {"wait": 0.25}),
                Row("sampler", "power law", "pyg-lib", note="left out: not there"),
            ],
            [loader.Target("sampler", "ours over the yardstick", 2.0, 1.7)],
        )
    ]  # fmt: skip
    json = loader.as_json(findings)
    assert [(row["case"], row["impl"], row["seconds"]) for row in json["rows"]] == [
        ("sampler", "dnformer", 0.5),
        ("sampler", "pyg-lib", None),
    ]
    assert json["targets"][0]["met"] is True
    assert {"torch", "torch_geometric", "numba"} <= json["versions"].keys()
    console = Console(width=150, record=True)
    loader.show(findings[0], console)
    text = console.export_text()
    for piece in ("50.00", "3.00", "wait 250.0", "left out: not there", "met", "2.00, target"):
        assert piece in text


def test_header_says_what_was_compared_and_how_busy_the_machine_was() -> None:
    assert "torch_geometric" in loader.header()
    assert "cores before" in loader.header()


def test_every_case_says_what_it_is() -> None:
    assert list(CASES) == ["sampler", "kinds", "loader"]
    assert all(case.__doc__ for case in CASES.values())
