import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dnformer import storage
from dnformer.temporary import temporary_folder

HOLD = """
import sys, time
from pathlib import Path
from dnformer.temporary import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    (folder / "object").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_temporary_folder_is_gone_after_the_block_however_it_ends(tmp_path: Path) -> None:
    def stopped() -> None:
        with temporary_folder(tmp_path) as folder:
            (folder / "object").write_bytes(b"x")
            assert folder.parent == tmp_path
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert list(tmp_path.iterdir()) == []


def test_temporary_folder_of_a_killed_process_is_removed_by_the_next_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with temporary_folder(tmp_path) as mine:
            assert sorted(path for path in tmp_path.iterdir() if path.is_dir()) == sorted(
                [left, mine]
            )
        process.send_signal(signal.SIGKILL)
    assert (left / "object").exists()
    with temporary_folder(tmp_path):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_staged_for_another_store_lies_in_the_folder_given(tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}/object"
    with storage.staged(uri, tmp_path) as path:
        path.write_bytes(b"data")
        assert tmp_path in path.parents
    assert storage.read_bytes(uri) == b"data"
    assert list(tmp_path.iterdir()) == []
    storage.remove(f"memory://{tmp_path.name}")
