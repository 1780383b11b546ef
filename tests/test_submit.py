"""Jobs of a cluster without one: what is shipped, what is refused, what is started or attached to.

The cluster is a fake client with Ray's methods, and an HTTP server with a dashboard's pages.
"""

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from dnformer.config import RunConfig, load_config
from dnformer.data.ingest.run import IngestConfig
from dnformer.errors import BackendError, ConfigError
from dnformer.parsing import parse, put, read_yaml
from dnformer.prediction.options import PredictConfig
from dnformer.submit import head, package
from dnformer.submit.cluster import Cluster, address_of, check_versions, find_token, reach
from dnformer.submit.job import Job, JobState, decide, folder_job, run_job
from dnformer.submit.jobs import Jobs

VALUES: dict[str, Any] = {
    "name": "people/a", "storage_path": "s3://bucket/runs/", "data": {"uri": "/shared/people"},
}  # fmt: skip
TABLES: dict[str, Any] = {"edges": ["s3://b/e.csv"], "nodes": "/shared/n.csv"}


def config_with(path: str = "seed", value: Any = 0) -> RunConfig:
    return parse(RunConfig, put(VALUES, path, value))


def job(path: str = "seed", value: Any = 0, *options: str) -> Job:
    return run_job("train", config_with(path, value), options)


def ingesting(path: str = "overwrite", value: Any = False) -> Job:
    values = put({"out": "s3://b/people", "table": TABLES}, path, value)
    config = parse(IngestConfig, values)
    return folder_job("ingest", config, config.out)


def predicting(path: str = "mode", value: Any = "exact") -> Job:
    values = put({"run": "s3://b/runs/people", "out": "s3://b/said", "ids": ["a"]}, path, value)
    config = parse(PredictConfig, values)
    return folder_job("predict", config, config.out)


# what a job is


def test_id_is_of_the_command_and_the_run_alone():
    assert job().id == job("optim.lr", 0.5, "--fresh").id
    assert job().id.startswith("dnformer-train-people-a-")
    others = (job("name", "people/b"), job("storage_path", "/shared"),
              run_job("tune", config_with(), ()))  # fmt: skip
    assert len({job().id, *(other.id for other in others)}) == 4
    assert job("storage_path", "s3://bucket/runs").target == "s3://bucket/runs/people/a"
    assert ingesting().id.startswith("dnformer-ingest-people-")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("storage_path", "runs"), ("storage_path", "~/runs"), ("storage_path", "file://runs"),
        ("data.uri", "cache/people"), ("data.split", {"file": "split.npz"}), ("loss.mask", "m.npy"),
        ("train.continue_from", "runs/other"), ("cache.dir", "store"),
        ("tracking.mlflow", "mlruns"),
    ],
)  # fmt: skip
def test_path_of_this_machine_alone_is_refused(path, value):
    named = path if isinstance(value, str) else f"{path}.file"
    with pytest.raises(ConfigError, match=rf"^{named}: .* is a path of this machine alone; give"):
        job(path, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("out", "people"), ("table.edges", ["/shared/a.csv", "b.csv"]), ("table.nodes", "n.csv"),
        ("table.features_file", "x.npy"), ("engine", {"name": "local", "temp_dir": "tmp"}),
    ],
)  # fmt: skip
def test_path_of_this_machine_alone_is_refused_in_an_ingest(path, value):
    named = path if path != "engine" else "engine.temp_dir"
    with pytest.raises(ConfigError, match=rf"^{named}: .* is a path of this machine alone"):
        ingesting(path, value)


@pytest.mark.parametrize("path", ["run", "out", "data", "temp_dir"])
def test_path_of_this_machine_alone_is_refused_in_a_prediction(path):
    with pytest.raises(ConfigError, match=rf"^{path}: mine is a path of this machine alone"):
        predicting(path, "mine")


def test_prediction_is_one_job_a_folder(tmp_path):
    assert predicting().id.startswith("dnformer-predict-said-")
    assert predicting().id == predicting("layers", True).id
    assert predicting().extras() == ["s3"]
    shipped = package.stage(predicting(), tmp_path, auth_mode="token")
    assert shipped.entrypoint.endswith("sh start.sh predict --config predict.yaml")
    config = read_yaml((tmp_path / "job" / "predict.yaml").read_text(), name="predict.yaml")
    assert parse(PredictConfig, config).ids == ["a"]


