import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.errors import ConfigError, DataError
from dnformer.storage import conditional


@pytest.fixture
def no_patience() -> Iterator[None]:
    """What cannot be reached is given up at once."""
    storage.configure(StorageConfig(retry_s=0))
    yield
    storage.configure(StorageConfig())


@pytest.fixture(params=["local", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder on each kind of store."""
    if request.param == "local":
        yield str(tmp_path / "root")
        return
    base = "memory:/" if request.param == "memory" else request.getfixturevalue("s3")
    folder = f"{base}/{uuid.uuid4().hex}"
    yield folder
    storage.remove(folder)


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "..", "../x", "a/../../x", "a/..", "a\\b", "..\\x", "s3://b/x", "a://b"],
)
@pytest.mark.parametrize("folder", ["/data", "s3://bucket/data"])
def test_join_refuses_a_name_that_leads_outside(folder: str, name: str) -> None:
    with pytest.raises(DataError, match="leads outside"):
        storage.join(folder, name)


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        pytest.param("/data", "x", "/data/x", id="local"),
        pytest.param("/data/", "a/./x", "/data/a/x", id="dots-and-slash"),
        pytest.param("s3://b/data", "a/..x", "s3://b/data/a/..x", id="remote"),
    ],
)
def test_join_gives_the_uri_of_a_name_inside(folder: str, name: str, expected: str) -> None:
    assert storage.join(folder, name) == expected


def test_absolute_makes_local_paths_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert storage.absolute("runs/") == str(tmp_path / "runs")
    assert storage.absolute("file://runs") == str(tmp_path / "runs")
    assert storage.absolute("~/runs") == "/home/somebody/runs"
    assert storage.absolute("file:///tmp/x/") == "/tmp/x"
    assert storage.absolute("s3://b/x/") == "s3://b/x"


@pytest.mark.parametrize("uri", ["s3://", "s3:///", "gs://", "memory://"])
def test_absolute_without_a_bucket_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="names no bucket or folder"):
        storage.absolute(uri)


def test_is_local_tells_paths_from_stores() -> None:
    assert storage.is_local("/a")
    assert storage.is_local("file:///a")
    assert not storage.is_local("s3://b/a")


def test_write_bytes_then_read_gives_the_same(root: str) -> None:
    uri = storage.join(root, "deep/down/x")
    assert not storage.exists(uri)
    assert storage.read_if_exists(uri) is None
    storage.write_bytes(uri, b"one")
    storage.write_bytes(uri, b"second")
    assert storage.read_bytes(uri) == storage.read_if_exists(uri) == b"second"
    assert storage.exists(uri)
    assert storage.exists(storage.join(root, "deep"))
    assert storage.size(uri) == 6
    with storage.open_read(uri) as file:
        file.seek(3)
        assert file.read() == b"ond"


def test_list_names_gives_what_is_directly_inside(root: str) -> None:
    assert storage.list_names(root) == []
    for name in ("b", "a/x", "a/y/z"):
        storage.write_bytes(storage.join(root, name), b"1")
    assert storage.list_names(root) == ["a", "b"]
    assert storage.list_names(storage.join(root, "a")) == ["x", "y"]


def test_list_names_keeps_a_child_named_as_its_folder(root: str) -> None:
    storage.write_bytes(storage.join(root, "edges/edges"), b"1")
    assert storage.list_names(storage.join(root, "edges")) == ["edges"]


def test_list_names_of_a_file_is_empty(root: str) -> None:
    storage.write_bytes(storage.join(root, "x"), b"1")
    assert storage.list_names(storage.join(root, "x")) == []


def test_list_names_sees_what_another_process_wrote(root: str, s3: str) -> None:
    storage.write_bytes(storage.join(root, "a"), b"1")
    assert storage.list_names(root) == ["a"]
    if root.startswith(s3):
        import boto3

        bucket, key = root.removeprefix("s3://").split("/", 1)
        boto3.client("s3").put_object(Bucket=bucket, Key=f"{key}/b", Body=b"1")
    else:
        storage.write_bytes(storage.join(root, "b"), b"1")
    assert storage.list_names(root) == ["a", "b"]


def test_remove_takes_a_file_or_a_folder_and_no_neighbour(root: str) -> None:
    for name in ("a/x", "a/y", "ab/x", "c"):
        storage.write_bytes(storage.join(root, name), b"1")
    storage.remove(storage.join(root, "a"))
    storage.remove(storage.join(root, "c"))
    storage.remove(storage.join(root, "never-there"))
    assert storage.list_names(root) == ["ab"]


def test_glob_gives_uris_that_open(root: str) -> None:
    for name in ("a-1.csv", "a-2.csv", "b.csv", "sub/a-3.csv"):
        storage.write_bytes(storage.join(root, name), name.encode())
    found = storage.glob(f"{root}/a-*.csv")
    assert found == [f"{root}/a-1.csv", f"{root}/a-2.csv"]
    assert [storage.read_bytes(uri) for uri in found] == [b"a-1.csv", b"a-2.csv"]
    assert storage.glob(f"{root}/*/a-[0-9].csv") == [f"{root}/sub/a-3.csv"]
    assert storage.glob(f"{root}/b.csv") == [f"{root}/b.csv"]


def test_glob_without_a_match_is_an_error(root: str) -> None:
    with pytest.raises(DataError, match=r"\*\.csv: no file matches"):
        storage.glob(f"{root}/*.csv")


def test_missing_file_is_named(root: str) -> None:
    uri = storage.join(root, "none")
    with pytest.raises(DataError, match="/none: no such file"):
        storage.read_bytes(uri)
    with pytest.raises(DataError, match="/none: no such file"):
        storage.open_read(uri)
    with pytest.raises(DataError, match="/none: no such file"), storage.fetched(uri):
        pass


def test_read_bytes_of_a_folder_is_an_error(root: str) -> None:
    storage.write_bytes(storage.join(root, "a/x"), b"1")
    with pytest.raises(DataError, match="/a: no such file"):
        storage.read_bytes(storage.join(root, "a"))
    with pytest.raises(DataError, match="/a: no such file"), storage.fetched(f"{root}/a"):
        pass


def test_staged_publishes_at_the_end_of_the_block(root: str) -> None:
    uri = storage.join(root, "d/x")
    storage.write_bytes(uri, b"old")
    with storage.staged(uri) as path:
        path.write_bytes(b"new")
        assert storage.read_bytes(uri) == b"old"
    assert storage.read_bytes(uri) == b"new"
    assert storage.list_names(storage.join(root, "d")) == ["x"]
    assert not path.exists()


def half_written(uri: str) -> Path:
    """The staged path of a write that failed half-way."""
    try:
        with storage.staged(uri) as path:
            path.write_bytes(b"half")
            raise KeyError
    except KeyError:
        return path


def test_staged_with_an_exception_leaves_nothing(root: str) -> None:
    path = half_written(storage.join(root, "x"))
    assert not path.exists()
    assert storage.list_names(root) == []


def test_staged_with_an_exception_keeps_the_old_content(root: str) -> None:
    uri = storage.join(root, "x")
    storage.write_bytes(uri, b"old")
    half_written(uri)
    assert storage.read_bytes(uri) == b"old"
    assert storage.list_names(root) == ["x"]


def test_fetched_local_is_the_file_itself(tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"1")
    with storage.fetched(str(target)) as path:
        assert path == target
    assert target.exists()


@pytest.mark.parametrize("root", ["memory", "s3"], indirect=True)
def test_fetched_remote_is_a_copy_while_the_block_runs(root: str) -> None:
    uri = storage.join(root, "x")
    storage.write_bytes(uri, b"content")
    with storage.fetched(uri) as path:
        assert path.read_bytes() == b"content"
        path.write_bytes(b"scribble")
    assert not path.exists()
    assert storage.read_bytes(uri) == b"content"


def test_compare_and_put_publishes_only_over_what_was_expected(root: str) -> None:
    uri = storage.join(root, "attempt.json")
    assert not storage.compare_and_put(uri, b"1", expected=b"0")
    assert not storage.exists(uri)
    assert storage.compare_and_put(uri, b"1", expected=None)
    assert not storage.compare_and_put(uri, b"2", expected=None)
    assert not storage.compare_and_put(uri, b"2", expected=b"0")
    assert storage.read_bytes(uri) == b"1"
    assert storage.compare_and_put(uri, b"2", expected=b"1")
    assert storage.read_bytes(uri) == b"2"


@pytest.mark.parametrize("before", [None, b"0"], ids=["new", "over"])
def test_compare_and_put_two_racers_one_wins(tmp_path: Path, before: bytes | None) -> None:
    start = threading.Barrier(2)

    def race(uri: str, data: bytes) -> bool:
        start.wait(timeout=10)
        return storage.compare_and_put(uri, data, expected=before)

    with ThreadPoolExecutor(2) as pool:
        for number in range(10):
            uri = str(tmp_path / f"attempt-{number}")
            if before is not None:
                storage.write_bytes(uri, before)
            won = list(pool.map(race, [uri, uri], [b"a", b"b"]))
            assert sorted(won) == [False, True]
            assert storage.read_bytes(uri) == (b"a" if won[0] else b"b")


def test_put_over_version_changed_meanwhile_is_not_overwritten(s3: str) -> None:
    uri = storage.join(s3, "attempt.json")
    storage.write_bytes(uri, b"other")

    def version_then_write(fs: Any, path: str) -> str | None:
        tag = conditional._s3_tag(fs, path)
        fs.pipe_file(path, b"expected")
        return tag

    # read back as expected, but with a tag from before: only the server can tell
    assert not conditional.put_over_version(
        uri, b"mine", b"expected", version=version_then_write, put=conditional._put_on_s3
    )
    assert storage.read_bytes(uri) == b"expected"


def one_line(error: OSError) -> str:
    """The message as the command line prints it."""
    return f"{error.filename}: {error.strerror}"


def test_s3_bucket_that_is_not_there_is_one_line_with_the_uri(s3: str) -> None:
    uri = "s3://no-such-bucket/x"
    with pytest.raises(FileNotFoundError) as caught:
        storage.write_bytes(uri, b"1")
    assert one_line(caught.value) == f"{uri}: The specified bucket does not exist"
    with pytest.raises(FileNotFoundError):
        storage.compare_and_put(uri, b"1", expected=None)
    with pytest.raises(DataError, match="no such file"):
        storage.read_bytes(uri)
    assert not storage.exists(uri)
    assert storage.list_names(uri) == []


@pytest.fixture
def no_account(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 object, asked for by somebody who has no credentials."""
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    yield f"{s3}/x"
    s3fs.S3FileSystem.clear_instance_cache()


def test_s3_without_credentials_is_one_line_with_the_uri(no_account: str) -> None:
    for action in (
        storage.read_bytes,
        storage.read_if_exists,
        storage.exists,
        storage.size,
        storage.list_names,
        storage.remove,
        lambda uri: storage.glob(f"{uri}*"),
        lambda uri: storage.write_bytes(uri, b"1"),
        lambda uri: storage.compare_and_put(uri, b"1", expected=b"0"),
        lambda uri: storage.fetched(uri).__enter__(),
    ):
        with pytest.raises(OSError, match="Unable to locate credentials") as caught:
            action(no_account)
        assert one_line(caught.value).startswith("s3://")


def test_s3_unknown_profile_is_one_line_with_the_uri(
    no_account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(OSError, match=r"The config profile \(nobody\)") as caught:
        storage.read_bytes(no_account)
    assert caught.value.filename == no_account


@pytest.mark.usefixtures("no_patience")
def test_s3_endpoint_out_of_reach_is_one_line_with_the_uri(
    no_account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="Could not connect to the endpoint") as caught:
        storage.read_bytes(no_account)
    assert caught.value.filename == no_account


@pytest.mark.usefixtures("no_patience")
def test_http_server_out_of_reach_is_one_line_with_the_uri() -> None:
    with pytest.raises(OSError, match="Cannot connect to host") as caught:
        storage.read_bytes("http://127.0.0.1:9/x")
    assert caught.value.filename == "http://127.0.0.1:9/x"


def test_unknown_protocol_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^zz://b/x: Protocol not known: zz$"):
        storage.read_bytes("zz://b/x")


def test_missing_library_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from dnformer import storage\n"
        "from dnformer.errors import BackendError\n"
        "try: storage.read_bytes('s3://b/x')\n"
        "except BackendError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == (
        "s3:// needs a library that is not installed: pip install 'dnformer[s3]'\n"
    )


def test_arrow_filesystem_reads_what_storage_wrote(root: str) -> None:
    storage.write_bytes(storage.join(root, "x"), b"content")
    fs, path = storage.arrow_filesystem(root)
    with fs.open_input_file(f"{path}/x") as file:
        assert file.read() == b"content"
    with fs.open_output_stream(f"{path}/y") as file:
        file.write(b"back")
    assert storage.read_bytes(storage.join(root, "y")) == b"back"
