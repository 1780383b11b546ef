"""The operator on the CPU: numba kernels over tasks of a fixed number of edges, on our threads.

Threads are as many as torch has; the bits of the results do not depend on them.

N source nodes, M destination nodes, E edges, H heads, D head width, R width of the lambda
hidden layer, W width of q and k, B branches.
"""

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dnformer.ops.cpu_backward import (
    Gradients,
    add_pieces,
    add_tasks,
    backward_dst_kernel,
    backward_src_kernel,
)
from dnformer.ops.cpu_forward import Found, forward_kernel, merge_outputs
from dnformer.ops.cpu_kernels import SQUASHES, Mode, Nodes, Shape
from dnformer.ops.flat import Grads, Inputs, Outputs
from dnformer.ops.plan import TASK_EDGES, Plan, make_plan
from dnformer.ops.types import Transposed

# longer than it takes to load compiled code, shorter than compiling
_SILENT_S = 2.0
# from here on numpy asks for huge pages
_HUGE_BYTES = 2**22
_ALIGNMENT = 64


def forward(x: Inputs, *, task_edges: int = TASK_EDGES) -> Outputs:
    """The operator's outputs; `task_edges` is how many edges a task has."""
    job = _Job(x)
    plan = make_plan(job.nodes.colptr, task_edges)
    num_dst, heads, branches = x.q.shape[0], job.shape.heads, job.shape.branches
    found = Outputs(
        out=job.empty(num_dst, heads, job.shape.value_width),
        second=job.untouched(num_dst if branches == 2 else 0, heads, job.shape.value_width),
        stats=job.empty(num_dst, 2 * branches, heads),
    )
    arrays = Found(
        out=_flat(found.out),
        second=_flat(found.second),
        stats=_flat(found.stats),
        sums=_flat(job.empty(plan.num_pieces * 2 * heads * job.shape.value_width)),
        piece_stats=_flat(job.empty(plan.num_pieces * 2 * branches * heads)),
    )
    kernel = forward_kernel(job.shape)
    job.run(kernel, plan, lambda t: kernel(plan.tasks, t, job.nodes, job.mode, arrays))
    for y in range(len(plan.hubs)):
        merge_outputs(plan.hubs, y, arrays, heads, branches, job.shape.value_width)
    return found


