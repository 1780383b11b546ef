"""What is said of machines: this one, compared with psutil, and others, made up."""

import os
import platform
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numba
import psutil
import pytest
import torch
import torch_geometric

from dnformer import cgroup, memory
from dnformer.doctor.check import Check
from dnformer.doctor.facts import Facts, Gpus, Room, look
from dnformer.doctor.machine import Asked, check_machine
from dnformer.doctor.versions import check_versions

GIB, MIB = 1 << 30, 1 << 20
FACTS = Facts(
    cores=64,
    affinity=16,
    usable=16,
    torch="2.13.0",
    torch_threads=16,
    omp_threads=None,
    memory_limit=64 * GIB,
    memory_left=60 * GIB,
    shm=(32 * GIB, 32 * GIB),
    files=(1024, 1_048_576),
    cache=Room(Path("/cache"), free=100 * GIB),
    numba=Room(Path("/numba"), free=GIB),
    gpus=Gpus(),
    triton="3.7.1",
    triton_wanted="",
    pyg_lib=None,
    pyg_lib_problem="",
)
A100 = Gpus(
    names=(("NVIDIA A100-SXM4-80GB", (8, 0)),),
    architectures=("sm_75", "sm_80", "sm_90"),
    cuda="13.0",
    files=1,
    driver="580.65.06",
)

ANY_RUN = Asked()


def checks_of(asked: Asked = ANY_RUN, **changed: object) -> dict[str, Check]:
    return {check.name: check for check in check_machine(replace(FACTS, **changed), asked)}


def test_check_machine_of_a_good_one_says_nothing_to_mend() -> None:
    assert all(check.ok and not check.mend for check in checks_of().values())
    assert all(check.ok for check in checks_of(gpus=A100).values())


@pytest.mark.parametrize(
    ("asked", "changed", "name", "mend"),
    [
        pytest.param(Asked(), {"gpus": A100, "triton": None, "triton_wanted": "triton==3.7.1"},
                     "triton", "pip install 'triton==3.7.1'", id="no-triton-on-a-gpu"),
        pytest.param(Asked(), {"gpus": A100, "triton": "3.1.0", "triton_wanted": "triton==3.7.1"},
                     "triton", "pip install 'triton==3.7.1'", id="another-triton"),
        pytest.param(Asked(), {"shm": (64 * MIB, 60 * MIB)}, "/dev/shm", "--shm-size", id="shm"),
        pytest.param(Asked(), {"shm": None}, "/dev/shm", "--shm-size", id="no-shm"),
        pytest.param(Asked(), {"omp_threads": "64", "torch_threads": 64}, "threads",
                     "unset OMP_NUM_THREADS, or set it to 16", id="omp-threads"),
        pytest.param(Asked(), {"usable": 2}, "threads", "set train.threads: 2", id="quota"),
        pytest.param(Asked(threads=64), {}, "threads", "set train.threads: 16", id="threads"),
        pytest.param(Asked(workers=4, threads=8), {}, "threads", "set train.threads: 4",
                     id="threads-of-workers"),
        pytest.param(Asked(workers=32), {}, "threads", "set train.workers: 16", id="workers"),
        pytest.param(Asked(loader_threads=40), {}, "threads", "set loader.threads: 16",
                     id="loader"),
        pytest.param(Asked(), {"torch_threads": 64}, "threads", "OMP_NUM_THREADS=16",
                     id="torchs-threads"),
        pytest.param(Asked(), {"memory_left": 100 * MIB}, "memory", "raise the memory limit",
                     id="no-memory"),
        pytest.param(Asked(memory_bytes=70 * GIB), {}, "memory", "lower train.workers",
                     id="runs-memory"),
        pytest.param(Asked(), {"files": (256, 1024)}, "open files", "ulimit -n", id="files"),
        pytest.param(Asked(), {"cache": Room(Path("/c"), "Read-only file system")}, "cache",
                     "set cache.dir to a folder that can be written", id="read-only"),
        pytest.param(Asked(), {"cache": Room(Path("/c"), "No space left", full=True)}, "cache",
                     "larger disk", id="full"),
        pytest.param(Asked(), {"cache": Room(Path("/c"), free=MIB)}, "cache", "larger disk",
                     id="no-space"),
        pytest.param(Asked(store_bytes=200 * GIB), {}, "cache", "larger disk", id="stores-space"),
        pytest.param(Asked(), {"numba": Room(Path("/n"), "Permission denied")}, "numba cache",
                     "NUMBA_CACHE_DIR", id="numba"),
        pytest.param(Asked(gpu=True), {}, "gpu", "set train.use_gpu: false", id="no-gpu"),
        pytest.param(Asked(gpu=True), {"gpus": Gpus(files=2, hidden="")}, "gpu",
                     "set train.use_gpu: false", id="hidden-gpu"),
        pytest.param(Asked(), {"gpus": Gpus(files=1), "torch": "2.13.0+cpu"}, "gpu",
                     "pip install --force-reinstall torch==2.13.0 ", id="cpu-torch"),
        pytest.param(Asked(), {"gpus": Gpus(files=1, cuda="13.0", said="driver too old")}, "gpu",
                     "update NVIDIA's driver", id="old-driver"),
        pytest.param(Asked(), {"gpus": replace(A100, names=(("V100", (7, 0)),))}, "gpu",
                     "torch build for this GPU", id="old-gpu"),
        pytest.param(Asked(pyg_lib=True), {"torch": "2.13.0+cpu"}, "pyg-lib",
                     "pip install pyg-lib -f https://data.pyg.org/whl/torch-2.13.0+cpu.html",
                     id="pyg-lib"),
        pytest.param(Asked(pyg_lib=True),
                     {"gpus": A100, "pyg_lib": "0.5", "pyg_lib_problem": "does not import"},
                     "pyg-lib", "torch-2.13.0+cu130.html", id="broken-pyg-lib"),
    ],
)  # fmt: skip
def test_check_machine_names_one_thing_and_what_helps(
    asked: Asked, changed: dict[str, object], name: str, mend: str
) -> None:
    failed = [check for check in checks_of(asked, **changed).values() if not check.ok]
    assert [check.name for check in failed] == [name]
    assert mend in failed[0].mend


