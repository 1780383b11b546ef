"""A probe that is written to a store, read, listed, replaced and removed; and the store's clock."""

import errno
import re
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import final

from dnformer import storage
from dnformer.doctor.check import Check, within
from dnformer.doctor.clock import check_skew, skew_s
from dnformer.errors import BackendError, ConfigError, DataError, DNFormerError

# of one step; a client of a store may try for minutes by itself
_STEP_S = 20.0
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

Step = Callable[[], str]


def check_storage(
    uri: str, *, clock: Callable[[], float] = time.perf_counter, step_s: float = _STEP_S
) -> list[Check]:
    """Writes, reads, lists, replaces and removes a probe in a folder; ends where a step fails.

    Args:
        uri: of the folder; nothing that is in it is touched.
        clock: gives seconds.
        step_s: seconds that a step may take.

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
            checks.append(_check(name, partial(within, step_s, step), uri, clock))
            if not checks[-1].ok:
                break
    finally:
        if not (checks and checks[-1].ok):
            with suppress(TimeoutError):
                within(step_s / 4, probe.clean_up)
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
        self._begin = self._end = 0.0

    def steps(self) -> list[tuple[str, Step]]:
        return [
            ("write", self._write),
            ("read", self._read),
            ("clock", self._clock),
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
        self._begin = time.time()
        storage.write_bytes(self._uri, self._content)
        self._end = time.time()
        return f"{len(self._content):,} bytes"

    def _read(self) -> str:
        if storage.read_bytes(self._uri) != self._content:
            raise DataError("the probe reads otherwise than it was written")
        return "the same bytes"

    def _clock(self) -> str:
        there = storage.modified(self._uri)
        if there is None:
            return "not known: the store does not say when a file was written"
        return check_skew(skew_s(there, self._begin, self._end))

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
        return Check(name, False, f"{text_of(error)} ({ms:,.0f} ms)", mend_of(error, uri, name))
    return Check(name, True, f"{found} ({(clock() - begin) * 1e3:,.0f} ms)")


def text_of(error: Exception) -> str:
    """What a store's error says, without secrets."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return storage.redacted(str(error))


def mend_of(error: Exception, uri: str, step: str) -> str:
    """What helps against an error that `step` met at `uri`."""
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
    if isinstance(error, storage.Unreachable | TimeoutError):
        if protocol == "file":
            return "the disk does not answer; look for a network file system whose server is away"
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
