"""One line on what would make a run faster, where one stage of its epochs dominates."""

from collections.abc import Callable
from typing import NamedTuple

from dnformer.config import RunConfig
from dnformer.driver import Record

# shares of the time; below, a mend would save little
_WAIT, _COPY, _REDUCE, _EVALUATE, _CHECKPOINT = 0.3, 0.3, 0.3, 0.4, 0.2
# the loader's threads are busy this share of the time where they are what is short
_BUSY = 0.75
# the slowest worker over the mean
_UNEVEN = 1.25
# these two are done by the loader's threads while the other stages go on
_LOADER = ("sample", "gather")


class Advice(NamedTuple):
    """What to do about a stage; said once for each stage of a run."""

    stage: str
    text: str


def advice(record: Record, config: RunConfig, *, cores: int | None = None) -> Advice | None:
    """What would save most time, by the record of an epoch; None where nothing is known to help.

    Args:
        record: of kind epoch.
        config: the run's.
        cores: of each worker's machine, where all workers share one; None: not known.
    """
    spent = _Spent(record, config, cores)
    rules: dict[str, Callable[[_Spent], str | None]] = {
        "wait": _wait,
        "copy": _copy,
        "reduce": _reduce,
        "evaluate": _evaluate,
        "checkpoint": _checkpoint,
    }
    for stage in sorted(rules, key=spent.share, reverse=True):
        text = rules[stage](spent)
        if text is not None:
            return Advice(stage, text)
    return None


class _Spent:
    """Where the time of an epoch went."""

    def __init__(self, record: Record, config: RunConfig, cores: int | None) -> None:
        self.config, self.cores, self.world_size = config, cores, int(record["world_size"])
        self.seconds: dict[str, dict[str, float]] = record["stage_seconds"]
        self.bytes_read = record.get("feature_bytes_read", {"mean": 0.0})["mean"]
        self.hit_rate = record.get("cache_hit_rate", {"mean": 0.0})["mean"]
        self.total = sum(of["mean"] for stage, of in self.seconds.items() if stage not in _LOADER)

    def mean(self, stage: str) -> float:
        return self.seconds[stage]["mean"] if stage in self.seconds else 0.0

    def share(self, stage: str) -> float:
        return self.mean(stage) / self.total if self.total else 0.0

    def percent(self, stage: str) -> str:
        return f"{100 * self.share(stage):.0f} %"

    def unevenness(self, stages: tuple[str, ...]) -> float:
        """The slowest worker's time over the mean, of the worst of `stages` that matter."""
        return max(
            (self.seconds[s]["max"] / self.mean(s) for s in stages if self.share(s) > 0.1),
            default=1.0,
        )


def _wait(spent: _Spent) -> str | None:
    if spent.share("wait") < _WAIT:
        return None
    gathers = spent.mean("gather") > spent.mean("sample")
    what = "reading features" if gathers else "sampling"
    mends = _loader_mends(spent, gathers=gathers)
    if not mends:
        return None
    return f"waiting for batches ({what}) is {spent.percent('wait')} of the time: {mends}"


def _loader_mends(spent: _Spent, *, gathers: bool) -> str:
    loader, cache = spent.config.loader, spent.config.cache
    if loader.kind == "full":
        return ""
    # an epoch's batches are drawn by its end, before these two
    drawing = spent.total - spent.mean("evaluate") - spent.mean("checkpoint")
    if spent.mean("sample") + spent.mean("gather") < _BUSY * loader.threads * drawing:
        # batches are drawn while other stages go on, and the queue is full too soon
        return f"raise loader.prefetch ({loader.prefetch})"
    mends = []
    if spent.cores is None or (loader.threads + 1) * spent.world_size <= spent.cores:
        mends.append(f"loader.threads ({loader.threads})")
    if gathers and spent.bytes_read:
        mends.append(f"cache.hot_bytes ({cache.hot_bytes})")
    return f"raise {' or '.join(mends)}" if mends else ""


def _copy(spent: _Spent) -> str | None:
    if spent.share("copy") < _COPY or not spent.config.train.use_gpu:
        return None
    return (
        f"copying batches to the GPU is {spent.percent('copy')} of the time: raise "
        f"cache.hot_gpu_bytes ({spent.config.cache.hot_gpu_bytes})"
    )


def _reduce(spent: _Spent) -> str | None:
    if spent.share("reduce") < _REDUCE or spent.world_size == 1:
        return None
    waits = f"workers wait for each other {spent.percent('reduce')} of the time"
    # where it isn't given, it fits the workers, or workers were lost
    micro_batches = spent.config.train.micro_batches or spent.world_size
    if micro_batches % spent.world_size:
        even = [n for n in range(1, micro_batches + 1) if micro_batches % n == 0]
        low = max(n for n in even if n < spent.world_size)
        high = min(n for n in even if n > spent.world_size)
        return (
            f"{waits}: the {micro_batches} train.micro_batches of a step keep {low} or {high} "
            f"train.workers busy, not {spent.world_size}"
        )
    uneven = spent.unevenness(("wait", "forward", "backward"))
    if uneven < _UNEVEN:
        return None
    return (
        f"{waits}: the slowest takes {uneven:.1f} times the mean; look what else its machine does"
    )


def _evaluate(spent: _Spent) -> str | None:
    if spent.share("evaluate") < _EVALUATE:
        return None
    evaluation = spent.config.eval
    mends = f"raise eval.every_epochs ({evaluation.every_epochs})"
    if evaluation.mode == "exact":
        mends += " or set eval.mode: sampled"
    return f"validation is {spent.percent('evaluate')} of the time: {mends}, in a new run"


def _checkpoint(spent: _Spent) -> str | None:
    if spent.share("checkpoint") < _CHECKPOINT:
        return None
    checkpoint = spent.config.checkpoint
    if not checkpoint.background:
        mend = "set checkpoint.background: true"
    elif checkpoint.every_steps is not None:
        mend = f"raise checkpoint.every_steps ({checkpoint.every_steps})"
    elif checkpoint.every_s is not None:
        mend = f"raise checkpoint.every_s ({checkpoint.every_s:g})"
    else:
        mend = f"raise checkpoint.every_epochs ({checkpoint.every_epochs})"
    return f"saving checkpoints is {spent.percent('checkpoint')} of the time: {mend}"
