"""Workers as processes with gloo, without Ray: who computes a micro-batch does not matter."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dnformer.config import RunConfig
from dnformer.data.manifest import read_manifest
from dnformer.driver import Driver
from dnformer.errors import BackendError, CheckpointError, DataError
from dnformer.group import Group
from dnformer.training.build import build_loader, build_parts, device_for, open_run_graph
from dnformer.training.checkpoints import newest_checkpoint, read_checkpoint
from dnformer.training.run import Attempt, Run, portable
from dnformer.training.sinks import read_metrics
from dnformer.training.worker import Job, run_worker


def make_job(config: RunConfig) -> Job:
    fingerprint = read_manifest(config.data.uri).fingerprint
    with Run(config, fingerprint) as run:
        return Job(portable(run.config), fingerprint, run.attempt)


def run_together(job: Job, folder: Path, *, world_size: int) -> list[dict]:
    """The results of `world_size` processes that run this file."""
    file = folder / "job.json"
    file.write_text(json.dumps(asdict(job)))
    command = [sys.executable, __file__, str(file), f"file://{folder}/meet", str(world_size)]
    members = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE)
        for rank in range(world_size)
    ]
    return [json.loads(member.communicate(timeout=120)[0]) for member in members]


def losses(run: str) -> list[float]:
    return [r["train/loss"] for r in read_metrics(run) if r["kind"] == "step"]


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float32", 1e-5), ("float64", 1e-9)], ids=["float32", "float64"]
)
def test_two_workers_train_as_one_does(make_config, tmp_path, precision, tolerance):
    # dropout is on; three micro-batches a step on two workers, and a short last one
    sections = {"micro_batches": 3, "precision": precision, "epochs": 7}
    one = make_job(make_config(tmp_path / "one", train=sections))
    two = make_job(make_config(tmp_path / "two", train={**sections, "workers": 2}))
    alone = run_worker(one, Group(), Driver())
    together = run_together(two, tmp_path, world_size=2)
    assert together[0] == together[1]
    assert len(losses(one.run)) == 21
    np.testing.assert_allclose(losses(two.run), losses(one.run), rtol=0, atol=tolerance)
    assert together[0]["epochs"] == alone["epochs"]
    if precision == "float64":
        assert together[0]["test"] == pytest.approx(alone["test"], abs=1e-9)
        tensors = [read_checkpoint(*newest_checkpoint(job.run))[0] for job in (one, two)]
        for name, tensor in tensors[0].items():
            torch.testing.assert_close(tensors[1][name], tensor, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", ["exact", "sampled"])
@pytest.mark.parametrize("label", ["tags", "size"])
def test_two_workers_measure_what_one_does(make_config, mixed, tmp_path, label, mode):
    sections = {"micro_batches": 2, "precision": "float64", "epochs": 2}
    options = {"data": {"uri": mixed, "label": label}, "eval": {"mode": mode}}
    one = make_job(make_config(tmp_path / "one", train=sections, **options))
    two = make_job(make_config(tmp_path / "two", train={**sections, "workers": 2}, **options))
    alone = run_worker(one, Group(), Driver())
    together = run_together(two, tmp_path, world_size=2)
    assert together[0] == together[1]
    for split in ("val", "test"):
        assert together[0][split] == pytest.approx(alone[split], rel=1e-9)
    epochs = [[r for r in read_metrics(job.run) if r["kind"] == "epoch"] for job in (one, two)]
    for first, second in zip(*epochs, strict=True):
        named = {key for key in first if key.startswith(("train/", "val/"))}
        assert {key: second[key] for key in named} == pytest.approx(
            {key: first[key] for key in named}, rel=1e-9
        )


def test_two_workers_draw_the_micro_batches_of_one(make_config, tmp_path):
    config = make_config(tmp_path, train={"micro_batches": 2})
    graph = open_run_graph(config, read_manifest(config.data.uri).fingerprint)
    cpu = torch.device("cpu")
    parts = build_parts(config, graph, Group())
    alone, shared = (build_loader(config, graph, parts, cpu) for _ in range(2))
    drawn = list(alone.draws(range(8)))
    for rank in range(2):
        for index, batch in zip(range(rank, 8, 2), shared.draws(range(rank, 8, 2)), strict=True):
            assert torch.equal(batch.n_id, drawn[index].n_id)
            assert torch.equal(batch.e_id, drawn[index].e_id)
            assert shared.key(index) == alone.key(index)


def test_run_worker_refuses_a_dataset_that_was_exchanged(make_config, tmp_path):
    job = make_job(make_config(tmp_path))
    other = replace(job, fingerprint="0" * 64)
    with pytest.raises(DataError, match="the run was made with 000000000000"):
        run_worker(other, Group(), Driver())


def test_run_worker_stops_when_it_was_superseded(make_config, tmp_path):
    config = make_config(tmp_path)
    job = make_job(config)
    make_job(config)
    with pytest.raises(CheckpointError, match="attempt 1 was superseded"):
        run_worker(job, Group(), Driver())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_device_for_a_gpu_that_is_not_there():
    with pytest.raises(BackendError, match=r"train\.use_gpu is true"):
        device_for(True)


def member(file: str, address: str, world_size: int, rank: int) -> None:
    """One worker: prints its result."""
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    values = json.loads(Path(file).read_text())
    job = Job(values["config"], values["fingerprint"], Attempt(**values["attempt"]))
    result = run_worker(job, Group(rank, world_size), Driver())
    result.pop("seconds")
    print(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    member(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
