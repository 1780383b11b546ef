"""Batches on their way to a device: copied on a stream of their own, ahead of their use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from dnformer.loader.features import FeatureGather, decode
from dnformer.loader.source import Access, DeviceRows

Array = npt.NDArray[Any]


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream beside the current one, all of it done at the end; nothing on the CPU."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield
    # this thread has nothing else to do, and its host memory may then be used again
    stream.synchronize()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`, on its way there in the current stream, from page-locked memory.

    A CSR tensor, whose parts cannot be pinned together, is there when this returns.
    """
    if device.type != "cuda" or tensor.layout != torch.strided:
        return tensor.to(device)
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    return pinned.to(device, non_blocking=True)


def move(batch: Data, device: torch.device) -> Data:
    """`batch` with all tensors on `device`; the caller keeps `batch` until the copies are done."""

    def one(value: Any) -> Any:
        if isinstance(value, EdgeIndex):
            size = value.sparse_size()
            moved = to_device(value.as_tensor(), device)
            return EdgeIndex(moved, sparse_size=size, sort_order=value.sort_order)
        return to_device(value, device) if isinstance(value, Tensor) else value

    return Data(**{name: one(value) for name, value in batch.to_dict().items()})


def hand_over(batch: Data, device: torch.device) -> None:
    """Says that the current stream uses `batch`, whose memory another stream allocated."""
    if device.type != "cuda":
        return
    stream = torch.cuda.current_stream(device)
    for tensor in memory_of(batch):
        tensor.record_stream(stream)


def memory_of(batch: Data) -> Iterator[Tensor]:
    """Strided tensors that hold all memory of a batch's tensors."""
    for value in batch.to_dict().values():
        if isinstance(value, EdgeIndex):
            yield value.as_tensor()
        elif isinstance(value, Tensor) and value.layout == torch.sparse_csr:
            yield from (value.crow_indices(), value.col_indices(), value.values())
        elif isinstance(value, Tensor):
            yield value


@final
class DeviceGather:
    """Features of nodes on a device: hot rows from there, the others from a host's gather.

    Args:
        gather: of the host, `raw`.
        hot: rows on the device.
        raw: give features as they are stored; False: float32.
    """

    def __init__(self, gather: FeatureGather, hot: DeviceRows, *, raw: bool) -> None:
        self._gather, self._hot, self._raw = gather, hot, raw
        self._scale = gather.scale

    def take(self, ids: Array) -> tuple[Tensor, Access]:
        """Features `[len(ids), F]` of the nodes `ids`, and what they took; in a `side_stream`."""
        rows, device = self._hot.x, self._hot.x.device
        slots, hits = self._hot.slots.find(ids)
        missed, there = np.flatnonzero(slots < 0), np.flatnonzero(slots >= 0)
        part, access = self._gather.take(ids[missed])
        x = rows.new_empty((len(ids), rows.size(1)))
        missed_rows, hit_rows, at = (
            to_device(torch.from_numpy(index), device) for index in (missed, there, slots[there])
        )
        x.index_copy_(0, hit_rows, rows.index_select(0, at))
        x.index_copy_(0, missed_rows, to_device(part, device))
        if device.type == "cuda":
            # `part` goes back to its pool with this call
            torch.cuda.current_stream(device).synchronize()
        if not self._raw:
            scale = {} if self._scale is None else {"x_scale": self._scale.to(device)}
            x = decode(Data(x=x, **scale), torch.float32)
        return x, Access(len(ids), hits + access.hits, access.bytes_read)