def backward(
    x: Inputs,
    transposed: Transposed,
    outputs: Outputs,
    grad_out: Tensor,
    *,
    task_edges: int = TASK_EDGES,
) -> Grads:
    """The gradients of the inputs for `grad_out`, in two passes: by destination, by source."""
    job = _Job(x)
    shape, num_edges = job.shape, x.row.numel()
    hidden = shape.hidden
    grads = {
        "q": job.empty(*x.q.shape),
        "u": job.empty(x.q.shape[0], hidden),
        "k": job.empty(*x.k.shape),
        "v": job.empty(*x.v.shape),
        "w": job.empty(x.v.shape[0], hidden),
        "bias": job.empty(num_edges if job.mode.bias else 0, shape.heads),
        "coefs": job.empty(num_edges, 2 * job.shape.branches, shape.heads),
        "bits": _empty((num_edges, hidden // 8), torch.uint8),
        "weight": torch.zeros(shape.heads, hidden, dtype=job.dtype),
        "lam_bias": torch.zeros(shape.heads, dtype=job.dtype),
    }
    arrays = Gradients(**{name: _flat(t) for name, t in grads.items()}, pieces=job.no_numbers)
    found = Found(*map(_flat, outputs), sums=job.no_numbers, piece_stats=job.no_numbers)  # type: ignore[misc]
    flat_grad = _flat(grad_out.contiguous())
    _by_destination(job, arrays, found, flat_grad, task_edges)
    _by_source(job, arrays, transposed, flat_grad, task_edges)
    return job.grads(x, grads)


def _by_destination(
    job: "_Job", grads: Gradients, found: Found, grad_out: Any, task_edges: int
) -> None:
    shape = job.shape
    plan = make_plan(job.nodes.colptr, task_edges)
    size = shape.heads * shape.width
    own = _with_parts(grads, job, plan, size + shape.hidden)
    kernel = backward_dst_kernel(shape)
    job.run(
        kernel, plan, lambda t: kernel(plan.tasks, t, job.nodes, job.mode, found, grad_out, own)
    )
    if plan.num_pieces:
        add_pieces(plan.hubs, own.pieces, size + shape.hidden, 0, grads.q, size)
        add_pieces(plan.hubs, own.pieces, size + shape.hidden, size, grads.u, shape.hidden)
    if job.shape.branches == 2:
        add_tasks(own.weight, grads.weight)
        add_tasks(own.lam_bias, grads.lam_bias)


def _by_source(
    job: "_Job", grads: Gradients, transposed: Transposed, grad_out: Any, task_edges: int
) -> None:
    shape = job.shape
    num_src = len(job.nodes.v) // (shape.heads * shape.value_width)
    rowptr, edge, col = (t.numpy() for t in transposed)
    rowptr = rowptr[: num_src + 1]
    plan = make_plan(rowptr, task_edges)
    sizes = (shape.heads * shape.width, shape.heads * shape.value_width, shape.hidden)
    own = _with_parts(grads, job, plan, sum(sizes))
    kernel = backward_src_kernel(shape)
    job.run(
        kernel,
        plan,
        lambda t: kernel(plan.tasks, t, job.nodes, rowptr, edge, col, grad_out, own),
    )
    if plan.num_pieces:
        offset = 0
        for out, size in zip((grads.k, grads.v, grads.w), sizes, strict=True):
            add_pieces(plan.hubs, own.pieces, sum(sizes), offset, out, size)
            offset += size
    if job.shape.branches == 2:
        add_tasks(own.weight, grads.weight)


def _with_parts(grads: Gradients, job: "_Job", plan: Plan, piece_size: int) -> Gradients:
    """The arrays of a pass: its tasks' parts of lambda's parameters, its hubs' pieces."""
    heads, num_tasks = job.shape.heads, len(plan.tasks)
    return grads._replace(
        weight=_flat(job.empty(num_tasks, heads, job.shape.hidden)),
        lam_bias=_flat(job.empty(num_tasks, heads)),
        pieces=_flat(job.empty(plan.num_pieces, piece_size)),
    )


class _Job:
    """An operator's inputs as the kernels take them, in the dtype they compute in."""

    def __init__(self, x: Inputs) -> None:
        self.dtype = torch.float64 if x.q.dtype == torch.float64 else torch.float32
        self.no_numbers = _flat(self.empty(0))
        heads, width = x.q.shape[1:]
        hidden = 0 if x.weight is None else x.weight.shape[1]
        self.padding = -hidden % 8
        branches = 2 if x.squash else 1
        self.shape = Shape(heads, width, x.v.shape[2], hidden + self.padding, branches)
        padded = {name: self._padded(getattr(x, name)) for name in ("u", "w", "weight")}
        whole = {name: self._wide(getattr(x, name)) for name in ("q", "k", "v", "lam_bias", "bias")}
        self.nodes = Nodes(colptr=_flat(x.colptr), row=_flat(x.row), **padded, **whole)
        self.mode = _mode(x, self.dtype)

    def empty(self, *shape: int) -> Tensor:
        """Numbers not set yet."""
        return _empty(shape, self.dtype)

    def untouched(self, *shape: int) -> Tensor:
        """Zeros that take no memory before they are written."""
        return torch.from_numpy(np.zeros(shape, self.nodes.q.dtype))

    def _wide(self, t: Tensor | None) -> Any:
        return self.no_numbers if t is None else _flat(t.to(self.dtype))

    def _padded(self, t: Tensor | None) -> Any:
        """With hidden units that are always 0, so that a row of bits is whole bytes."""
        if t is None or not self.padding:
            return self._wide(t)
        return _flat(torch.nn.functional.pad(t.to(self.dtype), (0, self.padding)))

    def grads(self, x: Inputs, found: dict[str, Tensor]) -> Grads:
        """The gradients without padding, in the dtypes of their inputs."""
        result: dict[str, Any] = {}
        for name in Grads._fields:
            given = getattr(x, name)
            if given is None:
                result[name] = None
                continue
            grad = found[name]
            if self.padding and name in ("u", "w", "weight"):
                grad = grad[:, : -self.padding]
            result[name] = grad.to(given.dtype).contiguous()
        return Grads(**result)

    def run(self, kernel: Any, plan: Plan, task: Callable[[int], Any]) -> None:
        """Runs `task` on each number of the plan's tasks."""
        tasks = iter(range(len(plan.tasks)))
        if (kernel, self.dtype) not in _compiled:
            _compiled.add((kernel, self.dtype))
            with _saying_that_it_compiles(self.shape):
                for t in islice(tasks, 1):
                    task(t)
        threads = min(torch.get_num_threads(), len(plan.tasks))

        def work() -> None:
            for t in tasks:
                task(t)

        others = [_pool.get().submit(work) for _ in range(threads - 1)]
        work()
        for other in others:
            other.result()


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory that is not set, large blocks in huge pages, which numpy asks for and torch doesn't.

    A fresh page costs as much as reading it many times over (bench/LOG.md). Blocks begin at a
    multiple of 64 bytes, as torch's own do: the rounding of matrix products depends on it.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_BYTES:
        return torch.empty(shape, dtype=dtype)
    block = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -block.ctypes.data % _ALIGNMENT
    return torch.from_numpy(block[start : start + num_bytes]).view(dtype).view(shape)


def _flat(t: Tensor) -> Any:
    return t.detach().view(-1).numpy()


def _mode(x: Inputs, dtype: torch.dtype) -> Mode:
    number = np.float64 if dtype == torch.float64 else np.float32
    return Mode(
        squash=SQUASHES.index(x.squash) if x.squash else -1,
        bias=x.bias is not None,
        dropout=x.seed is not None,
        seed=np.uint64(0 if x.seed is None else int(x.seed) % 2**64),
        threshold=np.uint64(math.ceil(x.p * 2**24)),
        scale=number(1 / (1 - x.p)),
    )


class _Pool:
    """Threads that are started when they are first needed, anew in a forked process."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> ThreadPoolExecutor:
        """The threads."""
        with self._lock:
            if self._executor is None:
                most = max(torch.get_num_threads(), os.cpu_count() or 1)
                self._executor = ThreadPoolExecutor(most, thread_name_prefix="dnformer-ops")
            return self._executor

    def _forget(self) -> None:
        self._executor, self._lock = None, threading.Lock()


_pool = _Pool()
_compiled: set[tuple[Any, torch.dtype]] = set()
_told: set[tuple[int, int]] = set()


@contextmanager
def _saying_that_it_compiles(shape: Shape) -> Iterator[None]:
    """Tells whoever waits why, once waiting is long: with a warm cache it is not."""

    def tell() -> None:
        size = shape.heads, shape.value_width
        if size not in _told:
            _told.add(size)
            text = "compiling attention for {} heads of {}: once on this machine".format(*size)
            print(text, file=sys.stderr, flush=True)

    timer = threading.Timer(_SILENT_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
