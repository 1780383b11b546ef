"""The operator in DistributedDataParallel: two processes, each of which runs this file."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dnformer.nn import DiffAttention

EDGES = torch.tensor([[0, 1, 2, 3, 3, 0, 4, 2], [1, 1, 1, 2, 2, 3, 0, 0]])


def make_layer() -> DiffAttention:
    torch.manual_seed(0)
    return DiffAttention(6, heads=2)


def loss(layer: nn.Module, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return layer(torch.randn(5, 6, generator=generator), EDGES.roll(rank, 1)).square().sum()


def gradients(layer: nn.Module) -> dict[str, Tensor]:
    return {name: x.grad for name, x in layer.named_parameters()}


def test_diff_attention_ddp(tmp_path: Path) -> None:
    members = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(tmp_path)]) for rank in range(2)
    ]
    try:
        assert [member.wait(timeout=240) for member in members] == [0, 0]
    finally:
        for member in members:
            member.kill()
    layer = make_layer()
    ((loss(layer, 0) + loss(layer, 1)) / 2).backward()
    expected = gradients(layer)
    for rank in range(2):
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert found.keys() == expected.keys()
        for name, x in found.items():
            torch.testing.assert_close(x, expected[name])


def member(rank: int, folder: Path) -> None:
    """One process of the group: writes the gradients that it ends with."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    layer = make_layer()
    wrapped = DistributedDataParallel(layer)
    loss(wrapped, rank).backward()
    save_file(gradients(layer), folder / f"{rank}.safetensors")
    dist.barrier()
    # a wrapper that is freed while gloo's thread still holds its last sum can wait for it forever
    os._exit(0)


if __name__ == "__main__":
    member(int(sys.argv[1]), Path(sys.argv[2]))
