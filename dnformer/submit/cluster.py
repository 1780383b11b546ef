"""The way to a cluster: the address of its dashboard, the token, and what it runs."""

import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from dnformer.errors import BackendError, ConfigError

_TIMEOUT_S = 10.0
# of an answer; a server that is none of Ray's may send anything
_MOST_BYTES = 1 << 20
_EXPECTED = "expected the dashboard of its head, as in http://HOST:8265"


@dataclass(frozen=True)
class Cluster:
    """A cluster that answers, and what it runs.

    Attributes:
        address: of its dashboard, without a slash at the end.
        ray: version of Ray.
        python: version of Python.
        token: that it takes; None: it wants none.
    """

    address: str
    ray: str
    python: str
    # not in a log or a traceback
    token: str | None = field(repr=False)

    @property
    def auth_mode(self) -> str:
        """What `RAY_AUTH_MODE` is there."""
        return "disabled" if self.token is None else "token"


def address_of(given: str | None) -> str:
    """The dashboard's address: `given`, else that of Ray's own variables.

    Raises:
        ConfigError: it is no http address, or there is none.
    """
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    values = {name: os.environ.get(name, "") for name in names}
    usable = [value for value in values.values() if value.startswith(("http://", "https://"))]
    if given is None and not usable:
        found = "".join(f"; {name} is {value}" for name, value in values.items() if value)
        raise ConfigError(
            "no cluster is named: give --address http://HOST:8265, or set RAY_API_SERVER_ADDRESS"
            f"{found}"
        )
    address = given or usable[0]
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--address {address}: {_EXPECTED}")
    if "@" in parts.netloc:
        raise ConfigError(
            "--address has a user or password, which logs would show; give a token in "
            "RAY_AUTH_TOKEN"
        )
    return address.rstrip("/")


def find_token() -> tuple[str | None, str]:
    """The token of Ray's own variables, None if there is none, and what it was read from.

    Raises:
        ConfigError: its file cannot be read, or is empty.
    """
    name = "RAY_AUTH_TOKEN"
    token = os.environ.get(name, "").strip()
    if token:
        return token, name
    path, name = os.environ.get("RAY_AUTH_TOKEN_PATH", ""), "RAY_AUTH_TOKEN_PATH"
    if not path and os.environ.get("RAY_AUTH_MODE") == "token":
        path, name = str(Path.home() / ".ray" / "auth_token"), "RAY_AUTH_MODE=token and its file"
    if not path:
        return None, ""
    try:
        token = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{name} {path}: no token can be read there: {reason}") from None
    if not token:
        raise ConfigError(f"{name} {path}: the file is empty; it must hold the cluster's token")
    return token, f"{name} {path}"


def reach(address: str) -> Cluster:
    """What runs at `address`; changes nothing there.

    Raises:
        BackendError: it cannot be reached, is no Ray dashboard, or refuses the token.
    """
    # Ray tells this without a token; one before 2.52 knows no tokens and no such page
    mode = _asked(address, "/api/authentication_mode", None)
    wants_token = mode is not None and mode.get("authentication_mode", "disabled") != "disabled"
    token, source = find_token() if wants_token else (None, "")
    ray = _asked(address, "/api/version", token, source)
    if ray is None or "ray_version" not in ray:
        raise _foreign(address)
    facts = _asked(address, "/api/v0/cluster_metadata", token, source) or {}
    python = (facts.get("data") or {}).get("pythonVersion", "")
    return Cluster(address, ray["ray_version"], python, token)


def check_versions(cluster: Cluster) -> None:
    """Whether a job from here can run there.

    Raises:
        BackendError: Ray or Python there has another minor version.
    """
    for name, here, there in (
        ("Ray", version("ray"), cluster.ray),
        ("Python", platform.python_version(), cluster.python),
    ):
        if there and here.split(".")[:2] != there.split(".")[:2]:
            raise BackendError(
                f"{cluster.address} runs {name} {there}, here is {name} {here}; submit from an "
                f"environment with the cluster's version, or give the cluster an image with {here}"
            )


@dataclass(frozen=True)
class Answer:
    """What a server said, and this machine's time before and after.

    Attributes:
        status: of HTTP.
        body: its first MiB.
        date: of the server, as it sends it.
        begin: seconds since 1970.
        end: likewise.
    """

    status: int
    body: bytes
    date: str | None
    begin: float
    end: float

    def json(self) -> dict[str, Any] | None:
        """The object in the body; None where it holds none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class _NoRedirect(HTTPRedirectHandler):
    """Follows nowhere: the token is for this address alone."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def ask(url: str, token: str | None, *, timeout_s: float = _TIMEOUT_S) -> Answer:
    """The answer to a request, whatever its status.

    Raises:
        OSError: nobody answered, or not in time.
        HTTPException: what answered does not speak HTTP.
    """
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    begin = time.time()
    try:
        found = build_opener(_NoRedirect).open(Request(url, headers=headers), timeout=timeout_s)
    except HTTPError as error:
        found = error
    with found:
        body = found.read(_MOST_BYTES)
        return Answer(found.status, body, found.headers["Date"], begin, time.time())


def _asked(address: str, page: str, token: str | None, source: str = "") -> dict[str, Any] | None:
    """The JSON object of a page; None: there is no such page."""
    try:
        answer = ask(address + page, token)
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        text = getattr(reason, "strerror", None) or reason
        raise BackendError(
            f"{address} cannot be reached ({text}); is the head up, and its dashboard's port open?"
        ) from None
    except HTTPException:
        raise _foreign(address) from None
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise _refused(address, answer.status, source)
    found = answer.json()
    if found is None:
        raise _foreign(address)
    return found


def _foreign(address: str) -> BackendError:
    return BackendError(f"{address} answers, but is no Ray dashboard; {_EXPECTED}")


def _refused(address: str, status: int, source: str) -> BackendError:
    mend = "give it in RAY_AUTH_TOKEN, or the path of its file in RAY_AUTH_TOKEN_PATH"
    if status == 401:
        return BackendError(f"{address} wants a token, and none was given (401); {mend}")
    if status == 403:
        return BackendError(
            f"{address} refuses the token of {source or 'nobody'} (403); {mend}, as its head has it"
        )
    return BackendError(f"{address} answers with HTTP status {status}; {_EXPECTED}")


def client(cluster: Cluster) -> Any:
    """Ray's client for the jobs of `cluster`, a `JobSubmissionClient`."""
    # Ray's variables go before the address that its client is given
    os.environ |= {"RAY_API_SERVER_ADDRESS": cluster.address, "RAY_AUTH_MODE": cluster.auth_mode}
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk",
                 "_private.runtime_env.packaging"):  # fmt: skip
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    headers = {} if cluster.token is None else {"Authorization": f"Bearer {cluster.token}"}
    with faults(cluster.address):
        return JobSubmissionClient(cluster.address, headers=headers)


@contextmanager
def faults(address: str) -> Iterator[None]:
    """What Ray's client raises in the block as one line that names the cluster."""
    from ray.exceptions import RayError
    from requests import ConnectionError as NoConnection
    from requests import Timeout

    try:
        yield
    except (NoConnection, Timeout):
        raise BackendError(
            f"{address} cannot be reached any more; a job that runs goes on"
        ) from None
    except (OSError, RuntimeError, RayError) as error:
        # a failure on the head comes with its traceback, whose last line says what it was
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" .")]
        raise BackendError(f"{address}: {lines[-1] if lines else type(error).__name__}") from None
