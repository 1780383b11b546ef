"""What a span of training took, on all ranks: seconds by stage, memory, rows from the cache."""

import time
from typing import Any, NamedTuple, final

import torch

from dnformer import memory
from dnformer.group import Group
from dnformer.loader import Loader
from dnformer.training.stages import Stages

# equal on all ranks, also where one has not met a stage
STAGES = ("sample", "gather", "wait", "copy", "forward", "backward", "reduce", "optimizer",
          "evaluate", "checkpoint")  # fmt: skip


class Mark(NamedTuple):
    """Where a span begins."""

    at: float
    seconds: dict[str, float]
    counts: dict[str, int]


@final
class Meter:
    """Measures spans of one rank's work, and gathers them from all ranks.

    Args:
        stages: this rank's clock.
        loader: its loader, whose threads have clocks of their own.
        group: this worker and the others.
    """

    def __init__(self, stages: Stages, loader: Loader, group: Group) -> None:
        self._stages, self._loader, self._group = stages, loader, group

    def mark(self) -> Mark:
        """The beginning of a span."""
        return Mark(time.perf_counter(), self._seconds(), dict(self._loader.counts))

    def _seconds(self) -> dict[str, float]:
        return self._stages.seconds() | self._loader.seconds

    def since(self, mark: Mark) -> dict[str, Any]:
        """What the span since `mark` took; every rank calls it at the same points.

        `seconds` is this rank's. The rest are {"mean", "max"} over the ranks: `stage_seconds` by
        stage, `peak_rss_bytes`, `peak_gpu_bytes` where there is a GPU, `cache_hit_rate` and
        `feature_bytes_read`.
        """
        now, counts = self._seconds(), self._loader.counts
        took = {name: now.get(name, 0.0) - mark.seconds.get(name, 0.0) for name in STAGES}
        rows, hits, read = (counts[n] - mark.counts[n] for n in ("rows", "hits", "bytes_read"))
        gpu = memory.peak_gpu_bytes(self._group.device)
        own = {
            "peak_rss_bytes": memory.peak_rss_bytes(),
            "cache_hit_rate": hits / max(rows, 1),
            "feature_bytes_read": read,
        } | ({} if gpu is None else {"peak_gpu_bytes": gpu})
        gathered = self._gathered([*took.values(), *map(float, own.values())])
        stages, others = gathered[: len(STAGES)], gathered[len(STAGES) :]
        return {
            "seconds": time.perf_counter() - mark.at,
            "world_size": self._group.world_size,
            "stage_seconds": dict(zip(STAGES, stages, strict=True)),
            **dict(zip(own, others, strict=True)),
        }

    def _gathered(self, values: list[float]) -> list[dict[str, float]]:
        """{"mean", "max"} of each value over the ranks."""
        group = self._group
        if group.world_size == 1:
            return [{"mean": value, "max": value} for value in values]
        table = torch.zeros(group.world_size, len(values), dtype=torch.float64, device=group.device)
        table[group.rank] = torch.tensor(values, dtype=torch.float64)
        group.sum_(table)
        means, most = table.mean(dim=0).tolist(), table.amax(dim=0).tolist()
        return [{"mean": a, "max": b} for a, b in zip(means, most, strict=True)]
