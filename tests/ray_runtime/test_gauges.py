"""What Ray's own metrics page of a node shows of a run."""

import json
import re
import time
import urllib.request
from collections.abc import Callable

import pytest

from dnformer.ray_runtime import Resources, session

RECORD = {
    "kind": "epoch", "epoch": 2, "step": 12, "train/loss": 0.5, "val/accuracy": 0.75,
    "lr": 0.0625, "grad_norm": 2.0, "seconds": 3.0, "seeds_per_s": 640.0, "edges_per_s": 8192.0,
    "world_size": 2, "skipped_steps": 0,
    "stage_seconds": {"wait": {"mean": 1.0, "max": 1.5}, "forward": {"mean": 0.25, "max": 0.5}},
    "peak_rss_bytes": {"mean": 2.0**30, "max": 2.0**31}, "cache_hit_rate": {"mean": 0.5, "max": 1},
}  # fmt: skip


def worker(record: dict) -> Callable[[], None]:
    """A task that sets the gauges and lives on, as a worker does."""

    def run() -> None:
        from dnformer.ray_runtime.gauges import Gauges

        Gauges("runs/cora").write(record)
        time.sleep(600)

    return run


def shown(port: int) -> dict[str, float]:
    """Our gauges on the page of a node: `name{split="val",..}` without the tags of Ray's own."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        match = re.match(r"ray_(dnformer_\w+)\{(.*)\} (\S+)$", line)
        if match:
            tags = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
            assert tags["run"] == "runs/cora"
            ours = [tags[key] for key in ("split", "metric", "stage", "of") if key in tags]
            found["/".join([match[1], *ours])] = float(match[3])
    return found


@pytest.mark.ray
def test_gauges_are_on_the_metrics_page_of_the_node():
    with session(Resources(1, 1), lambda text: None):
        import ray

        task = ray.remote(worker(json.loads(json.dumps(RECORD)))).remote()
        (node,) = ray.nodes()
        found: dict[str, float] = {}
        end = time.monotonic() + 120
        while "dnformer_metric/val/accuracy" not in found and time.monotonic() < end:
            time.sleep(1)
            found = shown(node["MetricsExportPort"])
        ray.cancel(task, force=True)
    assert found == {
        "dnformer_epoch": 2, "dnformer_step": 12, "dnformer_world_size": 2,
        "dnformer_lr": 0.0625, "dnformer_grad_norm": 2, "dnformer_skipped_steps": 0,
        "dnformer_seeds_per_s": 640, "dnformer_edges_per_s": 8192,
        "dnformer_metric/train/loss": 0.5, "dnformer_metric/val/accuracy": 0.75,
        "dnformer_stage_seconds/wait/mean": 1, "dnformer_stage_seconds/wait/max": 1.5,
        "dnformer_stage_seconds/forward/mean": 0.25, "dnformer_stage_seconds/forward/max": 0.5,
        "dnformer_peak_rss_bytes/mean": 2**30, "dnformer_peak_rss_bytes/max": 2**31,
        "dnformer_cache_hit_rate/mean": 0.5, "dnformer_cache_hit_rate/max": 1,
    }  # fmt: skip
