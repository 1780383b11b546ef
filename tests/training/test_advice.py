"""Each stage that dominates has its line, with fields that exist; what cannot help is not said."""

import re
from typing import Any

import pytest

from dnformer.config import RunConfig
from dnformer.parsing import leaves, parse
from dnformer.training.advice import advice


def config(**sections: Any) -> RunConfig:
    values = {"name": "run", "data": {"uri": "data"}, "train": {"micro_batches": 4}}
    return parse(RunConfig, {k: values.get(k, {}) | v for k, v in sections.items()} | {
        k: v for k, v in values.items() if k not in sections})  # fmt: skip


def record(world_size: int = 1, *, uneven: float = 1.0, read: int = 0, **stages: float) -> dict:
    """An epoch whose stages took so many seconds; the slowest worker `uneven` times that."""
    # all ranks end together: what one works longer, the others wait for
    most = {"reduce": 1.0}
    return {
        "kind": "epoch", "epoch": 1, "step": 8, "world_size": world_size, "seconds": 10.0,
        "stage_seconds": {
            stage: {"mean": seconds, "max": seconds * most.get(stage, uneven)}
            for stage, seconds in ({"forward": 1.0, "backward": 1.0} | stages).items()
        },
        "feature_bytes_read": {"mean": read, "max": read},
    }  # fmt: skip


def test_advice_on_sampling_raises_threads():
    found = advice(record(wait=3.0, sample=9.0, gather=1.0), config(), cores=8)
    assert found == (
        "wait",
        "waiting for batches (sampling) is 60 % of the time: raise loader.threads (2)",
    )


def test_advice_on_cores_that_nobody_knows_raises_threads():
    found = advice(record(wait=3.0, sample=9.0, gather=1.0), config())
    assert found is not None
    assert found.text.endswith("raise loader.threads (2)")


@pytest.mark.parametrize(("cores", "world_size"), [(2, 1), (5, 2)])
def test_advice_never_asks_for_more_threads_than_cores(cores, world_size):
    busy = record(world_size, wait=3.0, sample=9.0, gather=1.0)
    assert advice(busy, config(), cores=cores) is None
    assert advice(busy, config(), cores=3 * world_size) is not None


def test_advice_on_idle_loader_threads_raises_prefetch():
    found = advice(record(wait=3.0, sample=2.0, gather=1.0), config(), cores=2)
    assert found is not None
    assert found.text.endswith("(sampling) is 60 % of the time: raise loader.prefetch (4)")


@pytest.mark.parametrize(
    ("cores", "read", "mend"),
    [
        (8, 1, "raise loader.threads (2) or cache.hot_bytes (0)"),
        (2, 1, "raise cache.hot_bytes (0)"),
        (8, 0, "raise loader.threads (2)"),
        (2, 0, None),
    ],
    ids=["both", "no cores", "none are read", "nothing helps"],
)
def test_advice_on_gathering(cores, read, mend):
    found = advice(record(wait=3.0, sample=1.0, gather=9.0, read=read), config(), cores=cores)
    if mend is None:
        assert found is None
    else:
        assert found == (
            "wait",
            f"waiting for batches (reading features) is 60 % of the time: {mend}",
        )


def test_advice_on_the_whole_graph_says_nothing_of_the_loader():
    full = config(loader={"kind": "full"}, train={"micro_batches": 1})
    assert advice(record(wait=8.0, sample=8.0, gather=8.0), full, cores=64) is None


def test_advice_on_copies_to_the_gpu():
    gpu = config(train={"use_gpu": True}, cache={"hot_gpu_bytes": 1024})
    found = advice(record(copy=2.0), gpu)
    assert found == (
        "copy",
        "copying batches to the GPU is 50 % of the time: raise cache.hot_gpu_bytes (1024)",
    )
    assert advice(record(copy=2.0), config()) is None


def test_advice_on_an_uneven_worker():
    found = advice(
        record(2, uneven=1.5, reduce=2.0), config(train={"workers": 2, "micro_batches": 4})
    )
    assert found is not None
    assert found.text == (
        "workers wait for each other 50 % of the time: the slowest takes 1.5 times the mean; look "
        "what else its machine does"
    )


def test_advice_on_micro_batches_that_do_not_divide():
    uneven = config(train={"workers": 4, "micro_batches": 6})
    found = advice(record(4, uneven=1.5, reduce=2.0), uneven)
    assert found is not None
    assert "the 6 train.micro_batches of a step keep 3 or 6 train.workers busy, not 4" in found.text


@pytest.mark.parametrize("world_size", [2, 3])
def test_advice_on_workers_that_decide_the_micro_batches_says_nothing_of_them(world_size):
    undecided = config(train={"workers": 3, "micro_batches": None})
    assert advice(record(world_size, reduce=2.0), undecided) is None


def test_advice_on_a_slow_network_of_even_workers_is_none():
    assert advice(record(2, reduce=8.0), config(train={"workers": 2, "micro_batches": 4})) is None


@pytest.mark.parametrize(
    ("mode", "mend"),
    [
        ("exact", "raise eval.every_epochs (1) or set eval.mode: sampled"),
        ("sampled", "raise eval.every_epochs (1)"),
    ],
)
def test_advice_on_validation(mode, mend):
    found = advice(record(evaluate=3.0), config(eval={"mode": mode}))
    assert found == ("evaluate", f"validation is 60 % of the time: {mend}, in a new run")


@pytest.mark.parametrize(
    ("checkpoint", "mend"),
    [
        ({"every_steps": 5}, "raise checkpoint.every_steps (5)"),
        ({"every_s": 30}, "raise checkpoint.every_s (30)"),
        ({}, "raise checkpoint.every_epochs (1)"),
        ({"every_steps": 5, "background": False}, "set checkpoint.background: true"),
    ],
    ids=["steps", "seconds", "epochs", "in the way"],
)
def test_advice_on_checkpoints(checkpoint, mend):
    found = advice(record(checkpoint=2.0), config(checkpoint=checkpoint))
    assert found == ("checkpoint", f"saving checkpoints is 50 % of the time: {mend}")


def test_advice_on_the_model_itself_is_none():
    assert advice(record(forward=50.0, backward=50.0, wait=1.0, evaluate=2.0), config()) is None


def test_advice_on_an_epoch_of_no_time_is_none():
    assert advice(record(forward=0.0, backward=0.0), config()) is None


def test_advice_takes_the_largest_stage_that_has_a_mend():
    both = record(wait=6.0, sample=9.0, gather=1.0, evaluate=8.0)
    found = advice(both, config(eval={"mode": "exact"}), cores=8)
    assert found is not None
    assert found.stage == "evaluate"
    # the largest cannot be mended here
    waits = record(wait=9.0, sample=20.0, evaluate=8.0)
    found = advice(waits, config(), cores=2)
    assert found is not None
    assert found.stage == "evaluate"


def test_advice_names_only_fields_that_exist():
    fields = {leaf.path for leaf in leaves(config())}
    everything = [
        advice(record(wait=3.0, gather=9.0, read=1), config()),
        advice(record(wait=3.0), config()),
        advice(record(copy=2.0), config(train={"use_gpu": True})),
        advice(record(4, reduce=2.0), config(train={"workers": 4, "micro_batches": 6})),
        advice(record(evaluate=3.0), config()),
        *(advice(record(checkpoint=2.0), config(checkpoint=c))
          for c in ({"every_steps": 5}, {"every_s": 30}, {}, {"background": False})),
    ]  # fmt: skip
    for found in everything:
        assert found is not None
        named = re.findall(r"[a-z]+\.[a-z_]+", found.text)
        assert named
        assert set(named) <= fields
