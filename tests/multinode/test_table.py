import json

import pytest
from harness.run_files import as_json, from_json, read_run_files
from harness.table import Row, write_table

ROW = Row("a cable is cut", 1.25, 30.4, 7, 0.8, 0.8125, False, "")


def write_start(run, attempt: int, first: int, last: int) -> None:
    (run / "metrics").mkdir(exist_ok=True)
    lines = [json.dumps({"kind": "step", "step": step}) for step in range(first + 1, last + 1)]
    text = "".join(line + "\n" for line in lines)
    (run / "metrics" / f"{attempt}-{first}.jsonl").write_text(text + '{"kind": "st')


def write_checkpoint(run, name: str, tensors: str | None) -> None:
    (run / "checkpoints" / name).mkdir(parents=True)
    if tensors is not None:
        document = json.dumps({"tensors": {"sha256": tensors}})
        (run / "checkpoints" / name / "state.json").write_text(document)


def test_read_run_files_counts_steps_done_twice_and_takes_the_latest_attempts_checkpoint(tmp_path):
    write_start(tmp_path, 1, 0, 12)
    write_start(tmp_path, 2, 10, 15)
    write_start(tmp_path, 10, 15, 20)
    write_checkpoint(tmp_path, "step-30-1", "older")
    write_checkpoint(tmp_path, "step-20-10", "newest")
    write_checkpoint(tmp_path, "step-25-10", None)
    found = read_run_files(str(tmp_path))
    assert found.repeated == 2
    assert (found.checkpoint, found.incomplete) == ("newest", ["step-25-10"])
    assert from_json(json.loads(json.dumps(as_json(found)))) == found


def test_write_table_replaces_what_is_between_the_markers(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- drills: begin -->\nold\n<!-- drills: end -->\nafter\n")
    write_table([ROW], page)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n<!-- drills: begin -->\n| fault |")
    assert text.endswith("\n<!-- drills: end -->\nafter\n")
    assert (
        "| a cable is cut | 1.2 s | 30 s | 7 | 0.8000 (undisturbed 0.8125, other bits) |  |" in text
    )


def test_write_table_refuses_a_page_without_markers(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("nothing here")
    with pytest.raises(RuntimeError, match="has no place for the table"):
        write_table([ROW], page)
