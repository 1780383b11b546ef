"""Compiles the kernels of `ops.gpu` for a GPU that need not be there, and prints their names.

Run by `test_gpu` in a process of its own: Triton is told of a device, and nothing is launched.
The interpreter takes what the compiler does not, so this is the other half of its tests.
"""

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from dnformer.ops import gpu
from dnformer.ops.flat import Inputs
from dnformer.ops.types import Transposed


class Device:
    """What Triton asks of a driver before it launches."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        # by which Triton remembers the target
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


def with_lambda(dtype: torch.dtype, squash: str, *, heads: int, width: int, hidden: int) -> Inputs:
    index = torch.tensor([0, 600, 600]), torch.zeros(600, dtype=torch.int64)
    nodes = [(2, heads, 2 * width), (3, heads, 2 * width), (3, heads, width), (2, hidden)]
    shapes = [*nodes, (3, hidden), (heads, hidden), (heads,), (600, heads)]
    tensors = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    return Inputs(*index, *tensors, seed=torch.tensor(1), p=0.1, squash=squash)


def without(dtype: torch.dtype) -> Inputs:
    x = with_lambda(dtype, "", heads=2, width=8, hidden=0)
    none = dict.fromkeys(("u", "w", "weight", "lam_bias", "bias", "seed"))
    return x._replace(**none)


def main() -> None:
    names = set()
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, warmup: bool, **kwargs: Any) -> None:
        run(self, *args, warmup=True, **kwargs)
        names.add(self.__name__)

    JITFunction.run = compile_only
    for capability, x in (
        (80, with_lambda(torch.bfloat16, "softplus", heads=2, width=32, hidden=32)),
        (90, with_lambda(torch.float64, "sigmoid", heads=3, width=5, hidden=7)),
        (90, without(torch.float32)),
    ):
        driver.set_active(Device(capability))
        outputs = gpu.forward(x)
        larger = Transposed(torch.zeros(4), torch.zeros(700), torch.zeros(700))
        index = Transposed(*(t.int() for t in larger))
        gpu.backward(x, index, outputs, torch.zeros_like(outputs.out))
    print(*sorted(names))


if __name__ == "__main__":
    main()
