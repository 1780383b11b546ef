"""Where the run of a drill lies: a folder, a small disk, or an S3 server that can be broken."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness.network import Network


class Place(NamedTuple):
    """Storage for a run.

    Attributes:
        uri: `storage_path`.
        switch: a file that breaks it while it is there: the ballast of the disk, or the server's
            sign to refuse.
        environment: what leads to it.
    """

    uri: str
    switch: Path
    environment: Mapping[str, str]


@contextmanager
def plain_folder(network: Network, folder: Path) -> Iterator[Place]:
    """A folder of this machine's disk; nothing breaks it."""
    yield Place(str(folder / "runs"), folder / "unused", {})


@contextmanager
def small_disk(network: Network, folder: Path) -> Iterator[Place]:
    """A disk of 64 MB (a tmpfs), which is full while there is a large file on it."""
    disk = folder / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", "size=64m", "dnformer-drill"]
    subprocess.run(["mount", *options, str(disk)], check=True)
    try:
        yield Place(str(disk / "runs"), disk / "ballast", {})
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(file: Path) -> int:
    """Writes into `file` until the disk is full; the bytes that it took."""
    written = 0
    with file.open("wb", buffering=0) as out:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    written += out.write(bytes(size))
            except OSError:
                continue
    return written


@contextmanager
def s3_server(network: Network, folder: Path) -> Iterator[Place]:
    """A bucket on a host of its own; the server answers 503 while the switch is there."""
    host, port, switch = network.add_host(), 5000, folder / "s3-refuses"
    switch.unlink(missing_ok=True)
    command = [sys.executable, "-m", "harness.s3", host.address, str(port), str(switch)]
    with (folder / "s3.log").open("w") as log:
        server = subprocess.Popen(
            host.command(command), cwd=Path(__file__).parents[1], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while "listening" not in (folder / "s3.log").read_text():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server did not start: {folder / 's3.log'}")
            time.sleep(0.1)
        environment = {
            "AWS_ENDPOINT_URL": f"http://{host.address}:{port}",
            "AWS_ACCESS_KEY_ID": "drill",
            "AWS_SECRET_ACCESS_KEY": "drill",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), host.address])),
        }
        yield Place("s3://drill/runs", switch, environment)
    finally:
        server.kill()
        server.wait()
        switch.unlink(missing_ok=True)
