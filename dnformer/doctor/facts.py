"""What this machine has, looked up and not judged."""

import errno
import importlib
import os
import resource
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from dnformer.cgroup import affinity, cores
from dnformer.data import local_stores
from dnformer.doctor.check import within
from dnformer.doctor.versions import import_problem, installed, requirements
from dnformer.memory import memory_left, memory_limit

_SHM = Path("/dev/shm")
_PACKAGE = Path(__file__).parents[1]
_PROBE_BYTES, _FOLDER_S = 1 << 20, 10.0
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True)
class Gpus:
    """The GPUs of this machine.

    Attributes:
        names: those that torch sees, each with its compute capability.
        architectures: what torch was compiled for, as `sm_90`; empty for a CPU build.
        cuda: the version that torch was built with; None for a CPU build.
        files: GPUs that the system has, whether torch sees them or not.
        hidden: CUDA_VISIBLE_DEVICES, where it is set.
        driver: the version of NVIDIA's.
        said: torch's warnings while it looked.
    """

    names: tuple[tuple[str, tuple[int, int]], ...] = ()
    architectures: tuple[str, ...] = ()
    cuda: str | None = None
    files: int = 0
    hidden: str | None = None
    driver: str | None = None
    said: str = ""


@dataclass(frozen=True)
class Room:
    """A folder that is to be written.

    Attributes:
        folder: which one.
        problem: why it cannot be written; else empty.
        full: whether that is for want of room.
        free: bytes.
    """

    folder: Path
    problem: str = ""
    full: bool = False
    free: int = 0


@dataclass(frozen=True)
class Facts:
    """What this machine has and lets this process use; bytes, cores, numbers of files.

    Attributes:
        cores: of the machine; `affinity` of them are this process's, `usable` by its quota, too.
        torch: its version; None where it is not there or does not import.
        torch_threads: threads of torch's operators.
        omp_threads: OMP_NUM_THREADS, where it is set.
        memory_limit: by machine and cgroup; `memory_left` of it is free but for this process.
        shm: size of /dev/shm and what is free of it; None where there is none.
        files: open files by the soft and by the hard limit.
        cache: the folder of node-local stores.
        numba: the folder in which numba keeps compiled kernels.
        triton, pyg_lib: their versions; None where they are not installed.
        triton_wanted: as torch requires it; empty where it does not.
        pyg_lib_problem: why pyg-lib cannot be imported; else empty.
    """

    cores: int
    affinity: int
    usable: int
    torch: str | None
    torch_threads: int
    omp_threads: str | None
    memory_limit: int
    memory_left: int
    shm: tuple[int, int] | None
    files: tuple[int, int]
    cache: Room
    numba: Room
    gpus: Gpus
    triton: str | None
    triton_wanted: str
    pyg_lib: str | None
    pyg_lib_problem: str


def look(cache_dir: Path | None = None) -> Facts:
    """The facts of this machine and process; nothing is left changed.

    Args:
        cache_dir: as `cache.dir`.
    """
    version = installed("torch")
    torch: Any = importlib.import_module("torch") if not import_problem("torch") else None
    pyg_lib = installed("pyg-lib")
    return Facts(
        cores=os.cpu_count() or 1,
        affinity=affinity(),
        usable=cores(),
        torch=version if torch is not None else None,
        torch_threads=torch.get_num_threads() if torch is not None else 1,
        omp_threads=os.environ.get("OMP_NUM_THREADS"),
        memory_limit=memory_limit(),
        memory_left=memory_left(),
        shm=_space(_SHM),
        files=resource.getrlimit(resource.RLIMIT_NOFILE),
        cache=room(cache_dir or local_stores.default_folder()),
        numba=_numba_room(),
        gpus=_gpus(torch),
        triton=installed("triton"),
        triton_wanted=_triton_wanted() if version else "",
        pyg_lib=pyg_lib,
        pyg_lib_problem=import_problem("pyg_lib") if pyg_lib else "",
    )


def _space(folder: Path) -> tuple[int, int] | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def room(folder: Path) -> Room:
    """Whether `folder` can be written, or made, and what is free there; it is not made."""
    try:
        # a network file system whose server is away never answers
        return Room(folder, free=within(_FOLDER_S, lambda: _probe(folder)))
    except OSError as error:
        return Room(folder, error.strerror or str(error), full=error.errno in _FULL)


def _probe(folder: Path) -> int:
    # os.path: a folder that may not be looked into is not there, and what is above it tells why
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    free = shutil.disk_usage(there).free
    with tempfile.TemporaryFile(dir=there) as file:
        file.write(bytes(min(_PROBE_BYTES, free)) or b"0")
    return free


def _numba_room() -> Room:
    """Where numba caches: where it is told, else beside the code, else in the user's own folder."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(given)] if given else []
    places += [_PACKAGE / "ops" / "__pycache__", platformdirs.user_cache_path("numba")]
    rooms = [room(place) for place in places]
    return next((each for each in rooms if not each.problem), rooms[0])


def _gpus(torch: Any) -> Gpus:
    files = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if torch is None:
        return Gpus(files=files, driver=_driver())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        names = tuple(
            (torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
            for i in range(torch.cuda.device_count())
        )
        architectures = tuple(torch.cuda.get_arch_list()) if names else ()
    said = " ".join(" ".join(str(warning.message).split()) for warning in caught)
    return Gpus(
        names, architectures, torch.version.cuda, files,
        os.environ.get("CUDA_VISIBLE_DEVICES"), _driver(), f"{said:.300}",
    )  # fmt: skip


def _driver() -> str | None:
    try:
        words = Path("/proc/driver/nvidia/version").read_text("ascii").split()
    except OSError:
        return None
    return next((word for word in words if word.count(".") and word[0].isdigit()), None)


def _triton_wanted() -> str:
    for requirement in requirements("torch"):
        if requirement.name == "triton":
            return str(requirement)
    return ""
