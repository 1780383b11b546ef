"""`dnformer bench ops`: the operator and its layer against reference, PyG, drafts and the floor."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dnformer.bench import contenders, graphs, startup
from dnformer.bench.asked import check_cases, in_turn
from dnformer.bench.contenders import BOTH, FORWARD, Problem
from dnformer.bench.measure import Entry, measure, pair
from dnformer.bench.report import Findings, Row, Target, for_json, heading
from dnformer.bench.timing import log_slope, race
from dnformer.data.graph import open_graph
from dnformer.errors import BackendError, ConfigError

PASSES = (FORWARD, BOTH)


class Settings(NamedTuple):
    """What the command takes.

    Attributes:
        repeats: timed rounds.
        device: "cpu" or "cuda", of all cases but `gpu`.
        yardstick: path of a draft to race against, for the cases of the operator alone.
        graph: URI of a dataset for the cases `power-law` and `block`; else they generate one.
        scale: of all sizes; less than 1 in tests.
        shape: (H, D) in place of those of the cases; in tests, since each shape is compiled.
        memory: whether peaks are measured, each in two processes of its own.
    """

    repeats: int = 7
    device: str = "cpu"
    yardstick: str | None = None
    graph: str | None = None
    scale: float = 1.0
    shape: tuple[int, int] | None = None
    memory: bool = True

    def sized(self, number: float) -> int:
        """A number of nodes or edges."""
        return max(8, int(number * self.scale))

    def problem(self, graph: graphs.Csc, heads: int, width: int) -> Problem:
        """The operator over `graph` at the size of a case."""
        heads, width = self.shape or (heads, width)
        return Problem(graph, heads, width, device=self.device)


def run(
    settings: Settings, names: Sequence[str], *, threads: int | None, say: Callable[[str], None]
) -> Iterator[Findings]:
    """Runs cases one after the other, as they are asked for; by default all that can run here.

    Args:
        settings: what the cases take.
        names: of `CASES`; empty for all.
        threads: of torch, and so of all here; None: as many as torch takes by itself.
        say: told what is going on.

    Raises:
        ConfigError: a case is unknown, or the yardstick is not there.
        DataError: the graph is not there.
        BackendError: a GPU was asked for, and there is none.
    """
    _check(settings, names)
    torch.set_num_threads(threads or torch.get_num_threads())
    names = names or [name for name in CASES if name != "gpu" or torch.cuda.is_available()]
    for option, value, readers in (
        ("--yardstick", settings.yardstick, {"op-2x32", "op-4x64"}),
        ("--graph", settings.graph, {"power-law", "block"}),
    ):
        if value is not None and not readers & set(names):
            say(f"warning: {option} is ignored, only {' and '.join(sorted(readers))} read it")

    return in_turn(CASES, names, settings, say)


def _check(settings: Settings, names: Sequence[str]) -> None:
    check_cases(names, CASES)
    if settings.device not in ("cpu", "cuda"):
        raise ConfigError(f"--device {settings.device!r} is not one of cpu, cuda")
    if (settings.device == "cuda" or "gpu" in names) and not torch.cuda.is_available():
        raise BackendError("torch finds no CUDA device here; leave out --device cuda and gpu")
    if settings.yardstick is not None:
        contenders.yardstick(settings.yardstick)
    if settings.graph is not None:
        open_graph(settings.graph)


_PEERS = ("torch", "torch_geometric", "numba", "numpy")


def header() -> str:
    """One line above the tables."""
    return f"{heading(*_PEERS)}; {torch.get_num_threads()} threads"


def _uniform(settings: Settings, heads: int, width: int) -> Problem:
    graph = graphs.uniform(settings.sized(20_000), settings.sized(400_000))
    return settings.problem(graph, heads, width)


def _floor(settings: Settings) -> list[contenders.Contender]:
    """There is none for a GPU: its bandwidth takes its place."""
    return [contenders.FLOOR] if settings.device == "cpu" else []


def _layer_contenders(settings: Settings) -> list[contenders.Contender]:
    return [contenders.LAYER, contenders.REFERENCE_LAYER, *contenders.PEERS, *_floor(settings)]


def layer_case(
    case: str, settings: Settings, *, heads: int, width: int, at_least: float
) -> Findings:
    """Whole layers, projections included, at N = 20,000 and E = 400,000."""
    problem = _uniform(settings, heads, width)
    entries = pair(_layer_contenders(settings), problem, PASSES, memory=settings.memory)
    rows = measure(case, entries, repeats=settings.repeats)
    peer, own = (_find(rows, "layer", name) for name in ("TransformerConv", "reference"))
    ours = _find(rows, "layer", "dnformer")
    peaks = None
    if peer.extra_bytes is not None and ours.extra_bytes:
        peaks = peer.extra_bytes / ours.extra_bytes
    return Findings(
        rows,
        [
            Target(case, "TransformerConv over ours, forward+backward", peer.to_ours, at_least),
            Target(case, "reference over ours, forward+backward", own.to_ours, 10),
            Target(case, "peak extra memory, TransformerConv over ours", peaks, 10),
            Target(case, "bytes per edge and head", ours.bytes_per_edge_head, at_most=24),
        ],
    )


def op_case(case: str, settings: Settings, *, heads: int, width: int) -> Findings:
    """The operator alone, lambda's hidden layer included, on the same graph."""
    problem = _uniform(settings, heads, width)
    racers = [contenders.OP, contenders.REFERENCE_OP]
    if settings.device == "cpu":
        racers += [contenders.FLOOR, contenders.FLOOR_BY_EDGE]
        racers += [contenders.yardstick(settings.yardstick)] if settings.yardstick else []
    entries = [
        entry._replace(memory=entry.memory and entry.contender.impl != "yardstick")
        for entry in pair(racers, problem, PASSES, memory=settings.memory)
    ]
    entries.append(Entry(contenders.TRANSPOSE, problem, "once a batch"))
    rows = measure(case, entries, repeats=settings.repeats)
    ours, draft = _find(rows, "op", "dnformer"), None
    if any(row.impl == "yardstick" for row in rows):
        draft = _find(rows, "op", "yardstick").to_ours
    most = 3 if (heads, width) == (4, 64) else None
    by_edge = None
    if settings.device == "cpu" and ours.seconds is not None:
        by_edge = ours.seconds / (_find(rows, "floor", "floor by edge").seconds or 1)
    return Findings(
        rows,
        [
            Target(case, "yardstick over ours, forward+backward", draft, 1.5),
            Target(case, "ours over the floor", ours.to_floor, at_most=most),
            Target(case, "ours over the floor by edge", by_edge, at_most=most),
            Target(case, "bytes per edge and head", ours.bytes_per_edge_head, at_most=24),
        ],
    )


