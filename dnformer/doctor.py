"""What is well and what is not, on this machine or on a store, and how it is mended."""

import errno
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from dnformer import storage
from dnformer.data import local_stores
from dnformer.errors import BackendError, ConfigError, DataError, DNFormerError
from dnformer.memory import memory_limit

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
}
_ALIASES = {"s3a": "s3", "gcs": "gs"}
# what the stores' clients say, and what helps; the first that is found counts
_MENDS = (
    (
        r"locate credentials|partial credentials|config profile|credentials were not found"
        r"|anonymous caller",
        "give credentials in the environment: {credentials}",
    ),
    (
        r"access key id|signature|token|invalid credentials",
        "the credentials in the environment are not valid there; check them, and that "
        "storage.options.{protocol}.endpoint_url is the store that gave them",
    ),
    (
        r"region|specified endpoint|redirect",
        "the bucket is elsewhere: set storage.options.{protocol}.client_kwargs.region_name or "
        "storage.options.{protocol}.endpoint_url",
    ),
)
_OPTIONAL = {
    "triton": "needed on a GPU only",
    "pyg-lib": "needed for loader.sampler pyg-lib only",
    "s3fs": "needed for s3:// only: pip install 'dnformer[s3]'",
    "gcsfs": "needed for gs:// only: pip install 'dnformer[gcs]'",
}


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: of it.
        ok: whether it is as it should be.
        found: what is there.
        mend: what helps where it is not; else empty.
    """

    name: str
    ok: bool
    found: str
    mend: str = ""


Step = Callable[[], str]


def check_storage(uri: str, *, clock: Callable[[], float] = time.perf_counter) -> list[Check]:
    """Writes, reads, lists, replaces and removes a probe in a folder; ends where a step fails.

    Args:
        uri: of the folder; nothing that is in it is touched.
        clock: gives seconds.

    Returns:
        A check for each step that was taken.
    """
    uri = storage.absolute(uri)
    # in a folder of its own: replacing a local file leaves a lock beside it
    probe = _Probe(storage.join(uri, f".dnformer-probe-{uuid.uuid4().hex}"))
    missing = _missing_folders(uri)
    checks: list[Check] = []
    try:
        for name, step in probe.steps():
            checks.append(_check(name, step, uri, clock))
            if not checks[-1].ok:
                break
    finally:
        if not (checks and checks[-1].ok):
            probe.clean_up()
        for path in missing:
            storage.remove_empty(path)
    return checks


def _missing_folders(uri: str) -> list[str]:
    """Local folders that a write to `uri` makes, the innermost first."""
    if not storage.is_local(uri):
        return []
    return [str(path) for path in (Path(uri), *Path(uri).parents) if not path.exists()]


@final
class _Probe:
    """A file in a folder of its own, and what is tried with it: each says what it found."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._uri = storage.join(folder, "probe")
        self._content = uuid.uuid4().bytes * 64

    def steps(self) -> list[tuple[str, Step]]:
        return [
            ("write", self._write),
            ("read", self._read),
            ("list", self._list),
            ("replace", self._replace),
            ("remove", self._remove),
        ]

    def clean_up(self) -> None:
        for uri in (self._uri, self._folder):
            # where nothing can be removed, the step that failed has been told
            with suppress(OSError, DNFormerError):
                storage.remove(uri)

    def _write(self) -> str:
        storage.write_bytes(self._uri, self._content)
        return f"{len(self._content):,} bytes"

    def _read(self) -> str:
        if storage.read_bytes(self._uri) != self._content:
            raise DataError("the probe reads otherwise than it was written")
        return "the same bytes"

    def _list(self) -> str:
        if "probe" not in storage.list_names(self._folder):
            raise DataError("the probe is not listed although it was written")
        return "the probe is listed"

    def _replace(self) -> str:
        won = storage.compare_and_put(self._uri, b"replaced", expected=self._content)
        if not won or storage.compare_and_put(self._uri, b"too late", expected=None):
            raise DataError("the store does not heed the condition of a write")
        return "over what was expected only"

    def _remove(self) -> str:
        for uri in (self._uri, self._folder):
            storage.remove(uri)
        if storage.exists(self._folder):
            raise DataError("the probe is still there after its removal")
        return "nothing is left"


def _check(name: str, step: Step, uri: str, clock: Callable[[], float]) -> Check:
    begin = clock()
    try:
        found = step()
    except (OSError, DNFormerError) as error:
        ms = (clock() - begin) * 1e3
        return Check(name, False, f"{_text(error)} ({ms:,.0f} ms)", _mend(error, uri, name))
    return Check(name, True, f"{found} ({(clock() - begin) * 1e3:,.0f} ms)")


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return storage.redacted(str(error))


def _mend(error: Exception, uri: str, step: str) -> str:
    if isinstance(error, BackendError):
        return str(error).rpartition(": ")[2]
    if isinstance(error, ConfigError):
        return "correct the URI or storage.options"
    if isinstance(error, DataError):
        return "use a store that is consistent and takes conditional writes, or a local folder"
    protocol = "file" if storage.is_local(uri) else uri.split("://")[0]
    protocol = _ALIASES.get(protocol, protocol)
    if protocol != "file":
        credentials = _CREDENTIALS.get(protocol, "as its client reads them")
        for pattern, mend in _MENDS:
            if re.search(pattern, str(error), re.IGNORECASE):
                return mend.format(protocol=protocol, credentials=credentials)
    return _mend_by_kind(error, uri, protocol, step)


def _mend_by_kind(error: Exception, uri: str, protocol: str, step: str) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, storage.Unreachable):
        return f"check the network, and the address in storage.options.{protocol}.endpoint_url"
    if isinstance(error, FileNotFoundError):
        place = "folder" if protocol == "file" else "bucket"
        return f"create the {place} of {uri}, or correct its name"
    if isinstance(error, PermissionError) or "forbidden" in str(error).lower():
        return f"ask for the right to {step} there, or use another place"
    if number == errno.EROFS:
        return "it is read-only; use another folder"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    return "see the message; the store's own log may say more"


def check_machine(cache_dir: Path | None = None) -> list[Check]:
    """The versions, cores and memory that a run would have here, and its cache folder.

    Args:
        cache_dir: as `cache.dir`.
    """
    cores, limit = len(os.sched_getaffinity(0)), memory_limit()
    return [
        Check("python", True, platform.python_version()),
        *(_version(name) for name in ("torch", "torch-geometric", "ray", *_OPTIONAL)),
        _gpu(),
        Check("cores", True, f"{cores} of {os.cpu_count()}"),
        Check("memory", True, f"{limit / 2**30:,.1f} GiB may be used"),
        _cache(cache_dir or local_stores.default_folder()),
    ]


def _version(name: str) -> Check:
    try:
        return Check(name, True, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        if name in _OPTIONAL:
            return Check(name, True, f"not installed; {_OPTIONAL[name]}")
        return Check(name, False, "not installed", f"pip install {name}")


def _gpu() -> Check:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("gpu", True, ", ".join(names) or "none")


def _cache(folder: Path) -> Check:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"probe")
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        return Check("cache", False, found, "set cache.dir to a folder that can be written")
    free = shutil.disk_usage(folder).free
    return Check("cache", True, f"{folder}: {free / 2**30:,.1f} GiB free")
