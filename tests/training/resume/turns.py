"""A store on which several writers work in an order that the test chooses, one access at a time.

It is fsspec's memory file system under the protocol `turns`. Each access of an `Actor` waits until
the test lets the actor go on; what anybody else does goes through at once.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

PROTOCOL = "turns"


class Died(BaseException):
    """In an actor that was killed: nothing of what follows reaches the store."""


class Actor(threading.Thread):
    """Work that halts before each access to the store.

    Args:
        work: what it does.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work, self._dead, self._inside = work, False, False
        self._go, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = False
        self.next = ""
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()
        self._halted.acquire()

    @property
    def died(self) -> bool:
        """Whether it was killed before its end."""
        return isinstance(self.error, Died)

    def run(self) -> None:
        """The thread's own."""
        try:
            self.halt()
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self.error = error
        self.ended = True
        self._halted.release()

    def halt(self) -> None:
        """Waits for a turn."""
        if self._dead:
            raise Died
        self._halted.release()
        self._go.acquire()
        if self._dead:
            raise Died

    def take_turn(self) -> None:
        """Lets it do one access, up to before the next."""
        if not self.ended:
            self._go.release()
            self._halted.acquire()

    def before(self, access: str, path: str) -> None:
        """Lets it go on up to before it accesses what ends in `path`."""
        while not self.next.startswith(f"{access} ") or not self.next.endswith(path):
            assert not self.ended, (self.result, self.error)
            self.take_turn()

    def finish(self) -> None:
        """Lets it go on to its end."""
        while not self.ended:
            self.take_turn()

    def kill(self) -> None:
        """Its next access fails, and all that follow."""
        self._dead = True
        self.finish()
        self.join()

    def access(self, what: str, work: Callable[[], Any]) -> Any:
        """Does an access when it has its turn; what it is made of takes none."""
        if self._inside:
            return work()
        self.next = what
        self.halt()
        self._inside = True
        try:
            return work()
        finally:
            self._inside = False


def at_once(what: str, work: Callable[[], Any]) -> Any:
    """What `work` gives, all of whose accesses are one, which is called `what`."""
    actor = threading.current_thread()
    return actor.access(what, work) if isinstance(actor, Actor) else work()


class TurnsFileSystem(MemoryFileSystem):
    """The store."""

    protocol = (PROTOCOL,)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix(f"{PROTOCOL}:/"))

    def info(self, path: str, **options: Any) -> Any:
        return at_once(f"info {path}", partial(super().info, path, **options))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        work = partial(super().ls, path, detail=detail, **options)
        return at_once(f"list {path}", work)

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        return at_once(f"read {path}", partial(super().cat_file, path, *arguments, **options))

    def pipe_file(self, path: str, value: bytes, *arguments: Any, **options: Any) -> Any:
        work = partial(super().pipe_file, path, value, *arguments, **options)
        return at_once(f"put {path}", work)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        return at_once(f"put {rpath}", partial(super().put_file, lpath, rpath, **options))

    def rm_file(self, path: str) -> Any:
        return at_once(f"remove {path}", partial(super().rm_file, path))


def register() -> None:
    """Makes `turns://` known."""
    fsspec.register_implementation(PROTOCOL, TurnsFileSystem, clobber=True)
