"""The operator in DistributedDataParallel: two processes, of which this file is one."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dnformer.nn import DiffAttention

EDGES = torch.tensor([[0, 1, 2, 3, 3, 0, 4, 2], [1, 1, 1, 2, 2, 3, 0, 0]])


def loss(layer: nn.Module, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return layer(torch.randn(5, 6, generator=generator), EDGES.roll(rank, 1)).square().sum()


def make_layer() -> DiffAttention:
    torch.manual_seed(0)
    return DiffAttention(6, heads=2)


def member(rank: int, address: str) -> dict[str, Tensor]:
    """The gradients that one of the two processes ends with."""
    dist.init_process_group(
        "gloo", init_method=address, rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    try:
        layer = DistributedDataParallel(make_layer())
        loss(layer, rank).backward()
        return {name: x.grad for name, x in layer.module.named_parameters()}
    finally:
        dist.destroy_process_group()


def test_diff_attention_ddp(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/meet"
    other = subprocess.Popen([sys.executable, __file__, address])
    found = member(0, address)
    assert other.wait(timeout=120) == 0
    layer = make_layer()
    ((loss(layer, 0) + loss(layer, 1)) / 2).backward()
    assert found
    for name, x in layer.named_parameters():
        torch.testing.assert_close(found[name], x.grad)


if __name__ == "__main__":
    member(1, sys.argv[1])
