"""Network namespaces that stand for machines: each has one address, a bridge joins them.

Needs Linux, iproute2, and the right to make namespaces (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN).
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, final

import psutil

_PREFIX = "dnf"
_NAMESPACES = Path("/run/netns")
_numbers = itertools.count()


class Host(NamedTuple):
    """A namespace: its name, its address, and the bridge's end of its link."""

    namespace: str
    address: str
    port: str

    def command(self, command: list[str]) -> list[str]:
        """`command` run on this host; the rest (files, processes) is the machine's own."""
        return ["nsenter", f"--net={_NAMESPACES / self.namespace}", *command]

    def pids(self) -> list[int]:
        """Processes that run on this host."""
        return _pids(self.namespace)


def why_impossible() -> str | None:
    """Why there can be no namespaces here; None: they can be made."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"network namespaces need {program}, of the package {package}"
    try:
        with Network() as network:
            network.add_host()
    except RuntimeError as error:
        return f"network namespaces can't be made here ({error}); they need root"
    return None


@final
class Network:
    """Hosts of one subnet, cut off from everything else; a context manager that leaves nothing.

    Names hold this process's id; those that a killed process left are removed on the way in.
    """

    def __init__(self) -> None:
        self._tag = f"{_PREFIX}{os.getpid()}{'abcdefghijklmnopqrstuvwxyz'[next(_numbers) % 26]}"
        pid = os.getpid()
        self._subnet = f"10.{64 + pid // 256 % 128}.{pid % 256}"
        self._hosts: list[Host] = []

    def __enter__(self) -> "Network":
        remove_leftovers()
        _ip("link", "add", f"{self._tag}b", "type", "bridge")
        _ip("link", "set", f"{self._tag}b", "up")
        return self

    def __exit__(self, *exception: object) -> None:
        for host in self._hosts:
            _remove_namespace(host.namespace)
        for link in _links():
            if link.startswith(self._tag):
                _ip("link", "del", link)

    def add_host(self) -> Host:
        """A new host; its link is up, its interface is `e0`."""
        number = len(self._hosts) + 1
        host = Host(f"{self._tag}-{number}", f"{self._subnet}.{number}", f"{self._tag}v{number}")
        name = host.namespace
        _ip("netns", "add", name)
        self._hosts.append(host)
        _ip("link", "add", host.port, "type", "veth", "peer", "name", "e0", "netns", name)
        _ip("link", "set", host.port, "master", f"{self._tag}b", "up")
        _ip("-n", name, "addr", "add", f"{host.address}/24", "dev", "e0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "e0", "up")
        # Ray finds its own address by the route to the outside; nothing is there
        _ip("-n", name, "route", "add", "default", "dev", "e0")
        return host

    def cut(self, host: Host) -> None:
        """Takes `host` off the network: nothing arrives, nothing is refused."""
        _ip("link", "set", host.port, "down")

    def restore(self, host: Host) -> None:
        """Puts `host` back on the network."""
        _ip("link", "set", host.port, "up")

    def kill(self, host: Host) -> None:
        """What a loss of power does: the link goes, and all processes end without a word."""
        self.cut(host)
        self.end(host)

    def end(self, host: Host) -> None:
        """Ends all processes of `host`, which a machine's own kill -9 would."""
        _kill_all(host.namespace)


def owner(name: str) -> int | None:
    """The id of the process that made what is called `name`; None: it is not of our making."""
    found = re.match(rf"{_PREFIX}(\d+)[a-z-]", name)
    return int(found[1]) if found else None


def remove_leftovers() -> None:
    """Removes namespaces and bridges of processes that are no more."""
    spaces = os.listdir(_NAMESPACES) if _NAMESPACES.is_dir() else []
    for name in filter(_is_abandoned, spaces):
        _remove_namespace(name)
    for name in filter(_is_abandoned, _links()):
        _ip("link", "del", name)


def _links() -> list[str]:
    return os.listdir("/sys/class/net")


def _is_abandoned(name: str) -> bool:
    pid = owner(name)
    return pid is not None and not psutil.pid_exists(pid)


def _remove_namespace(name: str) -> None:
    _kill_all(name)
    # it takes its end of the link with it a little later, and so the other end
    if "e0" in _ip("-n", name, "-br", "link"):
        _ip("-n", name, "link", "del", "e0")
    _ip("netns", "del", name)


def _kill_all(namespace: str) -> None:
    """Ends all processes of a namespace; returns when there are none, at most 10 s later."""
    deadline = time.monotonic() + 10
    while (pids := _pids(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _pids(namespace: str) -> list[int]:
    return [int(pid) for pid in _ip("netns", "pids", namespace).split()]


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
