"""docs/ says what the code says; `make docs` writes it anew."""

import runpy
from pathlib import Path

import pytest

from dnformer.config import RunConfig
from dnformer.config.fields import fields
from dnformer.parsing import leaves, parse

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", ["cli", "config"])
def test_reference_is_current(name):
    generated = runpy.run_path(str(DOCS / "generate.py"))[name]()
    assert (DOCS / f"{name}.md").read_text() == generated, "make docs writes it anew"


def test_fields_are_all_there_with_their_defaults():
    described = {field.path: field for field in fields()}
    plain = parse(RunConfig, {"name": "x", "data": {"uri": "x"}})
    # those of a section that is one value stand below it
    missing = {leaf.path for leaf in leaves(plain)} - described.keys()
    assert missing == {"tune"}
    for leaf in leaves(plain):
        if leaf.path not in ("tune", "name", "data.uri"):
            assert described[leaf.path].runtime == leaf.runtime, leaf.path
    assert described["name"].default is None
    assert described["optim.lr"].default == "0.005"
    assert described["model.lambda"].values == "edge | head | fixed | reparam"
    assert described["train.workers"].values == "whole number | [whole number, whole number]"


def test_every_field_is_described():
    assert [field.path for field in fields() if not field.description] == []


def test_every_option_is_described():
    page = (DOCS / "cli.md").read_text()
    bare = [line for line in page.splitlines() if line.startswith("| `") and "` |  |" in line]
    assert bare == []
    assert "## dnformer train\n\nTrain a run;" in page
    assert "--set PATH=VALUE" in page
