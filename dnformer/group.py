"""The workers of a run as one group: sums and broadcasts, nothing to do for a single one."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

# values above which a sum of two halves takes half the time
_LARGE = 1 << 16


@dataclass(frozen=True)
class Group:
    """Rank `rank` of `world_size` workers; torch.distributed is set up when there are several."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor` summed over all workers, in place."""
        if self.world_size == 1:
            return tensor
        # gloo has two threads: one adds what came while the other waits for the network
        halves = self.device.type == "cpu" and tensor.numel() > _LARGE
        parts = tensor.view(-1).chunk(2) if halves else (tensor,)
        for work in [dist.all_reduce(part, async_op=True) for part in parts]:
            work.wait()
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on any worker; every worker calls it."""
        return bool(self.sum_(torch.tensor(int(flag), device=self.device)))

    def broadcast(self, data: bytes | None) -> bytes | None:
        """Rank 0's `data` on every rank."""
        if self.world_size == 1:
            return data
        length = torch.tensor([-1 if data is None else len(data)], device=self.device)
        dist.broadcast(length, src=0)
        if int(length) <= 0:
            return None if int(length) < 0 else b""
        if data is None or self.rank > 0:
            data = bytes(int(length))
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        dist.broadcast(content, src=0)
        return content.cpu().numpy().tobytes()