@pytest.mark.parametrize(
    ("asked", "changed"),
    [
        pytest.param(Asked(ray=False), {"shm": (64 * MIB, 0), "files": (256, 256)}, id="no-ray"),
        pytest.param(Asked(), {"files": (256, -1)}, id="unlimited-files"),
        pytest.param(Asked(), {"triton": None}, id="no-triton-without-a-gpu"),
        pytest.param(Asked(), {"gpus": Gpus(files=2, hidden="")}, id="hidden-gpu"),
        pytest.param(Asked(), {"gpus": replace(A100, names=(("RTX", (8, 9)),))}, id="minor"),
        pytest.param(Asked(), {"gpus": replace(A100, names=(("B200", (10, 0)),),
                     architectures=("sm_90", "compute_90"))}, id="ptx"),
        pytest.param(Asked(loader_threads=2), {"cores": 1, "affinity": 1, "usable": 1,
                     "torch_threads": 1}, id="one-core"),
        pytest.param(Asked(), {"cores": 2, "affinity": 2, "usable": 2, "torch_threads": 2,
                     "memory_limit": 4 * GIB, "memory_left": 2 * GIB}, id="small"),
        pytest.param(Asked(store_bytes=0), {"cache": Room(Path("/c"), free=MIB)}, id="has-store"),
        pytest.param(Asked(), {"torch": None, "torch_threads": 1}, id="no-torch"),
    ],
)  # fmt: skip
def test_check_machine_does_not_call_well_what_is_not_broken_broken(
    asked: Asked, changed: dict[str, object]
) -> None:
    assert all(check.ok for check in checks_of(asked, **changed).values())


