"""A run's records as Ray's metrics, which each node offers to Prometheus as `ray_dnformer_*`."""

from typing import Any, final

from ray.util.metrics import Gauge

from dnformer.driver import Record

# of an epoch or step record; what is {mean, max} over the ranks has the tag `of`
_PLAIN = {
    "epoch": "Epochs begun before this one",
    "step": "Steps done in the run",
    "world_size": "Workers",
    "lr": "Learning rate",
    "grad_norm": "Gradient norm of the last step, before clipping",
    "skipped_steps": "Steps of the epoch that changed nothing, because of fp16",
    "seeds_per_s": "Seed nodes trained on per second, by all workers",
    "edges_per_s": "Sampled edges per second, by all workers",
}
_OF_RANKS = {
    "peak_rss_bytes": "Most memory that a worker has used",
    "peak_gpu_bytes": "Most GPU memory that a worker has used",
    "cache_hit_rate": "Share of feature rows that were kept in memory",
    "feature_bytes_read": "Bytes of features read in the epoch",
}
_SPLITS = ("train", "val")


@final
class Gauges:
    """Sets the gauges of a run; for rank 0 inside a Ray worker.

    Args:
        run: the value of their tag `run`.
    """

    def __init__(self, run: str) -> None:
        self._run = {"run": run}
        self._plain = {name: _gauge(name, text) for name, text in _PLAIN.items()}
        self._of_ranks = {name: _gauge(name, text, "of") for name, text in _OF_RANKS.items()}
        self._metric = _gauge("metric", "Loss and metrics of a split", "split", "metric")
        self._stage = _gauge("stage_seconds", "Seconds of the epoch in a stage", "stage", "of")

    def write(self, record: Record) -> None:
        """Sets what an epoch or step record holds; the start of a group sets only where it is."""
        for name, value in record.items():
            split, _, metric = name.partition("/")
            if name in self._plain:
                self._set(self._plain[name], value)
            elif split in _SPLITS and metric:
                self._set(self._metric, value, split=split, metric=metric)
            elif name in self._of_ranks:
                self._set_of_ranks(self._of_ranks[name], value)
            elif name == "stage_seconds":
                for stage, seconds in value.items():
                    self._set_of_ranks(self._stage, seconds, stage=stage)

    def _set(self, gauge: Any, value: float, **tags: str) -> None:
        gauge.set(value, tags=self._run | tags)

    def _set_of_ranks(self, gauge: Any, values: dict[str, float], **tags: str) -> None:
        for of, value in values.items():
            self._set(gauge, value, of=of, **tags)


def _gauge(name: str, description: str, *tags: str) -> Any:
    return Gauge(f"dnformer_{name}", description, tag_keys=("run", *tags))