def test_credential_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match=r"^data.uri holds a credential") as error:
        job("data.uri", "s3://me:hunter2@bucket/people")
    assert "hunter2" not in str(error.value)


def test_extras_are_those_of_the_uris_and_the_tracker():
    assert job().extras() == ["s3"]
    assert job("tracking.mlflow", "https://tracker").extras() == ["mlflow", "s3"]
    assert job("storage_path", "/shared").extras() == []
    assert ingesting("out", "gs://b/people").extras() == ["gcs", "s3"]


# what it means beside others


def state(id: str, status: str, of: Job) -> JobState:
    return JobState(
        id=id, name=of.name, command=of.command, target=of.target, status=status, started=1.0,
        ended=None, exit_code=None, message="", config=json.loads(of.metadata["config"]),
        options=of.metadata["options"],
    )  # fmt: skip


def test_first_job_of_a_run_starts():
    other = job("name", "other")
    assert decide(job(), [state(other.id, "running", other)]) == job().id


@pytest.mark.parametrize("status", ["pending", "running", "succeeded"])
def test_same_job_attaches(status):
    there = state(job().id, status, job())
    assert decide(job(), [there]) == there


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_ended_job_starts_anew_under_the_next_number(status):
    ended = [state(job().id, status, job()), state(f"{job().id}-9", status, job())]
    assert decide(job(), ended) == f"{job().id}-10"


@pytest.mark.parametrize(
    "again",
    [job("seed", 1), job("seed", 0, "--repeat", "3"), job("seed", 0, "--fresh")],
    ids=["setting", "option", "fresh"],
)
def test_other_settings_are_refused_while_it_runs_and_start_anew_after(again):
    with pytest.raises(ConfigError, match=r"with other settings \((seed: 0|options: None) there, "):
        decide(again, [state(job().id, "running", job())])
    assert decide(again, [state(job().id, "succeeded", job())]) == f"{job().id}-2"


def test_fresh_job_is_not_started_twice_but_once_it_has_ended():
    fresh = job("seed", 0, "--fresh")
    there = state(fresh.id, "running", fresh)
    assert decide(fresh, [there]) == there
    assert decide(fresh, [state(fresh.id, "succeeded", fresh)]) == f"{fresh.id}-2"


def test_ingest_that_succeeded_starts_anew():
    # its files may have changed; it does nothing where they have not
    there = state(ingesting().id, "succeeded", ingesting())
    assert decide(ingesting(), [there]) == f"{ingesting().id}-2"


# what is shipped


def test_staged_files_are_the_package_and_a_config_that_reads_back(tmp_path):
    shipped = package.stage(job("seed", 7, "--repeat", "3"), tmp_path, auth_mode="token")
    assert shipped.entrypoint == "exec sh start.sh train train.yaml --repeat 3"
    assert shipped.environment["env_vars"]["RAY_AUTH_MODE"] == "token"
    code, work = tmp_path / "dnformer", tmp_path / "job"
    assert shipped.environment["py_modules"] == [str(code)]
    assert shipped.environment["working_dir"] == str(work)
    ours = Path(package.__file__).parents[1]
    assert {file.relative_to(code) for file in code.rglob("*.py")} == {
        file.relative_to(ours) for file in ours.rglob("*.py")
    }
    assert not [*code.rglob("__pycache__"), *code.rglob("*.md")]
    assert load_config(work / "train.yaml") == config_with("seed", 7)
    assert len([*work.rglob("METADATA")]) == 1


def test_staged_config_of_an_ingest_reads_back(tmp_path):
    shipped = package.stage(ingesting(), tmp_path, auth_mode="disabled")
    assert shipped.entrypoint == "exec sh start.sh ingest --config ingest.yaml"
    values = read_yaml((tmp_path / "job" / "ingest.yaml").read_text(), name="ingest.yaml")
    assert folder_job("ingest", parse(IngestConfig, values), values["out"]) == ingesting()


def test_too_large_a_package_is_refused_with_the_arithmetic(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "small.py").write_bytes(b"#" * 1_000_000)
    with (code / "weights.bin").open("wb") as file:
        file.truncate(70_000_000)
    (tmp_path / "staged").mkdir()
    expected = (
        r"^a job would ship 71\.0\d MB: dnformer .* with 71\.00 MB in 2 files, the job's own with "
        r"0\.0\d MB, more than 67\.11 MB; the largest file is dnformer/weights\.bin with 70\.00 MB"
    )
    with pytest.raises(ConfigError, match=expected):
        package.stage(job(), tmp_path / "staged", auth_mode="token", package=code)


