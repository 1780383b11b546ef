import os
from functools import partial

import pytest
import torch

from dnformer.bench.memory import measurable, peak_in_child, peak_on_gpu

pytestmark = pytest.mark.skipif(not measurable(), reason="needs Linux's /proc/self/clear_refs")

SIZE = 64 << 20


def evaluated(expression: str) -> partial:
    """Gives a step that evaluates an expression; all of it is importable by name."""
    return partial(partial, eval, expression)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('torch').ones(2**24)",
        "float(__import__('torch').ones(2**24).sum())",
        "float(__import__('numpy').ones(2**23).sum())",
        "[float(__import__('torch').ones(2**24).sum()) for _ in range(2)]",
    ],
    ids=["held", "freed", "numpy", "one after the other"],
)
def test_peak_in_child_of_64_megabytes(expression):
    peak = peak_in_child(evaluated(expression))
    assert peak.extra == pytest.approx(SIZE, rel=0.1)
    assert peak.results == 0


def test_peak_in_child_counts_returned_tensors():
    peak = peak_in_child(evaluated("(__import__('torch').ones(2**24), None)"))
    assert peak.extra == pytest.approx(SIZE, rel=0.1)
    assert peak.results == SIZE


def test_peak_in_child_leaves_the_environment_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    peak_in_child(evaluated("None"))
    assert os.environ["MALLOC_TOP_PAD_"] == "4096"
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ


def test_peak_in_child_passes_errors_on():
    with pytest.raises(ZeroDivisionError):
        peak_in_child(evaluated("1 / 0"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_peak_on_gpu_of_64_megabytes():
    peak = peak_on_gpu(lambda: (torch.ones(2**24, device="cuda"),))
    assert peak == (SIZE, SIZE)
