"""What the stores' clients raise: which of it passes by itself, and what of it may be shown."""

import errno
import re
import socket
import sys
from http.client import IncompleteRead
from typing import Any

# by their modules, which we do not import: they are there where somebody raised one
_CLIENT_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("botocore.parsers", "ResponseParserError"),
    ("google.auth.exceptions", "GoogleAuthError"),
    ("google.api_core.exceptions", "GoogleAPIError"),
    ("gcsfs.retry", "HttpError"),
    ("gcsfs.retry", "ChecksumError"),
    ("aiohttp", "ClientError"),
    ("urllib3.exceptions", "HTTPError"),
)
_PASSING = (
    ("botocore.exceptions", "HTTPClientError"),
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "IncompleteReadError"),
    ("botocore.parsers", "ResponseParserError"),
    ("google.auth.exceptions", "TransportError"),
    ("gcsfs.retry", "ChecksumError"),
    ("requests.exceptions", "ConnectionError"),
    ("requests.exceptions", "Timeout"),
    ("requests.exceptions", "ChunkedEncodingError"),
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("urllib3.exceptions", "IncompleteRead"),
)
_PASSING_STATUS = {408, 429, 500, 502, 503, 504}
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html; other stores send these too
_PASSING_CODES = {
    "InternalError",
    "RequestLimitExceeded",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    # two conditional puts at a time; asked again, one of them learns that it lost
    "ConditionalRequestConflict",
}
_PASSING_ERRNO = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.EPIPE,
    # of a network file system whose server was away; EIO is not here: a broken disk says it too
    errno.ESTALE,
    errno.ETIMEDOUT,
}
# a wrong certificate, or no TLS at all: a connection that fails for ever
_NO_TLS = re.compile("CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER")

_SECRET_NAME = r"[\w-]*(?:signature|credential|token|secret|password|access_?key)[\w-]*"
_SECRETS = (
    (re.compile(rf"(?i)([?&](?:{_SECRET_NAME}|sig|key)=)[^&\s\"']+"), r"\1…"),
    # a header's `Credential=..`; not a folder named `token=1`
    (re.compile(rf"(?i)((?:^|[\s,;({{])[\"']?{_SECRET_NAME}[\"']?\s?[=:]\s?)[^\s,;]+"), r"\1…"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 …"),
    (re.compile(r"://[^/@\s]+@"), "://…@"),
)


def redacted(text: str) -> str:
    """`text` without signatures, keys, tokens and passwords, on one line."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def client_errors() -> tuple[type[Exception], ...]:
    """What the stores' own clients raise that need not be an OSError."""
    return _found(_CLIENT_ERRORS)


def _found(names: tuple[tuple[str, str], ...]) -> tuple[type[Exception], ...]:
    modules = ((sys.modules.get(module), name) for module, name in names)
    return tuple(getattr(module, name) for module, name in modules if module is not None)


def is_passing(error: BaseException) -> bool:
    """Whether the same access may do well a little later: the store is out of reach, or busy."""
    cause = error.__cause__
    return _is_passing(error) or (cause is not None and _is_passing(cause))


def _is_passing(error: BaseException) -> bool:
    status, code = _answer(error)
    if status is not None or code is not None:
        return status in _PASSING_STATUS or code in _PASSING_CODES
    if _NO_TLS.search(str(error)):
        return False
    if isinstance(error, (*_found(_PASSING), TimeoutError, socket.gaierror, IncompleteRead)):
        return True
    return isinstance(error, OSError) and error.errno in _PASSING_ERRNO


def _answer(error: BaseException) -> tuple[int | None, str | None]:
    """The HTTP status and the store's own code, where the store did answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status, response.get("Error", {}).get("Code")
    # aiohttp's, then gcsfs's and Google's
    for found in (getattr(error, "status", None), getattr(error, "code", None)):
        if str(found).isdigit():
            return int(str(found)), None
    return None, None


def store_code(error: BaseException) -> str | None:
    """S3's own code, which s3fs keeps in the error's cause."""
    response: Any = getattr(error.__cause__, "response", None) or {}
    code: str | None = response.get("Error", {}).get("Code")
    return code