def test_look_is_right_about_this_machine(tmp_path: Path) -> None:
    facts, process = look(tmp_path), psutil.Process()
    assert facts.cores == psutil.cpu_count()
    assert facts.affinity == len(process.cpu_affinity() or [])
    assert 1 <= facts.usable <= facts.affinity
    assert facts.torch == torch.__version__
    assert facts.torch_threads == torch.get_num_threads()
    assert facts.omp_threads == os.environ.get("OMP_NUM_THREADS")
    assert facts.memory_limit <= psutil.virtual_memory().total
    assert 0 < facts.memory_left <= 1.2 * psutil.virtual_memory().available
    assert facts.shm is not None
    assert facts.shm[0] == psutil.disk_usage("/dev/shm").total
    assert facts.files == process.rlimit(psutil.RLIMIT_NOFILE)
    assert facts.cache.free == pytest.approx(psutil.disk_usage(str(tmp_path)).free, rel=0.1)
    assert (facts.cache.folder, facts.cache.problem) == (tmp_path, "")
    assert len(facts.gpus.names) == torch.cuda.device_count()
    assert list(tmp_path.iterdir()) == []


def test_look_takes_what_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, (soft, hard) = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        os.sched_setaffinity(0, {min(cores)})
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        facts = look()
    finally:
        os.sched_setaffinity(0, cores)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (facts.affinity, facts.usable, facts.omp_threads) == (1, 1, "3")
    assert facts.files == (soft - 1, hard)


def test_look_at_a_cache_folder_that_cannot_be_names_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    found = look(tmp_path / "file" / "cache").cache
    assert found == Room(tmp_path / "file" / "cache", "Not a directory")


def test_look_at_a_cache_folder_that_is_not_there_makes_none(tmp_path: Path) -> None:
    assert look(tmp_path / "new" / "cache").cache.free > 0
    assert list(tmp_path.iterdir()) == []


def test_check_versions_is_right_about_what_is_installed() -> None:
    checks = {check.name: check for check in check_versions()}
    assert all(check.ok for check in checks.values())
    assert checks["python"].found == platform.python_version()
    assert checks["torch"].found == torch.__version__
    assert checks["torch_geometric"].found == torch_geometric.__version__
    assert checks["numba"].found == numba.__version__


Groups = Callable[..., tuple[Path, Path]]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    """Cgroups as the kernel shows them: `membership` and files by path; (root, membership)."""

    def make(membership: str, **files: str) -> tuple[Path, Path]:
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "membership").write_text(membership)
        return tmp_path / "cgroup", tmp_path / "membership"

    return make


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/job\n", {"job/cpu.max": "100000 100000\n"}),
        ("0::/job/step\n", {"job/cpu.max": "150000 100000\n", "job/step/cpu.max": "max 100000\n"}),
        ("0::/of/the/host\n", {"cpu.max": "50000 100000\n"}),
        ("3:cpu,cpuacct:/job\n",
         {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}),
    ],
    ids=["v2", "v2-around", "v2-container", "v1"],
)  # fmt: skip
def test_cores_heeds_the_quota(groups: Groups, membership: str, files: dict[str, str]) -> None:
    assert cgroup.cores(*groups(membership, **files)) == 1


@pytest.mark.parametrize(
    "files",
    [{}, {"job/cpu.max": "max 100000\n"}, {"job/cpu.max": "9900000 100000\n"}, {"job/cpu.max": ""}],
    ids=["none", "max", "more", "empty"],
)
def test_cores_without_a_quota_is_the_affinity(groups: Groups, files: dict[str, str]) -> None:
    expected = min(99, len(os.sched_getaffinity(0)))
    assert cgroup.cores(*groups("0::/job\n", **files)) == expected


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/job\n", {"job/memory.max": f"{4000 * MIB}", "job/memory.current": f"{3900 * MIB}",
                       "job/memory.stat": f"anon 1\ninactive_file {50 * MIB}\n"}),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": f"{4000 * MIB}",
                             "memory/job/memory.usage_in_bytes": f"{3900 * MIB}",
                             "memory/job/memory.stat": f"total_inactive_file {50 * MIB}\n"}),
    ],
    ids=["v2", "v1"],
)  # fmt: skip
def test_memory_left_counts_files_and_this_process_as_free(
    groups: Groups, membership: str, files: dict[str, str]
) -> None:
    own = psutil.Process().memory_full_info().uss
    expected = min(150 * MIB + own, 4000 * MIB)
    found = memory.memory_left(*groups(membership, **files))
    assert found == pytest.approx(expected, abs=32 * MIB)
