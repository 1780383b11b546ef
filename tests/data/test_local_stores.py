import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from filelock import FileLock

from dnformer.data import local_stores
from dnformer.data.cache import write_cache
from dnformer.data.graph import Graph, open_graph
from dnformer.data.table import GraphTable
from dnformer.errors import DataError


class Hosted(NamedTuple):
    """Three datasets, and the folder of their stores."""

    folder: Path
    uris: list[str]

    def open(self, number: int, **options: object) -> Graph:
        return open_graph(self.uris[number], cache_dir=self.folder, **options)

    def names(self) -> list[str]:
        """Of the datasets whose stores are there, by last use."""
        return [Path(store.uri).name for store in local_stores.list_stores(self.folder)]


@pytest.fixture
def hosted(make_table: Callable[..., GraphTable], tmp_path: Path) -> Hosted:
    """With stores of the datasets a, b and c, used in this order, none of them open."""
    uris = []
    found = Hosted(tmp_path / "stores", uris)
    for number, name in enumerate("abc"):
        uris.append(str(tmp_path / name))
        x = np.full((2000, 1), number, dtype=np.float32)
        write_cache(make_table([(0, 1)], num_nodes=2000, x=x), uris[-1], source=f"test {name}")
        fingerprint = found.open(number).fingerprint
        os.utime(found.folder / fingerprint / "complete", (number, number))
    return found


def size(hosted: Hosted) -> int:
    """Bytes of one of the stores, which differ by less than a KiB."""
    return local_stores.list_stores(hosted.folder)[0].bytes


def test_list_stores_tells_what_is_there(hosted: Hosted) -> None:
    graph = hosted.open(1)
    found = local_stores.list_stores(hosted.folder)
    assert [Path(store.uri).name for store in found] == ["a", "c", "b"]
    assert [store.in_use for store in found] == [False, False, True]
    assert found[2].fingerprint == graph.fingerprint
    assert found[2].source == "test b"
    files = (hosted.folder / graph.fingerprint).iterdir()
    assert found[2].bytes == sum(path.stat().st_size for path in files)
    assert local_stores.total_bytes(hosted.folder) == sum(store.bytes for store in found)


def test_list_stores_of_no_folder_is_empty(tmp_path: Path) -> None:
    assert local_stores.list_stores(tmp_path / "none") == []
    assert local_stores.total_bytes(tmp_path / "none") == 0


def test_list_stores_passes_over_what_is_none(hosted: Hosted) -> None:
    (hosted.folder / ("0" * 64)).mkdir()
    (hosted.folder / "notes").mkdir()
    (
        hosted.folder / local_stores.list_stores(hosted.folder)[0].fingerprint / "complete"
    ).write_text("[damaged")
    assert hosted.names() == ["b", "c", "?"]


