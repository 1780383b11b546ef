"""What becomes of a trial at a milestone: it pauses, a judge ends it, a population changes it."""

from typing import NamedTuple, Protocol, final

from dnformer.config import RunConfig
from dnformer.tuning.halving import Halving
from dnformer.tuning.judge import Judge, judge
from dnformer.tuning.population import Population
from dnformer.tuning.space import Space
from dnformer.tuning.trials import Params, Result


class Decision(NamedTuple):
    """What becomes of a trial.

    Attributes:
        stop: it ends.
        source: the trial whose state it takes over, or None.
        params: what it tries from here on, or None: what it tried before.
    """

    stop: bool = False
    source: int | None = None
    params: Params | None = None


class Rules(Protocol):
    """Decides at milestones; every call is in the order of the record, and may be made again.

    Attributes:
        milestones: epochs done at which it decides, ascending, below a whole trial's.
        in_legs: whether a trial is one run from milestone to milestone.
        pauses: whether it ends its process there, until it is the `next`.
    """

    milestones: tuple[int, ...]
    in_legs: bool
    pauses: bool

    def begin(self, number: int, params: Params) -> None:
        """A trial begins."""

    def decide(self, number: int, result: Result) -> Decision:
        """What becomes of a trial."""

    def next(self, *, last: bool) -> int | None:
        """The paused trial that goes on; `last`: no new one comes any more."""

    def promote(self, number: int) -> None:
        """A paused trial goes on."""

    def end(self, number: int, result: Result | None) -> None:
        """A trial has ended, with this last result; None: it failed."""


def rules_for(space: Space, config: RunConfig, *, higher: bool) -> Rules:
    """The rules of `config.tune.scheduler`; inside a session, since a judge may be Ray's."""
    tune, epochs, seed = config.tune, config.train.epochs, config.seed
    if tune.scheduler == "asha":
        return _Halved(Halving(tune, epochs, higher=higher))
    if tune.scheduler == "pbt":
        return _Evolving(Population(space, tune, epochs, higher=higher, seed=seed))
    return _Judged(judge(tune, epochs, higher=higher, seed=seed))


class _Lively:
    """Rules under which nobody pauses."""

    pauses = False

    def next(self, *, last: bool) -> int | None:
        return None

    def promote(self, number: int) -> None:
        raise AssertionError("nobody pauses")


@final
class _Halved:
    in_legs = pauses = True

    def __init__(self, halving: Halving) -> None:
        self._halving, self.milestones = halving, halving.milestones

    def begin(self, number: int, params: Params) -> None:
        pass

    def decide(self, number: int, result: Result) -> Decision:
        self._halving.result(number, result)
        return Decision()

    def next(self, *, last: bool) -> int | None:
        return self._halving.next(last=last)

    def promote(self, number: int) -> None:
        self._halving.leave(number)

    def end(self, number: int, result: Result | None) -> None:
        self._halving.leave(number)


@final
class _Judged(_Lively):
    in_legs = False

    def __init__(self, judge: Judge) -> None:
        self._judge, self.milestones = judge, judge.milestones

    def begin(self, number: int, params: Params) -> None:
        self._judge.begin(number)

    def decide(self, number: int, result: Result) -> Decision:
        return Decision(stop=not self._judge.result(number, result))

    def end(self, number: int, result: Result | None) -> None:
        self._judge.end(number, result)


@final
class _Evolving(_Lively):
    in_legs = True

    def __init__(self, population: Population) -> None:
        self._population, self.milestones = population, population.milestones

    def begin(self, number: int, params: Params) -> None:
        self._population.begin(number, params)

    def decide(self, number: int, result: Result) -> Decision:
        exploit = self._population.result(number, result)
        return Decision() if exploit is None else Decision(False, *exploit)

    def end(self, number: int, result: Result | None) -> None:
        pass
