"""What a fresh process pays before its first step: imports, and kernels compiled or read back."""

import os
import subprocess
import sys
import tempfile
import time
from statistics import median

from dnformer.bench.report import Findings, Row, Target

_GRAPH = "topology = Topology(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]))"
_OP = f"""
import torch
from dnformer.ops import QK, Lambda, Topology, diff_attention
{_GRAPH}
q, k, v = (torch.randn(2, 2, width, requires_grad=True) for width in (64, 64, 32))
parts = (torch.randn(*size, requires_grad=True) for size in ((2, 32), (2, 32), (2, 32), (2,)))
diff_attention(topology, QK(q, k), v, Lambda(*parts, "softplus")).sum().backward()
"""
_LAYER = """
import torch
from dnformer.nn import DiffAttention
x = torch.randn(2, 64, requires_grad=True)
DiffAttention(64, 2)(x, torch.tensor([[0, 1, 1], [0, 0, 1]])).sum().backward()
"""
PROGRAMS = {
    "import torch": "import torch",
    "import torch_geometric.nn": "import torch, torch_geometric.nn",
    "op, kernels cached": _OP,
    "layer, kernels cached": _LAYER,
}


def measure(
    case: str, *, repeats: int, programs: dict[str, str] = PROGRAMS, first: str = _OP
) -> Findings:
    """Whole processes by the clock outside, in turn, with a cache of kernels of their own.

    Args:
        case: name of the case.
        repeats: timed rounds.
        programs: code by name; the first is what the others are compared with.
        first: the code that is timed once with an empty cache.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as warm:
        with tempfile.TemporaryDirectory() as empty:
            taken, said = _run(first, empty)
        for code in programs.values():  # fills the cache
            _run(code, warm)
        for _ in range(repeats):
            for name, code in programs.items():
                seconds[name].append(_run(code, warm)[0])
    rows = [_row(case, name, values) for name, values in seconds.items()]
    over = {row.impl: (row.seconds or 0) - (rows[0].seconds or 0) for row in rows}
    cold = _row(case, "op, first call ever", [taken])
    cold = cold._replace(note=f"says: {said}" if said else "says nothing")
    return Findings(
        [*rows, cold],
        [
            Target(case, f"{name}, seconds over {rows[0].impl}", seconds, at_most=3)
            for name, seconds in over.items()
            if name.endswith("cached")
        ],
    )


def _row(case: str, name: str, values: list[float]) -> Row:
    row = Row(case, "2 nodes", "process", name, "start to end")
    return row._replace(seconds=median(values), low=min(values), high=max(values))


def _run(code: str, cache: str) -> tuple[float, str]:
    """Seconds of a Python process, and the last line that it said on stderr."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    return seconds, " ".join(done.stderr.strip().splitlines()[-1:])
