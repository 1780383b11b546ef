"""Processes that kill themselves, in the way of kill -9, at a point that is chosen by counting."""

import os
import signal
import sys
import threading
import time
from typing import NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dnformer import storage
from dnformer.group import Group

DRIVER = -1
# what changes a folder; each is told before it happens
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


class Kill(NamedTuple):
    """When a process dies.

    Attributes:
        rank: of the worker that dies; `DRIVER`: what started the workers.
        steps: optimizer steps that it does before; of the driver: that rank 0 does, which then
            lives on, and waits until another start has claimed the run.
        events: the n-th change of the run's folder or sum over the workers after them; 0: at the
            end of the step, before anything follows.
    """

    rank: int
    steps: int
    events: int


class Fuse:
    """Counts what this process does, and kills it when `kill` says so.

    Args:
        folder: of the run, whose changes count.
        kill: when; None: never.
        slow_s: how long each change by another thread than the main one takes.
    """

    def __init__(self, folder: str, kill: Kill | None, *, slow_s: float = 0.0) -> None:
        self._folder, self._kill, self._slow_s = folder, kill, slow_s
        self._steps = self._events = 0
        # a fork has this fuse too, and one of its own
        self._pid = os.getpid()
        self._lock = threading.Lock()
        register_optimizer_step_post_hook(lambda *arguments: self._step())
        sys.addaudithook(self._hear)

    def _step(self) -> None:
        self._steps += 1
        if (
            self._pid != os.getpid()
            or self._kill is None
            or self._kill.events
            or self._steps != self._kill.steps
        ):
            return
        if self._kill.rank != DRIVER:
            os.kill(os.getpid(), signal.SIGKILL)
        claim = storage.read_bytes(f"{self._folder}/attempt.json")
        os.kill(os.getppid(), signal.SIGKILL)
        while storage.read_bytes(f"{self._folder}/attempt.json") == claim:
            time.sleep(0.02)

    def _hear(self, event: str, arguments: tuple) -> None:
        if (event != "open" and event not in _CHANGES) or self._pid != os.getpid():
            return
        if not str(arguments[0]).startswith(self._folder):
            return
        if event == "open" and not arguments[2] & _WRITING:
            return
        self.event()

    def event(self) -> None:
        """Counts a change of the folder, or a sum over the workers."""
        if self._slow_s and threading.current_thread() is not threading.main_thread():
            time.sleep(self._slow_s)
        if self._kill is None or self._steps < self._kill.steps:
            return
        with self._lock:
            self._events += 1
            if self._events == self._kill.events:
                os.kill(os.getpid(), signal.SIGKILL)
                # of another thread: it may take a moment until the kernel stops this one
                time.sleep(10)


class CountedGroup(Group):
    """A group each of whose sums is told to a fuse, before it happens."""

    def with_fuse(self, fuse: Fuse) -> "CountedGroup":
        object.__setattr__(self, "_fuse", fuse)  # the base is frozen
        return self

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        self.__dict__["_fuse"].event()
        return super().sum_(tensor)
