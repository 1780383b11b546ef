"""Options reach the stores' clients, also through Arrow and in other processes; secrets stay in."""

import errno
import pickle
import subprocess
import sys
import uuid
from collections.abc import Iterator

import fsspec
import fsspec.config
import pytest

from dnformer import storage
from dnformer.config import StorageConfig
from dnformer.errors import ConfigError
from dnformer.storage import Unreachable
from dnformer.storage.connect import connect, named

from .flaky_s3 import FlakyS3, LoseAnswer, Reset


@pytest.fixture
def address(server: FlakyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server's address, to which the environment does not lead: it has credentials only."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield server.url
    server.heal()
    storage.configure(StorageConfig())


def s3_options(**options: object) -> StorageConfig:
    return StorageConfig(options={"s3": options}, retry_s=1)


@pytest.mark.parametrize("protocol", ["s3", "s3a"])
def test_configure_leads_both_names_of_s3_to_an_endpoint(address: str, protocol: str) -> None:
    storage.configure(s3_options(endpoint_url=address))
    uri = f"{protocol}://bucket/{uuid.uuid4().hex}"
    storage.write_bytes(uri, b"1")
    assert storage.read_bytes(uri.replace(protocol, "s3", 1)) == b"1"
    assert storage.compare_and_put(uri, b"2", expected=b"1")


def test_configure_takes_options_of_the_client_below(address: str) -> None:
    storage.configure(s3_options(client_kwargs={"endpoint_url": address}))
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    storage.write_bytes(uri, b"1")
    assert storage.exists(uri)


def test_configure_again_forgets_what_was_configured(address: str) -> None:
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    storage.configure(s3_options(endpoint_url=address))
    storage.write_bytes(uri, b"1")
    storage.configure(StorageConfig(retry_s=0))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        storage.read_bytes(uri)
    storage.configure(s3_options(endpoint_url=address))
    assert storage.read_bytes(uri) == b"1"


def test_configure_keeps_the_defaults_that_the_user_gave_fsspec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"anon": True, "endpoint_url": "http://a"})
    storage.configure(s3_options(endpoint_url="http://b"))
    assert fsspec.config.conf["s3"] == {"anon": True, "endpoint_url": "http://b"}
    storage.configure(StorageConfig())
    assert fsspec.config.conf["s3"] == {"anon": True, "endpoint_url": "http://a"}


def test_configure_meets_no_file_system_with_other_options() -> None:
    storage.configure(s3_options(endpoint_url="http://a"))
    before, _ = connect("s3://bucket/x")
    storage.configure(s3_options(endpoint_url="http://b"))
    assert connect("s3://bucket/x")[0].endpoint_url == "http://b"
    storage.configure(s3_options(endpoint_url="http://a"))
    assert connect("s3://bucket/x")[0] is before
    storage.configure(StorageConfig())


def test_configure_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^storage\.options\.s4: no such protocol; .* s3, "):
        storage.configure(StorageConfig(options={"s4": {}}))


@pytest.mark.parametrize(
    "options", [{"endpoint": "http://a"}, {"client_kwargs": {"endpoint": "http://a"}}]
)
def test_configure_an_option_that_the_client_does_not_know_is_named(
    address: str, options: dict[str, object]
) -> None:
    storage.configure(s3_options(**options))
    with pytest.raises(ConfigError, match=r"storage\.options\.s3: .* no option 'endpoint'"):
        storage.exists("s3://bucket/x")


def test_configure_an_address_without_its_protocol_is_named(address: str) -> None:
    storage.configure(s3_options(endpoint_url="localhost"))
    with pytest.raises(ConfigError, match=r"^s3://bucket/x: Invalid endpoint: localhost$"):
        storage.exists("s3://bucket/x")