def _both_scopes(case: str, settings: Settings, graph: graphs.Csc) -> Findings:
    problem = settings.problem(graph, 2, 32)
    racers = [contenders.OP, contenders.REFERENCE_OP, *_layer_contenders(settings)]
    entries = pair(racers, problem, PASSES, memory=settings.memory)
    rows = measure(case, entries, repeats=settings.repeats)
    ours, peer = _find(rows, "op", "dnformer"), _find(rows, "layer", "TransformerConv")
    return Findings(
        rows,
        [
            Target(case, "TransformerConv over ours, forward+backward", peer.to_ours),
            Target(case, "bytes per edge and head", ours.bytes_per_edge_head, at_most=24),
        ],
    )


def power_law_case(case: str, settings: Settings) -> Findings:
    """A graph with hubs: `settings.graph`, or a generated one."""
    if settings.graph is None:
        graph = graphs.power_law(settings.sized(100_000), settings.sized(2_000_000))
    else:
        graph = graphs.whole(settings.graph)
    return _both_scopes(case, settings, graph)


def block_case(case: str, settings: Settings) -> Findings:
    """What the first of two layers sees of a sampled batch: fewer destinations than sources."""
    with tempfile.TemporaryDirectory() as folder:
        graph = graphs.open_or_make(
            settings.graph,
            Path(folder),
            num_nodes=settings.sized(100_000),
            num_edges=settings.sized(2_000_000),
        )
        block = graphs.block(graph, [15, 10], settings.sized(1024))
    return _both_scopes(case, settings, block)


