"""`dnformer doctor`, as a person and a program meet it; and `--storage-option`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec.config
import pytest
import typer

from dnformer import storage
from dnformer.cli_doctor import doctor
from dnformer.cli_storage import configure_storage
from dnformer.config import StorageConfig
from dnformer.errors import ConfigError

from .flaky_s3 import FlakyS3

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs `dnformer doctor ...`: exit code, stdout."""
    app = typer.Typer()
    app.command()(doctor)

    def run(*arguments: str) -> tuple[int, str]:
        code = app(list(arguments), standalone_mode=False)
        return code or 0, capsys.readouterr().out

    yield run
    storage.configure(StorageConfig())


def test_doctor_without_storage_looks_at_the_machine(run: Run) -> None:
    code, out = run()
    assert code == 0
    assert {line.split()[0] for line in out.splitlines()} == {"ok"}
    assert "memory" in out


def test_doctor_storage_tells_each_step(run: Run, tmp_path: Path) -> None:
    code, out = run("--storage", str(tmp_path))
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["ok", step] for step in ("write", "read", "list", "replace", "remove")
    ]


def test_doctor_storage_that_fails_is_exit_code_1_with_a_mend(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    code, out = run("--storage", str(tmp_path / "file" / "x"))
    assert code == 1
    assert out.startswith("FAIL  write")
    assert "mend: " in out


def test_doctor_json_is_one_object(run: Run, tmp_path: Path) -> None:
    code, out = run("--storage", str(tmp_path), "--json")
    assert code == 0
    checks = json.loads(out)["checks"]
    assert [set(check) for check in checks] == [{"name", "ok", "found", "mend"}] * 5


def test_doctor_storage_option_leads_to_the_endpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FlakyS3() as server:
        uri = server.create_bucket("bucket")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        option = f"s3.endpoint_url={server.url}"
        code, out = run("--storage", f"{uri}/x", "--storage-option", option)
    assert code == 0, out


def test_configure_storage_takes_nested_options_as_yaml() -> None:
    before = {name: value for name, value in fsspec.config.conf.items() if value}
    configure_storage(["s3.client_kwargs.region_name=eu-1", "s3.use_ssl=false", "s3.max=2"])
    assert fsspec.config.conf["s3"] == {
        "client_kwargs": {"region_name": "eu-1"}, "use_ssl": False, "max": 2
    }  # fmt: skip
    configure_storage(None)
    assert {name: value for name, value in fsspec.config.conf.items() if value} == before


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("s3.secret=hush", "s3.secret is a credential"),
        ("s3.client_kwargs.aws_secret_access_key=hush", "is a credential"),
        ("s3.endpoint_url=http://me:hush@host", "user or password in its address"),
        ("endpoint_url=http://host", r"expected PROTOCOL\.NAME=VALUE"),
        ("s3.=hush", r"expected PROTOCOL\.NAME=VALUE"),
        ("s3.endpoint_url", r"expected PROTOCOL\.NAME=VALUE"),
        ("s3.a=[hush", "no valid YAML"),
        ("s4.a=1", "no such protocol"),
    ],
)
def test_configure_storage_refuses_an_option_without_showing_it(option: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configure_storage([option])
    assert "hush" not in str(caught.value)
