"""Where a run's records go beside its own files: TensorBoard, and MLflow (`mlflow_tracker.py`).

They are views: `RUN/metrics` is the truth, and what a tracker lacks can be read there.
"""

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, final

from dnformer import storage
from dnformer.config import TrackingConfig
from dnformer.driver import Record
from dnformer.temporary import temporary_folder
from dnformer.training.mlflow_tracker import open_mlflow
from dnformer.training.sinks import scalars

# elsewhere an event file is put whole at each checkpoint, so that a long run goes on in another one
_FILE_BYTES = 16 << 20
# a TensorBoard that watches the folder shows a record after this long
_FLUSH_S = 10


class Tracker(Protocol):
    """Takes the records of a run's rank 0."""

    def write(self, record: Record) -> None:
        """Takes a record."""

    def publish(self) -> None:
        """Makes the records so far last; called before each checkpoint."""

    def close(self, *, finished: bool = True) -> None:
        """Lets go of files and threads; `finished` False: the run goes on in another start."""


def open_trackers(
    config: TrackingConfig, run: str, *, name: str, params: dict[str, Any], first_step: int
) -> list[Tracker]:
    """The trackers that `config` asks for; for rank 0 alone.

    Args:
        config: which.
        run: the run's folder.
        name: what the run is called.
        params: its config, nested or by dotted path.
        first_step: steps that were done before this start; records past it are replaced.

    Raises:
        BackendError: a tracker's library is missing, or its address is none.
    """
    trackers: list[Tracker] = []
    if config.mlflow is not None:
        trackers.append(open_mlflow(config.mlflow, config.experiment, run, name=name,
                                    params=params))  # fmt: skip
    if config.tensorboard:
        trackers.append(TensorBoard(run, first_step=first_step))
    return trackers


@final
class TensorBoard:
    """Event files in `RUN/tensorboard`; those of a run that is not on a local disk are put there.

    One thread may write while another one publishes.

    Args:
        run: the run's folder.
        first_step: steps done before; TensorBoard drops what earlier starts wrote past it.
        file_bytes: how large a file that is put may grow.
    """

    def __init__(self, run: str, *, first_step: int, file_bytes: int = _FILE_BYTES) -> None:
        self._uri = storage.join(run, "tensorboard")
        self._file_bytes, self._stack, self._lock = file_bytes, ExitStack(), threading.Lock()
        self._local = storage.is_local(self._uri)
        self._folder = (
            Path(self._uri) if self._local else self._stack.enter_context(temporary_folder())
        )
        self._open(first_step + 1)

    def _open(self, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(
            str(self._folder), purge_step=purge_step, flush_secs=_FLUSH_S
        )

    def write(self, record: Record) -> None:
        """Takes a record; the writer's own thread puts it into the file."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        # in one event: a call of add_scalar for each of 50 numbers takes 12 ms, this 1 ms
        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in scalars(record).items()]
        if values:
            with self._lock:
                self._writer.file_writer.add_summary(Summary(value=values), record["step"])

    def publish(self) -> None:
        """Flushes, and puts the files where the run is."""
        with self._lock:
            self._writer.flush()
            if self._local:
                return
            files = sorted(self._folder.iterdir())
            ended = files[-1].stat().st_size > self._file_bytes
            if ended:
                self._writer.close()
                self._open(None)
        for file in files:
            storage.write_bytes(storage.join(self._uri, file.name), file.read_bytes())
            if ended:
                file.unlink()

    def close(self, *, finished: bool = True) -> None:
        """Publishes and lets go of the files."""
        with self._stack:
            self.publish()
            self._writer.close()
