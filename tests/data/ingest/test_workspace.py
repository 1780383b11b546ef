from pathlib import Path

import psutil
import pytest

from dnformer.data.ingest.workspace import memory_budget, parse_bytes, workspace
from dnformer.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 << 30),
        ("4gb", 4 << 30),
        ("1.5G", 3 << 29),
        ("512 MiB", 512 << 20),
        ("100k", 100 << 10),
        ("123456", 123456),
        (123456, 123456),
    ],
)
def test_parse_bytes_takes_units_and_numbers(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "4 pigs", "-1GiB", "GiB", "0", "1e9", "4GiBs"])
def test_parse_bytes_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no size; expected bytes, or as in 512MiB or 4GiB"):
        parse_bytes(text)


def test_memory_budget_is_what_the_process_leaves() -> None:
    used = psutil.Process().memory_info().rss
    left = memory_budget(used + (1 << 30))
    assert left == pytest.approx((1 << 30) - (128 << 20), abs=1 << 26)
    assert memory_budget(None) > 1 << 26


def test_memory_budget_too_small_says_how_much_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"^memory limit 32 MiB: .* give at least \d+ MiB$"):
        memory_budget("32MiB")


def test_workspace_is_gone_after_the_block_however_it_ends(tmp_path: Path) -> None:
    with workspace(str(tmp_path / "new"), "64GiB", 3) as space:
        (space.folder / "file").write_text("x")
        assert space.threads == 3
        assert space.folder.parent == tmp_path / "new"
    with pytest.raises(KeyboardInterrupt), workspace(str(tmp_path / "new"), "64GiB"):
        raise KeyboardInterrupt
    assert list((tmp_path / "new").iterdir()) == []


def test_workspace_in_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"temp_dir .*file/new: .*; give a local folder"):
        workspace(str(tmp_path / "file" / "new"), "64GiB").__enter__()
