"""What is known of the trials of a search."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

State = Literal["running", "finished", "stopped", "failed"]
Params = dict[str, Any]


class Result(NamedTuple):
    """The best monitored value of a trial's first `epochs` epochs."""

    epochs: int
    value: float


@dataclass(frozen=True)
class Trial:
    """A trial, as the record has it.

    Attributes:
        number: from 0, in the order of the proposals.
        params: the fields of the space that it sets, by dotted path; under pbt the last ones.
        state: "running" also where its process is gone: it goes on; "stopped": ended early.
        results: at the epochs where it was judged, in their order.
        values: of the objectives, once it is "finished" or "stopped".
        facts: what else is known of one that has ended: `run` (of pbt its last leg),
            `best_epoch`, `epochs`, `seconds`, `val`, `test`, `parameters`; `error` of a failed one.
        took_over: whether it went on from another's state, so that its last params are not all
            that it comes from.
    """

    number: int
    params: Params
    state: State = "running"
    results: tuple[Result, ...] = ()
    values: tuple[float, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    took_over: bool = False
