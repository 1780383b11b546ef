from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dnformer.data.ingest.table_files import RowCounter, open_table
from dnformer.errors import DataError

MANY = 1_000_000  # rows, of some blocks of a CSV reader


def csv(path: Path, wrong: str | None = None, at: int = MANY - 7) -> str:
    """Rows i,0.5; row `at` is `wrong`."""
    lines = [f"{i},0.5" for i in range(MANY)]
    if wrong is not None:
        lines[at - 1] = wrong
    path.write_text("a,b\n" + "\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_batches_are_all_rows_in_order_with_their_place(kind: str, tmp_path: Path) -> None:
    if kind == "csv":
        csv(tmp_path / "t-0.csv")
        (tmp_path / "t-1.csv").write_text("b,a\n1,77\n")
    else:
        table = pa.table({"a": [str(i) for i in range(MANY)], "b": [0.5] * MANY})
        pq.write_table(table, tmp_path / "t-0.parquet", row_group_size=300_000)
        pq.write_table(pa.table({"a": ["77"]}), tmp_path / "t-1.parquet")
    table = open_table([f"{tmp_path}/t-*.{kind}"])
    counter, read, found = RowCounter(), 0, []
    for batch in table.batches(["a"], rows=100_000):
        counter.see(batch)
        assert batch.offset == sum(len(part) for part in found)
        found.append(batch.column("a"))
        read += batch.read
    assert len(found) > 2
    assert pa.chunked_array(found).to_pylist() == [*(str(i) for i in range(MANY)), "77"]
    rows = counter.rows()
    assert rows.where(MANY - 1) == f"{tmp_path}/t-0.{kind} row {MANY}"
    assert rows.where(MANY) == f"{tmp_path}/t-1.{kind} row 1"
    assert 0.9 * table.num_bytes() <= read <= table.num_bytes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("1,2,3", r"t.csv row 999993: 3 values, expected 2 as in the first line; mend it"),
        ("1,x", r"t.csv row 999993: b is 'x', not a number; mend it, or leave the column out"),
    ],
    ids=["ragged", "no-number"],
)
def test_bad_row_far_into_a_csv_file_is_named(wrong: str, message: str, tmp_path: Path) -> None:
    table = open_table([csv(tmp_path / "t.csv", wrong)])
    with pytest.raises(DataError, match=message):
        for _ in table.batches(["a", "b"], numbers=["b"]):
            pass


def test_file_meant_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"t.csv is meant twice; name each file once"):
        open_table([f"{tmp_path}/*.csv", f"{tmp_path}/t.csv"])
