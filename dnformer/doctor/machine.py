"""What is to be said of a machine: decisions on facts, without a look at anything."""

import re
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import Version

from dnformer.doctor.check import Check
from dnformer.doctor.facts import Facts, Room

_GIB, _MIB = 1 << 30, 1 << 20
# what a process holds beside batches and model; whole runs on Cora (bench/LOG.md, 2026-11-30) and
# on the demo peak at 760 MiB
PROCESS_BYTES = 640 * _MIB
# of the Ray that `train` and `tune` start (ray_runtime.session); in less, Ray goes to the disk
_OBJECT_STORE_BYTES = 128 * _MIB
# what Ray takes by itself: ray_constants.DEFAULT_OBJECT_STORE_MEMORY_PROPORTION
_OBJECT_STORE_SHARE = 0.3
# ray.init raises the soft limit to 65,536 where the hard one lets it, and warns below 4,096
_FEWEST_FILES, _RAYS_FILES = 4096, 65_536
# loader.threads by default, which a single core bears
_LOADER_THREADS = 2
# what the store of a small graph takes
_CACHE_BYTES = 256 * _MIB


@dataclass(frozen=True)
class Asked:
    """What a run asks of this machine; by default what any run does.

    Attributes:
        gpu: whether it is to be a GPU.
        workers: Ray workers; 0: none.
        threads: of a worker; None: the cores, shared out.
        loader_threads: of a worker beside them.
        pyg_lib: whether its sampler is pyg-lib's.
        ray: whether it starts a Ray here.
        memory_bytes: of all workers; None: not known.
        store_bytes: what the node-local store will take of the disk; None: not known.
    """

    gpu: bool = False
    workers: int = 0
    threads: int | None = None
    loader_threads: int = 1
    pyg_lib: bool = False
    ray: bool = True
    memory_bytes: int | None = None
    store_bytes: int | None = None


def check_machine(facts: Facts, asked: Asked) -> list[Check]:
    """A check of each thing that training needs of a machine."""
    return [
        Check("cores", True, _cores(facts)),
        _threads(facts, asked),
        _memory(facts, asked),
        _shm(facts, asked),
        _files(facts, asked),
        _cache(facts.cache, asked),
        _numba(facts.numba),
        *([] if facts.torch is None else [_gpu(facts, asked)]),
        _triton(facts),
        _pyg_lib(facts, asked),
    ]


def _cores(facts: Facts) -> str:
    found = f"{facts.affinity} of {facts.cores}"
    if facts.usable < facts.affinity:
        found += f", of which the cgroup's quota allows {facts.usable}"
    return found


