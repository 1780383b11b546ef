"""Guards: what is not finite is described, what hangs is shown and who is to blame for it."""

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dnformer import storage
from dnformer.errors import TrainError
from dnformer.group import Group
from dnformer.training.guards import Suspect, Trouble, Watchdog, not_finite
from dnformer.training.stages import Stages

# a stage of the tests is over when an event says so, which takes this long at most
PATIENCE_S = 150


def suspect(micro_batch: int, loss: float, nodes: list[int]) -> Suspect:
    return Suspect(micro_batch, loss, torch.tensor(nodes))


@pytest.fixture(params=["local", "memory"])
def run(request, tmp_path) -> str:
    return str(tmp_path / "run") if request.param == "local" else f"memory://{tmp_path.name}/run"


def test_not_finite_names_the_step_and_its_nodes(run):
    suspects = [suspect(6, float("nan"), list(range(100, 120))), suspect(7, float("inf"), [3])]
    error = not_finite(run, 1, Trouble(12, 2, "loss", suspects))
    assert isinstance(error, TrainError)
    uri = f"{run}/failed/step-12-rank-1.json"
    assert str(error) == (
        "the loss is not finite at step 12 (epoch 2), micro-batch 6, whose loss is nan (nodes 100, "
        "101, 102, 103, 104, 105, 106, 107 and 12 more) and 1 more; all their nodes are in "
        f"{uri}. The last checkpoint is kept. Lower optim.lr, set optim.clip_norm, or look at the "
        "features of these nodes, and start with --fresh"
    )
    assert json.loads(storage.read_bytes(uri)) == {
        "format": 1,
        "step": 12,
        "epoch": 2,
        "what": "loss",
        "micro_batches": [
            {"micro_batch": 6, "loss": "nan", "nodes": list(range(100, 120))},
            {"micro_batch": 7, "loss": "inf", "nodes": [3]},
        ],
    }


def test_not_finite_takes_the_place_of_the_file_of_an_older_start(run):
    for nodes in ([1], [2]):
        error = not_finite(run, 0, Trouble(5, 0, "gradient", [suspect(5, 0.5, nodes)]))
    assert "the gradient is not finite at step 5 (epoch 0), micro-batch 5 (nodes 2); " in str(error)
    found = json.loads(storage.read_bytes(f"{run}/failed/step-5-rank-0.json"))
    assert [each["nodes"] for each in found["micro_batches"]] == [[2]]
    assert storage.list_names(f"{run}/failed") == ["step-5-rank-0.json"]


def test_not_finite_of_a_rank_without_a_suspect_points_to_the_others(run):
    error = not_finite(run, 0, Trouble(5, 0, "loss", []))
    assert "no micro-batch of rank 0 has it, see " in str(error)
    assert f"{run}/failed/step-5-rank-*.json" in str(error)


def test_not_finite_is_told_also_where_nothing_can_be_written(tmp_path):
    (tmp_path / "failed").write_text("a file where the folder should be")
    suspects = [suspect(0, float("nan"), [4, 9])]
    error = not_finite(str(tmp_path), 0, Trouble(0, 0, "loss", suspects))
    assert "(nodes 4, 9); their nodes could not be written (" in str(error)
    assert "\n" not in str(error)


