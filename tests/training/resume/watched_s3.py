"""An S3 server that knows which process writes, remembers it, and kills it when it is told to."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

_WRITING = {"PUT", "POST", "DELETE"}


class Write(NamedTuple):
    """What a process asked for."""

    pid: int
    method: str
    path: str


class WatchedS3:
    """moto in threads of this process; a context manager.

    Attributes:
        writes: that were done, in their order.
        bucket: the URI of an empty one.
    """

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.bucket = "s3://bucket"
        self._lock = threading.Lock()
        self._ending, self._left, self._stored = "", -1, False

    def __enter__(self) -> "WatchedS3":
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            MotoRequestHandler,
            create_backend_app,
        )
        from werkzeug.serving import make_server

        self._store = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What leads a process here."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def kill_at(self, ending: str, number: int, *, stored: bool) -> None:
        """The process that asks for the n-th put of such a name dies, when it is done or before.

        Args:
            ending: of the name.
            number: n, counted from now on.
            stored: whether it is done.
        """
        with self._lock:
            self._ending, self._left, self._stored = ending, number, stored

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        found = re.search(r"app/p(\d+)", environ.get("HTTP_USER_AGENT", ""))
        if environ["REQUEST_METHOD"] not in _WRITING or found is None:
            return self._store(environ, start)
        # one after the other: what is killed has no other write on its way
        with self._lock:
            return self._write(int(found[1]), environ, start)

    def _write(
        self, pid: int, environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        put = environ["REQUEST_METHOD"] == "PUT"
        self._left -= put and environ["PATH_INFO"].endswith(self._ending)
        due, self._left = self._left == 0, self._left or -1
        if due and not self._stored:
            return _killed(pid, start)
        self.writes.append(Write(pid, environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        if due:
            list(self._store(environ, lambda *arguments: None))
            return _killed(pid, start)
        return list(self._store(environ, start))


def _killed(pid: int, start: Callable[..., Any]) -> list[bytes]:
    os.kill(pid, signal.SIGKILL)
    # dead before it can read an answer
    time.sleep(0.05)
    start("503 Service Unavailable", [])
    return [b""]


def mark_this_process() -> None:
    """Tells the server with each request which process asks."""
    os.environ["AWS_SDK_UA_APP_ID"] = f"p{os.getpid()}"
