"""The folder of node-local stores on this host: which are there, who uses them, what may go.

Each store is a folder named by its fingerprint. Two locks belong to it: who builds or removes it
holds `<fingerprint>.lock`, and each process that has it open holds its file `complete`.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, final

import platformdirs
from filelock import FileLock, Timeout

from dnformer import storage
from dnformer.errors import DataError

COMPLETE = "complete"
_HEX = set("0123456789abcdef")

Say = Callable[[str], None]


class LocalStore(NamedTuple):
    """A store that is there.

    Attributes:
        fingerprint: of its dataset.
        uri, source: where it was built from, and what that was made of.
        bytes: on disk.
        used_s: when it was opened last, seconds since 1970.
        in_use: whether a process has it open.
    """

    fingerprint: str
    uri: str
    source: str
    bytes: int
    used_s: float
    in_use: bool


def default_folder() -> Path:
    """Where stores live unless the config says otherwise."""
    return Path(platformdirs.user_cache_dir("dnformer"))


@final
class Lease:
    """That this process, or one that it forked, has a store open; until it is garbage."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __del__(self) -> None:
        os.close(self._file)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # the number of a file means nothing elsewhere


def lease(store: Path) -> Lease | None:
    """Marks the store in the folder `store` as in use from now on; None where there is none."""
    complete = store / COMPLETE
    try:
        file = os.open(complete, os.O_RDONLY)
    except FileNotFoundError:
        return None
    found = Lease(file)
    try:
        # waits at most for a look, or a removal; after this one, there is none or another file
        fcntl.flock(file, fcntl.LOCK_SH)
        if not os.path.samestat(os.fstat(file), complete.stat()):
            return None
    except FileNotFoundError:
        return None
    with suppress(OSError):  # of a folder that others keep, its last use is theirs to note
        os.utime(file)
    return found


@contextmanager
def building(folder: Path, fingerprint: str, say: Say) -> Iterator[None]:
    """The right to build or remove a store; waits for another process that has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = FileLock(folder / f"{fingerprint}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"waiting for another process that builds the node-local store {fingerprint[:12]}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def describe(complete: Path, uri: str, source: str) -> None:
    """Marks a store as built to its end."""
    complete.write_text(json.dumps({"uri": uri, "source": source}))


def list_stores(folder: Path) -> list[LocalStore]:
    """The stores in `folder`, the one that was used last at the end."""
    found = [_look(path) for path in folder.glob("*") if _is_fingerprint(path.name)]
    return sorted((store for store in found if store), key=lambda store: store.used_s)


def _is_fingerprint(name: str) -> bool:
    return len(name) == 64 and set(name) <= _HEX


def _look(path: Path) -> LocalStore | None:
    complete = path / COMPLETE
    try:
        used_s, text = complete.stat().st_mtime, complete.read_text()
        in_use = _is_in_use(complete)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        facts = json.loads(text)
    except ValueError:
        facts = None
    facts = facts if isinstance(facts, dict) else {}
    uri, source = (str(facts.get(name, "?")) for name in ("uri", "source"))
    return LocalStore(path.name, uri, source, _size(path), used_s, in_use)


def _is_in_use(complete: Path) -> bool:
    file = os.open(complete, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _size(folder: Path) -> int:
    """Bytes of the files in `folder`; of one that is being built, what they will be."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total


def total_bytes(folder: Path) -> int:
    """Bytes of all stores in `folder`, also of those that are being built."""
    return sum(_size(path) for path in folder.glob("*") if path.is_dir()) + sum(
        _size(path) for path in folder.glob(".*.tmp")
    )


def remove_store(folder: Path, fingerprint: str) -> bool:
    """Removes a store; False where a process has it open, or builds it."""
    lock, path = FileLock(folder / f"{fingerprint}.lock"), folder / fingerprint
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    try:
        file = os.open(path / COMPLETE, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = path.with_name(f".{fingerprint}.tmp")
            shutil.rmtree(gone, ignore_errors=True)
            path.rename(gone)
            shutil.rmtree(gone)
        finally:
            os.close(file)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass  # somebody else did
    finally:
        lock.release()
    return True


def remove_leftovers(folder: Path) -> None:
    """Removes what killed processes left of stores that they built or removed."""
    for path in folder.glob(".*.tmp"):
        with suppress(Timeout), FileLock(folder / f"{path.name[1:-4]}.lock", timeout=0):
            shutil.rmtree(path, ignore_errors=True)


def make_room(folder: Path, needed: int, max_bytes: int | None, say: Say) -> None:
    """Removes the stores that were not used for longest, until `needed` more bytes are allowed.

    Raises:
        DataError: `max_bytes` are not enough, or what is in use leaves too few of them.
    """
    if max_bytes is None:
        return
    if needed > max_bytes:
        raise DataError(
            f"the store takes {mib(needed)}, cache.max_bytes allows {mib(max_bytes)} for all; "
            "set it higher"
        )
    missing = total_bytes(folder) + needed - max_bytes
    for store in list_stores(folder):
        if missing <= 0:
            return
        if not store.in_use and remove_store(folder, store.fingerprint):
            missing -= store.bytes
            say(
                f"removed the node-local store of {store.uri} ({mib(store.bytes)}) to stay within "
                "cache.max_bytes"
            )
    if missing > 0:
        raise DataError(
            f"{folder} would hold {mib(missing)} more than cache.max_bytes allows, and its other "
            "stores are in use; set it higher, or wait"
        )


def mib(count: int) -> str:
    """Bytes as a person reads them, rounded up."""
    return f"{-(-count >> 20):,} MiB"


def pick(stores: list[LocalStore], names: list[str]) -> list[LocalStore]:
    """The stores that `names` mean: the beginning of a fingerprint, or a dataset's URI.

    Raises:
        DataError: a name fits none, or is the beginning of several.
    """
    picked: dict[str, LocalStore] = {}
    for name in names:
        uri = storage.absolute(name)
        fitting = [s for s in stores if s.uri == uri or s.fingerprint.startswith(name)]
        if not fitting:
            raise DataError(f"no store {name!r}; dnformer cache ls shows what is there")
        if len(fitting) > 1 and fitting[0].uri != uri:
            raise DataError(f"{len(fitting)} stores begin with {name!r}; give more of its digits")
        picked |= {store.fingerprint: store for store in fitting}
    return list(picked.values())
