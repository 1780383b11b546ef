"""The way to a store: fsspec's file systems with our options, errors that name the URI, retries."""

import errno
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, final

import fsspec
import fsspec.config
from fsspec.core import url_to_fs

from dnformer.config import StorageConfig
from dnformer.errors import BackendError, ConfigError, DNFormerError
from dnformer.storage.faults import client_errors, is_passing, redacted
from dnformer.storage.paths import protocol_of
from dnformer.storage.retry import Retry, Unreachable

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
# s3fs gives the kind of an error without its number, from which Python derives the kind
_NUMBERS: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    NotADirectoryError: errno.ENOTDIR,
    IsADirectoryError: errno.EISDIR,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}

Given = TypeVar("Given")


@final
class _Process:
    """What holds for this whole process: fsspec's own defaults are its, and so is the patience."""

    def __init__(self) -> None:
        self.retry = Retry(StorageConfig().retry_s)
        self._lock = threading.Lock()
        self._options: dict[str, dict[str, Any]] = {}
        # fsspec's defaults, by protocol, without ours; the user may have files with some
        self._before: dict[str, dict[str, Any]] = {}

    def configure(self, config: StorageConfig) -> None:
        with self._lock:
            self.retry.budget_s = config.retry_s
            if config.options != self._options:
                self._set_options(config.options)

    def _set_options(self, options: dict[str, dict[str, Any]]) -> None:
        # fsspec keeps file systems by their options: one with others is not met again
        defaults = fsspec.config.conf
        for protocol, before in self._before.items():
            defaults[protocol] = before
        self._before = {protocol: defaults.get(protocol, {}) for protocol in options}
        self._options = {protocol: dict(given) for protocol, given in options.items()}
        for protocol, given in options.items():
            defaults[protocol] = {**self._before[protocol], **given}

    def options_for(self, protocol: str) -> dict[str, Any]:
        """Our options for a protocol, also those given under another name of it."""
        found: dict[str, Any] = {}
        for name in sorted(_names(protocol)):
            found |= self._options.get(name, {})
        return found


def _names(protocol: str) -> set[str]:
    """All names of a protocol: s3a is s3, gs is gcs."""
    return {protocol} | {name for name, extra in EXTRAS.items() if extra == EXTRAS.get(protocol)}


_process = _Process()


def configure(config: StorageConfig) -> None:
    """Sets how this process reaches stores: fsspec's defaults by protocol, and how long it tries.

    Options for `s3` hold for `s3a` too, and those for `gs` for `gcs`. What was configured before
    is forgotten. Call it before the first access, in each process.

    Raises:
        ConfigError: there is no such protocol.
    """
    known = fsspec.available_protocols()
    for protocol in config.options:
        if protocol not in known:
            names = ", ".join(sorted(known))
            raise ConfigError(f"storage.options.{protocol}: no such protocol; known are {names}")
    _process.configure(config)


def patience() -> Retry:
    """What tries again in this process, for as long as configured."""
    return _process.retry


def attempt(uri: str, action: Callable[[Any, str], Given]) -> Given:
    """What `action(filesystem, path)` returns, with patience; it must be safe to do twice."""

    def once() -> Given:
        with filesystem(uri) as (fs, path):
            return action(fs, path)

    return _process.retry(uri, once)


@contextmanager
def filesystem(uri: str) -> Iterator[tuple[Any, str]]:
    """(filesystem, path) of `uri` as fsspec has them; what the client raises in the block names it.

    Raises:
        BackendError: the protocol's library is not installed.
        ConfigError: there is no such protocol, or the store's client does not take an option.
        Unreachable: the store cannot be reached, or is busy.
        OSError: the store refuses.
    """
    with named(uri):
        yield connect(uri)


def connect(uri: str) -> tuple[Any, str]:
    """(filesystem, path) of `uri`, as fsspec has them; nothing is asked of the store yet."""
    try:
        # listings that another process changed must not come from a cache
        fs, path = url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        protocol = protocol_of(uri)
        extra = EXTRAS.get(protocol)
        mend = f"pip install 'dnformer[{extra}]'" if extra else str(error)
        raise BackendError(f"{protocol}:// needs a library that is not installed: {mend}") from None
    except ValueError as error:
        raise ConfigError(f"{redacted(uri)}: {redacted(str(error))}") from None
    return fs, path


@contextmanager
def named(uri: str) -> Iterator[None]:
    """Errors of a store's client in the block as an OSError that names `uri`, and no secret."""
    try:
        yield
    except client_errors() as error:
        raise _renamed(error, errno.EIO, str(error), uri) from None
    except OSError as error:
        if error.filename is not None and not is_passing(error):
            raise
        number = error.errno or _NUMBERS.get(type(error), errno.EIO)
        text = str(error.strerror or error) or type(error).__name__
        raise _renamed(error, number, text, error.filename or uri) from None
    except DNFormerError:
        raise
    except ValueError as error:
        # an address without a protocol, a name that no bucket can have
        raise ConfigError(f"{redacted(uri)}: {redacted(str(error))}") from None
    except TypeError as error:
        raise _unknown_option(error, protocol_of(uri)) from None


def _renamed(error: Exception, number: int, text: str, name: str) -> OSError:
    text = redacted(text)
    if is_passing(error):
        return Unreachable(number, text, redacted(name))
    return OSError(number, text, redacted(name))


def _unknown_option(error: TypeError, protocol: str) -> Exception:
    """A ConfigError where it is an option of ours that a client does not know."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error), re.IGNORECASE)
    options = _process.options_for(protocol)
    keys = set(options)
    for value in options.values():
        keys |= set(value) if isinstance(value, dict) else set()
    if found is None or found[1] not in keys:
        return error
    return ConfigError(f"storage.options.{protocol}: its client knows no option {found[1]!r}")