def scaling_case(case: str, settings: Settings) -> Findings:
    """Time against edges, between 50,000 nodes and at 20 edges a node."""
    sizes = [settings.sized(e) for e in (1e5, 3e5, 1e6, 3e6, 1e7)]
    racers = [contenders.OP, *_floor(settings)]
    rows, targets = [], []
    for name, bounds in (("N = 50,000", (0.9, 1.1)), ("degree 20", (None, None))):
        entries = []
        for edges in sizes:
            nodes = settings.sized(50_000) if name.startswith("N") else max(8, edges // 20)
            graph = graphs.uniform(nodes, edges)._replace(name=f"uniform, {name}")
            problem = settings.problem(graph, 2, 32)
            entries += pair(racers, problem, [BOTH], memory=False)
        found = measure(case, entries, repeats=settings.repeats)
        ours = [row.seconds for row in found if row.impl == "dnformer" and row.seconds]
        slope = log_slope(sizes, ours)
        targets.append(Target(case, f"log-log slope of time in E, {name}", slope, *bounds))
        rows += found
    return Findings(rows, targets)


def star_case(case: str, settings: Settings) -> Findings:
    """A hub of a million edges against a regular graph with as many nodes and edges."""
    edges = settings.sized(1e6)
    rows, targets = [], []
    for nodes, heads in ((settings.sized(50_000), 2), (edges, 1)):
        regular = graphs.regular(nodes, edges // nodes)
        entries = []
        for graph in (regular, graphs.star_in(nodes, edges), graphs.star_out(nodes, edges)):
            problem = settings.problem(graph, heads, 32)
            racers = [contenders.OP, *_floor(settings)]
            entries += pair(racers, problem, [BOTH], memory=False)
        found = measure(case, entries, repeats=settings.repeats)
        first, *others = [row for row in found if row.scope == "op"]
        for row in others:
            name = f"{row.graph}, over regular, per edge, N = {nodes:,}"
            ratio = (row.seconds or 0) / row.num_edges * first.num_edges / (first.seconds or 1)
            targets.append(Target(case, name, ratio, at_most=1.5))
        rows += found
    return Findings(rows, targets)


# (attention, lambda)
_MODES = {
    "diff, lambda edge": ("diff", "edge"),
    "diff, lambda head": ("diff", "head"),
    "single": ("single", "edge"),
    "single_wide": ("single_wide", "edge"),
}


def modes_case(case: str, settings: Settings) -> Findings:
    """Two softmaxes against one, at equal C: what the subtraction costs."""
    rows, targets = [], []
    for heads, width in ((2, 32), (4, 64)):
        uniform, entries = _uniform(settings, heads, width), []
        for label, (attention, lam) in _MODES.items():
            problem = uniform._replace(attention=attention, lam=lam)
            for contender in (contenders.OP, contenders.LAYER, *_floor(settings)):
                entries.append(Entry(contender, problem, BOTH, label))
        found = measure(case, entries, repeats=settings.repeats)
        for scope in ("op", "layer"):
            diff, single = (_find(found, scope, name) for name in ("diff, lambda edge", "single"))
            ratio = (diff.seconds or 0) / (single.seconds or 1)
            name = f"{scope}, diff over single, H×D = {heads}×{width}"
            targets.append(Target(case, name, ratio, at_most=2.2))
        rows += found
    return Findings(rows, targets)


def gpu_case(case: str, settings: Settings) -> Findings:
    """Layers and the operator on the GPU, with the share of its copy bandwidth that is used."""
    settings = settings._replace(device="cuda")
    copied = _copy_bandwidth()
    rows: list[Row] = []
    for heads, width in ((2, 32), (4, 64)):
        problem = _uniform(settings, heads, width)
        narrow = problem._replace(
            dtype="bfloat16", graph=problem.graph._replace(name="uniform, bfloat16")
        )
        racers = [contenders.OP, contenders.REFERENCE_OP, *_layer_contenders(settings)]
        entries = pair(racers, problem, PASSES, memory=settings.memory)
        entries += pair([contenders.OP], narrow, PASSES, memory=settings.memory)
        for entry, row in zip(
            entries, measure(case, entries, repeats=settings.repeats), strict=True
        ):
            if row.scope == "op" and row.impl == "dnformer" and row.seconds:
                share = entry.problem.read_bytes(row.passes) / row.seconds / copied
                row = row._replace(copy_share=share)
            rows.append(row)
    return Findings(rows, [])


def _copy_bandwidth() -> float:
    """Bytes read and written each second by a copy of 1 GiB on the GPU."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    (times,) = race([lambda: target.copy_(source)], repeats=7, wait=torch.cuda.synchronize)
    return 2 * source.numel() / times.seconds


def startup_case(case: str, settings: Settings) -> Findings:
    """What a new process pays before its first step, over `import torch`."""
    return startup.measure(case, repeats=min(settings.repeats, 3))


def _find(rows: Sequence[Row], scope: str, impl: str) -> Row:
    """The row of the longest pass, forward and backward."""
    (row,) = [r for r in rows if (r.scope, r.impl, r.passes) == (scope, impl, BOTH)]
    return row


CASES: dict[str, Callable[[str, Settings], Findings]] = {
    "layer-2x32": partial(layer_case, heads=2, width=32, at_least=6),
    "layer-4x64": partial(layer_case, heads=4, width=64, at_least=5),
    "op-2x32": partial(op_case, heads=2, width=32),
    "op-4x64": partial(op_case, heads=4, width=64),
    "power-law": power_law_case,
    "block": block_case,
    "scaling": scaling_case,
    "star": star_case,
    "modes": modes_case,
    "startup": startup_case,
    "gpu": gpu_case,
}


def as_json(findings: Sequence[Findings]) -> dict[str, Any]:
    """One object for programs."""
    return for_json(findings, _PEERS) | {"threads": torch.get_num_threads()}
