"""Tables of rows: means, pairs, Markdown."""

import pytest

from dnformer.config import RunConfig
from dnformer.reproduce import Cell, Row, Rows, markdown, summary

VALUES = {
    "dnformer": {0: 0.90, 1: 0.92, 2: 0.94},
    "gcn": {0: 0.89, 1: 0.90, 2: 0.94},
    "sgc": {0: 0.95},
    "gat": {},
}


def cell(label: str, seed: int) -> Cell:
    model = {"hidden": 8 * (1 + list(VALUES).index(label))}
    config = RunConfig.model_validate(
        {"name": label, "data": {"uri": "cache/photo"}, "model": model}
    )
    return Cell("photo", label, "random", seed, config)


@pytest.fixture
def found(tmp_path):
    rows = Rows(tmp_path / "runs.jsonl")
    for label, values in VALUES.items():
        for seed, value in values.items():
            of = cell(label, seed)
            rows.add(
                Row(
                    dataset="photo", fingerprint="f", protocol="random", seed=seed,
                    settings=of.settings, val={"accuracy": 0.1}, test={"accuracy": value},
                    epochs=1, best_epoch=0, seconds=2, versions={},
                )
            )  # fmt: skip
    cells = [cell(label, seed) for seed in range(3) for label in VALUES]
    return summary(cells, rows, {"photo": "f"}, protocol="random")


def test_means_and_pairs(found):
    entries = found["datasets"]["photo"]
    assert list(entries) == ["dnformer", "gcn", "sgc"]
    ours = entries["dnformer"]
    assert (ours["mean"], ours["std"], ours["splits"]) == pytest.approx((0.92, 0.02, 3))
    assert ours["values"] == {"0": 0.90, "1": 0.92, "2": 0.94}
    # sgc is better on its only split, but one pair says nothing
    assert ours["against"]["label"] == "gcn"
    assert ours["against"]["difference"] == pytest.approx(0.01)
    assert ours["against"]["low"] <= 0.01 <= ours["against"]["high"]
    assert entries["gcn"]["against"]["difference"] == pytest.approx(-0.01)
    assert entries["sgc"]["against"] is None
    assert entries["gcn"]["published"]["mean"] == 96.10


def test_markdown_says_splits_pairs_and_what_was_published(found):
    lines = markdown(found).splitlines()
    assert lines[0].startswith("Test accuracy, random splits 60/20/20")
    assert lines[2:5] == ["| | photo |", "|---|---|", "| dnformer | 92.00 ± 2.00 (3) |"]
    # one split has no spread
    assert "| sgc | 95.00 (1) |" in lines
    (pair,) = [line for line in lines if line.startswith("- photo")]
    assert pair.startswith("- photo: dnformer +1.00 over gcn [+0.00, +2.00], p ")
    assert pair.endswith("3 splits")
    (gcn,) = [line for line in lines if line.startswith("| photo | gcn |")]
    assert "| 91.00 | 96.10 ± 0.46 | -5.10 |" in gcn
