"""`dnformer doctor`, as a person and a program meet it; and `--storage-option`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec.config
import pytest
import typer
import yaml

from dnformer import storage
from dnformer.cli_doctor import doctor
from dnformer.cli_storage import configure_storage
from dnformer.config import StorageConfig
from dnformer.data.cache import write_cache
from dnformer.data.table import GraphTable
from dnformer.errors import ConfigError

from .flaky_s3 import FlakyS3

Run = Callable[..., tuple[int, str]]
Dataset = Callable[[Path], Path]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Runs `dnformer doctor ...`: exit code, stdout."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    app = typer.Typer()
    app.command()(doctor)

    def run(*arguments: str) -> tuple[int, str]:
        code = app(list(arguments), standalone_mode=False)
        return code or 0, capsys.readouterr().out

    yield run
    storage.configure(StorageConfig())


@pytest.fixture
def make_dataset(make_table: Callable[..., GraphTable]) -> Dataset:
    """Writes a dataset and a run's config into a folder; the config's path."""

    def make(folder: Path) -> Path:
        ring = [(i, (i + 1) % 60) for i in range(60)]
        y = [i % 2 for i in range(60)]
        table = make_table(ring, x=[[float(label)] for label in y], y=y, num_classes=2)
        write_cache(table, str(folder / "data"), source="test")
        values = {
            "name": "run",
            "storage_path": str(folder / "runs"),
            "data": {"uri": str(folder / "data"), "split": {"random": [0.6, 0.2, 0.2]}},
            "cache": {"dir": str(folder / "stores")},
            "loader": {"batch_size": 8, "num_neighbors": [1]},
            "model": {"hidden": 8},
            "train": {"epochs": 2, "threads": 1},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(values))
        return folder / "run.yaml"

    return make


def marked(out: str, mark: str) -> list[str]:
    """Names of the checks of a text for people that have this mark."""
    lines = [line.split() for line in out.splitlines()]
    return [words[1] for words in lines if words[0] == mark]


def test_doctor_without_options_looks_at_the_machine(run: Run) -> None:
    code, out = run()
    assert (code, marked(out, "FAIL")) == (0, [])
    assert {"python", "torch", "cores", "memory", "/dev/shm"} <= set(marked(out, "ok"))
    assert out.startswith("this machine\n")
    assert out.endswith("training would work\n")


def test_doctor_storage_tells_each_step(run: Run, tmp_path: Path) -> None:
    code, out = run("--storage", str(tmp_path))
    assert code == 0
    steps = ["write", "read", "clock", "list", "replace", "remove"]
    assert marked(out.partition(f"storage {tmp_path}\n")[2], "ok") == steps


def test_doctor_storage_that_fails_is_exit_code_1_with_a_mend(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    code, out = run("--storage", str(tmp_path / "file" / "x"))
    assert code == 1
    assert marked(out, "FAIL") == ["write"]
    assert out.splitlines()[-2].startswith(" " * 10)
    assert out.splitlines()[-2].lstrip().startswith("mend: ")
    assert "1 of " in out.splitlines()[-1]


def test_doctor_address_looks_at_the_head(run: Run) -> None:
    code, out = run("--address", "ray://head:10001")
    assert code == 1
    assert marked(out, "FAIL") == ["ray"]
    assert "http://head:8265" in out


def test_doctor_json_is_one_object(run: Run, tmp_path: Path) -> None:
    code, out = run("--storage", str(tmp_path), "--json")
    assert code == 0
    found = json.loads(out)
    assert set(found) == {"checks"}
    assert all(set(check) == {"name", "ok", "found", "mend"} for check in found["checks"])


def test_doctor_config_estimates_the_run(run: Run, make_dataset: Dataset, tmp_path: Path) -> None:
    config = make_dataset(tmp_path)
    code, out = run("--config", str(config), "--json")
    assert code == 0, out
    estimate = json.loads(out)["estimate"]
    assert estimate["gpu_hours"] == 0
    assert estimate["hours"] > 0
    assert run("--config", str(config))[1].count("GPU-hours") == 1


def test_doctor_bench_calls_no_machine_broken(run: Run, tmp_path: Path) -> None:
    code, out = run("--bench", "--storage", str(tmp_path), "--json")
    assert code == 0, out
    found = {check["name"]: check["found"] for check in json.loads(out)["checks"]}
    names = ("bench operator", "bench sampler", "bench write", "bench read")
    assert all("/s (" in found[name] for name in names)
    assert list(tmp_path.iterdir()) == []


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