def _threads(facts: Facts, asked: Asked) -> Check:
    workers, usable = max(asked.workers, 1), facts.usable
    threads = asked.threads or max(1, facts.affinity // workers)
    each = max(1, usable // workers)
    found = f"{threads} of a worker, {workers} worker(s), {_count(usable, 'core')}"
    omp = facts.omp_threads
    if omp is not None:
        found += f"; OMP_NUM_THREADS={omp:.20}"
    if omp is not None and omp.isdigit() and int(omp) > usable:
        mend = f"unset OMP_NUM_THREADS, or set it to {usable}"
    elif workers > usable and asked.workers:
        mend = f"set train.workers: {usable} and train.threads: 1, or use a machine with more cores"
    elif threads * workers > usable:
        mend = f"set train.threads: {each}"
    elif asked.loader_threads > max(usable, _LOADER_THREADS):
        found += f"; {asked.loader_threads} of the loader"
        mend = f"set loader.threads: {usable}"
    elif asked.threads is None and facts.torch_threads > usable:
        found = f"{facts.torch_threads} of torch, {_count(usable, 'core')}"
        mend = f"set OMP_NUM_THREADS={usable}"
    else:
        return Check("threads", True, found)
    return Check("threads", False, f"{found}: they would wait for each other", mend)


def _memory(facts: Facts, asked: Asked) -> Check:
    found = f"{gib(facts.memory_left)} left of {gib(facts.memory_limit)} that may be used"
    needed = asked.memory_bytes
    if needed is None and facts.memory_left < PROCESS_BYTES:
        return Check(
            "memory", False, f"{found}; a worker takes {gib(PROCESS_BYTES)} before its first "
            "batch", "end other processes, or raise the memory limit of the container or job",
        )  # fmt: skip
    if needed is not None and needed > facts.memory_left:
        return Check(
            "memory", False, f"{found}; the run needs some {gib(needed)}",
            "lower train.workers, loader.batch_size, loader.num_neighbors or cache.hot_bytes, or "
            "set eval.mode: sampled; the estimate says what takes how much",
        )  # fmt: skip
    return Check("memory", True, found if needed is None else f"{found}; {gib(needed)} needed")


def _shm(facts: Facts, asked: Asked) -> Check:
    name = "/dev/shm"
    if facts.shm is None:
        return Check(name, not asked.ray, "there is none", _shm_mend() if asked.ray else "")
    size, free = facts.shm
    found = f"{gib(free)} free of {gib(size)}"
    if not asked.ray:
        return Check(name, True, f"{found}; without Ray nothing needs it")
    if free < _OBJECT_STORE_BYTES:
        found += f"; Ray's object store takes {gib(_OBJECT_STORE_BYTES)}, and would go to the disk"
        return Check(name, False, found, _shm_mend())
    wanted = int(_OBJECT_STORE_SHARE * facts.memory_limit)
    if free < wanted:
        found += f" (a Ray node, or ingest --engine ray, would like {gib(wanted)})"
    return Check(name, True, found)


def _shm_mend() -> str:
    return (
        "docker run --shm-size=1g; in Kubernetes an emptyDir of medium Memory at /dev/shm; else "
        "mount -o remount,size=1G /dev/shm, or remove what fills it"
    )


def _files(facts: Facts, asked: Asked) -> Check:
    soft, hard = facts.files
    found = f"{_number(soft)} (at most {_number(hard)})"
    reached = hard if hard < 0 else max(soft, min(hard, _RAYS_FILES))
    if asked.ray and 0 <= reached < _FEWEST_FILES:
        return Check(
            "open files", False, f"{found}; Ray needs {_FEWEST_FILES:,} or more",
            f"ulimit -n {_RAYS_FILES}; docker run --ulimit nofile={_RAYS_FILES}:{_RAYS_FILES}; "
            "or LimitNOFILE of the service",
        )  # fmt: skip
    return Check("open files", True, found)


def _number(limit: int) -> str:
    return "unlimited" if limit < 0 else f"{limit:,}"


def _cache(cache: Room, asked: Asked) -> Check:
    larger = "make room there (dnformer cache rm), or set cache.dir to a folder on a larger disk"
    if cache.problem:
        mend = larger if cache.full else "set cache.dir to a folder that can be written"
        return Check("cache", False, f"{cache.folder}: {cache.problem}", mend)
    found = f"{cache.folder}: {gib(cache.free)} free"
    needed = asked.store_bytes
    if cache.free < (_CACHE_BYTES if needed is None else needed):
        what = "a small graph's store takes" if needed is None else "the node-local store takes"
        return Check("cache", False, f"{found}; {what} {gib(needed or _CACHE_BYTES)}", larger)
    if needed:
        found += f"; the node-local store takes {gib(needed)}"
    return Check("cache", True, found)


def _numba(numba: Room) -> Check:
    if not numba.problem:
        return Check("numba cache", True, str(numba.folder))
    return Check(
        "numba cache", False, f"{numba.folder}: {numba.problem}",
        "set NUMBA_CACHE_DIR to a folder that can be written: kernels are compiled once, and kept",
    )  # fmt: skip


def _gpu(facts: Facts, asked: Asked) -> Check:
    gpus, torch = facts.gpus, facts.torch or ""
    driver = f", driver {gpus.driver}" if gpus.driver else ""
    if gpus.names:
        found = ", ".join(f"{name} (sm_{high}{low})" for name, (high, low) in gpus.names)
        found += f"{driver}, torch for CUDA {gpus.cuda}"
        unknown = [cap for _, cap in gpus.names if not _compiled_for(cap, gpus.architectures)]
        if unknown:
            known = ", ".join(gpus.architectures)
            return Check(
                "gpu", False, f"{found}; this torch has no code for it, but for {known}",
                "install a torch build for this GPU from https://pytorch.org/get-started/locally",
            )  # fmt: skip
        return Check("gpu", True, found)
    if gpus.files and gpus.hidden is None:
        found = f"{gpus.files} of the system{driver}, none that torch {torch} sees"
        if gpus.cuda is None:
            mend = f"pip install --force-reinstall torch=={Version(torch).public}"
            return Check("gpu", False, f"{found}: it is a CPU build", f"{mend} (the CUDA build)")
        found += f" ({gpus.said})" if gpus.said else ""
        mend = f"update NVIDIA's driver to one for CUDA {gpus.cuda}, or install a torch for yours"
        return Check("gpu", False, found, mend)
    found = "none"
    if gpus.files:
        found = f"{gpus.files} of the system, hidden by CUDA_VISIBLE_DEVICES={gpus.hidden!r:.30}"
    if asked.gpu:
        return Check(
            "gpu", False, f"{found}, but train.use_gpu is true",
            "set train.use_gpu: false, or start the run where a GPU is",
        )  # fmt: skip
    return Check("gpu", True, found)


def _compiled_for(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Whether code for one of `architectures` runs on a GPU: within a major version, or as PTX."""
    for architecture in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", architecture)
        if found is None:
            continue
        major, minor = int(found[2]), int(found[3])
        if found[1] == "compute" and (major, minor) <= capability:
            return True
        if found[1] == "sm" and major == capability[0] and minor <= capability[1]:
            return True
    return False


def _triton(facts: Facts) -> Check:
    wanted = facts.triton_wanted or "triton>=3.5"
    version, mend = facts.triton, f"pip install '{wanted.split(';')[0].strip()}'"
    gpu = bool(facts.gpus.names)
    if version is None:
        found = "not installed; needed on a GPU"
        return Check("triton", not gpu, found if gpu else f"{found} only", mend if gpu else "")
    if gpu and not Requirement(wanted).specifier.contains(version, prereleases=True):
        return Check("triton", False, f"{version}; torch {facts.torch} needs {wanted}", mend)
    return Check("triton", True, version)


def _pyg_lib(facts: Facts, asked: Asked) -> Check:
    name, mend = "pyg-lib", pyg_lib_mend(facts)
    needed = "needed for loader.sampler pyg-lib"
    if facts.pyg_lib is None:
        problem = "not installed"
    elif facts.pyg_lib_problem:
        problem = f"{facts.pyg_lib} {facts.pyg_lib_problem}"
    else:
        return Check(name, True, facts.pyg_lib)
    if asked.pyg_lib:
        return Check(name, False, f"{problem}; {needed}", mend)
    return Check(name, True, f"{problem}; {needed} only: {mend}")


def pyg_lib_mend(facts: Facts) -> str:
    """The command that installs pyg-lib for the torch that is here; PyPI has none."""
    version = Version(facts.torch or "0")
    build = "cpu" if facts.gpus.cuda is None else f"cu{facts.gpus.cuda.replace('.', '')}"
    index = f"https://data.pyg.org/whl/torch-{version.major}.{version.minor}.0+{build}.html"
    return f"pip install pyg-lib -f {index}"


def gib(count: float) -> str:
    """Bytes as a person reads them."""
    return f"{count / _GIB:,.1f} GiB" if count >= _GIB else f"{count / _MIB:,.0f} MiB"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
