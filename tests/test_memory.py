from pathlib import Path

import psutil
import pytest

from dnformer.memory import memory_limit

TOTAL = psutil.virtual_memory().total
V1, V2 = "4:memory:/jobs/one\n0::/\n", "0::/jobs/one\n"


def limited(folder: Path, membership: str, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "membership").write_text(membership)
    return memory_limit(folder, folder / "membership")


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(V1, {"memory/jobs/one/memory.limit_in_bytes": "4096\n"}, 4096, id="v1"),
        pytest.param(V1, {"memory/jobs/memory.limit_in_bytes": "8192\n"}, 8192, id="v1-parent"),
        pytest.param(V1, {"memory/memory.limit_in_bytes": "77\n"}, 77, id="v1-container"),
        pytest.param(
            V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, TOTAL, id="v1-unlimited"
        ),
        pytest.param(V2, {"jobs/one/memory.max": "4096\n"}, 4096, id="v2"),
        pytest.param(V2, {"jobs/one/memory.max": "max\n"}, TOTAL, id="v2-unlimited"),
        pytest.param(
            V2, {"jobs/one/memory.max": "max\n", "jobs/memory.max": "512\n"}, 512, id="v2-parent"
        ),
        pytest.param("1:cpu:/x\n", {"memory/x/memory.limit_in_bytes": "1"}, TOTAL, id="other"),
        pytest.param(V1, {}, TOTAL, id="no-files"),
    ],
)
def test_memory_limit_is_the_least_around_the_process(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int
) -> None:
    assert limited(tmp_path, membership, files) == expected


def test_memory_limit_without_cgroups_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path / "nothing") == TOTAL
