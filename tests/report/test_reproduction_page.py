"""The page of a reproduction: its numbers are those of the tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from dnformer.errors import CheckpointError, DataError
from dnformer.report.page import Figure, Table
from dnformer.report.write import build_page, write_report

from .conftest import OPTIONS


def entry(*values: float, against: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    mean = sum(values) / len(values)
    return {
        "metric": "accuracy", "mean": mean, "std": 0.01, "splits": len(values), "seconds": 3.0,
        "values": {str(seed): value for seed, value in enumerate(values)}, "against": against,
        **more,
    }  # fmt: skip


TABLE2 = {
    "of": "test",
    "protocol": "random splits 60/20/20",
    "datasets": {
        "cora": {
            "dnformer": entry(0.88, 0.90, against={
                "label": "gcn<script>", "splits": 2, "difference": -0.01, "low": -0.02,
                "high": 0.0, "p": 0.5,
            }),
            "gcn<script>": entry(0.90, 0.90, published={"mean": 88.1, "std": 0.2, "source": "x"}),
        },
        "photo": {},
    },
}  # fmt: skip
FIGURE2 = {
    "of": "test",
    "protocol": "random splits 60/20/20",
    "datasets": {
        "photo": {
            "2 layers, 1 heads": entry(0.95), "2 layers, 16 heads": entry(0.94),
            "3 layers, 1 heads": entry(0.93),
        }
    },
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "runs.jsonl").write_text("")
    return tmp_path


def put(folder: Path, name: str, table: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(table))


def test_each_table_is_a_section_in_the_paper_s_order(folder):
    put(folder, "figure2-random.json", FIGURE2)
    put(folder, "table2-random.json", TABLE2)
    page = build_page([str(folder)], OPTIONS)
    assert [section.title for section in page.sections] == [
        "Table 2: all models (random)", "Figure 2: heads and layers (random)",
    ]  # fmt: skip
    figure = page.sections[0].blocks[1]
    assert isinstance(figure, Figure)
    best, ours = figure.table.rows
    assert best == ["gcn<script>", 0.90, 0.01, 2, None, None, None, None, None, 88.1, "x"]
    assert ours[:6] == ["dnformer", pytest.approx(0.89), 0.01, 2, "gcn<script>", -0.01]
    # plotly.js reads some HTML
    assert "<" not in "".join(figure.layout["yaxis"]["ticktext"])


def test_map_has_a_row_for_each_depth_and_gaps_where_nothing_was_run(folder):
    put(folder, "figure2-random.json", FIGURE2)
    (section,) = build_page([str(folder)], OPTIONS).sections
    figure = section.blocks[1]
    assert isinstance(figure, Figure)
    assert isinstance(figure.table, Table)
    assert figure.table.rows == [["2", 0.95, 0.94], ["3", 0.93, None]]


def test_page_is_written_escaped(folder, tmp_path):
    put(folder, "table2-random.json", TABLE2)
    written = write_report([str(folder)], str(tmp_path / "page.html"), OPTIONS)
    text = (tmp_path / "page.html").read_text()
    assert written.sections == ["table2-random"]
    assert "gcn<script>" not in text


def test_what_is_not_there_or_damaged_is_named(folder):
    with pytest.raises(DataError, match="no table is there yet; dnformer reproduce table2"):
        build_page([str(folder)], OPTIONS)
    put(folder, "table2-random.json", {"protocol": "x"})
    with pytest.raises(DataError, match=r"table2-random.json: is no table"):
        build_page([str(folder)], OPTIONS)
    with pytest.raises(CheckpointError, match="no run and no search here"):
        build_page([str(folder / "elsewhere")], OPTIONS)
