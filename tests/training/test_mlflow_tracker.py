"""MLflow's own client on a folder, and servers that are away: each step once, never in the way."""

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import mlflow
import pytest

from dnformer.config import TrackingConfig
from dnformer.errors import BackendError
from dnformer.parsing import parse
from dnformer.training.trackers import Tracker, open_trackers

PARAMS = {"name": "run", "optim": {"lr": 0.005, "clip_norm": None}, "note": "x" * 9000}


@pytest.fixture
def uri(tmp_path, monkeypatch) -> str:
    """A store in a folder: without a server, MLflow's client does all of its work itself."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return f"file://{tmp_path}/store"


@pytest.fixture
def start(tmp_path) -> Callable[..., Tracker]:
    """Begins or goes on with the run in tmp_path."""

    def make(uri: str, first_step: int = 0, **params: Any) -> Tracker:
        config = parse(TrackingConfig, {"mlflow": uri, "experiment": "papers"})
        (tracker,) = open_trackers(config, str(tmp_path / "run"), name="cora",
                                   params=PARAMS | params, first_step=first_step)  # fmt: skip
        return tracker

    return make


def epoch(step: int, loss: float) -> dict:
    return {"kind": "epoch", "epoch": step // 4, "step": step, "train/loss": loss,
            "stage_seconds": {"wait": {"mean": 0.5, "max": 0.75}}}  # fmt: skip


def runs(uri: str) -> list[Any]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("papers")
    return list(client.search_runs([experiment.experiment_id]))


def history(uri: str, key: str) -> list[tuple[int, float]]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = runs(uri)
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, key)]


def test_open_mlflow_logs_params_metrics_and_the_end(uri, start, tmp_path):
    tracker = start(uri)
    tracker.write({"kind": "start", "epoch": 0, "step": 0})
    tracker.write({"kind": "step", "epoch": 0, "step": 4, "train/loss": 0.75})
    tracker.write(epoch(4, 0.5))
    tracker.close()
    (run,) = runs(uri)
    assert run.info.run_name == "cora"
    assert run.info.status == "FINISHED"
    assert run.data.tags["dnformer.run"] == str(tmp_path / "run")
    assert run.data.params["optim.lr"] == "0.005"
    assert run.data.params["optim.clip_norm"] == "None"
    assert run.data.params["note"] == "x" * 6000
    assert history(uri, "train/loss") == [(4, 0.5)]
    assert history(uri, "step/train/loss") == [(4, 0.75)]
    assert history(uri, "stage_seconds/wait/max") == [(4, 0.75)]


def test_open_mlflow_goes_on_in_the_same_run_without_a_step_twice(uri, start):
    first = start(uri)
    for step in (4, 8, 12):
        first.write(epoch(step, 1 / step))
    first.close(finished=False)
    assert runs(uri)[0].info.status == "KILLED"
    # from the checkpoint of step 4, on other workers: two steps are done again
    second = start(uri, first_step=4, workers=3)
    for step in (8, 12, 16):
        second.write(epoch(step, 1 / step))
    second.close()
    assert [step for step, _ in history(uri, "train/loss")] == [4, 8, 12, 16]
    assert runs(uri)[0].info.status == "FINISHED"
    assert runs(uri)[0].data.params["workers"] == "3"


def test_mlflow_prints_nothing_where_results_go(server, start, capsys):
    tracker = start(server.uri)
    tracker.write(epoch(4, 0.5))
    tracker.close()
    assert "runs/update" in server.calls
    assert capsys.readouterr().out == ""


def test_open_mlflow_after_fresh_is_another_run(uri, start, tmp_path):
    start(uri).close()
    (tmp_path / "run/metrics/mlflow.json").unlink()  # as --fresh does
    start(uri).close()
    assert len(runs(uri)) == 2


def test_open_mlflow_sends_more_than_one_call_takes(uri, start):
    tracker = start(uri)
    for step in range(30):
        tracker.write({"kind": "epoch", "step": step, **{f"m{i}": float(i) for i in range(99)}})
    tracker.close()
    assert [step for step, _ in history(uri, "m98")] == list(range(30))


@pytest.mark.parametrize("uri", ["nonsense://x", "ftp://x"])
def test_open_mlflow_of_an_address_that_is_none_is_an_error(start, uri):
    with pytest.raises(BackendError, match=r"tracking.mlflow .*Supported URI schemes"):
        start(uri)


def test_open_mlflow_without_the_package_says_how_to_get_it(start, uri, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(BackendError, match=r"pip install 'dnformer\[mlflow\]'"):
        start(uri)


class Server(ThreadingHTTPServer):
    """Answers MLflow's REST API as far as a tracker asks it; `broken`: refuses everything."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.broken, self.asked = False, threading.Event()
        self.calls: list[str] = []
        self.batches: list[dict[str, Any]] = []
        self.run = {"info": {"run_id": "r", "experiment_id": "1"}, "data": {}}

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, call: str, body: dict[str, Any]) -> dict[str, Any] | None:
        self.calls.append(call)
        self.asked.set()
        if self.broken:
            return None
        if call == "runs/log-batch":
            self.batches.append(body)
        if call == "runs/create":
            self.run["data"] = {"tags": body["tags"]}
        made = [self.run] if self.run["data"] else []
        return {
            "experiments/get-by-name": {"experiment": {"experiment_id": "1", "name": "papers"}},
            "runs/search": {"runs": made},
            "runs/create": {"run": self.run},
            "runs/update": {"run_info": self.run["info"]},
        }.get(call, {})


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        call = self.path.split("/mlflow/")[1].split("?")[0]
        found = self.server.answer(call, json.loads(body or b"{}"))
        content = json.dumps(
            found or {"error_code": "INTERNAL_ERROR", "message": "no disk"}
        ).encode()
        self.send_response(200 if found is not None else 400)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_mlflow_keeps_records_until_the_server_takes_them(server, start, caplog):
    server.broken = True
    tracker = start(server.uri)
    tracker.write(epoch(4, 0.5))
    assert server.asked.wait(60)
    server.broken = False
    tracker.write(epoch(8, 0.25))
    tracker.close()
    sent = [m["step"] for b in server.batches for m in b.get("metrics", [])
            if m["key"] == "train/loss"]  # fmt: skip
    assert list(map(int, sent)) == [4, 8]
    assert [r.message for r in caplog.records if "no disk" in r.message] == [
        f"MLflow at {server.uri}: INTERNAL_ERROR: no disk; training goes on without it"
    ]


def test_mlflow_that_refuses_is_said_once_and_stops_nothing(server, start, caplog):
    caplog.set_level(logging.WARNING, logger="dnformer")
    server.broken = True
    tracker = start(server.uri)
    for step in (4, 8):
        server.asked.clear()
        tracker.write(epoch(step, 0.5))
        assert server.asked.wait(60)
        tracker.publish()
    tracker.close()
    said = [r.message for r in caplog.records if r.name == "dnformer"]
    assert len(said) == 2
    assert "training goes on without it" in said[0]
    assert said[1] == f"MLflow at {server.uri} lacks the last 2 records; RUN/metrics has them"


def test_mlflow_that_nobody_runs_stops_nothing(start, caplog, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracker = start("http://127.0.0.1:9")
    tracker.write(epoch(4, 0.5))
    tracker.close()
    said = [r.message for r in caplog.records if r.name == "dnformer"]
    assert "training goes on without it" in said[0]
    assert "lacks the last 1 records" in said[1]