def test_arrow_filesystem_in_another_process_has_the_options(address: str) -> None:
    storage.configure(s3_options(endpoint_url=address))
    name = uuid.uuid4().hex
    script = (
        "import pickle, sys\n"
        "fs, path = pickle.load(sys.stdin.buffer)\n"
        "fs.create_dir(path)\n"
        "with fs.open_output_stream(path + '/x') as file: file.write(b'from afar')\n"
        "print([info.base_name for info in fs.get_file_info([path + '/x', path + '/y'])])\n"
    )
    pickled = pickle.dumps(storage.arrow_filesystem(f"s3://bucket/{name}"))
    assert b"test" not in pickled  # the credentials
    done = subprocess.run([sys.executable, "-c", script], input=pickled, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    assert storage.read_bytes(f"s3://bucket/{name}/x") == b"from afar"


def test_arrow_filesystem_outlives_faults(
    server: FlakyS3, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.fs
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    storage.configure(StorageConfig(options={"s3": {"endpoint_url": address}}))
    fs, path = storage.arrow_filesystem(f"s3://bucket/{uuid.uuid4().hex}")
    server.fail(LoseAnswer(), times=2, method="PUT")
    with fs.open_output_stream(f"{path}/x") as file:
        file.write(b"con")
        file.write(b"tent")
    server.fail(Reset(), times=1)
    assert fs.get_file_info(f"{path}/x").size == 7
    server.fail(Reset(), times=1)
    assert len(fs.get_file_info(pyarrow.fs.FileSelector(path))) == 1
    server.fail(Reset(), times=1, method="GET")
    with fs.open_input_stream(f"{path}/x") as file:
        assert file.read() == b"content"
    server.fail(Reset(), times=1)
    fs.delete_dir(path)
    assert fs.get_file_info(f"{path}/x").type == pyarrow.fs.FileType.NotFound
    assert not server.faults_left


def test_arrow_filesystem_equals_another_of_the_same_store(address: str) -> None:
    storage.configure(s3_options(endpoint_url=address))
    first, second = (storage.arrow_filesystem(f"s3://bucket/{name}")[0] for name in "ab")
    assert first == second
    assert first != storage.arrow_filesystem("memory://a")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GET https://h/b?X-Amz-Signature=0af3&x=1", "GET https://h/b?X-Amz-Signature=…&x=1"),
        ("https://h/b?a=1&X-Amz-Credential=AK%2F1", "https://h/b?a=1&X-Amz-Credential=…"),
        ("url='https://h/b?sv=1&sig=a%2Bb'", "url='https://h/b?sv=1&sig=…'"),
        ("https://h/o?key=AIza1&alt=json", "https://h/o?key=…&alt=json"),
        ("AWS4 Credential=AK/1, Signature=0af3", "AWS4 Credential=…, Signature=…"),
        ("{'access_token': 'ya29.x', 'n': 1}", "{'access_token': …, 'n': 1}"),
        ("Authorization: Bearer ya29.abcdef", "Authorization: Bearer …"),
        ("proxy http://me:pass@host:1 failed\n at x", "proxy http://…@host:1 failed at x"),
        ("s3://b/token=1/key=2/x: no such file", "s3://b/token=1/key=2/x: no such file"),
    ],
)
def test_redacted_hides_secrets_and_no_names(text: str, expected: str) -> None:
    assert storage.redacted(text) == expected


@pytest.mark.usefixtures("address")
def test_errors_of_a_signed_address_do_not_show_the_signature() -> None:
    storage.configure(StorageConfig(retry_s=0))
    uri = "http://127.0.0.1:9/x?X-Amz-Signature=0af3"
    with pytest.raises(OSError, match="Cannot connect") as caught:
        storage.read_bytes(uri)
    assert "0af3" not in str(caught.value)


def test_named_gives_the_text_of_a_client_without_its_secrets() -> None:
    text = "denied for https://h/b?X-Amz-Signature=0af3"
    with pytest.raises(PermissionError) as caught, named("s3://b/x"):
        raise PermissionError(text)
    assert caught.value.errno == errno.EACCES
    assert "0af3" not in str(caught.value)


def test_named_lets_an_error_of_ours_pass() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'x'"), named("s3://b/x"):
        raise TypeError("f() got an unexpected keyword argument 'x'")
