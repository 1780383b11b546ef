"""Exit code 0 while this container can do its work.

A Ray node is asked by the page of its agent, which asks its raylet (and on the head the GCS) and
needs no token. Without a node, dnformer is to load, and the kernels' folder to be writable.
"""

import os
import re
import tempfile
from collections.abc import Iterable
from urllib.request import urlopen

import psutil

TIMEOUT_S = 10


def own_raylets() -> list[str]:
    """The commands of the Ray nodes that this user runs."""
    processes = [p.info for p in psutil.process_iter(["name", "cmdline", "uids"])]
    own = [p for p in processes if p["name"] == "raylet" and p["uids"].real == os.getuid()]
    return [" ".join(p["cmdline"] or []) for p in own]


def check(raylets: Iterable[str], kernels: str) -> None:
    """Raises what is wrong with these nodes or, without any, with dnformer and its folder."""
    ports = [port for command in raylets for port in re.findall(r"--listen-port=(\d+)", command)]
    for port in ports:
        urlopen(f"http://127.0.0.1:{port}/api/healthz", timeout=TIMEOUT_S).close()
    if not ports:
        import dnformer.cli  # noqa: F401

        tempfile.TemporaryFile(dir=kernels).close()


if __name__ == "__main__":
    check(own_raylets(), os.environ["NUMBA_CACHE_DIR"])
