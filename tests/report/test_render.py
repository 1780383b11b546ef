"""The page as HTML: everything escaped, nothing loaded, numbers that programs read."""

import base64
import hashlib
import json
import re

import pytest

from dnformer.report import charts
from dnformer.report.page import (
    Column,
    Facts,
    Figure,
    Folded,
    Page,
    Section,
    Table,
    Words,
    count,
    number,
    seconds,
    share,
)
from dnformer.report.render import render

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&amp;"


def make_page() -> Page:
    columns = [Column(EVIL), Column("value", number)]
    table = Table("evil", EVIL, columns, [(EVIL, 0.5), ("none", None), ("nan", float("nan"))])
    figure = Figure(
        EVIL, EVIL, [charts.line(charts.label(EVIL), [1, 2], [1.0, float("inf")], number=0)],
        {"xaxis": charts.axis(charts.label(EVIL))}, Table("drawn", EVIL, columns, [(EVIL, 1)]),
    )  # fmt: skip
    blocks = [Facts("facts", [(EVIL, EVIL)], []), Words(EVIL), table, figure, Folded(EVIL, EVIL)]
    return Page("run", EVIL, [EVIL], [Section("all", EVIL, blocks), Section("empty", "Empty", [])])


@pytest.fixture(scope="module")
def html() -> str:
    return render(make_page())


def scripts(html: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)


def without_plotly(html: str) -> str:
    return html.replace(max(scripts(html), key=len), "")


def test_render_escapes_all_text(html):
    page = without_plotly(html)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == 4  # two of JSON, two of code
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_render_loads_nothing(html):
    page = without_plotly(html)
    assert re.findall(r'(?:src|href|action)="([^#"][^"]*)"', page) == ["data:,"]
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_render_allows_its_own_scripts_alone(html):
    policy = re.search(r"script-src ([^;]*);", html)[1]
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts(html)
    ]
    assert len(hashes) == 2
    assert policy.split() == hashes


def test_render_holds_the_numbers_as_json(html):
    text = re.search(r'id="dnformer-numbers">(.*?)</script>', html, flags=re.DOTALL)[1]
    numbers = json.loads(text)
    assert numbers["format"] == 1
    assert numbers["title"] == EVIL
    assert numbers["shown"]["facts"] == {EVIL: EVIL}
    assert numbers["shown"]["evil"]["rows"] == [[EVIL, 0.5], ["none", None], ["nan", None]]
    assert set(numbers["shown"]) == {"facts", "evil", "drawn"}


def test_render_leaves_out_empty_sections(html):
    assert 'id="all"' in html
    assert 'id="empty"' not in html


def test_render_without_figures_needs_no_script():
    html = render(Page("run", "title", [], [Section("s", "S", [Words("text")])]))
    assert scripts(html) == []
    assert len(html) < 20_000


@pytest.mark.parametrize(
    ("shown", "value", "expected"),
    [
        (count, 12345, "12,345"),
        (share, 0.12345, "12.35 %"),
        (number, 0.000123456, "0.0001235"),
        (seconds, 1.234, "1.23 s"),
        (seconds, 12345.6, "12,346 s"),
    ],
)
def test_values_are_written_for_people(shown, value, expected):
    assert shown(value) == expected


def test_cells_of_what_is_not_known_have_a_dash():
    columns = [Column("a"), Column("b", share)]
    rows = [(None, None), ("x", float("nan")), ("y", 0.5)]
    cells = Table("t", "T", columns, rows).cells()
    assert cells == [["–", "–"], ["x", "–"], ["y", "50.00 %"]]


def test_label_is_read_as_text_and_short():
    assert charts.label("<a href='x'>&amp;") == "&lt;a href='x'&gt;&amp;amp;"
    assert charts.label("a" * 30) == "a" * 23 + "…"
    assert charts.label("two\nlines") == "two lines"
