"""An S3 server with a bucket `drill`, for `python -m harness.s3 ADDRESS PORT SWITCH`.

While there is a file SWITCH it answers everything with 503 SlowDown, as a store in distress does.
"""

import http.client
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

REFUSAL = b"<Error><Code>SlowDown</Code><Message>the drill says so</Message></Error>"


def serve(address: str, port: int, switch: Path) -> None:
    """Serves until it is killed."""
    s3 = DomainDispatcherApplication(create_backend_app)

    def gate(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if switch.exists():
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [REFUSAL]
        answer: Iterable[bytes] = s3(environ, start_response)
        return answer

    server = make_server(address, port, gate, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = http.client.HTTPConnection(address, port)
    connection.request("PUT", "/drill", headers={"Host": "s3.amazonaws.com"})
    if connection.getresponse().status != 200:
        sys.exit("the bucket could not be made")
    print("listening", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