def test_open_graph_makes_room_for_a_new_store(
    hosted: Hosted, make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    table = make_table([(1, 0)], num_nodes=2000, x=np.zeros((2000, 1), dtype=np.float32))
    write_cache(table, str(tmp_path / "d"), source="test")
    said: list[str] = []
    limit = size(hosted) * 3 + 1000
    graph = open_graph(tmp_path / "d", cache_dir=hosted.folder, max_bytes=limit, say=said.append)
    assert hosted.names() == ["b", "c", "d"]
    assert local_stores.total_bytes(hosted.folder) <= limit
    assert graph.num_nodes == 2000
    assert f"removed the node-local store of {hosted.uris[0]}" in said[0]


def test_open_graph_never_removes_what_is_in_use(
    hosted: Hosted, make_table: Callable[..., GraphTable], tmp_path: Path
) -> None:
    graph = hosted.open(0)
    os.utime(hosted.folder / graph.fingerprint / "complete", (0, 0))
    table = make_table([(1, 0)], num_nodes=2000, x=np.zeros((2000, 1), dtype=np.float32))
    write_cache(table, str(tmp_path / "d"), source="test")
    limit = size(hosted) * 3 + 1000
    other = open_graph(tmp_path / "d", cache_dir=hosted.folder, max_bytes=limit)
    assert hosted.names() == ["a", "c", "d"]
    with pytest.raises(DataError, match=r"would hold 1 MiB more than cache\.max_bytes allows"):
        open_graph(hosted.uris[1], cache_dir=hosted.folder, max_bytes=size(hosted) * 2 + 1000)
    assert hosted.names() == ["a", "d"]
    del graph, other
    hosted.open(1, max_bytes=size(hosted) + 1000)
    assert hosted.names() == ["b"]


def test_open_graph_that_is_there_makes_no_room(hosted: Hosted) -> None:
    hosted.open(1, max_bytes=1)
    assert hosted.names() == ["a", "c", "b"]


def test_open_graph_store_larger_than_the_limit_is_refused(hosted: Hosted) -> None:
    local_stores.remove_store(hosted.folder, hosted.open(0).fingerprint)
    fingerprint = hosted.open(0).fingerprint
    assert local_stores.remove_store(hosted.folder, fingerprint)
    with pytest.raises(DataError, match=r"cache\.max_bytes allows 1 MiB for all; set it higher"):
        hosted.open(0, max_bytes=1000)
    assert hosted.names() == ["b", "c"]


HOLDER = """
import sys
from dnformer.data.graph import open_graph
graph = open_graph(sys.argv[1], cache_dir=sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


def test_remove_store_open_in_another_process_stays_until_that_ends(hosted: Hosted) -> None:
    fingerprint = hosted.open(0).fingerprint
    command = [sys.executable, "-c", HOLDER, hosted.uris[0], str(hosted.folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    assert not local_stores.remove_store(hosted.folder, fingerprint)
    assert local_stores.list_stores(hosted.folder)[-1].in_use
    process.kill()
    process.communicate()
    assert local_stores.remove_store(hosted.folder, fingerprint)
    assert hosted.names() == ["b", "c"]


def test_remove_store_that_is_built_stays(hosted: Hosted) -> None:
    fingerprint = hosted.open(0).fingerprint
    with FileLock(hosted.folder / f"{fingerprint}.lock"):
        assert not local_stores.remove_store(hosted.folder, fingerprint)
    assert local_stores.remove_store(hosted.folder, fingerprint)


def test_removed_store_is_built_again(hosted: Hosted) -> None:
    fingerprint = hosted.open(0).fingerprint
    assert local_stores.remove_store(hosted.folder, fingerprint)
    assert sorted(path.name for path in hosted.folder.iterdir() if path.is_dir()) == sorted(
        store.fingerprint for store in local_stores.list_stores(hosted.folder)
    )
    assert hosted.open(0).store.x[0] == 0


def test_open_graph_removes_what_other_builders_left(hosted: Hosted) -> None:
    fingerprint = hosted.open(0).fingerprint
    local_stores.remove_store(hosted.folder, fingerprint)
    dead, alive = (hosted.folder / f".{digit * 64}.tmp" for digit in "01")
    for path in (dead, alive):
        path.mkdir()
        (path / "row.npy").write_bytes(b"half")
    with FileLock(hosted.folder / f"{'1' * 64}.lock"):
        hosted.open(0)
    assert not dead.exists()
    assert (alive / "row.npy").exists()


BUILDER = """
import os, signal, sys
from dnformer.data.graph import open_graph

def die(event, arguments):
    if event == "os.rename":
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
open_graph(sys.argv[1], cache_dir=sys.argv[2])
"""


def test_open_graph_after_a_killed_builder_builds_anew(hosted: Hosted) -> None:
    fingerprint = hosted.open(0).fingerprint
    local_stores.remove_store(hosted.folder, fingerprint)
    done = subprocess.run([sys.executable, "-c", BUILDER, hosted.uris[0], str(hosted.folder)])
    assert done.returncode == -signal.SIGKILL
    left = hosted.folder / f".{fingerprint}.tmp"
    assert (left / "row.npy").exists()
    assert not (hosted.folder / fingerprint).exists()
    assert hosted.open(0).store.row.tolist() == [0]
    assert not left.exists()


def test_open_graph_of_a_store_that_is_there_needs_no_parquet(hosted: Hosted) -> None:
    code = (
        "import sys; from dnformer.data.graph import open_graph; "
        "open_graph(sys.argv[1], cache_dir=sys.argv[2]); assert 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, hosted.uris[0], str(hosted.folder)], check=True)


def test_lease_does_not_travel(hosted: Hosted) -> None:
    store = hosted.open(0).store
    assert store.lease is not None
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    assert copy.lease is None
    assert copy.row.tolist() == [0]


def test_pick_takes_beginnings_and_uris(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = local_stores.list_stores(hosted.folder)
    monkeypatch.chdir(Path(hosted.uris[0]).parent)
    assert local_stores.pick(stores, [stores[1].fingerprint[:12]]) == [stores[1]]
    assert local_stores.pick(stores, [hosted.uris[2], "a", "./a"]) == [stores[2], stores[0]]
    with pytest.raises(DataError, match="no store 'xyz'; dnformer cache ls"):
        local_stores.pick(stores, ["xyz"])


def test_pick_refuses_the_beginning_of_several(hosted: Hosted) -> None:
    stores = local_stores.list_stores(hosted.folder)
    same = [store._replace(fingerprint=f"abc{number}") for number, store in enumerate(stores)]
    with pytest.raises(DataError, match="3 stores begin with 'abc'; give more of its digits"):
        local_stores.pick(same, ["abc"])
