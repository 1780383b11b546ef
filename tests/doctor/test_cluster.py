"""A Ray head from outside: small servers of our own that answer as a dashboard does, or do not."""

import json
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from dnformer.doctor.check import Check
from dnformer.doctor.cluster import check_cluster

TOKEN = "secret-of-the-cluster"
Answers = dict[str, Any]


def pages(ray: str = version("ray"), python: str = platform.python_version()) -> Answers:
    usage = {"CPU": [0.0, 8.0], "GPU": [0.0, 2.0]}
    return {
        "/api/version": {"version": "4", "ray_version": ray},
        "/api/v0/cluster_metadata": {"data": {"rayVersion": ray, "pythonVersion": python}},
        "/api/cluster_status": {"data": {"clusterStatus": {"loadMetricsReport": {"usage": usage}}}},
    }


class Dashboard(ThreadingHTTPServer):
    """Answers with JSON pages; those that get none are 404. Keeps the tokens that it was shown."""

    def __init__(self, answers: Answers, token: str | None = None, ahead_s: float = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.token, self.ahead_s = answers, token, ahead_s
        self.shown: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        server = self.server
        sent = self.headers["Authorization"]
        server.shown.append(sent)
        if self.path == "/api/authentication_mode":
            mode = "disabled" if server.token is None else "token"
            self._answer(200, {"authentication_mode": mode})
        elif server.token is not None and sent != f"Bearer {server.token}":
            self._answer(401 if sent is None else 403, {})
        elif self.path in server.answers:
            self._answer(200, server.answers[self.path])
        else:
            self._answer(404, {})

    def _answer(self, status: int, value: Any) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(time.time() + self.server.ahead_s, usegmt=True))
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def dashboard(answers: Answers | None = None, **kinds: Any) -> Iterator[Dashboard]:
    with Dashboard(pages() if answers is None else answers, **kinds) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)


def failed(checks: list[Check]) -> Check:
    """The one check that failed."""
    (check,) = (check for check in checks if not check.ok)
    assert check.mend
    return check


def test_check_cluster_of_a_head_with_our_versions_is_well() -> None:
    with dashboard() as head:
        checks = check_cluster(head.url + "/")
        assert {check.name: check.found for check in checks} == {
            "ray head": f"{head.url}: 8 CPU, 2 GPU now",
            "ray auth": "no token is asked for",
            "ray version": version("ray"),
            "python version": platform.python_version(),
            "head clock": "as this machine's, within 2 s",
        }
    assert all(check.ok and not check.mend for check in checks)


def test_check_cluster_shows_its_token_to_a_head_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with dashboard(token=TOKEN) as head:
        assert all(check.ok for check in check_cluster(head.url))
        assert head.shown[0] is None
    with dashboard() as head:
        assert all(check.ok for check in check_cluster(head.url))
        assert set(head.shown) == {None}


def test_check_cluster_without_the_token_that_is_asked_for_says_so() -> None:
    with dashboard(token=TOKEN) as head:
        check = failed(check_cluster(head.url))
    assert (check.name, "(401)" in check.found) == ("ray auth", True)
    assert "RAY_AUTH_TOKEN_PATH" in check.mend


def test_check_cluster_with_a_bad_token_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another-secret")
    with dashboard(token=TOKEN) as head:
        checks = check_cluster(head.url)
    check = failed(checks)
    assert check.name == "ray auth"
    assert check.found == "the head refuses the token of RAY_AUTH_TOKEN (403)"
    assert "RAY_AUTH_TOKEN_PATH" in check.mend
    assert "another-secret" not in str(checks)


def test_check_cluster_whose_token_file_is_missing_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with dashboard(token=TOKEN) as head:
        check = failed(check_cluster(head.url))
    assert (check.name, str(tmp_path / "none") in check.found) == ("ray auth", True)


@pytest.mark.parametrize(
    ("answers", "name", "found"),
    [
        (pages(ray="2.48.0"), "ray version", "2.48.0 there, "),
        (pages(python="3.9.1"), "python version", "3.9.1 there, "),
        ({}, "ray head", "no Ray dashboard"),
        ({"/api/version": {"ray_version": 3}}, "ray head", "no Ray dashboard"),
        ({"/api/version": [1]}, "ray head", "no Ray dashboard"),
    ],
    ids=["ray", "python", "not-ray", "no-version", "no-object"],
)
def test_check_cluster_names_what_does_not_fit(answers: Answers, name: str, found: str) -> None:
    with dashboard(answers) as head:
        check = failed(check_cluster(head.url))
    assert check.name == name
    assert found in check.found


def test_check_cluster_with_another_patch_of_python_is_well() -> None:
    major, minor = platform.python_version_tuple()[:2]
    with dashboard(pages(python=f"{major}.{minor}.99")) as head:
        assert all(check.ok for check in check_cluster(head.url))


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_check_cluster_whose_clock_is_wrong_says_so(ahead_s: float) -> None:
    with dashboard(ahead_s=ahead_s) as head:
        check = failed(check_cluster(head.url))
    assert check.name == "head clock"
    assert "NTP" in check.mend


@pytest.mark.parametrize(
    ("address", "mend"),
    [
        ("ray://head:10001", "http://head:8265"),
        ("head:8265", "http://HOST:8265"),
        ("127.0.0.1:6379", "http://HOST:8265"),
        ("http://", "http://HOST:8265"),
        ("http://[::1", "http://HOST:8265"),
        ("http://me:hush@head:8265", "http://HOST:8265"),
    ],
)
def test_check_cluster_refuses_what_is_no_dashboards_address(address: str, mend: str) -> None:
    (check,) = check_cluster(address)
    assert not check.ok
    assert mend in check.mend
    assert "hush" not in str(check)


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_check_cluster_where_nobody_listens_says_so() -> None:
    check = failed(check_cluster(f"http://127.0.0.1:{_closed_port()}"))
    assert (check.name, "refused" in check.found) == ("ray head", True)
    assert "8265" in check.mend


def test_check_cluster_of_no_host_says_so() -> None:
    assert (
        failed(check_cluster("http://no-such-host.invalid:8265")).mend == "correct the host's name"
    )


def _talk(answer: bytes | None) -> Callable[[socket.socket], None]:
    def serve(server: socket.socket) -> None:
        with server.accept()[0] as peer:
            peer.recv(1 << 16)
            for byte in answer or b"":
                peer.sendall(bytes([byte]))
                time.sleep(0.2)
            if answer is not None:
                return
            peer.recv(1)  # until the other goes away

    return serve


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        pytest.param(b"\x00\x00\n", "does not speak HTTP", id="grpc"),
        pytest.param(None, "no answer", id="silent"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50, "no answer", id="dripping"),
    ],
)
def test_check_cluster_of_what_is_no_web_server_ends_in_time(
    answer: bytes | None, found: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_quietly, args=(_talk(answer), server), daemon=True)
        thread.start()
        begin = time.monotonic()
        check = failed(check_cluster(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=1))
        assert time.monotonic() - begin < 10
    assert found in check.found


def _quietly(serve: Callable[[socket.socket], None], server: socket.socket) -> None:
    with suppress(OSError):  # the other goes away
        serve(server)