class Said:
    """What a watchdog says."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue()

    def __call__(self, line: str) -> None:
        self._lines.put(line)

    def next(self) -> str:
        return self._lines.get(timeout=PATIENCE_S)

    @property
    def nothing_more(self) -> bool:
        return self._lines.empty()


def watchdogs() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("dnformer-watchdog")]


def test_watchdog_tells_once_of_a_stuck_stage_and_when_it_goes_on(run):
    stages, said = Stages(), Said()
    with Watchdog(stages, 3, timeout_s=0.05, run=run, say=said) as watch:
        watch.step = 17
        with stages.timed("forward"):
            line = said.next()
            time.sleep(0.3)  # several timeouts more: it must not tell again
            assert said.nothing_more
        on = said.next()
    uri = f"{run}/failed/stuck-step-17-rank-3.txt"
    assert line.startswith("rank 3 is stuck in forward at step 17, for 0.")
    assert line.endswith(f" s; stacks: {uri}")
    assert on.startswith("rank 3 goes on at step 17, after 0.")
    assert on.endswith(" s in forward")
    text = storage.read_bytes(uri).decode()
    assert text.startswith("rank 3 is stuck in forward at step 17")
    assert "thread MainThread:" in text
    assert "line = said.next()" in text, "where it hangs"
    assert not watchdogs()


def test_watchdog_tells_of_each_stuck_stage(tmp_path):
    stages, said = Stages(), Said()
    with Watchdog(stages, 0, timeout_s=0.05, run=str(tmp_path), say=said):
        for stage, named in (("wait", "is stuck in wait (the loader)"),
                             ("checkpoint", "is stuck in checkpoint"),
                             ("reduce", "waits for the others in reduce")):  # fmt: skip
            with stages.timed(stage):
                while f"rank 0 {named} at step 0" not in said.next():
                    pass
        while "rank 0 is stuck between two stages at step 0" not in said.next():
            pass


def test_watchdog_says_nothing_of_stages_that_go_on(tmp_path):
    stages, said = Stages(), Said()
    with Watchdog(stages, 0, timeout_s=30, run=str(tmp_path), say=said):
        for _ in range(100):
            with stages.timed("forward"):
                time.sleep(0.001)
    assert said.nothing_more
    assert not (tmp_path / "failed").exists()


def test_watchdog_ends_when_the_block_fails(tmp_path):
    watchdog = Watchdog(Stages(), 0, timeout_s=600, run=str(tmp_path), say=print)
    with pytest.raises(RuntimeError, match="1 thread"), watchdog:
        raise RuntimeError(f"{len(watchdogs())} thread")
    assert not watchdogs()


def test_watchdog_shows_stacks_where_they_cannot_be_written(tmp_path, capsys):
    (tmp_path / "failed").write_text("a file where the folder should be")
    stages, said = Stages(), Said()
    with (
        Watchdog(stages, 0, timeout_s=0.05, run=str(tmp_path), say=said),
        stages.timed("backward"),
    ):
        said.next()
        shown = ""
        while "thread MainThread:" not in shown:
            shown += capsys.readouterr().err
    assert "stuck-step-0-rank-0.txt could not be written (" in shown
    assert "rank 0 is stuck in backward" in shown


def test_watchdog_names_a_loader_that_hangs(tmp_path):
    """A process of its own trains with a loader whose thread never gives a batch."""
    command = [sys.executable, __file__, "hang", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        # it is told first, and written then
        path = tmp_path / "failed" / "stuck-step-2-rank-0.txt"
        wait_for(path)
        process.kill()
    assert "rank 0 is stuck in wait (the loader) at step 2" in line
    text = path.read_text()
    assert "dnformer-test-loader" in text, "the thread that hangs"
    assert "never.wait()" in text


def test_watchdog_of_two_ranks_tells_who_waits_for_whom(tmp_path):
    """Rank 1 sleeps in its forward pass; rank 0 waits for it in the sum over the ranks."""
    command = [sys.executable, __file__, "ranks", str(tmp_path)]
    members = [
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [member.communicate(timeout=PATIENCE_S)[1].splitlines() for member in members]
    assert [member.returncode for member in members] == [0, 0], said
    waiting, stuck = said
    assert "rank 0 waits for the others in evaluate at step 4" in waiting[0]
    assert waiting[0].index("look for a rank that is stuck") < waiting[0].index("stacks: ")
    assert "rank 1 is stuck in forward at step 4" in stuck[0]
    assert "rank 0 goes on" in waiting[-1]
    assert "rank 1 goes on" in stuck[-1]
    for rank, where in enumerate(("in sum_", "in wait_for")):
        path = tmp_path / "failed" / f"stuck-step-4-rank-{rank}.txt"
        assert where in path.read_text()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def hang(folder: str) -> None:
    """Takes two batches of a loader that has no third."""
    never, batches = threading.Event(), queue.Queue()

    def load() -> None:
        batches.put(1)
        batches.put(2)
        never.wait()

    threading.Thread(target=load, name="dnformer-test-loader", daemon=True).start()
    stages = Stages()
    with Watchdog(stages, 0, timeout_s=0.3, run=folder, say=say) as watch:
        for step in range(3):
            watch.step = step
            with stages.timed("wait"):
                batches.get()


def ranks(folder: str, rank: int) -> None:
    """One of two ranks; the second one is stuck until both have told."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    group, stages, released = Group(rank, 2), Stages(), Path(folder, "released")

    def tell(line: str) -> None:
        say(line)
        Path(folder, f"told-{rank}").touch()
        if all(Path(folder, f"told-{each}").exists() for each in range(2)):
            released.touch()

    with Watchdog(stages, rank, timeout_s=0.5, run=folder, say=tell) as watch:
        watch.step = 4
        if rank == 1:
            with stages.timed("forward"):
                wait_for(released)
        # as the loop does it, but in a stage whose name alone does not say that it waits
        with stages.timed("evaluate"):
            group.sum_(torch.ones(3))
        with stages.timed("forward"):
            time.sleep(0.3)  # so that the watchdog sees that it goes on
    dist.destroy_process_group()


if __name__ == "__main__":
    hang(sys.argv[2]) if sys.argv[1] == "hang" else ranks(sys.argv[2], int(sys.argv[3]))
