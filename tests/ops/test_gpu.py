"""Runs `gpu_cases`: on a GPU where there is one, and in Triton's interpreter elsewhere.

Triton is imported for the one or for the other, once in a process, and PyTorch Geometric imports
it. So where the interpreter was not asked for from the start, it gets a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

HERE = Path(__file__).parent
KERNELS = (
    "attend_kernel count_kernel destination_kernel hidden_kernel join_kernel source_kernel "
    "sum_kernel weight_kernel"
)

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
    from .gpu_cases import *  # noqa: F403
else:

    def test_gpu_interpreted() -> None:
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "gpu_cases.py")]
        python({"TRITON_INTERPRET": "1"}, *command)


def test_gpu_compiles(tmp_path: Path) -> None:
    env = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    assert python(env, str(HERE / "gpu_compile.py")).split() == KERNELS.split()


def python(env: dict[str, str], *arguments: str) -> str:
    """What a Python process prints; it must not fail."""
    child = subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE.parents[1],
        env=os.environ | env,
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout
