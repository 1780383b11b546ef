"""The file of finished runs."""

from pathlib import Path

import pytest

from dnformer.config import DataConfig, RunConfig
from dnformer.errors import DataError
from dnformer.reproduce import Cell, Row, Rows


def cell(seed: int = 0, **settings: object) -> Cell:
    config = RunConfig.model_validate({"name": "x", "data": DataConfig(uri="cache/x"), **settings})
    return Cell("x", "dnformer", "random", seed, config)


def row(of: Cell, value: float) -> Row:
    return Row(
        dataset=of.dataset, fingerprint="f", protocol=of.protocol, seed=of.seed,
        settings=of.settings, val={"accuracy": value}, test={"accuracy": value}, epochs=3,
        best_epoch=1, seconds=0.5, versions={},
    )  # fmt: skip


def test_rows_are_found_by_what_was_computed(tmp_path):
    rows = Rows(tmp_path / "sub" / "runs.jsonl")
    first, wide = cell(), cell(model={"hidden": 128})
    rows.add(row(first, 0.5))
    rows.add(row(wide, 0.6))
    again = Rows(rows.path)
    for each in (rows, again):
        assert each.of(first, "f").test == {"accuracy": 0.5}
        assert each.of(wide, "f").test == {"accuracy": 0.6}
        # where a run is, how many workers and which name it has are no part of it
        assert each.of(cell(storage_path="s3://b", train={"workers": 2}), "f") is not None
        assert each.of(first, "other data") is None
        assert each.of(cell(seed=1), "f") is None
        assert each.of(cell(optim={"lr": 0.1}), "f") is None


def test_line_that_was_cut_off_is_no_row_and_is_replaced(tmp_path):
    path = tmp_path / "runs.jsonl"
    Rows(path).add(row(cell(), 0.5))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    rows = Rows(path)
    assert rows.of(cell(), "f") is not None
    rows.add(row(cell(seed=1), 0.7))
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == 2
    assert Rows(path).of(cell(seed=1), "f").test == {"accuracy": 0.7}


@pytest.mark.parametrize("line", ["{", '{"dataset": "x"}', "[1]"])
def test_line_that_is_no_row_is_named(tmp_path, line):
    path = tmp_path / "runs.jsonl"
    Rows(path).add(row(cell(), 0.5))
    with Path(path).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"runs.jsonl line 2 is no row of a run .*remove the line"):
        Rows(path)
