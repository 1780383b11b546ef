"""Peak memory of a step beyond what its inputs hold.

On the CPU a fresh process counts its resident pages, as the kernel does: torch's own profiler does
not see what numba or numpy allocate. glibc is told to map every block above 64 KB by itself, so
freed memory leaves the process at once and no earlier peak hides a later one. On a GPU torch's
allocator counts.
"""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dnformer.bench.resident import status_bytes

_CLEAR_REFS = Path("/proc/self/clear_refs")
# also switches off glibc's habit of raising the threshold when a block is freed
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(2**16),
    "MALLOC_TRIM_THRESHOLD_": str(2**16),
    "MALLOC_TOP_PAD_": "0",
}


class Peak(NamedTuple):
    """Bytes of one step.

    Attributes:
        extra: the most it held at once, beyond what was held before it.
        results: of the tensors it returned; `extra` includes those of them that were there when it
            held the most.
    """

    extra: int
    results: int


def measurable() -> bool:
    """Whether this system lets a process forget its peak (Linux, mostly)."""
    return os.access(_CLEAR_REFS, os.W_OK)


def peak_in_child(make: Callable[..., Callable[[], Any]], *args: Any) -> Peak:
    """The peak of the step that `make(*args)` gives, in a process of its own, after one warm-up.

    Args:
        make: importable by name, as the child has to find it.
        args: plain values and numpy arrays; they are sent to the child.
    """
    # forks of a server that has imported torch: a new process for each, seconds of imports for none
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch_geometric.nn", "dnformer.bench.contenders"])
    with _environment(_MALLOC), ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_measure, torch.get_num_threads(), make, args).result()


def _measure(threads: int, make: Callable[..., Callable[[], Any]], args: tuple[Any, ...]) -> Peak:
    torch.set_num_threads(threads)
    step = make(*args)
    step()
    gc.collect()
    _CLEAR_REFS.write_text("5")  # man 5 proc: resets VmHWM to VmRSS
    before = status_bytes("VmRSS")
    results = step()
    return Peak(status_bytes("VmHWM") - before, _num_bytes(results))


def peak_on_gpu(step: Callable[[], Any]) -> Peak:
    """The peak of `step` on the current CUDA device, in this process, after one warm-up."""
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = step()
    torch.cuda.synchronize()
    return Peak(torch.cuda.max_memory_allocated() - before, _num_bytes(results))


def _num_bytes(results: Any) -> int:
    tensors = results if isinstance(results, (tuple, list)) else ()
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """The variables while the body runs; glibc reads its own when a process starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
