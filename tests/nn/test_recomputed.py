"""Activation checkpointing and torch.compile: the same numbers, less memory, no new compilation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from tests.nn.steps import Batch, make, results, sampled


def kept_bytes(model: nn.Module, batch: Batch) -> int:
    """Bytes that autograd keeps between forward and backward, the blocks' inputs included."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    def keep_input(block: nn.Module, args: tuple[Tensor, ...]) -> None:
        keep(args[0])

    handles = [block.register_forward_pre_hook(keep_input) for block in model.blocks]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model(*batch)
    for handle in handles:
        handle.remove()
    assert out.requires_grad
    return sum(kept.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", [{}, {"norm": "pre", "lam": "reparam"}], ids=str)
def test_activation_checkpointing_gives_the_same_bits(
    settings: dict, dtype: torch.dtype | None
) -> None:
    batch = sampled(8)
    plain = results(make(**settings), batch, dtype)
    again = results(make(activation_checkpointing=True, **settings), batch, dtype)
    assert all(torch.equal(*pair) for pair in zip(plain, again, strict=True))


def test_activation_checkpointing_keeps_less() -> None:
    batch = sampled(8)
    plain, again = make(), make(activation_checkpointing=True)
    assert kept_bytes(again, batch) < 0.3 * kept_bytes(plain, batch)


def test_activation_checkpointing_is_for_training_only() -> None:
    calls: list[int] = []
    model = make(activation_checkpointing=True)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda *_: calls.append(1))
    batch = sampled(3)
    model(*batch).sum().backward()
    assert len(calls) == 4
    calls.clear()
    model.eval()(*batch).sum().backward()
    assert len(calls) == 2


def test_compile_blocks_gives_the_same_bits_and_compiles_once() -> None:
    command = [sys.executable, "-m", "tests.nn.steps"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # all blocks are one function; the last one's index is a prefix of the batch's
    assert found == {"equal": [True] * 20, "graphs": [2, 2], "names": True}
