"""From contenders on problems to rows: one race for all of them, then their peaks of memory."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psutil
import torch

from dnformer.bench.contenders import BOTH, Contender, Problem
from dnformer.bench.memory import Peak, measurable, peak_in_child, peak_on_gpu
from dnformer.bench.report import Row, ratio
from dnformer.bench.timing import Times, race

# of what is free; the rest is for what the estimate leaves out
_FREE_SHARE = 0.7


class Entry(NamedTuple):
    """A contender on a problem.

    Attributes:
        contender: how its step is made.
        problem: on what.
        passes: "forward", "forward+backward", or a word of its own where there is one pass only.
        label: shown in place of the contender's name.
        memory: whether to measure its peak.
    """

    contender: Contender
    problem: Problem
    passes: str
    label: str = ""
    memory: bool = False


def measure(case: str, entries: Sequence[Entry], *, repeats: int) -> list[Row]:
    """A row for each entry, in their order; one that does not fit in memory says so instead."""
    refusals = [_refusal(entry) for entry in entries]
    running = [entry for entry, no in zip(entries, refusals, strict=True) if no is None]
    prepared: dict[tuple[int, Any], Any] = {}
    steps = []
    for entry in running:
        # contenders of one problem share their inputs
        key = (id(entry.problem), entry.contender.prepare)
        if key not in prepared:
            prepared[key] = entry.contender.prepare(entry.problem)
        steps.append(entry.contender.build(prepared[key], entry.passes))
    gpu = any(entry.problem.device == "cuda" for entry in running)
    wait = torch.cuda.synchronize if gpu else lambda: None
    times = iter(race(steps, repeats=repeats, wait=wait))
    rows = [
        _row(case, entry, note="" if no is None else no, times=None if no else next(times))
        for entry, no in zip(entries, refusals, strict=True)
    ]
    del steps, prepared
    rows = _compared(entries, rows)
    return [
        _with_memory(entry, row) if entry.memory and row.seconds is not None else row
        for entry, row in zip(entries, rows, strict=True)
    ]


def _refusal(entry: Entry) -> str | None:
    """Why the entry is left out, or None."""
    need = entry.contender.edge_tensors * entry.problem.edge_bytes
    if entry.problem.device == "cuda":
        free = torch.cuda.mem_get_info()[0]
    else:
        free = psutil.virtual_memory().available
    if need <= _FREE_SHARE * free:
        return None
    return f"left out: would take about {need / 1e9:.0f} GB, {free / 1e9:.0f} GB are free"


def _row(case: str, entry: Entry, *, note: str, times: Times | None) -> Row:
    problem = entry.problem
    row = Row(
        case,
        problem.graph.name,
        entry.contender.scope,
        entry.label or entry.contender.impl,
        entry.passes,
        problem.graph.num_edges,
        problem.heads,
        problem.width,
        note=note,
    )
    if times is None:
        return row
    return row._replace(seconds=times.seconds, low=times.low, high=times.high)


def _compared(entries: Sequence[Entry], rows: Sequence[Row]) -> list[Row]:
    """The rows with their ratios to ours and to the floor, each on the same problem and pass."""
    seconds: dict[tuple[Any, ...], float] = {}
    for entry, row in zip(entries, rows, strict=True):
        if row.seconds is not None:
            name = (entry.contender.impl, row.scope)
            seconds[(id(entry.problem), row.passes, *name)] = row.seconds
    result = []
    for entry, row in zip(entries, rows, strict=True):
        key = (id(entry.problem), row.passes)
        # a label says that ours runs in another mode, which is compared by the case itself
        ours = None if entry.label else seconds.get((*key, "dnformer", row.scope))
        floor = seconds.get((*key, "floor", "floor"))
        result.append(
            row._replace(to_ours=ratio(row.seconds, ours), to_floor=ratio(row.seconds, floor))
        )
    return result


def _with_memory(entry: Entry, row: Row) -> Row:
    """The row with its peak, and how the peak grows from half of the edges to all of them."""
    problem = entry.problem
    if problem.device == "cpu" and not measurable():
        return row._replace(note="peak memory is not measured on this system")
    half = problem._replace(graph=problem.graph.thinned())
    whole, thin = (_beyond(_peak(entry, p)) for p in (problem, half))
    added = (problem.graph.num_edges - half.graph.num_edges) * problem.heads
    return row._replace(
        extra_bytes=whole, bytes_per_edge_head=(whole - thin) / added if added else None
    )


def _peak(entry: Entry, problem: Problem) -> Peak:
    if problem.device == "cuda":
        return peak_on_gpu(entry.contender.step(problem, entry.passes))
    return peak_in_child(make_step, entry.contender, problem, entry.passes)


def _beyond(peak: Peak) -> int:
    return peak.extra - peak.results


def make_step(contender: Contender, problem: Problem, passes: str) -> Callable[[], Any]:
    """The step of a contender, for a process that has nothing but these values."""
    return contender.step(problem, passes)


def pair(
    contenders: Sequence[Contender], problem: Problem, passes: Sequence[str], *, memory: bool = True
) -> list[Entry]:
    """An entry for each pass and contender; the peak is measured with the backward pass."""
    return [
        Entry(c, problem, p, memory=memory and p == BOTH and c.scope in ("op", "layer"))
        for p in passes
        for c in contenders
    ]
