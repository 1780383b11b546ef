"""An S3 server that fails as it is told: moto behind a proxy on a port that stays the same.

    with FlakyS3() as server:
        server.create_bucket("bucket")
        os.environ.update(server.environment)   # leads s3fs, botocore and Ray to it
        server.stop()                           # connections are cut, new ones refused
        server.start()                          # what was stored is still there
        server.fail(Reset(), times=2)           # the next two requests
        server.fail(Answer(503, "SlowDown"), method="PUT")   # each one until heal()

It runs in threads of this process; processes of this machine reach it by its address.
"""

import http.client
import http.server
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True)
class Answer:
    """The server answers with an error, and does nothing."""

    status: int
    code: str
    message: str = "as told"


@dataclass(frozen=True)
class Reset:
    """The connection is reset before the server has seen the request."""


@dataclass(frozen=True)
class LoseAnswer:
    """The server does as asked, and the connection is reset before it has answered."""


@dataclass(frozen=True)
class CutAnswer:
    """The server does as asked, and the connection is reset in the middle of its answer."""


Fault = Answer | Reset | LoseAnswer | CutAnswer


class Request(NamedTuple):
    """What was asked of the server."""

    method: str
    path: str


class _Reply(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class _Order:
    """Fail requests of `method` (None: all) so many times (None: always)."""

    fault: Fault
    times: int | None
    method: str | None


@dataclass
class _Orders:
    """What is to fail; shared by the threads of the proxy."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    pending: list[_Order] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def next_fault(self, request: Request) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for order in self.pending:
                if order.method not in (None, request.method):
                    continue
                if order.times is not None:
                    order.times -= 1
                    if order.times == 0:
                        self.pending.remove(order)
                return order.fault
        return None


class FlakyS3:
    """A context manager; the server is up while its block runs, unless stopped.

    Args:
        upstream: address of another server to put the proxy before; None: a moto server of its own.
    """

    def __init__(self, upstream: str | None = None) -> None:
        self._upstream = upstream
        self._orders = _Orders()

    def __enter__(self) -> "FlakyS3":
        self._moto = None
        if self._upstream is None:
            from moto.server import ThreadedMotoServer

            self._moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            self._moto.start()
            host, port = self._moto.get_host_and_port()
            self._upstream = f"http://{host}:{port}"
        self._proxy = _Proxy(0, self._upstream, self._orders)
        self.port = self._proxy.port
        self._proxy.serve()
        self.up = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()
        self._proxy.server_close()
        if self._moto is not None:
            self._moto.stop()

    @property
    def url(self) -> str:
        """The address, the same also after a stop and a start."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which S3's clients find the server, with credentials that it accepts."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def requests(self) -> list[Request]:
        """What was asked so far, also what failed."""
        with self._orders.lock:
            return list(self._orders.requests)

    @property
    def faults_left(self) -> bool:
        """Whether requests that were told to fail have not come yet."""
        with self._orders.lock:
            return bool(self._orders.pending)

    def create_bucket(self, name: str) -> str:
        """Makes a bucket, past the proxy, and gives its URI."""
        assert self._upstream is not None
        address = urlsplit(self._upstream)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        connection.request("PUT", f"/{name}", headers={"Host": "s3.amazonaws.com"})
        assert connection.getresponse().status == 200
        connection.close()
        return f"s3://{name}"

    def stop(self) -> None:
        """Cuts what is connected and refuses new connections."""
        if self.up:
            self._proxy.stop()
            # bound, but not listening: nobody else gets the port, and connections are refused
            assert self._upstream is not None
            self._proxy = _Proxy(self.port, self._upstream, self._orders)
            self.up = False

    def start(self) -> None:
        """Takes connections again, on the same port."""
        if not self.up:
            self._proxy.serve()
            self.up = True

    def fail(self, fault: Fault, *, times: int | None = None, method: str | None = None) -> None:
        """Lets the next `times` requests (None: all until `heal`) of `method` (None: any) fail."""
        with self._orders.lock:
            self._orders.pending.append(_Order(fault, times, method))

    def heal(self) -> None:
        """Lets no more requests fail."""
        with self._orders.lock:
            self._orders.pending.clear()


class _Proxy(http.server.ThreadingHTTPServer):
    """Bound to its port when made, listening from `serve` to `stop`."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, upstream: str, orders: _Orders) -> None:
        super().__init__(("127.0.0.1", port), _Handler, bind_and_activate=False)
        self.server_bind()
        self.port: int = self.server_address[1]
        self.upstream = urlsplit(upstream)
        self.orders = orders
        self.open: set[socket.socket] = set()
        self.stopped = False

    def shutdown_request(self, request: Any) -> None:
        # without the orderly end that would come before a reset
        self.close_request(request)

    def serve(self) -> None:
        self.server_activate()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopped = True
        self.shutdown()
        self._thread.join()
        for connection in list(self.open):
            _abort(connection)
        self.server_close()


def _abort(connection: socket.socket) -> None:
    """Resets a connection: with no time to linger, the system says so to the other side."""
    with suppress(OSError):  # it is closed already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # wakes who reads from it
        connection.shutdown(socket.SHUT_RD)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Passes each request of a connection on, and its answer back."""

    protocol_version = "HTTP/1.1"
    server: _Proxy

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with suppress(OSError):  # it was reset
            super().finish()

    def handle(self) -> None:
        with suppress(OSError):  # the client went away
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        body = self._body()
        fault = self.server.orders.next_fault(Request(self.command, self.path))
        if isinstance(fault, Reset) or self.server.stopped:
            self._reset()
            return
        if isinstance(fault, Answer):
            self._send(_refusal(fault))
            return
        reply = self._forward(body)
        if isinstance(fault, LoseAnswer) or self.server.stopped:
            self._reset()
        elif isinstance(fault, CutAnswer):
            self._send(reply, cut=True)
            self._reset()
        else:
            self._send(reply)

    # the names that http.server calls
    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    def _forward(self, body: bytes) -> _Reply:
        upstream = self.server.upstream
        connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP | {"expect"}:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        # a HEAD's length is that of the body it leaves out
        drop = _HOP_BY_HOP - {"content-length"} if self.command == "HEAD" else _HOP_BY_HOP
        headers = [item for item in response.getheaders() if item[0].lower() not in drop]
        content = response.read()
        connection.close()
        return _Reply(response.status, headers, content)

    def _send(self, reply: _Reply, *, cut: bool = False) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: len(reply.body) // 2] if cut else reply.body)

    def _reset(self) -> None:
        _abort(self.connection)
        self.close_connection = True


def _refusal(fault: Answer) -> _Reply:
    body = f"<Error><Code>{escape(fault.code)}</Code><Message>{escape(fault.message)}</Message>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n{body}</Error>'
    return _Reply(fault.status, [("Content-Type", "application/xml")], text.encode())
