"""Many direct reads in flight from one thread, by the kernel's asynchronous I/O (Linux).

A thread for each read takes about 1.7 times the CPU time (bench/LOG.md), and comes and goes through
Python, whose lock the training needs.
"""

import platform
import sys
import weakref
from typing import Any, NamedTuple, final

import numba
import numpy as np
import numpy.typing as npt
from numba.core import types

from dnformer.loader.read_plan import Requests, Slabs, Wanted, make_slabs, needed, take

Array = npt.NDArray[Any]


class Calls(NamedTuple):
    """The kernel's numbers of the calls."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS = {"x86_64": Calls(206, 207, 208, 209), "aarch64": Calls(0, 1, 4, 2)}

# libc has no functions of these names; by name, so the compiled code can be kept on the disk
_WORD = types.intp
_syscall: Any = types.ExternalFunction("syscall", _WORD(_WORD, _WORD, _WORD, _WORD, _WORD, _WORD))


class Queue(NamedTuple):
    """What the kernel and we share.

    Attributes:
        calls: numbers of the calls.
        context: the kernel's handle.
        control: a `struct iocb` for each slab, uint64 `[depth, 8]`: our mark, 0, operation and
            descriptor, address, bytes, offset, 0, 0.
        pointers: to those that are submitted, uint64 `[depth]`.
        events: `struct io_event`s, int64 `[depth, 4]`: mark, iocb, result, 0.
        addresses: of the last three.
        request: which request each slab is for, int64 `[depth]`.
        free: slabs that are not in use, int64 `[depth]`.
    """

    calls: Calls
    context: int
    control: Array
    pointers: Array
    events: Array
    addresses: tuple[int, int, int]
    request: Array
    free: Array


@numba.njit(nogil=True, cache=True)
def _setup(calls, depth, address):  # type: ignore[no-untyped-def]
    return _syscall(calls.setup, depth, address, 0, 0, 0)


@numba.njit(nogil=True, cache=True)
def _destroy(calls, context):  # type: ignore[no-untyped-def]
    return _syscall(calls.destroy, context, 0, 0, 0, 0)


@numba.njit(inline="always")
def _prepare(queue, slabs, requests, r, s, fd):  # type: ignore[no-untyped-def]
    """Fills slab s's control block to read request r; operation 0 reads."""
    queue.request[s] = r
    block = queue.control[s]
    block[0], block[2] = s, np.uint64(fd) << np.uint64(32)
    block[3] = slabs.address + s * slabs.size
    block[4], block[5] = requests.size[r], requests.offset[r]


@numba.njit(nogil=True, cache=True)
def _read_all(queue, slabs, wanted, requests, fd, failed):  # type: ignore[no-untyped-def]
    """Reads and writes the rows of all requests; how many were put into `failed`."""
    count, depth = requests.offset.shape[0], queue.free.shape[0]
    control, pointers, events = queue.addresses
    num_free, sent, done, num_failed = depth, 0, 0, 0
    while done < count:
        ready = 0
        while num_free > 0 and sent < count:
            num_free -= 1
            s = queue.free[num_free]
            _prepare(queue, slabs, requests, sent, s, fd)
            queue.pointers[ready] = control + s * 64
            ready, sent = ready + 1, sent + 1
        if ready > 0:
            taken = max(_syscall(queue.calls.submit, queue.context, ready, pointers, 0, 0), 0)
            for refused in range(taken, ready):
                s = np.int64(queue.pointers[refused] - np.uint64(control)) // 64
                failed[num_failed] = queue.request[s]
                queue.free[num_free] = s
                num_failed, num_free, done = num_failed + 1, num_free + 1, done + 1
        # half of those in flight: the disk has the other half to do meanwhile
        least = max((depth - num_free) // 2, min(depth - num_free, 1))
        found = _syscall(queue.calls.getevents, queue.context, least, depth, events, 0)
        for e in range(max(found, 0)):
            s = queue.events[e, 0]
            r = queue.request[s]
            if queue.events[e, 2] < needed(wanted, requests, r):
                failed[num_failed] = r
                num_failed += 1
            else:
                take(wanted, requests, r, slabs, s)
            queue.free[num_free] = s
            num_free, done = num_free + 1, done + 1
    return num_failed


@final
class Ring:
    """A queue of `depth` reads in flight; one thread at a time.

    Raises:
        OSError: the kernel gives none.
    """

    def __init__(self, depth: int, request_bytes: int) -> None:
        calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
        context = np.zeros(1, np.uint64)
        if calls is None or _setup(calls, depth, context.ctypes.data) != 0:
            raise OSError("the system gives no asynchronous reads")
        self.slabs: Slabs = make_slabs(depth, request_bytes)
        control, pointers = np.zeros((depth, 8), np.uint64), np.zeros(depth, np.uint64)
        events = np.zeros((depth, 4), np.int64)
        self._queue = Queue(
            calls,
            int(context[0]),
            control,
            pointers,
            events,
            (control.ctypes.data, pointers.ctypes.data, events.ctypes.data),
            np.zeros(depth, np.int64),
            np.arange(depth),
        )
        weakref.finalize(self, _destroy, calls, self._queue.context).atexit = False

    def read(self, fd: int, wanted: Wanted, requests: Requests) -> Array:
        """Reads all `requests`, and returns the numbers of those that failed or fell short."""
        failed = np.empty(len(requests.offset), np.int64)
        count = _read_all(self._queue, self.slabs, wanted, requests, fd, failed)
        return failed[:count]
