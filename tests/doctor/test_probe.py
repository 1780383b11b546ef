import itertools
import re
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.doctor import Check, check_storage
from dnformer.doctor.clock import check_skew, skew_s
from dnformer.errors import BackendError

from ..flaky_s3 import Answer, Fault, FlakyS3, Reset

STEPS = ["write", "read", "clock", "list", "replace", "remove"]


def last(checks: list[Check]) -> Check:
    """The check that failed, all before it being well."""
    assert all(check.ok and not check.mend for check in checks[:-1])
    assert not checks[-1].ok
    return checks[-1]


@pytest.fixture
def bucket(server: FlakyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty folder on S3, where nothing is tried twice."""
    import s3fs

    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    storage.configure(StorageConfig(options={"s3": {"endpoint_url": server.url}}, retry_s=0))
    yield f"s3://bucket/{uuid.uuid4().hex}"
    storage.configure(StorageConfig())
    server.heal()
    server.start()


def test_check_storage_takes_each_step_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    checks = check_storage(str(folder), clock=itertools.count().__next__)
    assert [(check.name, check.ok) for check in checks] == [(step, True) for step in STEPS]
    assert checks[0].found == "1,024 bytes (1,000 ms)"
    assert list(tmp_path.iterdir()) == []


def test_check_storage_keeps_what_is_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"1")
    assert all(check.ok for check in check_storage(str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_check_storage_on_s3_leaves_nothing(bucket: str) -> None:
    checks = check_storage(bucket)
    assert [(check.name, check.ok) for check in checks] == [(step, True) for step in STEPS]
    assert storage.list_names(bucket) == []


@pytest.mark.parametrize(
    ("fault", "method", "step", "mend"),
    [
        pytest.param(Reset(), None, "write", r"network.*storage\.options\.s3", id="away"),
        pytest.param(
            Answer(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist"),
            None, "write", "credentials in the environment are not valid", id="wrong-key",
        ),
        pytest.param(
            Answer(403, "AccessDenied", "Access Denied"),
            "PUT", "write", "ask for the right to write", id="read-only",
        ),
        pytest.param(
            Answer(403, "AccessDenied", "Access Denied"),
            "GET", "read", "ask for the right to read", id="write-only",
        ),
        pytest.param(
            Answer(403, "AccessDenied", "Access Denied"),
            "DELETE", "remove", "ask for the right to remove", id="no-delete",
        ),
        pytest.param(
            Answer(400, "IllegalLocationConstraintException", "of another region"),
            None, "write", "region_name", id="other-region",
        ),
        pytest.param(
            Answer(501, "NotImplemented", "not here"), None, "write", "message", id="other",
        ),
    ],
)  # fmt: skip
def test_check_storage_tells_what_failed_and_what_helps(
    server: FlakyS3, bucket: str, fault: Fault, method: str | None, step: str, mend: str
) -> None:
    server.fail(fault, method=method)
    check = last(check_storage(bucket))
    assert check.name == step
    assert re.search(mend, check.mend), check
    assert check.found.startswith(bucket)
    server.heal()
    assert storage.list_names(bucket) == []


def test_check_storage_without_a_bucket_says_to_create_it(bucket: str) -> None:
    check = last(check_storage("s3://no-such-bucket/x"))
    assert "The specified bucket does not exist" in check.found
    assert check.mend == "create the bucket of s3://no-such-bucket/x, or correct its name"


def test_check_storage_without_credentials_names_them(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # another file system than that of the other tests, which remembers their credentials
    storage.configure(StorageConfig(options={"s3": {"use_ssl": False}}))
    assert "AWS_ACCESS_KEY_ID" in last(check_storage(bucket)).mend


def test_check_storage_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert last(check_storage("gs://bucket/x")).mend == "pip install 'dnformer[gcs]'"


def test_check_storage_of_an_unknown_protocol_is_a_failed_check() -> None:
    check = last(check_storage("zz://bucket/x"))
    assert "Protocol not known: zz" in check.found
    assert check.mend == "correct the URI or storage.options"


class Forgetful(MemoryFileSystem):
    """Lists nothing of what it holds."""

    protocol = "forgetful"
    store: dict[str, Any] = {}  # noqa: RUF012 - as its base has it

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return []


def test_check_storage_of_an_inconsistent_store_is_a_failed_check() -> None:
    fsspec.register_implementation("forgetful", Forgetful, clobber=True)
    check = last(check_storage("forgetful://folder"))
    assert check.name == "list"
    assert "consistent" in check.mend


def test_check_storage_below_a_file_is_a_failed_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    check = last(check_storage(str(tmp_path / "file" / "folder")))
    assert check.found.startswith(str(tmp_path / "file"))
    assert check.mend


def test_check_storage_that_never_answers_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        storage.configure(StorageConfig(options={"s3": {"endpoint_url": url}}, retry_s=0))
        try:
            begin = time.monotonic()
            check = last(check_storage("s3://bucket/x", step_s=1))
            assert time.monotonic() - begin < 5
        finally:
            storage.configure(StorageConfig())
    assert check.name == "write"
    assert check.found.startswith("no answer within 1 s")
    assert "endpoint_url" in check.mend


def test_check_storage_on_s3_knows_the_stores_clock(bucket: str) -> None:
    clock = next(check for check in check_storage(bucket) if check.name == "clock")
    assert clock.found.startswith("as this machine's")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        pytest.param(100.0, 0, id="whole-second-before"),
        pytest.param(100.9, 0, id="between"),
        pytest.param(102.0, 0.5, id="ahead"),
        pytest.param(90.0, -9.5, id="behind"),
    ],
)
def test_skew_allows_for_whole_seconds(there: float, expected: float) -> None:
    assert skew_s(there, 100.5, 101.5) == pytest.approx(expected)


@pytest.mark.parametrize(("skew", "word"), [(301, "301 s ahead of"), (-3000, "3,000 s behind")])
def test_check_skew_refuses_what_signatures_do_not_allow(skew: float, word: str) -> None:
    with pytest.raises(BackendError, match=f"{word} this machine's: .*NTP"):
        check_skew(skew)
    assert check_skew(skew / 100)
