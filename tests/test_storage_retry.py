"""Patience: with a clock that is passed in, and with an S3 server that fails as told."""

import errno
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.errors import DataError
from dnformer.storage import Unreachable, conditional
from dnformer.storage.retry import Retry

from .flaky_s3 import Answer, CutAnswer, Fault, FlakyS3, LoseAnswer, Reset

URI = "s3://bucket/x"
DOWN = Answer(503, "SlowDown", "reduce your request rate")


class Clock:
    """Seconds that pass only in `sleep`; a store that comes back at `back_s`."""

    def __init__(self, back_s: float) -> None:
        self.now_s, self.back_s = 0.0, back_s
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def access(self) -> str:
        if self.now_s < self.back_s:
            raise Unreachable(errno.ECONNREFUSED, "refused", URI)
        return "content"

    def retry(self, budget_s: float, jitter: float = 1.0) -> Retry:
        return Retry(budget_s, clock=lambda: self.now_s, sleep=self.sleep, jitter=lambda: jitter)


def test_retry_pauses_grow_and_end_with_the_outage() -> None:
    clock = Clock(back_s=20)
    assert clock.retry(120)(URI, clock.access) == "content"
    assert clock.pauses == [0.5, 1, 2, 4, 8, 10]


def test_retry_jitter_halves_a_pause_at_most() -> None:
    clock = Clock(back_s=1)
    clock.retry(120, jitter=0.0)(URI, clock.access)
    assert clock.pauses == [0.25, 0.5, 1.0]


def test_retry_at_the_end_of_the_budget_raises_what_it_met_and_how_long() -> None:
    clock = Clock(back_s=1000)
    with pytest.raises(Unreachable) as caught:
        clock.retry(60)(URI, clock.access)
    assert caught.value.errno == errno.ECONNREFUSED
    assert caught.value.strerror == "refused; tried again for 60 s"
    assert caught.value.filename == URI
    assert clock.now_s == 60


def test_retry_tries_once_more_when_the_time_is_up() -> None:
    clock = Clock(back_s=60)
    assert clock.retry(60)(URI, clock.access) == "content"


def test_retry_without_a_budget_raises_at_once() -> None:
    clock = Clock(back_s=1)
    with pytest.raises(Unreachable, match=r"refused: 's3://bucket/x'$"):
        clock.retry(0)(URI, clock.access)
    assert clock.pauses == []


def test_retry_of_another_error_does_not_wait() -> None:
    clock = Clock(back_s=0)

    def denied() -> None:
        raise PermissionError(errno.EACCES, "denied", URI)

    with pytest.raises(PermissionError):
        clock.retry(60)(URI, denied)
    assert clock.pauses == []


