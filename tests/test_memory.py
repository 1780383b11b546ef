"""Memory: limits and kills as the kernel writes them, and a real kill in a cgroup made for it."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
import torch

from dnformer.memory import (
    memory_limit,
    oom_kills,
    oom_report,
    peak_gpu_bytes,
    peak_rss_bytes,
)

TOTAL = psutil.virtual_memory().total
V1, V2 = "4:memory:/jobs/one\n0::/\n", "0::/jobs/one\n"


def write(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """(root, membership) as the kernel would show them."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "membership").write_text(membership)
    return folder, folder / "membership"


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
    assert memory_limit(*write(tmp_path, membership, files)) == expected


def test_memory_limit_without_cgroups_is_the_machines(tmp_path: Path) -> None:
    assert memory_limit(tmp_path, tmp_path / "nothing") == TOTAL


CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
EVENTS = "low 0\nhigh 0\nmax 7\noom 5\noom_kill 2\noom_group_kill 1\n"


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        pytest.param(V1, {"memory/jobs/one/memory.oom_control": CONTROL}, 3, id="v1"),
        pytest.param(V1, {"memory/memory.oom_control": CONTROL}, 3, id="v1-container"),
        pytest.param(
            V1,
            {
                "memory/jobs/one/memory.oom_control": CONTROL,
                "memory/jobs/memory.oom_control": CONTROL.replace("3", "9"),
            },
            3,
            id="v1-nearest",
        ),
        pytest.param(
            V1,
            {"memory/jobs/one/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"},
            None,
            id="v1-old-kernel",
        ),
        pytest.param(V2, {"jobs/one/memory.events": EVENTS}, 2, id="v2"),
        pytest.param(V2, {"memory.events": EVENTS}, 2, id="v2-container"),
        pytest.param("1:cpu:/x\n", {"memory/x/memory.oom_control": CONTROL}, None, id="other"),
        pytest.param(V2, {}, None, id="no-files"),
    ],
)
def test_oom_kills_is_what_the_kernel_counts_for_the_process(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int | None
) -> None:
    assert oom_kills(*write(tmp_path, membership, files)) == expected


def test_oom_kills_without_cgroups_is_unknown(tmp_path: Path) -> None:
    assert oom_kills(tmp_path, tmp_path / "nothing") is None


@pytest.mark.parametrize(("before", "after"), [(None, 3), (3, None), (None, None), (3, 3)], ids=str)
def test_oom_report_of_nothing_is_none(before: int | None, after: int | None) -> None:
    assert oom_report(before, after) is None


def test_oom_report_names_the_limit_and_what_to_lower() -> None:
    text = oom_report(3, 5)
    assert text is not None
    assert text.startswith("the kernel killed 2 processes for memory, of which this cgroup may use")
    assert f" {memory_limit() / 2**30:.1f} GiB: lower loader.batch_size" in text
    assert "killed 1 process for memory" in str(oom_report(0, 1))


class Cgroup(NamedTuple):
    """A cgroup with a memory limit, and the file that takes its members."""

    folder: Path
    members: Path


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """A cgroup that may use 64 MiB, below the one of this process where that has controllers."""
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory").is_dir()
    folder = (root / "memory" if v1 else root) / f"dnformer-test-{uuid.uuid4().hex[:8]}"
    limit, members = ("memory.limit_in_bytes", "tasks") if v1 else ("memory.max", "cgroup.procs")
    try:
        if not v1:
            (root / "cgroup.subtree_control").write_text("+memory")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            (folder / limit).write_text(str(64 << 20))
            if not v1 and (folder / "memory.swap.max").exists():
                (folder / "memory.swap.max").write_text("0")
        except OSError as error:
            pytest.skip(f"no cgroup can be limited here: {error}")
        yield Cgroup(folder, folder / members)
    finally:
        folder.rmdir()


# in the cgroup, a process that counts the kills around it and has a child that takes too much
_SCRIPT = """
import os, pathlib, signal, subprocess, sys
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
from dnformer.memory import memory_limit, oom_kills, oom_report
before = oom_kills()
child = subprocess.run([sys.executable, "-c", "x = bytearray(256 << 20)"])
assert child.returncode == -signal.SIGKILL, child
after = oom_kills()
print(before, after, memory_limit(), oom_report(before, after), sep="|")
"""


def test_oom_kills_counts_a_real_kill(cgroup: Cgroup) -> None:
    command = [sys.executable, "-c", _SCRIPT, str(cgroup.members)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after, limit, report = done.stdout.strip().split("|")
    assert (int(before), int(after)) == (0, 1)
    assert int(limit) == 64 << 20
    assert report.startswith("the kernel killed 1 process for memory, of which this cgroup may use")


def test_peak_rss_bytes_keeps_the_peak(tmp_path: Path) -> None:
    rss = psutil.Process().memory_info().rss
    block = np.ones(64 << 20, np.uint8)
    with_block = peak_rss_bytes()
    del block
    assert with_block >= rss + (48 << 20)
    # the kernel keeps the peak of counters that it rounds, a page a thread
    assert peak_rss_bytes() >= with_block - (4 << 20)
    # systems that do not say so in /proc
    assert peak_rss_bytes(tmp_path / "nothing") >= rss


def test_peak_rss_bytes_does_not_begin_with_the_parents() -> None:
    block = np.ones(256 << 20, np.uint8)
    # a fork that becomes another program, as by Ray's workers; getrusage gives the parent's peak
    code = "from dnformer.memory import peak_rss_bytes; print(peak_rss_bytes())"
    pid_out, pid_in = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, pid_in, 1)],
    )
    os.close(pid_in)
    with os.fdopen(pid_out) as file:
        peak = int(file.read())
    assert os.waitpid(pid, 0)[1] == 0
    assert peak < len(block)


def test_peak_gpu_bytes_of_a_cpu_is_none() -> None:
    assert peak_gpu_bytes(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_gpu_bytes_keeps_the_peak() -> None:
    device = torch.device("cuda")
    torch.zeros(64 << 20, dtype=torch.uint8, device=device)
    peak = peak_gpu_bytes(device)
    assert peak is not None
    assert peak >= 64 << 20
