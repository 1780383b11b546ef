"""Guards of a run: a step that is not finite is described, a stage that hangs is shown.

Both leave files in `RUN/failed/`.
"""

import json
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, final

from torch import Tensor

from dnformer import group, storage
from dnformer.errors import DNFormerError, TrainError
from dnformer.training.stages import Current, Stages

_FOLDER = "failed"
_SHOWN_NODES = 8
# the longest that a thread sleeps between two looks, and that stacks may take to be written
_POLL_S, _WRITE_S = 1.0, 10.0
# every sum over the ranks is in one of its frames, also one whose wait is no Python
_COLLECTIVES = group.__file__


class Suspect(NamedTuple):
    """A micro-batch of a step that is not finite.

    Attributes:
        micro_batch: its number in the epoch.
        loss: its part of the step's loss.
        nodes: its seeds' node indices, `[S]`.
    """

    micro_batch: int
    loss: float
    nodes: Tensor


class Trouble(NamedTuple):
    """A step that is not finite.

    Attributes:
        step: steps done before this one.
        epoch: 0-based.
        what: is not finite.
        suspects: this worker's micro-batches that may be the cause; none: another worker has it.
    """

    step: int
    epoch: int
    what: Literal["loss", "gradient"]
    suspects: list[Suspect]


def not_finite(run: str, rank: int, trouble: Trouble) -> TrainError:
    """The error of a step that is not finite; all its nodes go to `RUN/failed/`.

    Args:
        run: the run's folder.
        rank: of this worker.
        trouble: the step.
    """
    step, epoch, what, suspects = trouble
    uri = _inside(run, f"step-{step}-rank-{rank}.json")
    where = f"all their nodes are in {uri}"
    document = {
        "format": 1,
        "step": step,
        "epoch": epoch,
        "what": what,
        # JSON has no nan and no inf
        "micro_batches": [
            {"micro_batch": each.micro_batch, "loss": str(each.loss), "nodes": each.nodes.tolist()}
            for each in suspects
        ],
    }
    try:
        storage.write_bytes(uri, json.dumps(document).encode())
    except (OSError, DNFormerError) as error:
        where = f"their nodes could not be written ({error})"
    if not suspects:
        where = (
            f"no micro-batch of rank {rank} has it, see {_inside(run, f'step-{step}-rank-*.json')}"
        )
    found = "".join(f", {_described(each)}" for each in suspects[:1])
    more = f" and {len(suspects) - 1} more" if len(suspects) > 1 else ""
    return TrainError(
        f"the {what} is not finite at step {step} (epoch {epoch}){found}{more}; {where}. The last "
        "checkpoint is kept. Lower optim.lr, set optim.clip_norm, or look at the features of these "
        "nodes, and start with --fresh"
    )


def _described(suspect: Suspect) -> str:
    nodes = suspect.nodes.tolist()
    named = ", ".join(map(str, nodes[:_SHOWN_NODES]))
    rest = f" and {len(nodes) - _SHOWN_NODES} more" if len(nodes) > _SHOWN_NODES else ""
    loss = "" if math.isfinite(suspect.loss) else f", whose loss is {suspect.loss}"
    return f"micro-batch {suspect.micro_batch}{loss} (nodes {named}{rest})"


def _inside(run: str, name: str) -> str:
    return storage.join(storage.join(run, _FOLDER), name)


@final
class Watchdog:
    """Tells of a stage that lasts too long, once, and again when it is over; a context manager.

    A thread looks at the clock of the worker that enters the block. It says which rank is in which
    stage, and whether it waits for the others there, so that the one to blame is known: the rank
    that is stuck in work of its own, or that says nothing. The stacks of all threads go to
    `RUN/failed/stuck-step-N-rank-R.txt`, or to stderr where that cannot be written.

    A thread that keeps Python's lock while it hangs keeps the watchdog from running, too.

    Args:
        stages: the clock.
        rank: of this worker.
        timeout_s: seconds that a stage, or the time between two, may last.
        run: the run's folder.
        say: takes a line.

    Attributes:
        step: steps done.
    """

    def __init__(
        self, stages: Stages, rank: int, *, timeout_s: float, run: str, say: Callable[[str], None]
    ) -> None:
        self.step = 0
        self._stages, self._rank, self._run, self._say = stages, rank, run, say
        self._timeout_s = timeout_s
        self._watched = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dnformer-watchdog", daemon=True)

    def begin(self, step: int) -> None:
        """A step begins, after so many."""
        self.step = step

    def __enter__(self) -> "Watchdog":
        self._watched = threading.get_ident()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        stuck: Current | None = None
        while not self._ended.wait(min(_POLL_S, self._timeout_s / 10)):
            current = self._stages.current
            if stuck is not None and current is not stuck:
                self._say(f"rank {self._rank} goes on at step {self.step}, after "
                          f"{current.since - stuck.since:.1f} s {_named(stuck.stage)}")  # fmt: skip
                stuck = None
            lasts = time.monotonic() - current.since
            if stuck is None and lasts > self._timeout_s:
                stuck = current
                self._tell(current, lasts)

    def _tell(self, current: Current, lasts: float) -> None:
        # NCCL's sums return at once, and are waited for by what reads them
        waits = current.stage == "reduce" or _in_collective(self._watched)
        does = "waits for the others" if waits else "is stuck"
        hint = "; look for a rank that is stuck, or that says nothing" if waits else ""
        line = (
            f"rank {self._rank} {does} {_named(current.stage)} at step {self.step}, for "
            f"{lasts:.1f} s{hint}"
        )
        stacks = "\n".join([line, *_stacks()])
        uri = _inside(self._run, f"stuck-step-{self.step}-rank-{self._rank}.txt")
        self._say(f"{line}; stacks: {uri}")
        problem = _written(uri, stacks)
        if problem is not None:
            print(f"{uri} {problem}:\n{stacks}", file=sys.stderr, flush=True)


def _written(uri: str, text: str) -> str | None:
    """Writes `text`; why that failed, if it did. What hangs may be the storage itself."""
    problem: list[str | None] = ["takes too long to be written"]

    def write() -> None:
        try:
            storage.write_bytes(uri, text.encode())
            problem[0] = None
        except (OSError, DNFormerError) as error:
            problem[0] = f"could not be written ({error})"

    thread = threading.Thread(target=write, name="dnformer-watchdog-write", daemon=True)
    thread.start()
    thread.join(_WRITE_S)
    return problem[0]


def _named(stage: str) -> str:
    if not stage:
        return "between two stages"
    return "in wait (the loader)" if stage == "wait" else f"in {stage}"


def _in_collective(thread: int) -> bool:
    """Whether a thread waits for the other ranks."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return False
    return any(each.f_code.co_filename == _COLLECTIVES for each, _ in traceback.walk_stack(frame))


def _stacks() -> Iterator[str]:
    """Of each thread its name and where it is, innermost last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():
        yield f"\nthread {names.get(identity, identity)}:"
        yield "".join(traceback.format_stack(frame)).rstrip()
