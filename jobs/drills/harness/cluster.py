"""A Ray cluster of several machines, on one: each node in a network namespace of its own."""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import psutil

from harness.network import Host, Network, owner

PORT = 6379
# how the head asks the nodes whether they live: a node is lost after `failure_threshold` questions
# without an answer, some 8 s. Ray's own: 3000, 10000 and 5, which make up to a minute
HEALTH_CHECK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
_OBJECT_STORE_BYTES = 100_000_000
_STARTED, _START_TIMEOUT_S, _START_TRIES = "Ray runtime started", 120, 3


@dataclass(frozen=True)
class Node:
    """One machine of the cluster.

    Attributes:
        host: its network namespace.
        folder: of its own: Ray's files, its cache, its log.
    """

    host: Host
    folder: Path

    def workers(self) -> list[int]:
        """Ids of its Ray Train workers."""
        return [pid for pid in self.host.pids() if "RayTrainWorker" in _title(pid)]


class Driver(NamedTuple):
    """A command that was started on the head node: its process, and the file of its stdout."""

    process: "subprocess.Popen[str]"
    output: Path


@final
class Cluster:
    """A head node without CPUs, on which the drivers run, and worker nodes that join it.

    A context manager; when it ends its processes and files are gone, whatever happened.

    Args:
        network: where its hosts are; whoever made it closes it.
        environment: further variables of all nodes and drivers.
    """

    def __init__(self, network: Network, environment: Mapping[str, str] | None = None) -> None:
        self._network, self._extra = network, dict(environment or {})
        self._token = secrets.token_hex(32)
        self._nodes: list[Node] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._cleanup = ExitStack()

    def __enter__(self) -> "Cluster":
        with ExitStack() as cleanup:
            self.folder = cleanup.enter_context(_short_folder())
            cleanup.callback(self._end)
            self.head = self._new_node()
            head = ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
            self._start([self.head], head)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    @property
    def address(self) -> str:
        """What `RAY_ADDRESS` is for this cluster."""
        return f"{self.head.host.address}:{PORT}"

    def add_nodes(self, count: int, *, cpus: int = 1) -> list[Node]:
        """New worker nodes that have joined the cluster.

        Raises:
            RuntimeError: one did not start.
        """
        nodes = [self._new_node() for _ in range(count)]
        self._start(nodes, [f"--address={self.address}", f"--num-cpus={cpus}"])
        return nodes

    def restart_node(self, node: Node, *, cpus: int = 1) -> None:
        """Starts Ray on a worker node once more; what ran there ends."""
        self._network.end(node.host)
        self._start([node], [f"--address={self.address}", f"--num-cpus={cpus}"])

    def kill_node(self, node: Node) -> None:
        """What a loss of power does to `node`."""
        self._network.kill(node.host)

    def cut_link(self, node: Node) -> None:
        """Takes `node` off the network; its processes live on."""
        self._network.cut(node.host)

    def restore_link(self, node: Node) -> None:
        """Puts `node` back on the network."""
        self._network.restore(node.host)

    def drive(self, command: list[str], output: Path) -> Driver:
        """Starts `command` on the head node: its stdout goes to `output`, its stderr to a pipe."""
        with output.open("w") as out:
            process = subprocess.Popen(
                self.head.host.command(command), env=self._environment(self.head), text=True,
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
        return Driver(process, output)

    def ask(self, command: list[str]) -> str:
        """What `command`, run on the head node, prints."""
        return subprocess.run(
            self.head.host.command(command), env=self._environment(self.head), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
        ).stdout  # fmt: skip

    def _end(self) -> None:
        for node in self._nodes:
            self._network.end(node.host)
        for process in self._processes:
            process.wait()

    def _new_node(self) -> Node:
        node = Node(self._network.add_host(), self.folder / f"n{len(self._nodes) + 1}")
        node.folder.mkdir()
        self._nodes.append(node)
        return node

    def _environment(self, node: Node) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        # where `python` is looked up by its name, it is this one
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {
            **inherited,
            **HEALTH_CHECK,
            "PATH": path,
            # also for Ray's own helpers in the workers, which otherwise look for any Ray here
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "GLOO_SOCKET_IFNAME": "e0",
            "XDG_CACHE_HOME": str(node.folder / "cache"),
            **self._extra,
        }

    def _start(self, nodes: list[Node], arguments: list[str]) -> None:
        """`ray start` on all of them at once, and again where a busy machine was too slow."""
        for _ in range(_START_TRIES):
            starting = [(node, self._launch(node, arguments)) for node in nodes]
            nodes = [node for node, process in starting if not _has_started(node, process)]
            for node in nodes:
                self._network.end(node.host)
            if not nodes:
                return
        log = (nodes[0].folder / "ray.log").read_text()
        raise RuntimeError(f"Ray did not start on a node; it said:\n{log[-2000:]}")

    def _launch(self, node: Node, arguments: list[str]) -> "subprocess.Popen[bytes]":
        # a folder for each start: nodes that share one share their logs too
        temporary = node.folder / f"r{time.monotonic_ns() // 10**6 % 10**6}"
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--block"),
            f"--node-ip-address={node.host.address}",
            f"--temp-dir={temporary}",
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
            "--disable-usage-stats",
        ]
        with (node.folder / "ray.log").open("w") as log:
            process = subprocess.Popen(
                node.host.command(command), env=self._environment(node),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process


def _has_started(node: Node, process: "subprocess.Popen[bytes]") -> bool:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        if _STARTED in (node.folder / "ray.log").read_text():
            return True
        time.sleep(0.1)
    return False


def _title(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


@contextmanager
def _short_folder() -> Iterator[Path]:
    """A new folder; those that killed processes left are removed."""
    # Ray puts Unix sockets inside, whose paths may have 107 bytes
    base = Path(tempfile.gettempdir())
    base = base if len(str(base)) <= 20 else Path("/tmp")
    for leftover in base.glob("dnf*-*"):
        pid = owner(leftover.name)
        if pid is not None and not psutil.pid_exists(pid):
            shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"dnf{os.getpid()}-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
