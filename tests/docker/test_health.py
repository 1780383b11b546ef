"""The images' health check, with a stand-in for the page of a node's agent."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from urllib.error import HTTPError, URLError

import pytest

from .dockerfile import DOCKERFILE

_SPEC = spec_from_file_location("health", DOCKERFILE.parent / "health.py")
health = module_from_spec(_SPEC)
_SPEC.loader.exec_module(health)


@pytest.fixture
def node():
    """Starts an agent whose page answers with a status; gives its raylet's command."""
    servers = []

    def start(status):
        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status if self.path == "/api/healthz" else 404)
                self.end_headers()

            def log_message(self, *_):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Page))
        threading.Thread(target=servers[-1].serve_forever).start()
        return f"raylet --dashboard_agent_command=agent.py --listen-port={servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_check_passes_where_the_node_is_well(node):
    health.check([node(200)], "/missing")


def test_check_fails_where_one_of_the_nodes_is_not(node):
    with pytest.raises(HTTPError, match="503"):
        health.check([node(200), node(503)], "/missing")


def test_check_fails_where_the_agent_is_gone(node):
    command = node(200)
    port = command.rpartition("=")[2]
    with pytest.raises(URLError):
        # no port can be had there
        health.check([command.replace(port, "1")], "/missing")


def test_check_without_a_node_wants_a_folder_for_kernels(tmp_path):
    health.check([], str(tmp_path))
    with pytest.raises(FileNotFoundError):
        health.check([], str(tmp_path / "missing"))
