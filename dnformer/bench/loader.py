"""`dnformer bench loader`: samplers and loaders in one process, in seeds and edges a second."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch_geometric.typing as pyg_typing
from rich.console import Console
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygLoader

from dnformer.bench import graphs
from dnformer.bench.asked import check_cases, draft, in_turn
from dnformer.bench.report import Target, for_json, heading, load, print_case, ratio
from dnformer.bench.timing import Times, race
from dnformer.data.counter_rng import key_of
from dnformer.data.graph import Graph, open_graph
from dnformer.data.store import Store
from dnformer.loader import NeighborLoader, NeighborSampler, pyg_lib

Array = npt.NDArray[Any]
FAN_OUT = (15, 10, 5)
_NO_PYG_LIB = "left out: pyg-lib is not installed (it is not on PyPI; see PyG's wheel index)"
_NO_PYG = "left out: PyG's loader needs torch-sparse or pyg-lib, and neither is installed"

_NO_DENSE = "left out: PyG's loader is given dense float features"


class Settings(NamedTuple):
    """What the command takes.

    Attributes:
        repeats: timed rounds.
        yardstick: path of a draft with `graph` and `sample`, for the case `sampler`.
        graph: URI of a dataset with features for the case `loader`; else it makes one.
        scale: of all sizes; less than 1 in tests.
        batches: of each contender in a round.
    """

    repeats: int = 7
    yardstick: str | None = None
    graph: str | None = None
    scale: float = 1.0
    batches: int = 20

    def sized(self, number: float) -> int:
        """A number of nodes, edges or seeds."""
        return max(8, int(number * self.scale))


class Row(NamedTuple):
    """One contender in one case.

    Attributes:
        case: name of the case.
        graph: what it ran on.
        impl: the contender.
        threads: that sample and gather.
        seconds: of a round's batches, median of the rounds; None where `note` says why.
        low: of the rounds.
        high: of the rounds.
        batches: of a round.
        seeds_per_s: seed nodes a second.
        edges_per_s: sampled edges a second.
        nodes: of a batch, on average.
        edges: of a batch, on average.
        stages: seconds of a batch by stage: those of the threads, and what the consumer waited.
        note: anything else.
    """

    case: str
    graph: str
    impl: str
    threads: int = 1
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    batches: int = 0
    seeds_per_s: float | None = None
    edges_per_s: float | None = None
    nodes: float | None = None
    edges: float | None = None
    stages: dict[str, float] = {}  # noqa: RUF012 - never changed
    note: str = ""


class Findings(NamedTuple):
    """All of one case."""

    rows: list[Row]
    targets: list[Target]


# what a draft of a sampler has
_DRAFTED = ("graph", "sample")


class Structure(NamedTuple):
    """A graph's structure in memory, which is all that a sampler reads."""

    uri: str
    num_nodes: int
    store: Store


class Entry(NamedTuple):
    """A contender: `step` draws a round, `counts` are its (batches, seeds, nodes, edges)."""

    impl: str
    threads: int
    step: Callable[[], object]
    counts: tuple[int, int, int, int]


def run(
    settings: Settings, names: Sequence[str], *, say: Callable[[str], None]
) -> Iterator[Findings]:
    """Runs cases one after the other, as they are asked for; by default all.

    Raises:
        ConfigError: a case is unknown, or the yardstick is not there.
        DataError: the graph is not there.
    """
    check_cases(names, CASES)
    names = names or list(CASES)
    if settings.yardstick is not None:
        draft(settings.yardstick, _DRAFTED)
    if settings.graph is not None:
        open_graph(settings.graph)
    for option, value, reader in (
        ("--yardstick", settings.yardstick, "sampler"),
        ("--graph", settings.graph, "loader"),
    ):
        if value is not None and reader not in names:
            say(f"warning: {option} is ignored, only {reader} reads it")

    return in_turn(CASES, names, settings, say)


def sampler_case(case: str, settings: Settings) -> Findings:
    """Uniform draws alone, on one thread and on two, beside a draft and pyg-lib."""
    sizes = settings.sized(1e6), settings.sized(1e7)
    drafted = draft(settings.yardstick, _DRAFTED) if settings.yardstick else None
    if drafted:
        name, (colptr, row) = "yardstick's", drafted.graph(*sizes)
    else:
        name, colptr, row, _ = graphs.power_law(*sizes)
        row = row.astype(np.int32)
    structure = Structure("bench", len(colptr) - 1, Store(colptr=colptr, row=row))
    batches = _batches(structure.num_nodes, settings)
    ours = NeighborSampler(structure, FAN_OUT)
    with ThreadPoolExecutor(2) as pool:
        entries = [_entry("dnformer", ours, batches), _entry("dnformer", ours, batches, pool)]
        if drafted:
            entries.append(_draft_entry(drafted, colptr, row, batches))
        if pyg_lib.is_available():
            peer = pyg_lib.PygLibSampler(structure, FAN_OUT)
            entries.append(_entry("pyg-lib", peer, batches))
        rows = _measure(case, name, entries, settings)
    if not pyg_lib.is_available():
        rows.append(Row(case, name, "pyg-lib", note=_NO_PYG_LIB))
    one, two = rows[:2]
    return Findings(
        rows,
        [
            Target(case, "ours over the yardstick, edges/s", _faster(one, rows, "yardstick"), 1.7),
            Target(
                case, "two threads over one, edges/s", ratio(two.edges_per_s, one.edges_per_s), 1.7
            ),
            Target(case, "ours over pyg-lib, edges/s", _faster(one, rows, "pyg-lib")),
        ],
    )


_KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "replace": {"replace": True},
    "weighted": {"sampling": "weighted"},
    "weighted, replace": {"sampling": "weighted", "replace": True},
    "labor": {"sampling": "labor"},
    "temporal": {"temporal": True},
}


def kinds_case(case: str, settings: Settings) -> Findings:
    """Every kind of draw on one graph with weights and times, where hubs are neighbours too."""
    num_nodes, num_edges = settings.sized(1e5), settings.sized(2e6)
    name, colptr, row, _ = graphs.power_law(num_nodes, num_edges)
    rng = np.random.default_rng(0)
    # sources by the same law as destinations, so that neighbourhoods have something to share
    hubs = rng.permutation(num_nodes)
    row = hubs[(num_nodes * rng.random(num_edges) ** 3).astype(np.int64)].astype(np.int32)
    store = Store(
        colptr=colptr,
        row=row,
        weight=rng.random(num_edges, np.float32),
        edge_time=rng.integers(0, 1000, num_edges),
        node_time=rng.integers(0, 1000, num_nodes),
    )
    structure = Structure("bench", num_nodes, store)
    batches = _batches(num_nodes, settings)
    entries = [
        _entry(kind, NeighborSampler(structure, FAN_OUT, **options), batches)
        for kind, options in _KINDS.items()
    ]
    rows = _measure(case, f"{name}, both ends", entries, settings)
    nodes = {row.impl: row.nodes or 1.0 for row in rows}
    shares = nodes["labor"] / nodes["uniform"]
    return Findings(rows, [Target(case, "nodes of a batch, labor over uniform", shares, None, 1)])


def loader_case(case: str, settings: Settings) -> Findings:
    """Whole loaders on a graph with features, and where their time goes."""
    with tempfile.TemporaryDirectory() as folder:
        graph = graphs.open_or_make(
            settings.graph,
            Path(folder),
            num_nodes=settings.sized(2e5),
            num_edges=settings.sized(4e6),
            num_features=64,
        )
        name = Path(graph.uri).name
        rng = np.random.default_rng(0)
        nodes = rng.permutation(graph.num_nodes)[: settings.batches * settings.sized(1024)]
        loaders = [_ours(graph, nodes, settings, threads) for threads in (1, 2)]
        entries = [
            Entry("dnformer", threads, loader.drain, loader.counts())
            for threads, loader in zip((1, 2), loaders, strict=True)
        ]
        has_peer = pyg_typing.WITH_PYG_LIB or pyg_typing.WITH_TORCH_SPARSE
        if has_peer and graph.store.x is not None:
            peer = _Drained(_pyg_loader(graph, nodes, settings), {})
            entries.append(Entry("PyG", 1, peer.drain, peer.counts()))
        rows = _measure(case, name, entries, settings)
    for place, loader in enumerate(loaders):
        rows[place] = rows[place]._replace(stages=loader.stages())
    if len(entries) == len(loaders):
        rows.append(Row(case, name, "PyG", note=_NO_DENSE if has_peer else _NO_PYG))
    return Findings(
        rows,
        [
            Target(
                case,
                "two threads over one, seeds/s",
                _speed_up(rows[1], rows[0]),
            ),
            Target(case, "ours over PyG's loader, edges/s", _faster(rows[0], rows, "PyG")),
        ],
    )


