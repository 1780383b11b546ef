"""Training steps on sampled batches. Run as a program, it compares compiled and plain blocks.

A process of its own, as torch.compile cannot see through the checks of shapes that tests add.
"""

import contextlib
import json
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from dnformer.nn import DNFormer

Batch = tuple[Tensor, Tensor, list[int], list[int]]


def sampled(num_seeds: int) -> Batch:
    """A batch of two hops, each node with three neighbours."""
    generator = torch.Generator().manual_seed(num_seeds)
    nodes = [num_seeds, 3 * num_seeds + 1, 9 * num_seeds + 2]
    edges = [3 * num_seeds, 3 * nodes[1]]
    row = torch.cat([
        torch.randint(nodes[0] + nodes[1], (edges[0],), generator=generator),
        torch.randint(sum(nodes), (edges[1],), generator=generator),
    ])  # fmt: skip
    col = torch.arange(sum(edges)) // 3
    x = torch.randn(sum(nodes), 6, generator=generator)
    return x, torch.stack([row, col]), nodes, edges


def make(**settings: Any) -> DNFormer:
    torch.manual_seed(0)
    return DNFormer(6, 8, 3, 2, 2, dropout=0.4, attention_dropout=0.3, **settings)


def results(model: nn.Module, batch: Batch, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Output, all gradients and what torch's generator gives afterwards, of one training step."""
    torch.manual_seed(7)
    model.zero_grad()
    context = torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()
    with context:
        out = model(*batch)
    out.square().sum().backward()
    return [out, *(p.grad for p in model.parameters()), torch.rand(3)]


def compare() -> dict[str, Any]:
    """Ten batches of as many sizes, with and without checkpointing of the compiled blocks."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"equal": [], "graphs": []}
    plain = make()
    for checkpointing in (False, True):
        counters.clear()
        compiled = make(activation_checkpointing=checkpointing)
        compiled.compile_blocks("aot_eager")
        found["names"] = list(compiled.state_dict()) == list(plain.state_dict())
        # no size equals another: torch.compile would take them for one
        for num_seeds in range(11, 21):
            batch = sampled(num_seeds)
            pairs = zip(results(plain, batch), results(compiled, batch), strict=True)
            found["equal"].append(all(torch.equal(*pair) for pair in pairs))
        found["graphs"].append(counters["stats"]["unique_graphs"])
        torch._dynamo.reset()
    return found


if __name__ == "__main__":
    print(json.dumps(compare()))