def test_retry_says_once_that_a_store_is_away_and_once_that_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(back_s=3)
    retry = clock.retry(120)
    for _ in range(2):
        retry(URI, clock.access)
    clock.back_s = clock.now_s + 0.1
    retry(URI, clock.access)
    assert [record.message for record in caplog.records] == [
        "s3://bucket not reachable (refused); trying again for up to 120 s",
        "s3://bucket is back after 4 s",
        "s3://bucket not reachable (refused); trying again for up to 120 s",
        "s3://bucket is back after 0 s",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_retry_after_a_budget_that_ran_out_says_that_the_store_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(back_s=5)
    retry = clock.retry(2)
    for _ in range(2):
        with pytest.raises(Unreachable):
            retry(URI, clock.access)
    clock.now_s = 6
    retry(URI, clock.access)
    assert [record.message.split(" (")[0] for record in caplog.records] == [
        "s3://bucket not reachable",
        "s3://bucket is back after 6 s",
    ]


def patient(server: FlakyS3, retry_s: float) -> StorageConfig:
    """Leads to the server, which has a file system of its own by its address."""
    return StorageConfig(options={"s3": {"endpoint_url": server.url}}, retry_s=retry_s)


@pytest.fixture
def folder(server: FlakyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder on the flaky server, whose clients do not ask again by themselves."""
    import s3fs

    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    storage.configure(patient(server, 120))
    yield f"s3://bucket/{uuid.uuid4().hex}"
    server.heal()
    server.start()
    storage.configure(StorageConfig())


# each over the file `x` in a folder, which holds b"content"
ACTIONS: dict[str, Callable[[str], object]] = {
    "write": lambda folder: storage.write_bytes(f"{folder}/x", b"content"),
    "read": lambda folder: storage.read_bytes(f"{folder}/x"),
    "exists": lambda folder: storage.exists(f"{folder}/x"),
    "size": lambda folder: storage.size(f"{folder}/x"),
    "content_id": lambda folder: storage.content_id(f"{folder}/x"),
    "open": lambda folder: storage.open_read(f"{folder}/x").read(),
    "list": storage.list_names,
    "glob": lambda folder: storage.glob(f"{folder}/*"),
    "put": lambda folder: storage.compare_and_put(f"{folder}/x", b"content", expected=b"content"),
}


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize(
    "fault", [pytest.param(Reset(), id="reset"), pytest.param(DOWN, id="slow-down")]
)
def test_each_access_outlives_a_fault(
    server: FlakyS3, folder: str, name: str, fault: Fault
) -> None:
    storage.write_bytes(f"{folder}/x", b"content")
    expected = ACTIONS[name](folder)
    server.fail(fault, times=1)
    assert ACTIONS[name](folder) == expected
    assert storage.read_bytes(f"{folder}/x") == b"content"
    assert not server.faults_left


def test_remove_outlives_a_fault(server: FlakyS3, folder: str) -> None:
    storage.write_bytes(f"{folder}/x", b"content")
    server.fail(Reset(), times=2)
    storage.remove(f"{folder}/x")
    assert storage.list_names(folder) == []


def test_fetched_outlives_an_answer_cut_short(server: FlakyS3, folder: str) -> None:
    content = bytes(range(256)) * 1000
    storage.write_bytes(f"{folder}/x", content)
    server.fail(CutAnswer(), times=1, method="GET")
    with storage.fetched(f"{folder}/x") as path:
        assert path.read_bytes() == content
    assert not server.faults_left


def test_open_read_outlives_an_outage_between_two_reads(server: FlakyS3, folder: str) -> None:
    content = bytes(range(256)) * 1000
    storage.write_bytes(f"{folder}/x", content)
    with storage.open_read(f"{folder}/x") as file:
        assert file.read(10) == content[:10]
        file.seek(200_000)
        server.fail(CutAnswer(), times=1, method="GET")
        server.fail(Reset(), times=1, method="GET")
        assert file.read(1000) == content[200_000:201_000]
        assert file.read() == content[201_000:]


def test_outage_while_a_block_writes_repeats_the_upload_and_not_the_block(
    server: FlakyS3, folder: str
) -> None:
    runs = 0
    with storage.staged(f"{folder}/x") as path:
        runs += 1
        path.write_bytes(b"content")
        server.fail(Reset(), times=2, method="PUT")
    assert runs == 1
    assert storage.read_bytes(f"{folder}/x") == b"content"


def test_a_server_that_stops_and_starts_is_waited_for(
    server: FlakyS3, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    storage.write_bytes(f"{folder}/x", b"content")
    server.stop()
    timer = threading.Timer(1.0, server.start)
    timer.start()
    # many threads wait for the same store, and one says so
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(storage.read_bytes, [f"{folder}/x"] * 4))
    timer.join()
    assert found == [b"content"] * 4
    said = [record.message for record in caplog.records if record.name == "dnformer.storage"]
    assert len(said) == 2
    assert said[0].startswith("s3://bucket not reachable (Could not connect to the endpoint URL")
    assert said[1].startswith("s3://bucket is back after")


def test_an_outage_longer_than_the_budget_is_an_error_with_the_uri(
    server: FlakyS3, folder: str
) -> None:
    storage.configure(patient(server, 0.5))
    server.stop()
    with pytest.raises(Unreachable, match="tried again for 1 s") as caught:
        storage.write_bytes(f"{folder}/x", b"content")
    assert caught.value.filename == f"{folder}/x"
    server.start()
    assert not storage.exists(f"{folder}/x")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", PermissionError),
        (403, "InvalidAccessKeyId", PermissionError),
        (403, "SignatureDoesNotMatch", PermissionError),
        (404, "NoSuchBucket", FileNotFoundError),
        (400, "InvalidRequest", OSError),
    ],
)
def test_a_store_that_refuses_is_asked_once(
    server: FlakyS3, folder: str, status: int, code: str, kind: type[OSError]
) -> None:
    before = len(server.requests)
    server.fail(Answer(status, code, "not you"))
    with pytest.raises(kind, match="not you") as caught:
        storage.write_bytes(f"{folder}/x", b"content")
    assert not isinstance(caught.value, Unreachable)
    assert len(server.requests) == before + 1


def test_a_missing_file_is_asked_for_once(server: FlakyS3, folder: str) -> None:
    before = len(server.requests)
    with pytest.raises(DataError, match="no such file"):
        storage.read_bytes(f"{folder}/none")
    # s3fs looks for a file, then for a folder
    assert len(server.requests) == before + 2


@pytest.mark.parametrize("before", [None, b"0"], ids=["new", "over"])
def test_compare_and_put_whose_answer_got_lost_knows_that_it_won(
    server: FlakyS3, folder: str, before: bytes | None
) -> None:
    uri = f"{folder}/attempt.json"
    if before is not None:
        storage.write_bytes(uri, before)
    server.fail(LoseAnswer(), times=1, method="PUT")
    assert storage.compare_and_put(uri, b"mine", expected=before)
    assert not server.faults_left
    assert storage.read_bytes(uri) == b"mine"


@pytest.mark.parametrize("before", [None, b"0"], ids=["new", "over"])
def test_compare_and_put_overtaken_in_an_outage_knows_that_it_lost(
    server: FlakyS3, folder: str, before: bytes | None
) -> None:
    uri = f"{folder}/attempt.json"
    if before is not None:
        storage.write_bytes(uri, before)

    overtaken = False

    def overtake(fs: object, path: str, data: bytes, version: str | None) -> bool:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            storage.write_bytes(uri, b"other's")
            raise Unreachable(errno.ECONNRESET, "reset", uri)
        return conditional._put_on_s3(fs, path, data, version)

    won = conditional.put_over_version(
        uri, b"mine", before, version=conditional._s3_tag, put=overtake
    )
    assert not won
    assert storage.read_bytes(uri) == b"other's"


def test_compare_and_put_in_conflict_with_another_asks_again(server: FlakyS3, folder: str) -> None:
    uri = f"{folder}/attempt.json"
    server.fail(Answer(409, "ConditionalRequestConflict"), times=2, method="PUT")
    assert storage.compare_and_put(uri, b"mine", expected=None)
    assert storage.read_bytes(uri) == b"mine"