# the way there


@pytest.fixture
def variables(monkeypatch) -> pytest.MonkeyPatch:
    """No variable of Ray's set."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_address_is_the_given_one_else_that_of_rays_variables(variables):
    with pytest.raises(ConfigError, match="no cluster is named: give --address"):
        address_of(None)
    variables.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"; RAY_ADDRESS is 10\.0\.0\.1:6379"):
        address_of(None)
    variables.setenv("RAY_ADDRESS", "https://head/")
    assert address_of(None) == "https://head"
    variables.setenv("RAY_API_SERVER_ADDRESS", "http://api:8265")
    assert address_of(None) == "http://api:8265"
    assert address_of("http://mine:8265/") == "http://mine:8265"


@pytest.mark.parametrize("address", ["ray://head:10001", "head:8265", "auto", "http://"])
def test_address_that_is_no_dashboard_is_refused(address):
    with pytest.raises(ConfigError, match=r"expected the dashboard of its head, as in http://HOST"):
        address_of(address)


def test_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match="has a user or password") as error:
        address_of("http://me:hunter2@head:8265")
    assert "hunter2" not in str(error.value)


def test_token_is_that_of_the_variable_else_of_the_file(variables, tmp_path):
    assert find_token() == (None, "")
    file = tmp_path / "token"
    variables.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    with pytest.raises(ConfigError, match=r"^RAY_AUTH_TOKEN_PATH .*token: no token can be read"):
        find_token()
    file.write_text("\n")
    with pytest.raises(ConfigError, match="the file is empty"):
        find_token()
    file.write_text("abc\n")
    assert find_token() == ("abc", f"RAY_AUTH_TOKEN_PATH {file}")
    variables.setenv("RAY_AUTH_TOKEN", "def")
    assert find_token() == ("def", "RAY_AUTH_TOKEN")


Serve = Callable[[dict[str, Any]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server of pages, JSON or text, of which those at /api/v… want the token `right`."""
    servers: list[ThreadingHTTPServer] = []

    def start(pages: dict[str, Any]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers["Authorization"]
                pages.setdefault("tokens", []).append(given)
                if self.path == "/api/version" and "elsewhere" in pages:
                    self.send_response(302)
                    self.send_header("Location", f"{pages['elsewhere']}{self.path}")
                    self.end_headers()
                    return
                body, status = pages.get(self.path, b""), 200 if self.path in pages else 404
                if self.path.startswith("/api/v") and pages.get("token"):
                    status = {None: 401, "Bearer right": status}.get(given, 403)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def dashboard(mode: str = "token", ray: str = "2.60.1", python: str = "3.11.9") -> dict[str, Any]:
    return {
        "token": mode == "token",
        "/api/authentication_mode": {"authentication_mode": mode},
        "/api/version": {"version": "4", "ray_version": ray},
        "/api/v0/cluster_metadata": {"result": True, "data": {"pythonVersion": python}},
    }


def test_reach_says_what_runs_there(serve, variables):
    variables.setenv("RAY_AUTH_TOKEN", "right")
    address = serve(dashboard())
    assert reach(address) == Cluster(address, "2.60.1", "3.11.9", "right")
    # no token goes to a cluster that wants none
    address = serve(dashboard("disabled"))
    assert reach(address) == Cluster(address, "2.60.1", "3.11.9", None)


def test_token_goes_nowhere_else(serve, variables):
    variables.setenv("RAY_AUTH_TOKEN", "right")
    other: dict[str, Any] = dashboard()
    with pytest.raises(BackendError, match="answers with HTTP status 302"):
        reach(serve(dashboard() | {"elsewhere": serve(other)}))
    assert "tokens" not in other


def test_token_is_not_in_the_text_of_a_cluster():
    assert "right" not in repr(Cluster("http://head", "2.60.0", "3.11.7", "right"))


def test_reach_without_token_and_with_a_wrong_one(serve, variables):
    address = serve(dashboard())
    with pytest.raises(BackendError, match=r"wants a token, and none was given \(401\)"):
        reach(address)
    variables.setenv("RAY_AUTH_TOKEN", "wrong")
    with pytest.raises(BackendError, match=r"token of RAY_AUTH_TOKEN \(403\)") as error:
        reach(address)
    assert "wrong" not in str(error.value)


@pytest.mark.parametrize(
    "pages",
    [{}, {"/api/version": b"<html>", "/api/authentication_mode": b"<html>"}, {"/api/version": {}}],
    ids=["nothing", "html", "other json"],
)
def test_reach_of_another_server(serve, variables, pages):
    with pytest.raises(BackendError, match="answers, but is no Ray dashboard; expected"):
        reach(serve(pages))


def test_reach_where_nobody_listens(variables):
    with pytest.raises(BackendError, match=r"^http://127.0.0.1:1 cannot be reached \(Connection r"):
        reach("http://127.0.0.1:1")


def test_other_minor_versions_are_refused():
    ray, python = version("ray"), platform.python_version()
    check_versions(Cluster("http://head", ray.rpartition(".")[0] + ".99", python, None))
    with pytest.raises(BackendError, match=rf"^http://head runs Ray 2\.9\.0, here is Ray {ray}"):
        check_versions(Cluster("http://head", "2.9.0", python, None))
    with pytest.raises(BackendError, match=r"runs Python 3\.9\.1, here is Python 3\.1"):
        check_versions(Cluster("http://head", ray, "3.9.1", None))


# what is done there


class Ray:
    """A `JobSubmissionClient` whose jobs run as they are told."""

    def __init__(self, *, lasts: int = 0, fails: str = "") -> None:
        self.jobs: dict[str, Any] = {}
        self.sent: list[dict[str, Any]] = []
        self.lasts, self.fails = lasts, fails
        self.chunks: list[list[str]] = []

    def submit_job(self, **given: Any) -> None:
        id = given["submission_id"]
        if id in self.jobs:
            raise RuntimeError(f"Request failed with status code 500: ... {id} already exists.")
        self.sent.append(given)
        self.add(id, "PENDING", given["metadata"])

    def add(self, id: str, status: str, metadata: dict[str, str] | None = None) -> None:
        self.jobs[id] = SimpleNamespace(
            submission_id=id, status=SimpleNamespace(value=status), metadata=metadata,
            entrypoint="sleep 1", start_time=1500, end_time=None, driver_exit_code=None,
            message=None,
        )  # fmt: skip

    def get_job_info(self, id: str) -> Any:
        if id not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {id} does not exist.")
        job = self.jobs[id]
        if job.status.value == "PENDING":
            job.status.value = "RUNNING"
        elif job.status.value == "RUNNING" and self.fails:
            job.status.value, job.message = "FAILED", self.fails
        return job

    def list_jobs(self) -> list[Any]:
        return [*self.jobs.values(), SimpleNamespace(submission_id=None)]

    def stop_job(self, id: str) -> None:
        self.jobs[id].status.value = "STOPPED"

    async def tail_job_logs(self, id: str) -> AsyncIterator[str]:
        for text in self.chunks.pop(0):
            if text == "broken":
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield text
        self.jobs[id].status.value = "SUCCEEDED"


def jobs_of(ray: Ray) -> Jobs:
    return Jobs(Cluster("http://head", "2.60.0", "3.11.7", "right"), ray=ray)


def test_submit_starts_once_and_then_attaches():
    ray, said = Ray(), list[str]()
    begun, attached = jobs_of(ray).submit(job(), said.append)
    assert (begun.id, begun.status, attached) == (job().id, "running", False)
    assert begun.target == "s3://bucket/runs/people/a"
    assert said[0].startswith("shipping ")
    again, attached = jobs_of(ray).submit(job(), said.append)
    assert (again, attached, len(ray.sent)) == (begun, True, 1)
    assert ray.sent[0]["runtime_env"]["env_vars"]["RAY_AUTH_MODE"] == "token"


def test_submit_that_comes_second_by_a_moment_attaches():
    class Late(Ray):
        def list_jobs(self) -> list[Any]:
            before = super().list_jobs()
            self.add(job().id, "RUNNING", job().metadata)
            return before

    assert jobs_of(Late()).submit(job(), lambda _: None)[1]


def test_submit_tells_what_the_head_found():
    ray = Ray(fails="Job entrypoint command failed, last logs:\nerror: no duckdb\n")
    found, _ = jobs_of(ray).submit(job(), lambda _: None)
    assert (found.status, found.message) == ("failed", "no duckdb")


def test_failure_on_the_head_is_one_line():
    class Broken(Ray):
        def list_jobs(self) -> list[Any]:
            raise RuntimeError("status code 500: Traceback\n  File x\nException: no agent\n.")

    with pytest.raises(BackendError, match=r"^http://head: Exception: no agent$"):
        jobs_of(Broken()).all()


def test_head_that_went_away_is_one_line():
    class Gone(Ray):
        def list_jobs(self) -> list[Any]:
            raise requests.ConnectionError("HTTPConnectionPool(host='head'): Max retries exceeded")

    with pytest.raises(BackendError, match=r"^http://head cannot be reached any more; a job that"):
        jobs_of(Gone()).all()


def test_unknown_job_is_named():
    with pytest.raises(ConfigError, match=r"^http://head knows no job nobody; dnformer list"):
        jobs_of(Ray()).state("nobody")


def test_follow_goes_on_after_a_broken_connection_and_says_nothing_twice():
    ray, shown = Ray(), list[str]()
    ray.add("a", "RUNNING")
    ray.chunks = [["one\n", "tw", "broken"], ["broken"], ["one\ntwo\n", "three\n"]]
    assert jobs_of(ray).follow("a", shown.append).status == "succeeded"
    assert "".join(shown) == "one\ntwo\nthree\n"


def test_stop_tells_a_job_that_runs_and_leaves_one_that_has_ended():
    ray = Ray()
    ray.add("a", "RUNNING")
    ended, told = jobs_of(ray).stop("a")
    assert (ended.status, told) == ("stopped", True)
    assert jobs_of(ray).stop("a") == (ended, False)


def test_all_lists_what_was_submitted_the_newest_first():
    ray = Ray()
    ray.add("a", "RUNNING")
    ray.add("b", "SUCCEEDED", job().metadata)
    ray.jobs["b"].start_time = 2500
    assert [(each.id, each.name) for each in jobs_of(ray).all()] == [
        ("b", "people/a"), ("a", "sleep 1"),
    ]  # fmt: skip


# on the head


def test_lacking_names_what_is_not_there_or_too_old():
    given = ["torch>=2", "nothing-such>=1", "numpy>=99", "s3-such>1; extra == 's3'",
             "dev-such; extra == 'dev'", "old-such; python_version < '3'"]  # fmt: skip
    numpy = version("numpy")
    expected = ["nothing-such>=1 (found none)", f"numpy>=99 (found {numpy})"]
    assert [*head.lacking(given, [""])] == expected
    assert [*head.lacking(given, ["s3"])] == [*expected, "s3-such>1 (found none)"]


def on_head(staged: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    # as Ray has it for a job: its folder, and that of each module
    shipped = f"{staged / 'job'}{os.pathsep}{staged}"
    return subprocess.run(
        [sys.executable, "-m", "dnformer.submit.head", *arguments], capture_output=True, text=True,
        cwd=staged / "job", env={**os.environ, "PYTHONPATH": path or shipped}, check=False,
    )  # fmt: skip


def test_head_becomes_the_command_or_says_in_one_line_why_not(tmp_path):
    package.stage(job(), tmp_path, auth_mode="disabled")
    ours = version("dnformer")
    found = on_head(tmp_path, ours, "", "describe", "nowhere")
    assert (found.returncode, "Traceback" in found.stderr) == (2, False)
    assert "nowhere" in found.stderr
    foreign = on_head(tmp_path, "99.0", "", "describe", "nowhere")
    assert foreign.returncode == 2
    assert foreign.stderr.startswith(f"error: the head runs its own dnformer {ours} in ")
    shadowed = on_head(tmp_path, ours, "", "describe", "nowhere", path="/nowhere")
    assert shadowed.stderr.startswith("error: the head runs its own dnformer")
    metadata = next((tmp_path / "job").rglob("METADATA"))
    metadata.write_text(metadata.read_text().replace("Dist: torch>=", "Dist: torch>=9", 1))
    lacking = on_head(tmp_path, ours, "", "describe", "nowhere")
    assert lacking.returncode == 2
    assert lacking.stderr.startswith(f"error: the cluster's image cannot run dnformer {ours}, ")
    assert len(lacking.stderr.splitlines()) == 1
