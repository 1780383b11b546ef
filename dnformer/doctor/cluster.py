"""A Ray head from outside: whether it is one, lets us in, and runs what we run."""

import http.client
import importlib.metadata
import platform
import socket
import urllib.error
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from packaging.version import Version

from dnformer import storage
from dnformer.doctor.check import Check, within
from dnformer.doctor.clock import MEND, MOST_S, skew_s, worded
from dnformer.errors import ConfigError
from dnformer.submit.cluster import Answer, address_of, ask, find_token

_TIMEOUT_S = 5.0
_PORT = "the dashboard's port is 8265 by default"
_TOKEN = "set RAY_AUTH_TOKEN_PATH to a file with the cluster's token (or RAY_AUTH_TOKEN to it)"


def check_cluster(address: str, *, timeout_s: float = _TIMEOUT_S) -> list[Check]:
    """Looks at the dashboard of a Ray head; ends where a check fails that the next ones build on.

    Which DNFormer is there, if any, is not known from outside.

    Args:
        address: of the dashboard, as in http://head:8265.
        timeout_s: seconds that a request may take.
    """
    refused = _bad_address(address)
    if refused is not None:
        return [refused]
    head = _Head(address_of(address), None, timeout_s)
    try:
        # told without a token, which nobody is given who does not ask; before Ray 2.52 no such page
        mode = head.object("/api/authentication_mode").get("authentication_mode", "disabled")
        asks = mode != "disabled"
        if asks:
            head = head._replace(token=find_token()[0])
        answer = head.get("/api/version")
    except ConfigError as error:
        return [Check("ray head", True, head.url), Check("ray auth", False, str(error), _TOKEN)]
    except (OSError, http.client.HTTPException) as error:
        return [_unreachable(head.url, error)]
    if answer.status in (401, 403):
        return [Check("ray head", True, head.url), _denied(answer.status, head), _clock(answer)]
    version = (answer.json() or {}).get("ray_version")
    if answer.status != 200 or not isinstance(version, str):
        return [_not_ray(head.url, answer.status)]
    return [
        Check("ray head", True, f"{head.url}{_resources(head)}"),
        Check("ray auth", True, "the token is taken" if head.token else "no token is asked for"),
        _ray_version(version),
        _python_version(head),
        _clock(answer),
    ]


class _Head(NamedTuple):
    """Where requests go."""

    url: str
    token: str | None
    timeout_s: float

    def get(self, path: str) -> Answer:
        """The answer to a request, whatever its status.

        Raises:
            OSError: nobody answered, or not in time.
            HTTPException: what answered does not speak HTTP.
        """
        return within(
            self.timeout_s + 1, lambda: ask(self.url + path, self.token, timeout_s=self.timeout_s)
        )

    def object(self, path: str) -> dict[str, Any]:
        """The object that it answers with; empty where it is none."""
        return self.get(path).json() or {}


def _bad_address(address: str) -> Check | None:
    host = "HOST"
    try:
        if address.startswith("ray://"):
            host = urlsplit(address).hostname or host
            raise ConfigError(f"{address}: ray:// is Ray Client, which takes no jobs")
        address_of(address)
    except ValueError as error:  # ConfigError is one, and so is what a wrong IPv6 address raises
        mend = f"give the dashboard's address, as in http://{host}:8265; {_PORT}"
        return Check("ray head", False, storage.redacted(str(error)), mend)
    return None


def _unreachable(url: str, error: Exception) -> Check:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, http.client.HTTPException | ConnectionResetError):
        found = f"{url}: something listens there, but it does not speak HTTP"
        return Check("ray head", False, found, f"correct the port: {_PORT}; 6379 is not it")
    if isinstance(reason, socket.gaierror):
        return Check("ray head", False, f"{url}: no such host", "correct the host's name")
    if isinstance(reason, TimeoutError):
        return Check(
            "ray head", False, f"{url}: no answer",
            "correct the address, or open the way: a firewall, or kubectl port-forward "
            "service/NAME-head-svc 8265",
        )  # fmt: skip
    text = getattr(reason, "strerror", None) or str(reason)
    return Check(
        "ray head", False, f"{url}: {text}",
        f"start the head, or correct the address ({_PORT}; a head listens on 127.0.0.1 alone "
        "unless it was given --dashboard-host)",
    )  # fmt: skip


def _denied(status: int, head: _Head) -> Check:
    if head.token is None:
        found = f"the head asks for a token ({status}), and none is set"
    else:
        found = f"the head refuses the token of {find_token()[1]} ({status})"
    return Check("ray auth", False, found, _TOKEN)


def _not_ray(url: str, status: int) -> Check:
    found = f"{url}: answers, but is no Ray dashboard (status {status} for /api/version)"
    return Check("ray head", False, found, f"correct the address: {_PORT}")


def _ray_version(there: str) -> Check:
    here = importlib.metadata.version("ray")
    if _minor(there) == _minor(here):
        return Check("ray version", True, there if there == here else f"{there} there, {here} here")
    return Check(
        "ray version", False, f"{there} there, {here} here",
        f"start the cluster with an image of ray {here}; DNFormer needs that version",
    )  # fmt: skip


def _python_version(head: _Head) -> Check:
    here, there = platform.python_version(), None
    try:
        data = head.object("/api/v0/cluster_metadata").get("data")
        there = data.get("pythonVersion") if isinstance(data, dict) else None
    except (OSError, http.client.HTTPException):
        pass
    if not isinstance(there, str):
        return Check("python version", True, f"{here} here; the head does not say its own")
    if _minor(there) == _minor(here):
        found = there if there == here else f"{there} there, {here} here"
        return Check("python version", True, found)
    major, minor = _minor(there) or (3, 11)
    return Check(
        "python version", False, f"{there} there, {here} here",
        f"use an environment with Python {major}.{minor}, or an image with Python "
        f"{'.'.join(here.split('.')[:2])}",
    )  # fmt: skip


def _minor(version: str) -> tuple[int, int] | None:
    try:
        parsed = Version(version)
    except ValueError:
        return None
    return parsed.major, parsed.minor


def _resources(head: _Head) -> str:
    """What the cluster has now; an autoscaler may bring more."""
    try:
        value: Any = head.object("/api/cluster_status")
    except (OSError, http.client.HTTPException):
        return ""
    for key in ("data", "clusterStatus", "loadMetricsReport", "usage"):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        return ""
    try:
        cpu, gpu = (float(value.get(name, (0, 0))[1]) for name in ("CPU", "GPU"))
    except (IndexError, KeyError, TypeError, ValueError):
        return ""
    return f": {cpu:g} CPU, {gpu:g} GPU now"


def _clock(answer: Answer) -> Check:
    try:
        there = parsedate_to_datetime(answer.date or "").timestamp()
    except ValueError:
        return Check("head clock", True, "not known: the head sends no date")
    skew = skew_s(there, answer.begin, answer.end)
    return Check(
        "head clock", abs(skew) <= MOST_S, worded(skew), MEND if abs(skew) > MOST_S else ""
    )
