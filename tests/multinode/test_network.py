import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness.network import Network, remove_leftovers

pytestmark = pytest.mark.usefixtures("namespaces")

NAMESPACES = Path("/run/netns")
CONNECT = """
import socket, sys
with socket.create_connection((sys.argv[1], 4000), timeout=float(sys.argv[2])) as found:
    print(found.recv(100).decode(), end="")
"""
SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 4000)) as server:
    print("listening", flush=True)
    while True:
        connection, (address, _) = server.accept()
        connection.sendall(address.encode())
        connection.close()
"""
LEAVE = """
import sys, time
sys.path.insert(0, sys.argv[1])
from harness.network import Network
with Network() as network:
    print(network.add_host().namespace, flush=True)
    time.sleep(60)
"""


def call(host, address: str, timeout_s: float) -> str | None:
    command = host.command([sys.executable, "-c", CONNECT, address, str(timeout_s)])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def test_hosts_reach_each_other_until_the_link_is_cut():
    with Network() as network:
        first, second = network.add_host(), network.add_host()
        serve = second.command([sys.executable, "-c", SERVE, second.address])
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            server.stdout.readline()
            assert second.pids() == [server.pid]
            assert call(first, second.address, 60) == first.address
            network.cut(second)
            assert call(first, second.address, 1) is None
            network.restore(second)
            assert call(first, second.address, 60) == first.address
            network.kill(second)
            assert server.wait() == -signal.SIGKILL
    left = [name for name in os.listdir(NAMESPACES) if name.startswith(f"dnf{os.getpid()}")]
    assert left == []
    assert not [name for name in os.listdir("/sys/class/net") if str(os.getpid()) in name]


def test_remove_leftovers_removes_what_a_killed_process_left():
    drills = str(Path(__file__).parents[2] / "jobs" / "drills")
    command = [sys.executable, "-c", LEAVE, drills]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        remove_leftovers()
        assert (NAMESPACES / name).exists(), "its owner lives"
        process.kill()
    assert (NAMESPACES / name).exists()
    remove_leftovers()
    assert not (NAMESPACES / name).exists()
    assert not [link for link in os.listdir("/sys/class/net") if str(process.pid) in link]
