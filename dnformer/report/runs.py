"""What is known of a run without its dataset and its model: config, records, result."""

from typing import Any, NamedTuple

from dnformer.config import RunConfig, StorageConfig
from dnformer.driver import Record
from dnformer.training.objectives import METRICS, better, main_metric
from dnformer.training.run import reach_run, read_result
from dnformer.training.sinks import read_metrics


class Run(NamedTuple):
    """A run.

    Attributes:
        uri: its folder.
        config: its config.
        fingerprint: of its dataset.
        records: all that counts, as `read_metrics` gives them.
        result: of one that has finished.
    """

    uri: str
    config: RunConfig
    fingerprint: str
    records: list[Record]
    result: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Its name inside storage_path."""
        return self.config.name

    def of_kind(self, kind: str) -> list[Record]:
        """The records of a kind: start, step, epoch."""
        return [record for record in self.records if record["kind"] == kind]

    @property
    def monitor(self) -> str:
        """What its best epoch is best at."""
        if self.config.train.monitor is not None:
            return self.config.train.monitor
        names = [name.removeprefix("val/") for name in self.metrics("val")]
        return f"val/{main_metric(names)}" if names else "val/loss"

    @property
    def best_epoch(self) -> int | None:
        """From 1; None before the first validation."""
        if self.result is not None:
            return int(self.result["best_epoch"]) + 1
        best, at = None, None
        for record in self.of_kind("epoch"):
            value = record.get(self.monitor)
            if value is not None and better(self.monitor, value, best):
                best, at = value, record["epoch"] + 1
        return at

    def metrics(self, split: str) -> list[str]:
        """Names like "val/accuracy" of what was measured, the main one first, the loss last."""
        epochs = self.of_kind("epoch")
        found = {key for record in epochs for key in record if key.startswith(f"{split}/")}
        return [f"{split}/{name}" for name in METRICS if f"{split}/{name}" in found]


def open_run(uri: str, reached: StorageConfig) -> Run:
    """The run in the folder `uri`; sets how this process reaches stores.

    Raises:
        CheckpointError: there is no run, or a file of it is damaged.
    """
    uri, config, fingerprint = reach_run(uri, reached)
    return Run(uri, config, fingerprint, read_metrics(uri), read_result(uri))
