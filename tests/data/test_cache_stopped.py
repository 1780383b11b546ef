"""What stops an ingest from outside: a kill, another ingest, a full disk."""

import errno
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dnformer import storage
from dnformer.data.cache import CacheWriter, write_cache
from dnformer.data.graph import open_graph
from dnformer.data.layout import layout, num_bytes
from dnformer.data.manifest import Manifest, read_manifest
from dnformer.data.table import GraphTable, NodeColumns
from dnformer.errors import DataError

MakeTable = Callable[..., GraphTable]

OLD = [(0, 1), (1, 2)]
NEW = [(2, 1), (0, 0), (1, 0)]

# processes that kill themselves, in the way of kill -9, right before their n-th change of the names
# in the folder; n counts up until one is through
KILLED = """
import os, signal, sys
import numpy as np
from dnformer.data.cache import write_cache
from dnformer.data.table import GraphTable, NodeColumns

def ingest(folder, number):
    left = [number]
    def count(event, arguments):
        removes = event == "os.remove" and os.path.exists(arguments[0])
        if removes or event == "os.rename":
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    nodes = NodeColumns(num_nodes=3, ids=["a", "b", "c"])
    dst, src = np.array([0, 0, 1]), np.array([0, 1, 2])
    table = GraphTable(nodes=nodes, dst=dst, src=src, policies={}, counts={})
    write_cache(table, folder, source="new", overwrite=True)

number = 0
while True:
    process = os.fork()
    if process == 0:
        ingest(f"{sys.argv[1]}/{number}", number)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    print(number, status, flush=True)
    number += 1
    if status == 0:
        break
"""
MOST_CHANGES = 14


def new_table(make_table: MakeTable) -> GraphTable:
    return make_table(NEW, num_nodes=3, ids=["a", "b", "c"])


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def parts(manifest: Manifest) -> set[str]:
    found = {part.path for part in (*manifest.edges, *manifest.nodes, *manifest.id_files)}
    return found | {"manifest.json"}


@pytest.mark.parametrize("over", ["nothing", "another"])
def test_ingest_killed_anywhere_leaves_the_old_dataset_or_none(
    make_table: MakeTable, tmp_path: Path, over: str
) -> None:
    old, new = make_table(OLD), new_table(make_table)
    if over == "another":
        for number in range(MOST_CHANGES):
            write_cache(old, str(tmp_path / str(number)), source="old")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    ended = [int(line.split()[1]) for line in printed.splitlines()]
    assert 7 <= len(ended) <= MOST_CHANGES
    assert ended == [-signal.SIGKILL] * (len(ended) - 1) + [0]
    for number in range(len(ended)):
        folder = tmp_path / str(number)
        if over == "another" or (folder / "manifest.json").exists():
            graph = open_graph(folder, cache_dir=tmp_path / "stores")
            wanted = old if graph.manifest.source == "old" else new
            assert graph.store.row.tolist() == wanted.src.tolist()
        overwrite = over == "another" or number % 2 == 0
        manifest, _ = write_cache(new, str(folder), source="again", overwrite=overwrite)
        assert names(folder) == parts(manifest)
        assert read_manifest(str(folder)) == manifest


HOLDER = """
import sys
from dnformer.data.cache import CacheWriter
with CacheWriter(sys.argv[1]):
    print("begun", flush=True)
    sys.stdin.read()
"""


def test_cache_writer_refuses_a_folder_at_which_another_process_works(
    make_table: MakeTable, tmp_path: Path
) -> None:
    table, uri = make_table(OLD), str(tmp_path / "data")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    expected = rf"an ingest is at work here \(process {process.pid} on this host\); wait, or stop"
    with pytest.raises(DataError, match=expected):
        write_cache(table, uri, source="test")
    assert names(tmp_path / "data") == {".ingest-in-progress"}
    process.kill()
    # a zombie until somebody asks for its end: it works no more
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    manifest, _ = write_cache(table, uri, source="test")
    assert names(tmp_path / "data") == parts(manifest)
    process.communicate()


@pytest.fixture
def memory() -> Iterator[str]:
    uri = f"memory://{uuid.uuid4().hex}"
    yield uri
    storage.remove(uri)


def stage(writer: CacheWriter, table: GraphTable) -> Manifest:
    """The manifest of `table`, staged as `write_cache` does."""
    other = f"memory://{uuid.uuid4().hex}"
    manifest, _ = write_cache(table, other, source="test")
    found = {}
    for kind, folder in (("edges", "edges"), ("nodes", "nodes")):
        part = getattr(manifest, kind)[0]
        name = writer.name(folder, 0)
        storage.write_bytes(f"{writer.uri}/{name}", storage.read_bytes(f"{other}/{part.path}"))
        found[kind] = [part.model_copy(update={"path": name})]
    storage.remove(other)
    return manifest.model_copy(update=found)