class _Drained:
    """A loader that is read to its end without other work; `seconds` are of its threads."""

    def __init__(self, loader: Any, seconds: dict[str, float]) -> None:
        self._loader, self._seconds, self._waited, self._batches = loader, seconds, 0.0, 0

    def _read(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            self._waited += time.perf_counter() - start
            if batch is None:
                return
            self._batches += 1
            yield batch

    def drain(self) -> None:
        """An epoch."""
        for _ in self._read():
            pass

    def counts(self) -> tuple[int, int, int, int]:
        """(batches, seeds, nodes, edges) of an epoch."""
        found = [(b.batch_size, b.num_nodes, b.num_edges) for b in self._read()]
        seeds, nodes, edges = (sum(column) for column in zip(*found, strict=True))
        return len(found), seeds, nodes, edges

    def stages(self) -> dict[str, float]:
        """Seconds of a batch, on average over all that were read."""
        seconds = {**self._seconds, "wait": self._waited}
        return {name: spent / self._batches for name, spent in seconds.items()}


def _ours(graph: Graph, nodes: Array, settings: Settings, threads: int) -> _Drained:
    loader = NeighborLoader(
        graph,
        nodes,
        num_neighbors=FAN_OUT,
        batch_size=settings.sized(1024),
        threads=threads,
    )
    return _Drained(loader, loader.seconds)


def _pyg_loader(graph: Graph, nodes: Array, settings: Settings) -> Any:
    assert graph.store.x is not None
    col = np.repeat(np.arange(graph.num_nodes), np.diff(graph.store.colptr))
    data = Data(
        x=torch.from_numpy(graph.store.x.copy()),
        edge_index=torch.from_numpy(np.stack([graph.store.row.astype(np.int64), col])),
    )
    return PygLoader(
        data,
        list(FAN_OUT),
        input_nodes=torch.from_numpy(nodes),
        batch_size=settings.sized(1024),
        is_sorted=True,
    )


def _batches(num_nodes: int, settings: Settings) -> list[Array]:
    """Distinct seeds of each batch."""
    rng, size = np.random.default_rng(0), min(settings.sized(1024), num_nodes)
    return [rng.choice(num_nodes, size, replace=False) for _ in range(settings.batches)]


def _entry(
    impl: str, sampler: Any, batches: list[Array], pool: ThreadPoolExecutor | None = None
) -> Entry:
    """A sampler on this thread, or on the two of a pool."""
    keys = [key_of(0, "train", index) for index in range(len(batches))]

    def step() -> None:
        for _ in (map if pool is None else pool.map)(sampler.sample, batches, keys):
            pass  # a batch is freed within the time, as in training

    drawn = [sampler.sample(*batch) for batch in zip(batches, keys, strict=True)]
    nodes, edges = sum(len(s.n_id) for s in drawn), sum(len(s.e_id) for s in drawn)
    counts = (len(batches), sum(map(len, batches)), nodes, edges)
    return Entry(impl, 1 if pool is None else 2, step, counts)


def _draft_entry(drafted: Any, colptr: Array, row: Array, batches: list[Array]) -> Entry:
    fan_out = np.array(FAN_OUT)

    def sample(index: int) -> Any:
        return drafted.sample(colptr, row, batches[index], fan_out, index)

    def step() -> None:
        for index in range(len(batches)):
            sample(index)

    drawn = [sample(index) for index in range(len(batches))]
    nodes, edges = sum(len(d[0]) for d in drawn), sum(len(d[3]) for d in drawn)
    return Entry("yardstick", 1, step, (len(batches), sum(map(len, batches)), nodes, edges))


def _measure(case: str, graph: str, entries: Sequence[Entry], settings: Settings) -> list[Row]:
    times = race([entry.step for entry in entries], repeats=settings.repeats)
    return [_row(case, graph, entry, spent) for entry, spent in zip(entries, times, strict=True)]


def _row(case: str, graph: str, entry: Entry, times: Times) -> Row:
    batches, seeds, nodes, edges = entry.counts
    return Row(
        case,
        graph,
        entry.impl,
        entry.threads,
        *times,
        batches=batches,
        seeds_per_s=seeds / times.seconds,
        edges_per_s=edges / times.seconds,
        nodes=nodes / batches,
        edges=edges / batches,
    )


def _faster(ours: Row, rows: Sequence[Row], impl: str) -> float | None:
    """How many times the edges a second of the others; None where they were not measured."""
    return next((_speed_up(ours, row) for row in rows if row.impl == impl), None)


def _speed_up(one: Row, other: Row) -> float | None:
    return ratio(one.edges_per_s, other.edges_per_s)


CASES: dict[str, Callable[[str, Settings], Findings]] = {
    "sampler": sampler_case,
    "kinds": kinds_case,
    "loader": loader_case,
}


_PEERS = ("torch", "torch_geometric", "numba", "numpy")


def as_json(findings: Sequence[Findings]) -> dict[str, Any]:
    """One object for programs."""
    return for_json(findings, _PEERS) | {"cores": os.cpu_count()}


def header() -> str:
    """One line above the tables."""
    return f"{heading(*_PEERS)}; fan-out {list(FAN_OUT)}; {load()}"


def show(findings: Findings, console: Console) -> None:
    """Prints one case as a table, with its targets under it."""
    first = findings.rows[0]
    title = f"{first.case}: {first.graph}"
    figures = ("threads", "ms/batch", "min", "max", "seeds/s", "M edges/s", "nodes", "edges")
    columns = ("impl", *figures, "ms of a batch by stage, notes")
    print_case(console, title, columns, map(_cells, findings.rows), findings.targets)


def _cells(row: Row) -> list[str]:
    if row.seconds is None:
        return [row.impl, *[""] * 8, row.note]
    figures = [1e3 * (s or 0) / row.batches for s in (row.seconds, row.low, row.high)]
    stages = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in row.stages.items())
    return [
        row.impl, str(row.threads), *(f"{figure:.2f}" for figure in figures),
        f"{row.seeds_per_s:,.0f}", f"{(row.edges_per_s or 0) / 1e6:.2f}",
        f"{row.nodes:,.0f}", f"{row.edges:,.0f}", stages or row.note,
    ]  # fmt: skip