def files(uri: str) -> set[str]:
    return {
        f"{folder}/{name}"
        for folder in ("edges", "nodes", "ids")
        for name in storage.list_names(f"{uri}/{folder}")
    }


def test_cache_writer_that_was_taken_over_stops_before_it_publishes(
    make_table: MakeTable, memory: str
) -> None:
    with CacheWriter(memory) as first:
        staged = stage(first, make_table(OLD))
        with CacheWriter(memory) as second:
            # what the first wrote may be published this moment
            assert files(memory) == parts(staged) - {"manifest.json"}
            manifest, _ = second.publish(stage(second, make_table(NEW)))
        with pytest.raises(DataError, match="another ingest has begun here meanwhile"):
            first.publish(staged)
    assert read_manifest(memory) == manifest
    assert files(memory) == parts(manifest) - {"manifest.json"}


def test_cache_writer_takes_over_from_another_host(make_table: MakeTable, memory: str) -> None:
    marker = {"token": "1" * 8, "host": "another", "pid": os.getpid(), "started": 0.5}
    storage.write_bytes(f"{memory}/.ingest-in-progress", json.dumps(marker).encode())
    storage.write_bytes(f"{memory}/edges/part-11111111-00000.parquet", b"half")
    manifest, _ = write_cache(make_table(OLD), memory, source="test")
    assert files(memory) == parts(manifest) - {"manifest.json"}


@pytest.mark.parametrize(
    "marker",
    [b"", b"{", b"[1]", b'{"host": 1, "pid": "x"}', b'{"pid": -1}', b'{"pid": 1e400}'],
    ids=["empty", "cut", "list", "types", "negative", "infinite"],
)
def test_cache_writer_damaged_marker_is_a_leftover(
    make_table: MakeTable, memory: str, marker: bytes
) -> None:
    storage.write_bytes(f"{memory}/.ingest-in-progress", marker)
    manifest, _ = write_cache(make_table(OLD), memory, source="test")
    assert read_manifest(memory) == manifest
    assert ".ingest-in-progress" not in storage.list_names(memory)


def test_cache_writer_number_given_to_a_new_process_is_no_ingest(
    make_table: MakeTable, tmp_path: Path
) -> None:
    with CacheWriter(str(tmp_path / "data")):
        marker = json.loads((tmp_path / "data" / ".ingest-in-progress").read_text())
    # the parent runs, but began at another time
    marker |= {"pid": os.getppid(), "started": marker["started"] - 1e6}
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / ".ingest-in-progress").write_text(json.dumps(marker))
    assert write_cache(make_table(OLD), str(tmp_path / "data"), source="test")[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("only root may mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def wide(rows: int) -> GraphTable:
    """Features that nothing compresses, and loops."""
    x = np.random.default_rng(0).random((rows, 100), dtype=np.float32)
    loops = np.arange(rows)
    nodes = NodeColumns(num_nodes=rows, x=x)
    return GraphTable(nodes=nodes, dst=loops, src=loops, policies={}, counts={})


def test_write_cache_on_a_full_disk_names_the_file_and_leaves_nothing(small_disk: Path) -> None:
    uri = str(small_disk / "data")
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_cache(wide(4000), uri, source="test")
    assert caught.value.errno == errno.ENOSPC
    assert f"{uri}/nodes/" in str(caught.value)
    assert names(small_disk / "data") == set()
    write_cache(wide(10), uri, source="test")
    with pytest.raises(OSError, match="No space left on device"):
        write_cache(wide(4000), uri, source="test", overwrite=True)
    assert open_graph(uri, cache_dir=small_disk / "stores").num_nodes == 10


def test_open_store_on_a_disk_that_gets_full_says_what_to_do(small_disk: Path, memory: str) -> None:
    # the arrays would just fit, were they not stored in whole pages
    rows, page, disk = 2540, 4096, 1 << 20
    manifest, _ = write_cache(wide(rows), memory, source="test")
    sizes = [128 + 8 * (rows + 1), 128 + 4 * rows, 128 + 400 * rows]
    assert num_bytes(layout(manifest)) == sum(sizes) < disk
    assert sum(-(-size // page) for size in sizes) * page > disk
    with pytest.raises(OSError, match=r"No space left on device; make room, or set cache\.dir"):
        open_graph(memory, cache_dir=small_disk / "stores")
    assert [path for path in (small_disk / "stores").iterdir() if path.is_dir()] == []
    (small_disk / "other").write_bytes(bytes(disk // 2))
    with pytest.raises(DataError, match=r"takes 1 MiB, .* has 0 MiB free; set cache\.dir"):
        open_graph(memory, cache_dir=small_disk / "stores")
